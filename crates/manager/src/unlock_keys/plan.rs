//! What a running node does next about the cluster's half of the key of its data: from all that it knows to one step. Pure.
//!
//! After each step everything is looked at anew, so that it does not matter at which of them the node dies. What is there at each
//! moment is enough to open the data: a copy in the journal, the unlock file, or, for a node that is no member of the consensus, the
//! running cluster. The order follows from that: a copy is made before anything else where there has to be one, and where there is to be
//! none it goes last, when the shares that take its place have been tried.

use polis_unlock::KeyCheckValue;

/// What is asked of the node, by the newest member list or, before one names it, by how the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// Nobody has said it, so that everything stays where it is.
    Unsaid,
    /// A copy of its key, beside its own half.
    Copy,
    /// Shares of its key with the other members, of which so many give it.
    Shares {
        /// How many.
        needed: u8,
    },
    /// Nothing: it is no member of the consensus, and the cluster gives it its key.
    Guest,
}

/// All that a step depends on. Keys are told by their check values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// What is asked.
    pub(super) demand: Demand,
    /// The key that has opened the data, or was added to them since.
    pub(super) opened: KeyCheckValue,
    /// The key that is to take its place, where the node knows one. It may not be durable yet.
    pub(super) next: Option<KeyCheckValue>,
    /// The copy in the journal.
    pub(super) copy: Option<Copied>,
    /// The unlock file, if it can be believed.
    pub(super) file: Option<Filed>,
    /// Which key the cluster keeps, if any, read with a quorum; `None` while nobody says so.
    pub(super) kept: Option<Option<KeyCheckValue>>,
    /// How many keys open the data.
    pub(super) keys: usize,
    /// An operator wants the key to be replaced, and that has not begun.
    pub(super) is_rekey_asked: bool,
    /// It may have been a member, so that a copy of its key has perhaps lain here for long: all but one that has registered since this
    /// start, and that no list has named.
    pub(super) may_have_been_member: bool,
}

/// A copy of the key in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copied {
    /// The one that opens.
    pub(super) current: KeyCheckValue,
    /// The one that will.
    pub(super) pending: Option<KeyCheckValue>,
}

/// What the unlock file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filed {
    /// The split of the key that opens.
    pub(super) current: Piece,
    /// The split of the one that will.
    pub(super) pending: Option<Piece>,
}

/// One key, split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which.
    pub(super) key: KeyCheckValue,
    /// How many shares give it.
    pub(super) needed: u8,
    /// Whether it is split as the newest member list asks.
    pub(super) fits: bool,
    /// Whether the others have given it back, since this start, from this very split.
    pub(super) is_verified: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Put the key that opens the data into the journal, alone, in both generations.
    Copy,
    /// Take the copy out of the journal, in both generations.
    DropCopy,
    /// Make the key that is to take the place of the present one.
    Begin {
        /// Whether it is put into the journal, beside the present one. Where shares are to open the data, it never lies there.
        in_journal: bool,
    },
    /// Write the unlock file, for the newest list: the key that opens the data, and the next one if there is one. What is split already as
    /// the list asks stays as it is.
    Split,
    /// Have the next key open the data, too. From then on it is the one that opens them.
    AddKey,
    /// Have the cluster keep the key that opens the data.
    Tell,
    /// Have nothing else open the data.
    RemoveOthers,
    /// Remove the unlock file. A next key that was split is not used any more, and the wish to replace the key is left.
    Forget,
    /// Wait for something, and look again then.
    Wait(Waiting),
    /// Nothing.
    Settled,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The cluster's word about which key it keeps.
    Cluster,
    /// The drill of this key: enough others that open their shares.
    Drill(KeyCheckValue),
    /// A list that says what is to become of the key that an operator wants to have replaced.
    List,
}

/// The next step.
pub(super) fn plan(view: &View) -> Step {
    match view.demand {
        Demand::Unsaid => unsaid(view),
        Demand::Copy => with_copy(view),
        Demand::Shares { needed } => with_shares(view, needed),
        Demand::Guest => guest(view),
    }
}

impl View {
    fn has_copy_of(&self, key: KeyCheckValue) -> bool {
        self.copy.is_some_and(|copy| copy.current == key || copy.pending == Some(key))
    }

    /// The split of this key in the unlock file.
    fn piece(&self, key: KeyCheckValue) -> Option<Piece> {
        let file = self.file?;
        [Some(file.current), file.pending].into_iter().flatten().find(|piece| piece.key == key)
    }

    /// Whether the key is to be replaced: somebody has asked for it, or it had begun in another way than is asked for now.
    const fn is_change_wanted(&self) -> bool {
        self.is_rekey_asked || self.next.is_some()
    }

    /// Waits for the cluster's word and tells it the key, until it keeps the one that opens the data. Nothing is taken away before.
    fn until_kept(&self) -> Option<Step> {
        match self.kept {
            None => Some(Step::Wait(Waiting::Cluster)),
            Some(kept) if kept != Some(self.opened) => Some(Step::Tell),
            Some(_) => None,
        }
    }

    /// What a node does that keeps a copy of its key in the journal: brings a change of the key to its end, and leaves one key.
    fn in_the_journal(&self) -> Option<Step> {
        if self.next.is_some() && self.copy.and_then(|copy| copy.pending) == self.next {
            return Some(Step::AddKey);
        }
        if self.keys > 1 {
            return Some(Step::RemoveOthers);
        }
        (self.copy != Some(Copied { current: self.opened, pending: None })).then_some(Step::Copy)
    }
}

fn unsaid(view: &View) -> Step {
    if let Some(step) = view.until_kept() {
        return step;
    }
    let has_copy = view.has_copy_of(view.opened);
    if has_copy && let Some(step) = view.in_the_journal() {
        return step;
    }
    match (view.is_change_wanted(), has_copy) {
        (true, true) => Step::Begin { in_journal: true },
        (true, false) => Step::Wait(Waiting::List),
        (false, _) => Step::Settled,
    }
}

fn with_copy(view: &View) -> Step {
    if !view.has_copy_of(view.opened) {
        return Step::Copy;
    }
    if let Some(step) = view.until_kept().or_else(|| view.in_the_journal()) {
        return step;
    }
    if view.file.is_some() {
        // The shares of others are of no use any more, and whoever finds the file could still ask for them.
        return Step::Forget;
    }
    if view.is_change_wanted() { Step::Begin { in_journal: true } } else { Step::Settled }
}

fn with_shares(view: &View, needed: u8) -> Step {
    if let Some(step) = file_step(view, needed) {
        return step;
    }
    if view.kept.is_some()
        && let Some(step) = view.until_kept()
    {
        return step;
    }
    let is_verified = |key: &KeyCheckValue| view.piece(*key).is_some_and(|piece| piece.is_verified);
    if let Some(key) = [Some(view.opened), view.next].into_iter().flatten().find(|key| !is_verified(key)) {
        return Step::Wait(Waiting::Drill(key));
    }
    if let Some(step) = view.until_kept() {
        return step;
    }
    if view.next.is_some() {
        return Step::AddKey;
    }
    if view.has_copy_of(view.opened) {
        // What was readable for long is replaced. Then the copy is one of a key that is not needed any more.
        return Step::Begin { in_journal: false };
    }
    if view.copy.is_some() {
        return Step::DropCopy;
    }
    if view.keys > 1 {
        return Step::RemoveOthers;
    }
    if view.file.is_some_and(|file| file.pending.is_some()) {
        return Step::Split;
    }
    if view.is_rekey_asked { Step::Begin { in_journal: false } } else { Step::Settled }
}

/// What is to be done so that the unlock file has the key that opens the data, and the next one, split as the list asks.
fn file_step(view: &View, needed: u8) -> Option<Step> {
    let Some(file) = view.file else { return Some(Step::Split) };
    let opened = view.piece(view.opened);
    let is_begun = file.current.key == view.opened;
    let next = file.pending.filter(|piece| is_begun && Some(piece.key) == view.next);
    let is_rising = |piece: Piece| !piece.fits && piece.needed < needed;
    // Fewer shares than now have been enough for a key: another one takes its place. And where a change was cut off, so that nobody knows
    // the next key any more, or the cluster has given back the one before, the wish is left.
    let is_cut_off = (is_begun && file.pending.is_some()) || opened.is_none();
    if next.is_some_and(is_rising) || (view.next.is_none() && (is_cut_off || opened.is_some_and(is_rising))) {
        return Some(Step::Begin { in_journal: false });
    }
    // A change that has got as far as the data leaves the old key in the file, up to its end or to the next list.
    let is_whole = opened.is_some_and(|piece| piece.fits) && next.is_none_or(|piece| piece.fits);
    (!is_whole || next.map(|piece| piece.key) != view.next).then_some(Step::Split)
}

fn guest(view: &View) -> Step {
    if let Some(step) = view.until_kept() {
        return step;
    }
    if view.next.is_some() {
        return Step::AddKey;
    }
    // One that has just come in has never had a use for its copy. What a member has had has lain here for long.
    let has_copy = view.may_have_been_member && view.has_copy_of(view.opened);
    if has_copy || view.piece(view.opened).is_some() {
        return Step::Begin { in_journal: false };
    }
    if view.file.is_some() {
        return Step::Forget;
    }
    if view.copy.is_some() {
        return Step::DropCopy;
    }
    if view.keys > 1 {
        return Step::RemoveOthers;
    }
    if view.is_rekey_asked { Step::Begin { in_journal: false } } else { Step::Settled }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
