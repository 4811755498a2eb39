//! Where the other nodes are, as far as a node knows whose data are locked.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use polis_identity::NodeId;
use polis_rpc::UNLOCK_PORT;
use polis_storage::{Disk, Layout};
use polis_unlock_service::KnownAddresses;

/// Where the other nodes are, from all who have something to say about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Whereabouts {
    /// What an operator says.
    pub(super) told: Vec<(NodeId, IpAddr)>,
    /// What members say now.
    pub(super) said: BTreeMap<NodeId, IpAddr>,
    /// What the directory on the ESP says.
    pub(super) kept: BTreeMap<NodeId, Vec<IpAddr>>,
    /// Where any node may be, as the ESP tells.
    pub(super) anybody: Vec<IpAddr>,
}

impl Whereabouts {
    /// Where a running cluster is looked for. What an operator says comes first, then what members say now, then what was known before.
    pub(super) fn of_anybody(&self) -> Vec<IpAddr> {
        let Self { told, said, kept: _, anybody } = self;
        let mut all: Vec<IpAddr> = Vec::new();
        for address in told.iter().map(|(_, address)| address).chain(said.values()).chain(anybody) {
            if !all.contains(address) {
                all.push(*address);
            }
        }
        all
    }

    /// Where each node is looked for on the unlock port, in the same order.
    pub(super) fn by_node(&self) -> KnownAddresses {
        let Self { told, said, kept, anybody: _ } = self;
        let told = told.iter().copied();
        let said = said.iter().map(|(node, address)| (*node, *address));
        let kept = kept.iter().flat_map(|(node, addresses)| addresses.iter().map(|address| (*node, *address)));
        let mut all = KnownAddresses::new();
        for (node, address) in told.chain(said).chain(kept) {
            let known = all.entry(node).or_default();
            let address = SocketAddr::new(address, UNLOCK_PORT);
            if !known.contains(&address) {
                known.push(address);
            }
        }
        all
    }
}

/// What the directory on the ESP says of each node. What cannot be read is not there. Blocks.
pub(super) fn directory_on_disk(disk: &Arc<dyn Disk>) -> BTreeMap<NodeId, Vec<IpAddr>> {
    let loaded = Layout::new(Arc::clone(disk)).esp.polis.cluster_directory.load().ok().flatten();
    let nodes = loaded.map(|loaded| loaded.value.nodes).unwrap_or_default();
    let node = |node: polis_storage::DirectoryNode| {
        let addresses = node.addresses.iter().filter_map(|address| address.parse().ok()).collect();
        Some((node.node_id.parse().ok()?, addresses))
    };
    nodes.into_iter().filter_map(node).collect()
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;

    use super::*;

    #[test]
    fn what_an_operator_says_comes_first_and_then_what_is_new() {
        let [one, two] = [(); 2].map(|()| NodeId::of(&NodeKey::generate().public()));
        let at = |last| IpAddr::from([192, 0, 2, last]);
        let whereabouts = Whereabouts {
            told: vec![(one, at(1)), (one, at(2))],
            said: BTreeMap::from([(one, at(3)), (two, at(4))]),
            kept: BTreeMap::from([(one, vec![at(1), at(5)])]),
            anybody: vec![at(4), at(5), at(6)],
        };
        let mut said: Vec<_> = whereabouts.said.values().copied().collect();
        let mut anybody = vec![at(1), at(2)];
        anybody.append(&mut said);
        anybody.extend([at(5), at(6)]);
        assert_eq!(whereabouts.of_anybody(), anybody);
        let port = |last| SocketAddr::new(at(last), UNLOCK_PORT);
        let by_node = KnownAddresses::from([(one, [1, 2, 3, 5].map(port).into()), (two, vec![port(4)])]);
        assert_eq!(whereabouts.by_node(), by_node);
    }
}
