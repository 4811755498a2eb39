//! Whether a change of members leaves the cluster a quorum. Pure.
//!
//! etcd's own check is off, as it only looks at members that have started and refuses every second addition for five seconds;
//! without one, removing a living voter while another is dead loses the cluster for good. So this is the only guard there is.

use std::collections::BTreeSet;
use std::fmt;

use polis_identity::NodeId;

/// Most members of the cluster's consensus: more make each write slower and no cluster safer, and shares of the unlock keys are
/// computed for at most as many (`cold-start.md`, "Threshold").
pub const MAX_MEMBERS: usize = 9;

/// A change of the members that have a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The node's member gets a vote.
    Add(NodeId),
    /// The node's member goes.
    Remove(NodeId),
}

/// The voters at one moment, and who of them can be counted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Margin {
    /// Members with a vote.
    pub voters: usize,
    /// Those of them that have answered just now.
    pub reachable: usize,
    /// Those that have not.
    pub unreachable: BTreeSet<NodeId>,
}

/// What a change does to the margin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// As it is.
    pub before: Margin,
    /// As it will be.
    pub after: Margin,
}

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too few would answer.
    #[error(
        "it would cost the cluster its quorum: afterwards {} must answer, and {} do. Unreachable: {}. \
         Start those again, or remove them first",
        of(.0.after.quorum(), .0.after.voters), .0.after.reachable, names(&.0.after.unreachable)
    )]
    Quorum(Box<Verdict>),
    /// There is no quorum even now, so that nothing can be changed.
    #[error(
        "the cluster has no quorum: {} must answer, and {} do. Unreachable: {}. Start those again",
        of(.0.quorum(), .0.voters), .0.reachable, names(&.0.unreachable)
    )]
    NoQuorum(Box<Margin>),
    /// The only member.
    #[error(
        "{0} has the only consensus member, which holds the state of the cluster; give the role to another node first"
    )]
    LastMember(NodeId),
    /// There are as many members as there may be.
    #[error(
        "the cluster has {MAX_MEMBERS} consensus members, and more are not supported: each write would get slower, and the \
         cluster no safer. Take the role from another node first"
    )]
    TooMany,
}

impl Margin {
    /// The margin of these voters, of which these are reachable.
    #[must_use]
    pub fn of(voters: &BTreeSet<NodeId>, reachable: &BTreeSet<NodeId>) -> Self {
        let unreachable: BTreeSet<NodeId> = voters.difference(reachable).copied().collect();
        Self { voters: voters.len(), reachable: voters.len() - unreachable.len(), unreachable }
    }

    /// Voters that must answer for anything to be written.
    #[must_use]
    pub const fn quorum(&self) -> usize {
        self.voters / 2 + 1
    }

    /// How many more voters may fail before the quorum is lost; negative when it is lost already.
    #[must_use]
    pub fn spare(&self) -> i32 {
        let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        count(self.reachable) - count(self.quorum())
    }
}

impl fmt::Display for Margin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {} answer, {} must", self.reachable, self.voters, self.quorum())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "before: {}; after: {}", self.before, self.after)
    }
}

/// Judges a change, with who has a vote now and who has answered just now (a node that is to be added, too). What is unknown
/// counts as down. A change that changes nothing is judged like any other.
///
/// # Errors
///
/// When the change would leave no quorum, or is refused for another reason.
pub(crate) fn judge(
    voters: &BTreeSet<NodeId>,
    reachable: &BTreeSet<NodeId>,
    operation: Operation,
) -> Result<Verdict, Refusal> {
    let mut changed = voters.clone();
    match operation {
        Operation::Add(node) if changed.insert(node) && changed.len() > MAX_MEMBERS => return Err(Refusal::TooMany),
        Operation::Remove(node) if changed.remove(&node) && changed.is_empty() => {
            return Err(Refusal::LastMember(node));
        }
        Operation::Add(_) | Operation::Remove(_) => {}
    }
    let verdict = Verdict { before: Margin::of(voters, reachable), after: Margin::of(&changed, reachable) };
    if verdict.before.spare() < 0 {
        Err(Refusal::NoQuorum(Box::new(verdict.before)))
    } else if verdict.after.spare() < 0 {
        Err(Refusal::Quorum(Box::new(verdict)))
    } else {
        Ok(verdict)
    }
}

fn of(part: usize, whole: usize) -> String {
    format!("{part} of {whole} members")
}

/// Nodes for people.
pub(super) fn names(nodes: &BTreeSet<NodeId>) -> String {
    if nodes.is_empty() {
        return "none".into();
    }
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::simulation::node;
    use super::super::simulation::raft::Raft;
    use super::*;

    fn set(nodes: impl IntoIterator<Item = usize>) -> BTreeSet<NodeId> {
        nodes.into_iter().map(node).collect()
    }

    #[test]
    fn the_numbers_and_the_refusals() {
        let check = |voters: usize, dead: &[usize], operation, expected: Result<(i32, i32), &str>| {
            let reachable = set((0..=voters).filter(|index| !dead.contains(index)));
            let name = format!("{voters} voters, {dead:?} dead, {operation:?}");
            match (judge(&set(0..voters), &reachable, operation), expected) {
                (Ok(verdict), Ok(spare)) => {
                    assert_eq!((verdict.before.spare(), verdict.after.spare()), spare, "{name}");
                }
                (Err(refusal), Err(part)) => assert!(refusal.to_string().contains(part), "{name}: {refusal}"),
                (judged, expected) => panic!("{name}: {judged:?}, not {expected:?}"),
            }
        };
        let add = |index| Operation::Add(node(index));
        let remove = |index| Operation::Remove(node(index));
        check(1, &[], add(1), Ok((0, 0)));
        check(1, &[1], add(1), Err("afterwards 2 of 2 members must answer, and 1 do"));
        check(1, &[], remove(0), Err("only consensus member"));
        check(1, &[0], remove(0), Err("only consensus member"));
        check(2, &[], add(2), Ok((0, 1)));
        check(2, &[], remove(1), Ok((0, 0)));
        check(2, &[1], remove(1), Err("has no quorum: 2 of 2 members must answer, and 1 do"));
        check(3, &[], remove(2), Ok((1, 0)));
        check(3, &[2], remove(2), Ok((0, 0)));
        check(3, &[2], remove(1), Err("afterwards 2 of 2 members must answer, and 1 do"));
        check(3, &[2], add(3), Ok((0, 0)));
        check(3, &[2, 3], add(3), Err("afterwards 3 of 4 members must answer, and 2 do"));
        check(5, &[3, 4], remove(3), Ok((0, 0)));
        check(5, &[3, 4], remove(0), Err("afterwards 3 of 4"));
        check(9, &[], add(9), Err("more are not supported"));
        // What is there already, or is not there, changes nothing.
        check(9, &[], add(8), Ok((4, 4)));
        check(1, &[], remove(7), Ok((0, 0)));
        // The names of those that do not answer are there, and nobody else's.
        let refusal = judge(&set(0..3), &set(0..2), remove(1)).unwrap_err().to_string();
        assert!(refusal.contains(&node(2).to_string()) && !refusal.contains(&node(0).to_string()), "{refusal}");
    }

    /// Every number of voters, every set of the dead, every change of one.
    #[test]
    fn what_is_allowed_leaves_a_raft_that_works_and_what_is_refused_would_not() {
        let mut cases = 0;
        for voters in 1..=MAX_MEMBERS {
            for dead in 0_u32..1 << (voters + 1) {
                let is_alive = |index: usize| dead >> index & 1 == 0;
                let reachable = set((0..=voters).filter(|index| is_alive(*index)));
                let mut changes: Vec<Operation> = (0..voters).map(|index| Operation::Remove(node(index))).collect();
                if voters < MAX_MEMBERS {
                    changes.push(Operation::Add(node(voters)));
                }
                for operation in changes {
                    cases += 1;
                    let mut raft = Raft::new(set(0..voters), reachable.clone());
                    let works = raft.change(operation) && raft.write();
                    match judge(&set(0..voters), &reachable, operation) {
                        Ok(_) => assert!(works, "{voters} voters, dead {dead:b}, {operation:?} was allowed"),
                        Err(Refusal::LastMember(_)) => assert_eq!(voters, 1),
                        Err(Refusal::TooMany) => panic!("there is room for one more"),
                        Err(Refusal::Quorum(_) | Refusal::NoQuorum(_)) => {
                            assert!(!works, "{voters} voters, dead {dead:b}, {operation:?} was refused");
                        }
                    }
                }
            }
        }
        assert!(cases > 10_000, "{cases}");
    }
}
