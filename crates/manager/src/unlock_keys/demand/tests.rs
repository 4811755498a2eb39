//! What is asked of whom, for lists as the leader makes them.

use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority, ClusterId, JoinKey, NodeKey, ShareKey};
use polis_secret::Secret32;
use polis_unlock::{ClusterUnlockKey, Epoch, Hpke, MemberEntry, Standing as Part, split};

use super::*;

fn entry(number: u8, standing: Part) -> MemberEntry {
    let public_key = NodeKey::from_secret(Secret32::new([number; 32])).public();
    MemberEntry {
        node_id: NodeId::of(&public_key),
        public_key,
        join_key: JoinKey::from_secret(Secret32::new([number; 32])).public(),
        share_key: Some(ShareKey::from_secret(Secret32::new([number; 32])).public()),
        addresses: Vec::new(),
        standing,
    }
}

fn node(number: u8) -> NodeId {
    entry(number, Part::Stays).node_id
}

struct Cluster(ClusterId);

impl Cluster {
    fn new() -> Self {
        Self(CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME).certificate().cluster_id())
    }

    /// Members from 1 on, and one more that joins or leaves.
    fn list(&self, epoch: (u64, u64), stay: u8, other: Option<Part>) -> MemberList {
        let epoch = Epoch { incarnation: epoch.0, epoch: epoch.1 };
        let members = (1..=stay).map(|number| entry(number, Part::Stays));
        MemberList::new(self.0, epoch, members.chain(other.map(|part| entry(stay + 1, part))).collect())
    }
}

#[test]
fn the_list_that_names_the_node_counts() {
    let cluster = Cluster::new();
    let shares = |needed| Demand::Shares { needed };
    for (stay, other, confirmed, who, expected) in [
        (1, None, false, 1, Demand::Copy),
        (2, None, false, 1, Demand::Copy),
        (2, None, true, 1, shares(1)),
        (3, None, false, 1, shares(1)),
        (4, None, false, 1, shares(2)),
        (5, None, false, 1, shares(2)),
        (9, None, false, 1, shares(4)),
        // While the voters change, as few as are enough for both; who leaves keeps to what was.
        (1, Some(Part::Joins), true, 2, Demand::Copy),
        (2, Some(Part::Joins), false, 3, Demand::Copy),
        (3, Some(Part::Joins), false, 4, shares(1)),
        (3, Some(Part::Leaves), false, 1, shares(1)),
        (3, Some(Part::Leaves), false, 4, shares(2)),
        (2, Some(Part::Leaves), false, 1, Demand::Copy),
        (2, Some(Part::Leaves), false, 3, shares(1)),
    ] {
        let list = cluster.list((1, 1), stay, other).with_two_confirmed(confirmed);
        for standing in [None, Some(Standing { voters: 3, place: Place::None })] {
            assert_eq!(demand(Some(&list), &node(who), standing), expected, "{stay} {other:?} {confirmed} {who}");
        }
    }
}

#[test]
fn before_a_list_names_the_node_the_leader_says_what_it_is() {
    let list = Cluster::new().list((1, 1), 3, None);
    for list in [None, Some(&list)] {
        let asked = |place, voters| demand(list, &node(9), Some(Standing { voters, place }));
        assert_eq!(demand(list, &node(9), None), Demand::Unsaid);
        for voters in 1..10 {
            assert_eq!(asked(Place::None, voters), Demand::Guest);
            let expected = if voters < 2 { Demand::Copy } else { Demand::Unsaid };
            assert_eq!(asked(Place::Learner, voters), expected, "a learner beside {voters}");
            let expected = if voters < 3 { Demand::Copy } else { Demand::Unsaid };
            assert_eq!(asked(Place::Voter, voters), expected, "one of {voters}");
        }
    }
}

#[test]
fn a_split_fits_a_later_list_that_asks_for_the_same() {
    let cluster = Cluster::new();
    let key = ClusterUnlockKey::new(Secret32::random());
    let made = cluster.list((1, 4), 4, None);
    let split = split(&node(1), &key, &made, &Hpke, &mut rand::rng()).unwrap();
    for (list, who, expected) in [
        (cluster.list((1, 4), 4, None), 1, true),
        (cluster.list((1, 5), 4, None), 1, true),
        // Another number of shares, other holders, another owner, another life of the cluster.
        (cluster.list((1, 5), 4, Some(Part::Joins)), 1, false),
        (cluster.list((1, 5), 3, Some(Part::Leaves)), 1, false),
        (cluster.list((1, 5), 5, None), 1, false),
        (cluster.list((1, 5), 4, None), 2, false),
        (cluster.list((2, 1), 4, None), 1, false),
        (cluster.list((1, 5), 4, None), 9, false),
    ] {
        assert_eq!(fits(&split, &list, &node(who)), expected, "{list:?} {who}");
    }
}
