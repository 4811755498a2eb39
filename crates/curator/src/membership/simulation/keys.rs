//! How the nodes of a small cluster keep their keys: the lists that they have heard of, the files that they have, and what they have
//! told of them. Each of the three moves when the test says so.

use std::collections::{BTreeMap, BTreeSet};

use polis_identity::NodeId;
use polis_unlock::{Epoch, Standing, quorum};

use super::super::splits::{Keeping, Split, Unfinished, least_shares, shares_needed_during};

/// Lists, files and reports.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The present list, and the epoch of it.
    pub(crate) list: BTreeMap<NodeId, Standing>,
    pub(crate) epoch: Epoch,
    /// The newest list that each node has heard of. It tells at once.
    pub(crate) holds: BTreeMap<NodeId, Epoch>,
    /// What each node has told of its file; nodes that are not here do not encrypt.
    pub(crate) told: BTreeMap<NodeId, Keeping>,
    pub(crate) unfinished: Vec<Unfinished>,
    files: BTreeMap<NodeId, Split>,
    /// Nodes that hear of lists, and do nothing about them.
    pub(crate) lazy: BTreeSet<NodeId>,
}

impl Keys {
    /// A founder that keeps a copy, and others that have nothing yet. Those in `plain` do not encrypt.
    pub(crate) fn new(founder: NodeId, all: &BTreeSet<NodeId>, plain: &BTreeSet<NodeId>) -> Self {
        let copy = Split { list: Epoch::FIRST, shares_needed: 0, holders: BTreeSet::new(), is_verified: true };
        let mut told: BTreeMap<NodeId, Keeping> =
            all.difference(plain).map(|node| (*node, Keeping::Splits(None))).collect();
        told.entry(founder).and_modify(|keeping| *keeping = Keeping::Splits(Some(copy.clone())));
        Self {
            list: BTreeMap::from([(founder, Standing::Stays)]),
            epoch: Epoch::FIRST,
            holds: BTreeMap::from([(founder, Epoch::FIRST)]),
            files: told.contains_key(&founder).then_some((founder, copy)).into_iter().collect(),
            told,
            unfinished: Vec::new(),
            lazy: BTreeSet::new(),
        }
    }

    fn voters(&self, leave_out: Standing) -> usize {
        self.list.values().filter(|standing| **standing != leave_out).count()
    }

    fn during(&self) -> usize {
        shares_needed_during(self.voters(Standing::Joins), self.voters(Standing::Leaves), false)
    }

    /// The next list: who is gone is noted, and who is back is not. Of all these nodes, `open` are known to be open.
    pub(crate) fn publish(&mut self, list: BTreeMap<NodeId, Standing>, open: &BTreeSet<NodeId>, all: &[NodeId]) {
        let (during, before) = (self.during(), Epoch { epoch: self.epoch.epoch.saturating_sub(1), ..self.epoch });
        let gone: Vec<NodeId> = self.list.keys().filter(|node| !list.contains_key(node)).copied().collect();
        self.epoch = self.epoch.next();
        for node in gone {
            if let Some(Keeping::Splits(told)) = self.told.get_mut(&node) {
                let told = told.take();
                let is_known = told.as_ref().is_some_and(|split| split.list >= before);
                let mut helpers: BTreeSet<NodeId> = self.list.keys().chain(list.keys()).copied().collect();
                helpers.extend(told.iter().flat_map(|split| &split.holders));
                helpers.extend(all.iter().filter(|_| !is_known));
                helpers.remove(&node);
                let is_open = open.contains(&node);
                let shares_needed = told.map_or(1, |split| least_shares(&split, before, during, is_open));
                self.unfinished.retain(|known| known.node != node);
                self.unfinished.push(Unfinished { node, epoch: self.epoch, shares_needed, helpers });
            }
        }
        self.unfinished.retain(|known| !list.contains_key(&known.node));
        self.list = list;
    }

    /// A node hears of the present list. Whether that is news.
    pub(crate) fn hear(&mut self, node: NodeId) -> bool {
        self.holds.insert(node, self.epoch) != Some(self.epoch)
    }

    /// A node splits its key as the list says of which it has heard. Whether that was to be done.
    pub(crate) fn split(&mut self, node: NodeId) -> bool {
        let takes_part = matches!(self.list.get(&node), Some(Standing::Stays | Standing::Joins));
        let has_heard = self.holds.get(&node) == Some(&self.epoch);
        if !takes_part || !has_heard || self.lazy.contains(&node) || !self.told.contains_key(&node) {
            return false;
        }
        let holders = self.list.keys().filter(|holder| **holder != node).copied().collect();
        let split = Split { list: self.epoch, shares_needed: self.during(), holders, is_verified: true };
        self.files.insert(node, split.clone()) != Some(split)
    }

    /// A node tells of its file; of one that is in no list it counts for nothing. Whether that is news.
    pub(crate) fn tell(&mut self, node: NodeId) -> bool {
        let Some(file) = self.files.get(&node).filter(|_| self.list.contains_key(&node)) else { return false };
        let told = Keeping::Splits(Some(file.clone()));
        self.told.get_mut(&node).is_some_and(|known| std::mem::replace(known, told.clone()) != told)
    }

    /// A node does all of it. Whether there was anything to do.
    pub(crate) fn follow(&mut self, node: NodeId) -> bool {
        let news = [self.hear(node), self.split(node), self.tell(node)];
        news.contains(&true)
    }

    /// Whether the file of a node opens with every quorum of these, one after the other.
    pub(crate) fn opens_with_every_quorum(&self, owner: NodeId, voters: &BTreeSet<NodeId>) -> bool {
        let others: Vec<NodeId> = voters.iter().filter(|node| **node != owner).copied().collect();
        let needed = quorum(voters.len()) - 1;
        let sets = (0_u32..1 << others.len()).filter(|set| set.count_ones() as usize == needed);
        sets.into_iter().all(|set| {
            let up = others.iter().enumerate().filter(|(index, _)| set >> index & 1 == 1).map(|(_, node)| *node);
            self.opens(owner, &up.collect())
        })
    }

    /// Whether a node opens while these others are up.
    fn opens(&self, owner: NodeId, others: &BTreeSet<NodeId>) -> bool {
        if !self.told.contains_key(&owner) {
            return true;
        }
        self.files.get(&owner).is_some_and(|file| file.holders.intersection(others).count() >= file.shares_needed)
    }

    /// How many have not heard of the removal of a node.
    pub(crate) fn lacking(&self, removed: NodeId) -> usize {
        let known = self.unfinished.iter().find(|known| known.node == removed);
        known.map_or(0, |known| known.lacking(&self.holds).len())
    }

    /// Whether those that have not heard of the removal of a node hold enough shares of its key, be they members or not. Of holders that
    /// were deleted before it nobody knows, unless it has told of them.
    pub(crate) fn could_be_helped(&self, removed: NodeId, is_node: impl Fn(&NodeId) -> bool) -> bool {
        let Some(Unfinished { epoch, helpers, .. }) = self.unfinished.iter().find(|known| known.node == removed) else {
            return false;
        };
        // One that keeps a copy needs nobody, heard or not.
        let Some(file) = self.files.get(&removed).filter(|file| file.shares_needed > 0) else { return false };
        let lacks = |holder: &&NodeId| self.holds.get(*holder).is_none_or(|holds| holds < epoch);
        let is_known = |holder: &&NodeId| helpers.contains(*holder) || is_node(holder);
        file.holders.iter().filter(lacks).filter(is_known).count() >= file.shares_needed
    }

    /// Whether a quorum of these opens once all of them are up.
    pub(crate) fn all_come_back(&self, voters: &BTreeSet<NodeId>) -> bool {
        voters.iter().filter(|node| self.opens(**node, voters)).count() >= quorum(voters.len())
    }
}
