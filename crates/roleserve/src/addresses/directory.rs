//! [`Directory`]: where the nodes of the cluster were last known to be. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use polis_identity::{NodeId, PublicKey};
use polis_storage::{ClusterDirectory, DirectoryNode};

/// Addresses that are kept of a node: its last one, and two before it, where it may be again when a lease or a cable was
/// changed back.
const KEPT_ADDRESSES: usize = 3;

/// The nodes of the cluster, as this node last knew them. It always has the node itself and every member that it knows
/// (window W11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    own: NodeId,
    nodes: BTreeMap<NodeId, KnownNode>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownNode {
    /// Its public key, once it is known.
    pub(crate) public_key: Option<PublicKey>,
    /// Where it was seen, the newest first.
    pub(crate) addresses: Vec<IpAddr>,
    /// Whether it runs a member of the consensus.
    pub(crate) consensus_member: bool,
}

/// A node, as somebody has told of it. What is absent was not told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) node_id: NodeId,
    pub(crate) public_key: Option<PublicKey>,
    pub(crate) address: Option<IpAddr>,
}

impl Directory {
    /// A directory that knows only this node.
    pub(crate) fn new(own: &PublicKey) -> Self {
        let node = KnownNode { public_key: Some(*own), ..KnownNode::default() };
        Self { own: NodeId::of(own), nodes: BTreeMap::from([(NodeId::of(own), node)]) }
    }

    /// What was kept. An entry that makes no sense is left out: the others are as good as before.
    pub(crate) fn of_record(record: &ClusterDirectory, own: &PublicKey) -> Self {
        let mut directory = Self::new(own);
        for DirectoryNode { node_id, public_key, addresses, consensus_member } in &record.nodes {
            let Ok(node_id) = node_id.parse::<NodeId>() else { continue };
            let node = directory.nodes.entry(node_id).or_default();
            let public_key = public_key.and_then(|key| PublicKey::new(key).ok());
            node.learn_key(node_id, public_key);
            node.addresses = addresses.iter().filter_map(|address| address.parse().ok()).take(KEPT_ADDRESSES).collect();
            node.consensus_member = *consensus_member;
        }
        directory
    }

    /// What is to be kept.
    pub(crate) fn to_record(&self) -> ClusterDirectory {
        let mut nodes: Vec<DirectoryNode> = self
            .nodes
            .iter()
            .map(|(node_id, node)| DirectoryNode {
                node_id: node_id.to_string(),
                public_key: node.public_key.map(|key| *key.as_bytes()),
                addresses: node.addresses.iter().map(ToString::to_string).collect(),
                consensus_member: node.consensus_member,
            })
            .collect();
        nodes.sort_by(|first, second| first.node_id.cmp(&second.node_id));
        ClusterDirectory { nodes }
    }

    /// All nodes.
    pub(crate) const fn nodes(&self) -> &BTreeMap<NodeId, KnownNode> {
        &self.nodes
    }

    /// Where this node is. That it has no address for a moment is no reason to forget where it was.
    pub(crate) fn set_own_address(&mut self, address: Option<IpAddr>) {
        self.nodes.entry(self.own).or_default().learn_address(address);
    }

    /// A node was seen.
    pub(crate) fn learn(&mut self, sighting: &Sighting) {
        let node = self.nodes.entry(sighting.node_id).or_default();
        node.learn_key(sighting.node_id, sighting.public_key);
        // Of itself a node knows best where it is.
        if sighting.node_id != self.own {
            node.learn_address(sighting.address);
        }
    }

    /// A node was named together with an address at which it was once, which is less than to have seen it there.
    pub(crate) fn learn_hint(&mut self, hint: &Sighting) {
        let node = self.nodes.entry(hint.node_id).or_default();
        node.learn_key(hint.node_id, hint.public_key);
        if let Some(address) = hint.address
            && hint.node_id != self.own
            && node.addresses.len() < KEPT_ADDRESSES
            && !node.addresses.contains(&address)
        {
            node.addresses.push(address);
        }
    }

    /// Exactly these nodes run members of the consensus.
    pub(crate) fn set_members(&mut self, members: &BTreeSet<NodeId>) {
        for node_id in members {
            self.nodes.entry(*node_id).or_default();
        }
        for (node_id, node) in &mut self.nodes {
            node.consensus_member = members.contains(node_id);
        }
    }

    /// This node runs a member of the consensus, and others may as well.
    pub(crate) fn add_member(&mut self, node_id: NodeId) {
        self.nodes.entry(node_id).or_default().consensus_member = true;
    }

    /// The cluster has let a node go.
    pub(crate) fn forget(&mut self, node_id: NodeId) {
        if node_id != self.own {
            self.nodes.remove(&node_id);
        }
    }

    /// The cluster has these nodes and no others. Members stay all the same: their removal is told on another way, and one that
    /// is missing for a moment must not be lost.
    pub(crate) fn retain(&mut self, living: &BTreeSet<NodeId>) {
        let own = self.own;
        self.nodes.retain(|node_id, node| *node_id == own || node.consensus_member || living.contains(node_id));
    }
}

impl KnownNode {
    fn learn_key(&mut self, node_id: NodeId, key: Option<PublicKey>) {
        // An id follows from the key, so a key that does not fit is no news but a fault of whoever told it.
        if let Some(key) = key.filter(|key| NodeId::of(key) == node_id) {
            self.public_key = Some(key);
        }
    }

    fn learn_address(&mut self, address: Option<IpAddr>) {
        let Some(address) = address else { return };
        self.addresses.retain(|known| *known != address);
        self.addresses.insert(0, address);
        self.addresses.truncate(KEPT_ADDRESSES);
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;

    use super::*;

    fn key() -> PublicKey {
        NodeKey::generate().public()
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn seen(key: &PublicKey, last: u8) -> Sighting {
        Sighting { node_id: NodeId::of(key), public_key: Some(*key), address: Some(ip(last)) }
    }

    #[test]
    fn it_always_has_this_node_and_every_member() {
        let (own, member, worker) = (key(), key(), key());
        let ids = [own, member, worker].map(|key| NodeId::of(&key));
        let mut directory = Directory::new(&own);
        directory.set_own_address(Some(ip(1)));
        directory.learn(&seen(&member, 2));
        directory.learn(&seen(&worker, 3));
        directory.set_members(&BTreeSet::from([ids[1]]));
        // A dump that lacks all of them, as one that is being rewritten might.
        directory.retain(&BTreeSet::new());
        directory.set_own_address(None);
        directory.forget(ids[0]);
        assert_eq!(directory.nodes().keys().copied().collect::<BTreeSet<_>>(), BTreeSet::from([ids[0], ids[1]]));
        assert_eq!(directory.nodes()[&ids[0]].addresses, [ip(1)]);
        directory.forget(ids[1]);
        assert_eq!(directory.nodes().len(), 1);
    }

    #[test]
    fn addresses_are_kept_with_the_newest_first_and_bounded() {
        let (own, other) = (key(), key());
        let mut directory = Directory::new(&own);
        for last in [1, 2, 3, 4, 2] {
            directory.learn(&seen(&other, last));
        }
        let addresses = |directory: &Directory| directory.nodes()[&NodeId::of(&other)].addresses.clone();
        assert_eq!(addresses(&directory), [ip(2), ip(4), ip(3)]);
        // Nothing is forgotten because nothing was told.
        directory.learn(&Sighting { address: None, public_key: None, ..seen(&other, 9) });
        assert_eq!(addresses(&directory), [ip(2), ip(4), ip(3)]);
        // A hint comes last, and not in the place of what was seen.
        directory.learn_hint(&seen(&other, 9));
        assert_eq!(addresses(&directory), [ip(2), ip(4), ip(3)]);
        let third = key();
        directory.learn(&seen(&third, 5));
        directory.learn_hint(&seen(&third, 6));
        assert_eq!(directory.nodes()[&NodeId::of(&third)].addresses, [ip(5), ip(6)]);
    }

    #[test]
    fn nobody_tells_a_node_where_it_is() {
        let own = key();
        let mut directory = Directory::new(&own);
        directory.set_own_address(Some(ip(1)));
        directory.learn(&seen(&own, 7));
        directory.learn_hint(&seen(&own, 8));
        assert_eq!(directory.nodes()[&NodeId::of(&own)].addresses, [ip(1)]);
    }

    #[test]
    fn a_key_that_is_not_the_nodes_is_not_taken() {
        let (own, other) = (key(), key());
        let mut directory = Directory::new(&own);
        directory.learn(&Sighting { public_key: Some(own), ..seen(&other, 1) });
        assert_eq!(directory.nodes()[&NodeId::of(&other)].public_key, None);
    }

    #[test]
    fn the_record_comes_back_and_nonsense_in_it_is_left_out() {
        let (own, member, worker) = (key(), key(), key());
        let mut directory = Directory::new(&own);
        directory.set_own_address(Some(ip(1)));
        directory.learn(&seen(&member, 2));
        directory.learn(&Sighting { public_key: None, address: None, ..seen(&worker, 3) });
        directory.set_members(&BTreeSet::from([NodeId::of(&own), NodeId::of(&member)]));
        let mut record = directory.to_record();
        assert!(record.nodes.is_sorted_by(|first, second| first.node_id < second.node_id));
        assert_eq!(Directory::of_record(&record, &own), directory);

        record.nodes[0].node_id = "nonsense".to_owned();
        record.nodes[1].addresses.insert(0, "nowhere".to_owned());
        record.nodes[2].public_key = Some([0xff; 32]);
        let read = Directory::of_record(&record, &own);
        assert!(read.nodes().len() >= 2 && read.nodes().contains_key(&NodeId::of(&own)));
    }

    #[test]
    fn the_members_are_exactly_those_that_were_told() {
        let (own, first, second) = (key(), key(), key());
        let mut directory = Directory::new(&own);
        let members = |directory: &Directory| {
            let members = directory.nodes().iter().filter(|(_, node)| node.consensus_member);
            members.map(|(node_id, _)| *node_id).collect::<BTreeSet<_>>()
        };
        for wanted in [vec![own, first], vec![first, second], vec![own]] {
            let wanted: BTreeSet<NodeId> = wanted.iter().map(NodeId::of).collect();
            directory.set_members(&wanted);
            assert_eq!(members(&directory), wanted);
        }
    }
}
