//! What one leadership remembers of the change that is under way. It dies with the leadership, and nothing is lost with it but
//! patience.

use std::collections::BTreeMap;
use std::time::Duration;

use polis_consensus::CatchUp;
use polis_identity::NodeId;
use tokio::time::Instant;

use super::margin::Operation;
use super::plan::Attempt;

/// What the leader is doing.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    pub(super) operation: Operation,
    pub(super) since: Instant,
    /// For people.
    pub(super) waiting_for: String,
}

/// A change of a node that is not made, for now or for good, and why.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) node: NodeId,
    pub(super) reason: String,
}

/// What one leadership remembers.
#[derive(Default)]
pub(super) struct Memory {
    /// The change that the rest is about.
    pub(super) change: Option<Operation>,
    pub(super) began: Option<Instant>,
    pub(super) has_started: bool,
    /// When something has last got further.
    pub(super) advanced: Option<Instant>,
    /// Entries that the joiner had at that time.
    pub(super) matched: u64,
    /// Since when the change is refused without a break, and why.
    pub(super) refused: Option<(Instant, String)>,
    /// When the last member has split its key, or when the first was waited for.
    pub(super) split: Option<Instant>,
    /// Members that had split their keys at that time, or need not.
    pub(super) ready: usize,
    /// Whose splits are waited for, for people.
    pub(super) unsplit: String,
    /// When leadership was handed over.
    pub(super) handed_over: Option<Instant>,
    /// Who rests, and since when.
    pub(super) resting: BTreeMap<NodeId, Instant>,
    /// The last error, which is not logged again as long as it stays the same.
    pub(super) said: String,
    /// What was last logged of a member that cannot be removed while no change is under way.
    pub(super) obstacle: String,
}

impl Memory {
    /// Begins anew when there is another change.
    pub(super) fn turn_to(&mut self, change: Option<Operation>) {
        if self.change != change {
            let now = Instant::now();
            let resting = std::mem::take(&mut self.resting);
            let said = std::mem::take(&mut self.said);
            *self = Self { change, began: Some(now), advanced: Some(now), resting, said, ..Self::default() };
        }
    }

    pub(super) fn attempt(&self) -> Attempt {
        let elapsed = |since: Option<Instant>| since.map_or(Duration::ZERO, |since| since.elapsed());
        Attempt {
            has_started: self.has_started,
            stalled_for: elapsed(self.advanced),
            refused_for: elapsed(self.refused.as_ref().map(|(since, _)| *since)),
            unsplit_for: elapsed(self.split),
        }
    }

    pub(super) fn advance(&mut self) {
        self.advanced = Some(Instant::now());
    }

    /// Notes how far the joiner is; whether it is ready.
    pub(super) fn note_progress(&mut self, progress: CatchUp) -> bool {
        self.has_started |= progress.matched > 0;
        if progress.matched > self.matched {
            self.matched = progress.matched;
            self.advance();
        }
        progress.is_ready
    }

    /// Notes how many members have split their keys, while others are waited for. Patience begins anew with each that is more than
    /// ever before in this change.
    pub(super) fn note_splits(&mut self, ready: usize, waiting_for: String) {
        if self.split.is_none() || ready > self.ready {
            self.split = Some(Instant::now());
            self.ready = ready;
        }
        self.unsplit = waiting_for;
    }

    /// Whether this obstacle is another than the one before.
    pub(super) fn is_news(&mut self, obstacle: &str) -> bool {
        let is_news = self.obstacle != obstacle;
        if is_news {
            obstacle.clone_into(&mut self.obstacle);
        }
        is_news
    }

    /// Notes that the change is not refused at this moment.
    pub(super) fn accept(&mut self) {
        self.refused = None;
    }

    /// Notes that the change is refused, and why now.
    pub(super) fn refuse(&mut self, reason: String) {
        let since = self.refused.take().map_or_else(Instant::now, |(since, _)| since);
        self.refused = Some((since, reason));
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::node;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_refusal_without_a_break_uses_up_the_patience() {
        let second = Duration::from_secs(1);
        let mut memory = Memory::default();
        memory.turn_to(Some(Operation::Remove(node(1))));
        memory.refuse("one is down".into());
        tokio::time::advance(second).await;
        memory.refuse("another is down".into());
        tokio::time::advance(second).await;
        assert_eq!(memory.attempt().refused_for, second * 2);
        memory.accept();
        assert_eq!(memory.attempt().refused_for, Duration::ZERO);
        memory.refuse("one is down again".into());
        tokio::time::advance(second).await;
        assert_eq!(memory.attempt().refused_for, second);
    }

    #[tokio::test(start_paused = true)]
    async fn patience_with_splits_begins_anew_with_each_that_is_done() {
        let second = Duration::from_secs(1);
        let mut memory = Memory::default();
        memory.turn_to(Some(Operation::Remove(node(1))));
        tokio::time::advance(second).await;
        assert_eq!(memory.attempt().unsplit_for, Duration::ZERO, "nobody was waited for");
        for (ready, expected) in [(1, 1), (1, 2), (2, 1), (1, 2), (2, 3), (3, 1)] {
            memory.note_splits(ready, String::new());
            tokio::time::advance(second).await;
            assert_eq!(memory.attempt().unsplit_for, second * expected, "{ready}");
        }
    }
}
