//! What it takes to come back after all members have lost power, and which removals are not finished: in words. Pure.

use std::collections::{BTreeMap, BTreeSet};

use polis_identity::NodeId;
use polis_unlock::{Epoch, quorum};

use super::margin::names;
use super::splits::{Keeping, Unfinished, members_needed};

/// What it takes to come back after all members have lost power.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColdStart {
    /// In a few words.
    pub summary: String,
    /// Members of which any set opens, as far as they have reported; `None` if not even all of them do.
    pub needed: Option<usize>,
    /// The same, once all members have split their keys to the present list.
    pub needed_settled: usize,
    /// Members that have not split their keys to the present list, or have not tried it.
    pub behind: BTreeSet<NodeId>,
    /// Whether two members are confirmed to stay two.
    pub two_confirmed: bool,
    /// What differs from the settled state, and what ends that; empty if nothing does.
    pub remark: String,
}

/// The removal of a member that others could still help to open its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedRemoval {
    /// The node.
    pub node: NodeId,
    /// Epoch of the first list without it.
    pub epoch: Epoch,
    /// Nodes that may hold a share of its key and have not made that list durable.
    pub lacking: BTreeSet<NodeId>,
    /// Fewest shares that may give its key.
    pub shares_needed: usize,
    /// What that means, and what ends it.
    pub text: String,
}

/// What the members have reported.
pub(super) struct Reported<'a> {
    pub(super) voters: &'a BTreeSet<NodeId>,
    pub(super) reachable: &'a BTreeSet<NodeId>,
    pub(super) keys: &'a BTreeMap<NodeId, Keeping>,
    /// Epoch of the present list.
    pub(super) epoch: Option<Epoch>,
    pub(super) two_confirmed: bool,
    /// The members' own halves are sealed by TPMs.
    pub(super) has_tpm: bool,
}

impl ColdStart {
    /// Judges what was reported; `None` when no member splits its key.
    pub(super) fn of(reported: &Reported<'_>) -> Option<Self> {
        let Reported { voters, keys, epoch, two_confirmed, .. } = *reported;
        let keeping = |node: &NodeId| keys.get(node).cloned().unwrap_or_default();
        if !voters.iter().any(|node| keeping(node).splits()) {
            return None;
        }
        let needed_settled = quorum(voters.len());
        let behind: BTreeSet<NodeId> = voters
            .iter()
            .filter(|node| !keeping(node).is_settled(**node, epoch, voters, two_confirmed))
            .copied()
            .collect();
        let needed = members_needed(voters, keys);
        let remark = if behind.is_empty() { String::new() } else { remark(reported, &behind, needed, needed_settled) };
        Some(Self { summary: summary(reported), needed, needed_settled, behind, two_confirmed, remark })
    }
}

fn summary(reported: &Reported<'_>) -> String {
    match reported.voters.len() {
        0 | 1 if reported.has_tpm => "local, TPM only".to_owned(),
        0 | 1 => "local, not bound to a TPM".to_owned(),
        2 if !reported.two_confirmed => "local until 3".to_owned(),
        2 => "2 members, both open".to_owned(),
        voters => format!("{voters} members, any {} open", quorum(voters)),
    }
}

fn remark(reported: &Reported<'_>, behind: &BTreeSet<NodeId>, needed: Option<usize>, settled: usize) -> String {
    let has = if behind.len() == 1 { "has" } else { "have" };
    let who = names(behind);
    let until = if behind.iter().any(|node| reported.keys.get(node) == Some(&Keeping::CannotSplit)) {
        format!("until {who} {has} been updated and {has} split the own key among the present members")
    } else if behind.is_disjoint(reported.reachable) {
        format!("until {who} {has} been back once")
    } else {
        format!("until {who} {has} split the own key among the present members, and tried it")
    };
    match needed {
        Some(needed) if needed == settled => {
            format!("{until}, a cold start is not tried out; any {needed} should open")
        }
        Some(needed) => format!("{until}, a cold start needs {needed} of {}", reported.voters.len()),
        None => format!("{until}, not even all members together come back from a cold start"),
    }
}

impl UnfinishedRemoval {
    pub(crate) fn of(unfinished: &Unfinished, holds: &BTreeMap<NodeId, Epoch>) -> Self {
        let Unfinished { node, epoch, shares_needed, helpers: _ } = *unfinished;
        let lacking = unfinished.lacking(holds);
        let has = if lacking.len() == 1 { "has" } else { "have" };
        let what = match shares_needed {
            0 => "it has had a copy of its key, and needs nobody to open its data".to_owned(),
            1 => "any of them could still help it to open its data".to_owned(),
            shares => format!("any {shares} of them together could still help it to open its data"),
        };
        let text = format!(
            "the removal of {node} is not finished until {} {has} been back once and heard of it: {what}",
            names(&lacking)
        );
        Self { node, epoch, lacking, shares_needed, text }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::node;
    use super::super::splits::Split;
    use super::*;

    fn set(nodes: impl IntoIterator<Item = usize>) -> BTreeSet<NodeId> {
        nodes.into_iter().map(node).collect()
    }

    fn split(owner: usize, shares_needed: usize, holders: std::ops::Range<usize>) -> (NodeId, Keeping) {
        let holders = set(holders.filter(|index| *index != owner));
        let split = Split { list: Epoch::FIRST, shares_needed, holders, is_verified: true };
        (node(owner), Keeping::Splits(Some(split)))
    }

    fn judge(voters: usize, reachable: usize, keys: &BTreeMap<NodeId, Keeping>, confirmed: bool) -> Option<ColdStart> {
        ColdStart::of(&Reported {
            voters: &set(0..voters),
            reachable: &set(0..reachable),
            keys,
            epoch: Some(Epoch::FIRST),
            two_confirmed: confirmed,
            has_tpm: true,
        })
    }

    #[test]
    fn what_a_cold_start_takes_in_words() {
        for (voters, shares, confirmed, summary, needed) in [
            (1, 0, false, "local, TPM only", 1),
            (2, 0, false, "local until 3", 2),
            (2, 1, true, "2 members, both open", 2),
            (3, 1, false, "3 members, any 2 open", 2),
            (4, 2, false, "4 members, any 3 open", 3),
            (9, 4, true, "9 members, any 5 open", 5),
        ] {
            let keys = (0..voters).map(|owner| split(owner, shares, 0..voters)).collect();
            let cold_start = judge(voters, voters, &keys, confirmed).unwrap();
            assert_eq!(cold_start.summary, summary);
            assert_eq!((cold_start.needed, cold_start.needed_settled), (Some(needed), needed), "{voters}");
            assert!(cold_start.behind.is_empty() && cold_start.remark.is_empty(), "{cold_start:?}");
        }
        assert_eq!(judge(3, 3, &BTreeMap::new(), false), None, "nobody splits");
        let old: BTreeMap<_, _> = (0..3).map(|owner| (node(owner), Keeping::CannotSplit)).collect();
        assert_eq!(judge(3, 3, &old, false), None, "nobody splits");
    }

    #[test]
    fn who_is_behind_is_named_with_what_it_means() {
        // A fifth member has come while the fourth was away.
        let mut keys: BTreeMap<_, _> = (0..5).map(|owner| split(owner, 2, 0..5)).collect();
        keys.extend([split(3, 2, 0..4)]);
        keys.remove(&node(3));
        keys.extend([split(3, 2, 0..3)]);
        let away = ColdStart::of(&Reported {
            voters: &set(0..5),
            reachable: &set([0, 1, 2, 4]),
            keys: &keys,
            epoch: Some(Epoch::FIRST),
            two_confirmed: false,
            has_tpm: false,
        });
        let away = away.unwrap();
        assert_eq!(away.behind, set([3]));
        assert_eq!(away.needed, Some(4));
        assert_eq!(away.remark, format!("until {} has been back once, a cold start needs 4 of 5", node(3)));
        let slow = judge(5, 5, &keys, false).unwrap();
        assert!(
            slow.remark.contains("has split the own key among the present members, and tried it, a cold start needs 4")
        );
        // Nobody has split anything yet.
        let keys: BTreeMap<_, _> = (0..3).map(|owner| (node(owner), Keeping::Splits(None))).collect();
        let young = judge(3, 3, &keys, false).unwrap();
        assert_eq!((young.needed, young.behind.len()), (None, 3));
        assert!(
            young.remark.ends_with("not even all members together come back from a cold start"),
            "{}",
            young.remark
        );
        // One is of an earlier version.
        let mut keys: BTreeMap<_, _> = (0..3).map(|owner| split(owner, 1, 0..3)).collect();
        keys.insert(node(1), Keeping::CannotSplit);
        let mixed = judge(3, 3, &keys, false).unwrap();
        assert_eq!((mixed.needed, mixed.behind), (Some(3), set([1])));
        assert!(mixed.remark.contains("has been updated"), "{}", mixed.remark);
    }

    #[test]
    fn a_removal_that_is_not_finished_names_those_who_have_not_heard() {
        let second = Epoch { incarnation: 1, epoch: 2 };
        let unfinished = Unfinished { node: node(9), epoch: second, shares_needed: 2, helpers: set(0..3) };
        let holds = BTreeMap::from([(node(0), second), (node(1), Epoch::FIRST)]);
        let told = UnfinishedRemoval::of(&unfinished, &holds);
        assert_eq!(told.lacking, set([1, 2]));
        assert!(told.text.contains("any 2 of them together"), "{}", told.text);
    }
}
