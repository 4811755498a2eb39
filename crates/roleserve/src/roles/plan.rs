//! What is to be done about the consensus member of this node, as a value. Pure.

/// What of a member is on the disk; see [`StoredMember`](crate::StoredMember).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Absent,
    Remains,
    Reserved,
    Joining,
    /// One that has not worked yet, with credentials that the cluster has replaced since.
    Outdated,
    Established,
    /// One that has worked, with credentials that the cluster has replaced since.
    Replaced,
}

/// What the member of this node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Running {
    /// None was started.
    No,
    /// It was started.
    Yes,
    /// It was started, and the cluster has removed it.
    Removed,
}

/// One step. Each can be repeated, and whatever it leaves when it is cut off, the next plan begins there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Stop the member, if it runs, and put away all that is left of it.
    Leave,
    /// The same, with a note that there is to be another.
    Renew,
    /// Note that there is to be a member.
    Reserve,
    /// Store the credentials that the cluster has issued for a new member.
    StoreCredentials,
    /// Start the member as one that joins.
    StartJoining,
    /// Start the member as one that has its data.
    StartExisting,
    /// Record that a member that has joined works.
    FinishJoin,
}

/// What is to be done when the node has the role of a consensus member or not. `works` says whether the member has answered for
/// the cluster in this life.
pub(crate) fn plan(has_role: bool, stored: Stored, running: Running, works: bool) -> &'static [Step] {
    match (has_role, stored, running) {
        (false, Stored::Absent, Running::No) => &[],
        (
            false,
            Stored::Absent
            | Stored::Remains
            | Stored::Reserved
            | Stored::Joining
            | Stored::Outdated
            | Stored::Established
            | Stored::Replaced,
            Running::No | Running::Yes | Running::Removed,
        ) => &[Step::Leave],
        // Its etcd says so and the cluster does not yet: it will take the role, or issue other credentials. Until then those who stay may
        // not know of the removal themselves, and need this vote to find out.
        (true, Stored::Joining | Stored::Established, Running::Removed) => &[],
        // The role was taken and given back while nobody looked (window W23).
        (
            true,
            Stored::Absent | Stored::Remains | Stored::Reserved | Stored::Outdated | Stored::Replaced,
            Running::Removed,
        )
        | (true, Stored::Remains, Running::No)
        | (true, Stored::Outdated, Running::No | Running::Yes) => {
            &[Step::Renew, Step::StoreCredentials, Step::StartJoining]
        }
        (true, Stored::Absent, Running::No) => &[Step::Reserve, Step::StoreCredentials, Step::StartJoining],
        (true, Stored::Reserved, Running::No) => &[Step::StoreCredentials, Step::StartJoining],
        (true, Stored::Joining, Running::No) => &[Step::StartJoining],
        (true, Stored::Established | Stored::Replaced, Running::No) => &[Step::StartExisting],
        (true, Stored::Joining, Running::Yes) if works => &[Step::FinishJoin],
        (
            true,
            Stored::Absent
            | Stored::Remains
            | Stored::Reserved
            | Stored::Joining
            | Stored::Established
            | Stored::Replaced,
            Running::Yes,
        ) => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: [Stored; 7] = [
        Stored::Absent,
        Stored::Remains,
        Stored::Reserved,
        Stored::Joining,
        Stored::Outdated,
        Stored::Established,
        Stored::Replaced,
    ];
    const RUNNING: [Running; 3] = [Running::No, Running::Yes, Running::Removed];

    #[test]
    fn the_table() {
        use Step::{FinishJoin, Leave, Renew, Reserve, StartExisting, StartJoining, StoreCredentials};
        for (has_role, stored, running, works, expected) in [
            (true, Stored::Absent, Running::No, false, &[Reserve, StoreCredentials, StartJoining][..]),
            (true, Stored::Remains, Running::No, false, &[Renew, StoreCredentials, StartJoining]),
            (true, Stored::Reserved, Running::No, false, &[StoreCredentials, StartJoining]),
            (true, Stored::Joining, Running::No, false, &[StartJoining]),
            (true, Stored::Established, Running::No, false, &[StartExisting]),
            (true, Stored::Joining, Running::Yes, false, &[]),
            (true, Stored::Outdated, Running::Yes, false, &[Renew, StoreCredentials, StartJoining]),
            (true, Stored::Outdated, Running::No, false, &[Renew, StoreCredentials, StartJoining]),
            (false, Stored::Outdated, Running::Yes, false, &[Leave]),
            (true, Stored::Joining, Running::Yes, true, &[FinishJoin]),
            (true, Stored::Established, Running::Yes, true, &[]),
            (true, Stored::Established, Running::Removed, false, &[]),
            (true, Stored::Joining, Running::Removed, true, &[]),
            (true, Stored::Replaced, Running::Removed, false, &[Renew, StoreCredentials, StartJoining]),
            (true, Stored::Replaced, Running::No, false, &[StartExisting]),
            (true, Stored::Replaced, Running::Yes, true, &[]),
            (true, Stored::Outdated, Running::Removed, false, &[Renew, StoreCredentials, StartJoining]),
            (false, Stored::Established, Running::Yes, true, &[Leave]),
            (false, Stored::Established, Running::Removed, false, &[Leave]),
            (false, Stored::Joining, Running::Yes, false, &[Leave]),
            (false, Stored::Remains, Running::No, false, &[Leave]),
            (false, Stored::Reserved, Running::No, false, &[Leave]),
            (false, Stored::Absent, Running::Yes, true, &[Leave]),
            (false, Stored::Absent, Running::No, false, &[]),
        ] {
            assert_eq!(plan(has_role, stored, running, works), expected, "{has_role} {stored:?} {running:?} {works}");
        }
    }

    /// What a step leaves behind when it is done.
    fn apply(step: Step, stored: Stored, running: Running) -> (Stored, Running) {
        match step {
            Step::Leave => (Stored::Absent, Running::No),
            Step::Renew => (Stored::Reserved, Running::No),
            Step::Reserve => {
                assert_eq!((stored, running), (Stored::Absent, Running::No));
                (Stored::Reserved, Running::No)
            }
            Step::StoreCredentials => {
                assert_eq!((stored, running), (Stored::Reserved, Running::No), "nothing of another member is there");
                (Stored::Joining, Running::No)
            }
            Step::StartJoining => {
                assert_eq!((stored, running), (Stored::Joining, Running::No));
                (Stored::Joining, Running::Yes)
            }
            Step::StartExisting => {
                assert!(matches!(stored, Stored::Established | Stored::Replaced) && running == Running::No);
                (stored, Running::Yes)
            }
            Step::FinishJoin => {
                assert_eq!((stored, running), (Stored::Joining, Running::Yes));
                (Stored::Established, Running::Yes)
            }
        }
    }

    /// What a step may leave behind when the process is killed in it, beside what was there before and what it leaves when done.
    const fn cut(step: Step, stored: Stored) -> &'static [Stored] {
        match (step, stored) {
            // The credentials are gone; the data are not, or there were none.
            (Step::Leave, _) => &[Stored::Remains, Stored::Reserved],
            // The note is there beside the credentials; or these are gone.
            (Step::Renew, Stored::Established | Stored::Replaced) => {
                &[Stored::Joining, Stored::Outdated, Stored::Remains]
            }
            (Step::Renew, _) => &[Stored::Remains],
            (
                Step::Reserve | Step::StoreCredentials | Step::StartJoining | Step::StartExisting | Step::FinishJoin,
                _,
            ) => &[],
        }
    }

    #[test]
    fn from_every_state_the_plan_leads_to_what_is_wanted_and_rests_there() {
        for has_role in [true, false] {
            for stored in STORED {
                for running in RUNNING {
                    let mut state = (stored, running);
                    for step in plan(has_role, stored, running, false) {
                        state = apply(*step, state.0, state.1);
                    }
                    let works = state.1 == Running::Yes;
                    for step in plan(has_role, state.0, state.1, works) {
                        state = apply(*step, state.0, state.1);
                    }
                    let expected = match (has_role, stored, running) {
                        (true, Stored::Joining | Stored::Established, Running::Removed) => Running::Removed,
                        (true, ..) => Running::Yes,
                        (false, ..) => Running::No,
                    };
                    assert_eq!(state.1, expected, "{has_role} {stored:?} {running:?}");
                    assert_eq!(plan(has_role, state.0, state.1, true), [], "{has_role} {stored:?} {running:?}");
                }
            }
        }
    }

    #[test]
    fn a_kill_within_any_step_is_made_good_at_the_next_start() {
        for has_role in [true, false] {
            for stored in STORED {
                for running in RUNNING {
                    let steps = plan(has_role, stored, running, true);
                    let mut before = (stored, running);
                    for step in steps {
                        let after = apply(*step, before.0, before.1);
                        for left in [before.0, after.0].iter().chain(cut(*step, before.0)).copied() {
                            // A new process runs nothing.
                            let mut state = (left, Running::No);
                            for step in plan(has_role, state.0, state.1, false) {
                                state = apply(*step, state.0, state.1);
                            }
                            let expected = if has_role { Running::Yes } else { Running::No };
                            assert_eq!(state.1, expected, "{has_role} {stored:?} {running:?} {step:?} {left:?}");
                        }
                        before = after;
                    }
                }
            }
        }
    }
}
