//! A small raft: terms, votes, logs and changes of one voter at a time, as etcd makes them. No time and no network: who is
//! alive hears everybody who is alive, in any order that the calls choose.

use std::collections::{BTreeMap, BTreeSet};

use polis_identity::NodeId;

use super::super::margin::Operation;

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Write,
    Voters(BTreeSet<NodeId>),
}

/// One member.
#[derive(Clone, Debug, Default)]
struct Member {
    term: u64,
    /// Entries with the terms in which they were made.
    log: Vec<(u64, Entry)>,
    /// Entries that it knows to be committed, and has applied.
    committed: usize,
}

/// The members, and who of them is alive.
#[derive(Clone, Debug)]
pub(crate) struct Raft {
    members: BTreeMap<NodeId, Member>,
    alive: BTreeSet<NodeId>,
    /// The voters that the first log begins with.
    founders: BTreeSet<NodeId>,
}

impl Raft {
    /// A cluster in which everybody has everything, just before those that are not `alive` die.
    pub(crate) fn new(voters: BTreeSet<NodeId>, alive: BTreeSet<NodeId>) -> Self {
        let members = voters.iter().map(|node| (*node, Member::default())).collect();
        Self { members, alive, founders: voters }
    }

    /// Makes a member known without a vote: it gets the log as all others do.
    fn learn(&mut self, node: NodeId) {
        self.members.entry(node).or_default();
    }

    /// Who has a vote as the member sees it: by what it has applied.
    fn voters(&self, member: &Member) -> BTreeSet<NodeId> {
        let applied = member.log[..member.committed].iter().rev().find_map(|(_, entry)| match entry {
            Entry::Voters(voters) => Some(voters.clone()),
            Entry::Write => None,
        });
        applied.unwrap_or_else(|| self.founders.clone())
    }

    /// Elects a leader: the first that gets a majority of the voters it knows of, from those whose log is not newer.
    fn elect(&mut self) -> Option<NodeId> {
        let newest = |member: &Member| (member.log.last().map_or(0, |(term, _)| *term), member.log.len());
        let term = self.members.values().map(|member| member.term).max().unwrap_or(0) + 1;
        for candidate in self.alive.clone() {
            let Some(member) = self.members.get(&candidate) else { continue };
            let voters = self.voters(member);
            if !voters.contains(&candidate) {
                continue;
            }
            let votes = voters
                .iter()
                .filter(|node| self.alive.contains(node))
                .filter(|node| self.members.get(node).is_some_and(|other| newest(other) <= newest(member)));
            if votes.count() > voters.len() / 2 {
                for node in &voters {
                    if self.alive.contains(node)
                        && let Some(member) = self.members.get_mut(node)
                    {
                        member.term = term;
                    }
                }
                return Some(candidate);
            }
        }
        None
    }

    /// Has a leader append an entry, and replicates. Whether it was committed and applied.
    fn append(&mut self, entry: Entry) -> bool {
        let Some(leader) = self.elect() else { return false };
        let Some(member) = self.members.get_mut(&leader) else { return false };
        member.log.push((member.term, entry));
        let (log, voters) = (member.log.clone(), self.voters(&self.members[&leader]));
        for (node, member) in &mut self.members {
            if self.alive.contains(node) {
                member.log.clone_from(&log);
            }
        }
        let has_it = voters.iter().filter(|node| self.members.get(node).is_some_and(|member| member.log == log));
        if has_it.count() <= voters.len() / 2 {
            return false;
        }
        for (node, member) in &mut self.members {
            if self.alive.contains(node) {
                member.committed = member.log.len();
            }
        }
        true
    }

    /// Writes something. Whether it was acknowledged.
    pub(crate) fn write(&mut self) -> bool {
        self.append(Entry::Write)
    }

    /// Changes the voters, as etcd does when it is told to: without looking at who is alive.
    pub(crate) fn change(&mut self, operation: Operation) -> bool {
        let Some(leader) = self.elect() else { return false };
        let mut voters = self.voters(&self.members[&leader]);
        match operation {
            Operation::Add(node) => {
                self.learn(node);
                voters.insert(node);
            }
            Operation::Remove(node) => {
                voters.remove(&node);
            }
        }
        self.append(Entry::Voters(voters))
    }
}
