//! The rules of a membership change, each of which can be broken.

/// A rule of `cold-start.md`, "Membership change", that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    /// All are kept.
    Nothing,
    /// A: the consensus is told without a list of the members before and after.
    ListOfBoth,
    /// B: files are made with the shares that will be needed, and not with the fewer of before and after.
    FewerShares,
    /// B: nobody waits for the members to split their keys.
    WaitForReports,
    /// C and D are swapped: the keys are split to the members after the change before the consensus is told.
    CallBeforeList,
    /// D: the keys are not split again after the change.
    SplitAfterwards,
    /// E: a removal is called finished at once.
    CountBeforeFinished,
}
