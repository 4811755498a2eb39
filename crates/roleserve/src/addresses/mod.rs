//! [`Addresses`]: where the other nodes are, from everybody who has something to say about it.
//!
//! An address is a hint, the key decides. There are four sources, and this is their order: the directory, which the cluster
//! keeps up to date and which outlasts a start on the ESP; what an operator has said; announcements on the link. Above all of
//! them stands an address at which a node has proved with its key to be, which is looked for when there is no contact, and when an
//! operator says something new ([`locate`](crate::workers::locate)).
//!
//! What comes out are three watched values: where the dialer of the consensus member finds its peers, where the client of the
//! cluster looks for the leader, and where members are asked whether they would open this one's data.

mod directory;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polis_consensus::{PEER_PORT, PeerMap};
use polis_identity::{NodeId, PeerAddress, PublicKey};
use polis_rpc::{CURATOR_PORT, UNLOCK_PORT};
use polis_unlock_service::KnownAddresses;
use tokio::sync::watch;

pub(crate) use directory::{Directory, KnownNode, Sighting};

/// Where the other nodes are. Clones are the same.
#[derive(Clone)]
pub(crate) struct Addresses(Arc<Inner>);

struct Inner {
    known: Mutex<Known>,
    directory: watch::Sender<Option<Directory>>,
    peers: watch::Sender<PeerMap>,
    endpoints: watch::Sender<Vec<SocketAddr>>,
    unlock_ports: watch::Sender<Arc<KnownAddresses>>,
}

/// All that is known. Pure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The node itself; absent until its identity is known, and with it everything that follows.
    own: Option<NodeId>,
    directory: Option<Directory>,
    operator: BTreeMap<NodeId, Vec<IpAddr>>,
    announced: BTreeMap<NodeId, IpAddr>,
    proven: BTreeMap<NodeId, IpAddr>,
    /// Address of this node, while it runs a curator.
    own_curator: Option<IpAddr>,
}

impl Known {
    /// Begins with what was kept.
    pub(crate) fn begin(&mut self, own: &PublicKey, directory: Directory) {
        self.own = Some(NodeId::of(own));
        self.directory = Some(directory);
    }

    /// The directory; absent until [`Known::begin`].
    pub(crate) const fn directory(&self) -> Option<&Directory> {
        self.directory.as_ref()
    }

    /// Changes the directory by what the cluster says. An address that the cluster names is worth more than one where the node
    /// once was.
    pub(crate) fn change_directory(&mut self, change: impl FnOnce(&mut Directory)) {
        let Some(directory) = &mut self.directory else { return };
        let before = directory.clone();
        change(directory);
        let newest = |directory: &Directory, node_id: &NodeId| {
            directory.nodes().get(node_id).and_then(|node| node.addresses.first().copied())
        };
        self.proven.retain(|node_id, _| newest(&before, node_id) == newest(directory, node_id));
        self.announced.retain(|node_id, _| newest(&before, node_id) == newest(directory, node_id));
    }

    /// What an operator says, instead of what he said before.
    pub(crate) fn set_operator(&mut self, peers: impl IntoIterator<Item = (NodeId, IpAddr)>) {
        self.operator.clear();
        for (node_id, address) in peers {
            self.operator.entry(node_id).or_default().push(address);
        }
    }

    /// A member has announced itself.
    pub(crate) fn announce(&mut self, node_id: NodeId, address: IpAddr) {
        self.announced.insert(node_id, address);
    }

    /// A node has proved to be at an address.
    pub(crate) fn prove(&mut self, node_id: NodeId, address: IpAddr) {
        self.proven.insert(node_id, address);
    }

    /// Where this node serves the cluster itself.
    pub(crate) fn set_own_curator(&mut self, address: Option<IpAddr>) {
        self.own_curator = address;
    }

    /// Where a node may be, the likeliest first.
    pub(crate) fn candidates(&self, node_id: &NodeId) -> Vec<IpAddr> {
        let directory = self.directory.as_ref().and_then(|directory| directory.nodes().get(node_id));
        let sources = self
            .proven
            .get(node_id)
            .into_iter()
            .chain(directory.into_iter().flat_map(|node| &node.addresses))
            .chain(self.operator.get(node_id).into_iter().flatten())
            .chain(self.announced.get(node_id));
        let mut candidates = Vec::new();
        for address in sources {
            if !candidates.contains(address) {
                candidates.push(*address);
            }
        }
        candidates
    }

    /// The members of the consensus beside this node.
    pub(crate) fn other_members(&self) -> BTreeSet<NodeId> {
        let nodes = self.directory.iter().flat_map(|directory| directory.nodes());
        let members = nodes.filter(|(_, node)| node.consensus_member).map(|(node_id, _)| *node_id);
        members.filter(|node_id| Some(*node_id) != self.own).collect()
    }

    /// Where the consensus member of this node finds the others.
    fn peers(&self) -> PeerMap {
        let peer = |node_id: &NodeId| {
            let node: &KnownNode = self.directory.as_ref()?.nodes().get(node_id)?;
            let address = *self.candidates(node_id).first()?;
            Some((PeerAddress::of(&node.public_key?).ip(), SocketAddr::new(address, PEER_PORT)))
        };
        self.other_members().iter().filter_map(peer).collect()
    }

    /// Where to look for the leader: at the members, and while none is known, at all nodes that are.
    fn endpoints(&self) -> Vec<SocketAddr> {
        let members = self.other_members();
        let nodes = self.directory.iter().flat_map(|directory| directory.nodes().keys().copied());
        let told = self.operator.keys().chain(self.announced.keys()).copied();
        let asked: BTreeSet<NodeId> = if members.is_empty() { nodes.collect() } else { members };
        let asked = asked.into_iter().chain(told).filter(|node_id| Some(*node_id) != self.own);
        let addresses = asked.flat_map(|node_id| self.candidates(&node_id)).chain(self.own_curator);
        let endpoints: BTreeSet<SocketAddr> = addresses.map(|address| SocketAddr::new(address, CURATOR_PORT)).collect();
        endpoints.into_iter().collect()
    }

    /// Where the other nodes listen for members whose data are locked.
    fn unlock_ports(&self) -> KnownAddresses {
        let nodes = self.directory.iter().flat_map(|directory| directory.nodes().keys());
        let others: BTreeSet<&NodeId> = nodes.chain(self.operator.keys()).chain(self.announced.keys()).collect();
        let others = others.into_iter().filter(|node_id| Some(**node_id) != self.own);
        let at = |address: IpAddr| SocketAddr::new(address, UNLOCK_PORT);
        others.map(|node_id| (*node_id, self.candidates(node_id).into_iter().map(at).collect())).collect()
    }
}

impl Addresses {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            known: Mutex::default(),
            directory: watch::Sender::new(None),
            peers: watch::Sender::default(),
            endpoints: watch::Sender::default(),
            unlock_ports: watch::Sender::default(),
        }))
    }

    /// Changes what is known, and publishes what follows from it.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.known();
        change(&mut known);
        publish(&self.0.directory, known.directory.clone());
        publish(&self.0.peers, known.peers());
        publish(&self.0.endpoints, known.endpoints());
        publish(&self.0.unlock_ports, Arc::new(known.unlock_ports()));
    }

    /// What is known.
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory, once there is one; wakes when it changes.
    pub(crate) fn directory(&self) -> watch::Receiver<Option<Directory>> {
        self.0.directory.subscribe()
    }

    /// Where the consensus member of this node finds the others.
    pub(crate) fn peers(&self) -> watch::Receiver<PeerMap> {
        self.0.peers.subscribe()
    }

    /// Where to look for the leader.
    pub(crate) fn endpoints(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.0.endpoints.subscribe()
    }

    /// Where the other nodes listen for members whose data are locked.
    pub(crate) fn unlock_ports(&self) -> watch::Receiver<Arc<KnownAddresses>> {
        self.0.unlock_ports.subscribe()
    }
}

fn publish<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|known| {
        let changed = *known != value;
        *known = value;
        changed
    });
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;

    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    struct Scene {
        own: PublicKey,
        others: Vec<PublicKey>,
        known: Known,
    }

    /// This node at 10.0.0.1, and others at 10.0.0.11 and so on, of which so many are members.
    fn scene(others: u8, members: usize) -> Scene {
        let own = NodeKey::generate().public();
        let others: Vec<PublicKey> = (0..others).map(|_| NodeKey::generate().public()).collect();
        let mut directory = Directory::new(&own);
        directory.set_own_address(Some(ip(1)));
        for (number, key) in (11..).zip(&others) {
            let sighting = Sighting { node_id: NodeId::of(key), public_key: Some(*key), address: Some(ip(number)) };
            directory.learn(&sighting);
        }
        directory.set_members(&others.iter().take(members).map(NodeId::of).collect());
        let mut known = Known::default();
        known.begin(&own, directory);
        Scene { own, others, known }
    }

    impl Scene {
        fn id(&self, number: usize) -> NodeId {
            NodeId::of(&self.others[number])
        }

        fn peers(&self) -> Vec<(usize, String)> {
            let peers = self.known.peers();
            let mut found: Vec<(usize, String)> = peers
                .iter()
                .map(|(identity, address)| {
                    let is_it = |key: &PublicKey| PeerAddress::of(key).ip() == *identity;
                    (self.others.iter().position(is_it).unwrap(), address.to_string())
                })
                .collect();
            found.sort();
            found
        }

        fn endpoints(&self) -> Vec<String> {
            self.known.endpoints().iter().map(ToString::to_string).collect()
        }
    }

    #[test]
    fn members_are_dialed_and_asked_and_others_are_not() {
        let scene = scene(3, 2);
        assert_eq!(scene.peers(), [(0, "10.0.0.11:7834".to_owned()), (1, "10.0.0.12:7834".to_owned())]);
        assert_eq!(scene.endpoints(), ["10.0.0.11:7835", "10.0.0.12:7835"]);
    }

    #[test]
    fn while_no_member_is_known_all_are_asked() {
        assert_eq!(scene(2, 0).endpoints(), ["10.0.0.11:7835", "10.0.0.12:7835"]);
        assert_eq!(scene(2, 0).peers(), []);
        assert_eq!(scene(0, 0).endpoints(), [""; 0]);
    }

    #[test]
    fn this_node_is_asked_while_it_runs_a_curator_and_never_dialed() {
        let mut scene = scene(1, 1);
        let own = NodeId::of(&scene.own);
        scene.known.change_directory(|directory| directory.set_members(&BTreeSet::from([own])));
        scene.known.set_own_curator(Some(ip(1)));
        assert_eq!(
            (scene.peers(), scene.endpoints()),
            (vec![], vec!["10.0.0.1:7835".to_owned(), "10.0.0.11:7835".to_owned()])
        );
        scene.known.set_own_curator(None);
        assert_eq!(scene.endpoints(), ["10.0.0.11:7835"]);
    }

    #[test]
    fn the_sources_have_an_order_and_a_proof_is_above_them() {
        let mut scene = scene(1, 1);
        let node = scene.id(0);
        scene.known.announce(node, ip(31));
        scene.known.set_operator([(node, ip(21)), (node, ip(22)), (node, ip(11))]);
        assert_eq!(scene.known.candidates(&node), [ip(11), ip(21), ip(22), ip(31)]);
        assert_eq!(scene.peers(), [(0, "10.0.0.11:7834".to_owned())]);
        scene.known.prove(node, ip(31));
        assert_eq!(scene.known.candidates(&node), [ip(31), ip(11), ip(21), ip(22)]);
        assert_eq!(scene.peers(), [(0, "10.0.0.31:7834".to_owned())]);
        // All of them are asked who leads, and for a share.
        assert_eq!(scene.endpoints().len(), 4);
        assert_eq!(scene.known.unlock_ports()[&node], [31, 11, 21, 22].map(|last| SocketAddr::new(ip(last), 7836)));
    }

    #[test]
    fn what_the_cluster_says_anew_ends_what_was_found_without_it() {
        let mut scene = scene(2, 2);
        let (moved, stayed) = (scene.id(0), scene.id(1));
        for node in [moved, stayed] {
            scene.known.announce(node, ip(31));
            scene.known.prove(node, ip(31));
        }
        scene.known.change_directory(|directory| {
            directory.learn(&Sighting { node_id: moved, public_key: None, address: Some(ip(41)) });
        });
        assert_eq!(scene.known.candidates(&moved), [ip(41), ip(11)]);
        assert_eq!(scene.known.candidates(&stayed), [ip(31), ip(12)]);
    }

    #[test]
    fn an_operator_replaces_what_he_has_said() {
        let mut scene = scene(0, 0);
        let stranger = NodeId::of(&NodeKey::generate().public());
        scene.known.set_operator([(stranger, ip(21))]);
        assert_eq!(scene.endpoints(), ["10.0.0.21:7835"]);
        scene.known.set_operator([]);
        assert_eq!(scene.endpoints(), [""; 0]);
    }

    #[test]
    fn receivers_wake_only_on_a_change() {
        let addresses = Addresses::new();
        let Scene { own, others, known } = scene(1, 1);
        addresses.change(|all| *all = known.clone());
        let (mut peers, mut endpoints) = (addresses.peers(), addresses.endpoints());
        let mut directory = addresses.directory();
        peers.mark_unchanged();
        endpoints.mark_unchanged();
        directory.mark_unchanged();
        addresses.change(|all| all.announce(NodeId::of(&others[0]), ip(11)));
        addresses.change(|all| all.change_directory(|directory| directory.set_own_address(Some(ip(1)))));
        assert!(
            !peers.has_changed().unwrap() && !endpoints.has_changed().unwrap() && !directory.has_changed().unwrap()
        );
        addresses.change(|all| all.change_directory(|directory| directory.set_own_address(Some(ip(2)))));
        assert!(!peers.has_changed().unwrap() && directory.has_changed().unwrap());
        assert_eq!(addresses.known().directory().unwrap().nodes()[&NodeId::of(&own)].addresses, [ip(2), ip(1)]);
    }
}
