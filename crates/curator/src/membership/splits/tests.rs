//! The numbers, and who opens with whom.

use super::super::margin::MAX_MEMBERS;
use super::super::simulation::node;
use super::*;

fn set(nodes: impl IntoIterator<Item = usize>) -> BTreeSet<NodeId> {
    nodes.into_iter().map(node).collect()
}

fn split(shares_needed: usize, holders: impl IntoIterator<Item = usize>) -> Split {
    Split { list: Epoch::FIRST, shares_needed, holders: set(holders), is_verified: true }
}

fn keeping(shares_needed: usize, holders: impl IntoIterator<Item = usize>) -> Keeping {
    Keeping::Splits(Some(split(shares_needed, holders)))
}

#[test]
fn shares_are_those_of_the_table() {
    let alone = [0, 0, 1, 2, 2, 3, 3, 4, 4];
    for (voters, shares) in (1..=MAX_MEMBERS).zip(alone) {
        assert_eq!(shares_needed(voters, false), shares, "{voters}");
        assert_eq!(shares_needed(voters, true), if voters == 2 { 1 } else { shares }, "{voters}");
    }
    for (before, after, confirmed, expected) in [
        (1, 2, false, 0),
        (1, 2, true, 0),
        (2, 3, false, 0),
        (2, 3, true, 1),
        (3, 2, false, 0),
        (3, 2, true, 1),
        (2, 1, true, 0),
        (3, 4, false, 1),
        (4, 3, false, 1),
        (4, 5, false, 2),
        (5, 4, false, 2),
        (8, 9, false, 4),
        (9, 8, false, 4),
    ] {
        assert_eq!(shares_needed_during(before, after, confirmed), expected, "{before} to {after}, {confirmed}");
    }
}

#[test]
fn who_is_ready_for_a_change() {
    let ready =
        |keeping: &Keeping, before, after| keeping.is_ready(node(0), Some(Epoch::FIRST), &set(before), &set(after));
    for (name, kept, before, after, expected) in [
        ("it does not encrypt", Keeping::Alone, 0..3, 0..4, true),
        ("an earlier version never will", Keeping::CannotSplit, 0..3, 0..4, true),
        ("it has not begun", Keeping::Splits(None), 0..3, 0..4, false),
        ("a copy opens always", keeping(0, []), 0..1, 0..2, true),
        ("an even number follows: the old file will do", keeping(1, 1..3), 0..3, 0..4, true),
        ("an odd number follows: it will not", keeping(2, 1..4), 0..4, 0..5, false),
        ("once all hold a share, it does", keeping(2, 1..5), 0..4, 0..5, true),
        ("fewer are needed than before", keeping(2, 1..4), 0..4, 0..3, false),
        ("enough for both", keeping(1, 1..4), 0..4, 0..3, true),
        ("two that were not confirmed become one", keeping(0, []), 0..2, 0..1, true),
        ("two that were confirmed become one", keeping(1, 1..2), 0..2, 0..1, false),
    ] {
        assert_eq!(ready(&kept, before, after), expected, "{name}");
    }
    let untried = Keeping::Splits(Some(Split { is_verified: false, ..split(1, 1..4) }));
    assert!(!ready(&untried, 0..3, 0..4), "what was not tried does not count");
    let second = Epoch::FIRST.next();
    assert!(!keeping(1, 1..4).is_ready(node(0), Some(second), &set(0..3), &set(0..4)), "it may have another by now");
    // One that goes needs nothing of those that stay.
    assert!(keeping(2, 1..4).is_ready(node(0), Some(Epoch::FIRST), &set(0..4), &set(1..4)));
}

#[test]
fn what_is_settled_and_what_is_not() {
    let settled =
        |kept: &Keeping, voters, confirmed| kept.is_settled(node(0), Some(Epoch::FIRST), &set(voters), confirmed);
    assert!(settled(&Keeping::Alone, 0..3, false));
    assert!(!settled(&Keeping::CannotSplit, 0..3, false) && !settled(&Keeping::Splits(None), 0..3, false));
    assert!(settled(&keeping(1, 1..3), 0..3, false));
    assert!(!settled(&keeping(1, 1..4), 0..3, false), "somebody holds a share who is no member");
    assert!(!settled(&keeping(1, 1..2), 0..3, false), "a member holds none");
    assert!(!settled(&keeping(0, []), 0..3, false) && settled(&keeping(0, []), 0..2, false));
    assert!(!settled(&keeping(0, []), 0..2, true) && settled(&keeping(1, 1..2), 0..2, true));
}

#[test]
fn how_many_members_come_back() {
    let all = |voters: usize, shares: usize| -> BTreeMap<NodeId, Keeping> {
        (0..voters).map(|owner| (node(owner), keeping(shares, (0..voters).filter(|holder| *holder != owner)))).collect()
    };
    for voters in 1..=MAX_MEMBERS {
        let keys = all(voters, shares_needed(voters, true));
        assert_eq!(members_needed(&set(0..voters), &keys), Some(quorum(voters)), "{voters}");
        // One share too many, and one member more.
        let keys = all(voters, shares_needed(voters, true) + 1);
        let more = (quorum(voters) < voters).then(|| quorum(voters) + 1);
        assert_eq!(members_needed(&set(0..voters), &keys), more, "{voters}");
    }
    assert_eq!(members_needed(&set(0..3), &BTreeMap::new()), Some(2), "nobody encrypts");
    let mut keys = all(5, 2);
    keys.insert(node(4), Keeping::CannotSplit);
    assert_eq!(members_needed(&set(0..5), &keys), Some(4), "one opens only when a quorum of the others is there");
}

#[test]
fn a_removal_is_over_once_too_few_could_still_help() {
    let [first, second] = [1, 2].map(|epoch| Epoch { incarnation: 1, epoch });
    let holds = |heard: usize| -> BTreeMap<NodeId, Epoch> {
        (0..5).map(|index| (node(index), if index < heard { second } else { first })).collect()
    };
    for (shares_needed, heard, expected) in [
        (0, 4, false),
        (0, 5, true),
        (1, 4, false),
        (1, 5, true),
        (2, 3, false),
        (2, 4, true),
        (4, 1, false),
        (4, 2, true),
    ] {
        let progress = removal(shares_needed, 5).progress(&holds(heard), |_| true);
        let waited_for = set(heard..5);
        let expected = if expected { RemovalProgress::Over } else { RemovalProgress::Waits { waited_for } };
        assert_eq!(progress, expected, "{shares_needed} shares, {heard} have heard");
    }
    let waits = RemovalProgress::Waits { waited_for: set(0..2) };
    assert_eq!(removal(2, 2).progress(&BTreeMap::new(), |_| true), waits, "who has reported nothing has not heard");
    // One that is no node any more never hears, and counts all the same.
    for (shares_needed, heard, gone, expected) in [
        (2, 3, 4, RemovalProgress::Waits { waited_for: set([3]) }),
        (2, 4, 4, RemovalProgress::Over),
        (1, 4, 4, RemovalProgress::Endless { deaf: set([4]) }),
        (1, 3, 4, RemovalProgress::Endless { deaf: set([4]) }),
        (1, 4, 1, RemovalProgress::Waits { waited_for: set([4]) }),
    ] {
        let progress = removal(shares_needed, 5).progress(&holds(heard), |helper| *helper != node(gone));
        assert_eq!(progress, expected, "{shares_needed} shares, {heard} have heard, {gone} is gone");
    }
}

/// Removed in the second epoch; so many others hold shares.
fn removal(shares_needed: usize, helpers: usize) -> Unfinished {
    Unfinished { node: node(9), epoch: Epoch { incarnation: 1, epoch: 2 }, shares_needed, helpers: set(0..helpers) }
}

#[test]
fn of_a_node_that_was_away_one_share_is_assumed_to_be_enough() {
    let [first, second] = [1, 2].map(|epoch| Epoch { incarnation: 1, epoch });
    for (shares, list, during, expected) in
        [(2, second, 2, 2), (2, second, 1, 1), (3, first, 3, 1), (3, second, 3, 3), (0, first, 2, 0)]
    {
        let split = Split { list, ..split(shares, 1..5) };
        assert_eq!(least_shares(&split, second, during, true), expected, "{shares}, {list}, {during}");
        assert_eq!(least_shares(&split, second, during, false), expected.min(1), "it may have shares in its memory");
    }
}
