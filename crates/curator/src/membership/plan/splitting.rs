//! Before the voters change: whether all quorums of before and after open.

use std::collections::BTreeSet;

use polis_identity::NodeId;
use polis_unlock::quorum;

use super::super::margin::Operation;
use super::{GaveUp, Step, Waiting, World};

/// What is to be done before the voters change: `None` once all quorums of both open.
pub(super) fn splitting(world: &World, operation: Operation) -> Option<Step> {
    let before = world.voters();
    let mut after = before.clone();
    let joiner = match operation {
        Operation::Add(node) => {
            after.insert(node);
            Some(node)
        }
        Operation::Remove(node) => {
            after.remove(&node);
            None
        }
    };
    let is_ready = |node: &&NodeId| {
        world.keys.get(*node).is_none_or(|keeping| keeping.is_ready(**node, world.epoch, &before, &after))
    };
    let (ready, needed) = (after.iter().filter(is_ready).count(), quorum(after.len()));
    let can_be_asked = |node: &&NodeId| world.reachable.contains(*node) || joiner == Some(**node);
    let nodes: BTreeSet<NodeId> = after.iter().filter(|node| !is_ready(node)).filter(can_be_asked).copied().collect();
    // The last member is not removed for other reasons.
    let is_enough = ready >= needed || after.is_empty();
    if is_enough && nodes.is_empty() {
        return None;
    }
    if world.attempt.unsplit_for < world.budgets.split {
        return Some(Step::Wait(Waiting::Splitting { nodes, ready, needed }));
    }
    match operation {
        // A member that cannot come back is of no use.
        Operation::Add(node) if !is_enough || nodes.contains(&node) => {
            Some(Step::GiveUp { node, reason: GaveUp::NotSplit })
        }
        Operation::Remove(node) if !is_enough => Some(Step::Withdraw(node)),
        Operation::Add(_) | Operation::Remove(_) => None,
    }
}
