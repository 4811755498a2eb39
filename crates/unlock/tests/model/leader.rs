//! The leader's side of a membership change, steps A to E, as the document says it.

use std::collections::BTreeSet;

use polis_unlock::quorum;

use crate::rules::Broken;
use crate::world::{Change, Removal, World};

impl World {
    /// One step of the leader, if a quorum runs that has one. Returns whether anything changed.
    pub(crate) fn lead(&mut self) -> bool {
        let Some(side) = [false, true].into_iter().find(|side| self.runs(*side)) else { return false };
        if self.finish_removals() {
            return true;
        }
        match self.kept.change {
            None => self.begin(side),
            Some(change) if !self.kept.is_called => self.call(change, side),
            Some(change) => self.complete(change),
        }
    }

    fn voters_after(&self, change: Change) -> BTreeSet<usize> {
        let mut voters = self.kept.voters.clone();
        if change.adds {
            voters.insert(change.node);
        } else {
            voters.remove(&change.node);
        }
        voters
    }

    /// A: the intent, and the list of both, in one transaction.
    fn begin(&mut self, side: bool) -> bool {
        let Some(change) = self.kept.queue.pop_front() else { return false };
        let is_voter = self.kept.voters.contains(&change.node);
        let makes_sense = if change.adds {
            !is_voter && self.kept.voters.len() < 9 && self.is_open_on(change.node, side)
        } else {
            is_voter && self.kept.voters.len() > 1
        };
        if makes_sense && !self.kept.deleted.contains(&change.node) {
            match self.broken {
                Broken::ListOfBoth => {}
                Broken::CallBeforeList => self.publish_after(change),
                Broken::Nothing
                | Broken::FewerShares
                | Broken::WaitForReports
                | Broken::SplitAfterwards
                | Broken::CountBeforeFinished => self.kept.list = self.list_of_both(change),
            }
            (self.kept.change, self.kept.is_called) = (Some(change), false);
        }
        true
    }

    fn publish_after(&mut self, change: Change) {
        let epoch = self.kept.list.list().epoch().next();
        self.kept.list = Self::plain_list(&self.voters_after(change), epoch, self.two_confirmed);
    }

    /// B: waits for the reports. C: tells the consensus, if it then still has a quorum.
    fn call(&mut self, change: Change, side: bool) -> bool {
        let after = self.voters_after(change);
        let is_in_reach = |node: &usize| self.is_open_on(*node, side);
        if after.iter().filter(|node| is_in_reach(node)).count() < quorum(after.len()) {
            return false;
        }
        let epoch = self.kept.list.list().epoch();
        let has_reported = |node: &usize| self.kept.reports.get(node).is_some_and(|report| report.epoch == epoch);
        let mut holders = self.kept.voters.union(&after);
        let is_ready = holders.all(|node| !is_in_reach(node) || has_reported(node) || self.leaves_early(change, *node))
            && after.iter().filter(|node| has_reported(node)).count() >= quorum(after.len());
        match self.broken {
            Broken::WaitForReports | Broken::ListOfBoth => {}
            Broken::Nothing
            | Broken::FewerShares
            | Broken::CallBeforeList
            | Broken::SplitAfterwards
            | Broken::CountBeforeFinished => {
                if !is_ready {
                    return false;
                }
            }
        }
        let away: Vec<usize> = after.iter().filter(|node| !is_in_reach(node)).copied().collect();
        self.excused.extend(away);
        self.kept.voters = after;
        self.kept.is_called = true;
        true
    }

    /// Whether the node is already off the list, as a broken rule has it.
    fn leaves_early(&self, change: Change, node: usize) -> bool {
        self.broken == Broken::CallBeforeList && !change.adds && change.node == node
    }

    /// D: the list after the change.
    fn complete(&mut self, change: Change) -> bool {
        let during = self.kept.list.list().epoch();
        let epoch = during.next();
        self.kept.list = Self::plain_list(&self.kept.voters, epoch, self.two_confirmed);
        if !change.adds {
            let node = change.node;
            self.kept.deleted.insert(node);
            let report = self.kept.reports.get(&node);
            // What it has made of lists that it met without a report is not known.
            let needed =
                report.map_or(1, |report| if report.epoch == during { report.needed } else { report.needed.min(1) });
            let holders = report.map(|report| report.holders.clone()).unwrap_or_default();
            let helpers = holders.union(&self.kept.voters).copied().collect();
            self.kept.removals.push(Removal { node, epoch, needed, helpers, is_finished: false });
        }
        self.kept.change = None;
        true
    }

    /// E: who could still help a removed node.
    fn finish_removals(&mut self) -> bool {
        let (holds, broken) = (&self.kept.holds, self.broken);
        let mut changed = false;
        for removal in self.kept.removals.iter_mut().filter(|removal| !removal.is_finished) {
            let lacks = |node: &&usize| holds.get(node).is_none_or(|epoch| *epoch < removal.epoch);
            let lacking = removal.helpers.iter().filter(|node| **node != removal.node).filter(lacks).count();
            if lacking < usize::from(removal.needed.max(1)) || broken == Broken::CountBeforeFinished {
                removal.is_finished = true;
                changed = true;
            }
        }
        changed
    }
}
