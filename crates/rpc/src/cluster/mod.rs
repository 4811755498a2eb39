//! A client of a cluster: finds the node that leads, follows it, and makes calls to it.

mod ask;
mod call;
mod find;
mod judge;
mod pace;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use polis_identity::{AuthorityCertificate, NodeId};
use polis_proto::rpc_detail::{LeaderHint, RemovedNode};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Status};

pub use call::{CallError, CallPolicy};
pub use judge::Judge;

use crate::{ClientIdentity, ConnectError, Connector, ExpectedServer, describe, detail, is_transport_failure};
use find::Finder;

/// Doubts about the leader that wait to be looked at. One is enough to look, so what does not fit says nothing new.
const MAX_DOUBTS: usize = 16;

/// A client of a cluster. Clones are the same one.
///
/// It knows some addresses of curators and asks all of them at once who leads (`CuratorLocal.GetCurrentLeader`). Whoever is named is
/// asked too, at its own address, and has to be the node that was named and to say itself that it leads; until then it is not
/// believed. From then on two streams are followed: the leader's own, and that of the node that named it. When one of them says
/// something else, or the leader is lost, all are asked again at once. Pauses grow only where nobody answers.
///
/// Nothing happens while nobody awaits [`ClusterClient::run`].
#[derive(Clone, Debug)]
pub struct ClusterClient(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    search: watch::Sender<Search>,
    doubts: mpsc::Sender<Doubt>,
    finder: Mutex<Finder>,
}

/// How far the search for the leader is.
#[derive(Clone, Debug)]
pub enum Search {
    /// Nobody is known to lead.
    Searching {
        /// Since when.
        since: Instant,
        /// How many answers and failures there were since then. All of them together said nothing that led to a leader.
        attempts: u32,
        /// The last thing that went wrong, for each address that was asked.
        failures: BTreeMap<SocketAddr, EndpointFailure>,
    },
    /// This node leads, and says so itself.
    Found(Leader),
}

/// The node that leads.
#[derive(Clone, Debug)]
pub struct Leader {
    /// Its id, which its certificate bears.
    pub node_id: NodeId,
    /// Where it is.
    pub address: SocketAddr,
    /// Connections to it and to nobody else, see [`Connector`].
    pub channel: Channel,
    /// Counts how often a leader was found.
    generation: u64,
}

/// What went wrong with one address.
#[derive(Clone, Debug)]
pub struct EndpointFailure {
    /// When.
    pub at: Instant,
    /// What, for programs.
    pub kind: FailureKind,
    /// What, for people. Where it is about the connection, it begins with the address.
    pub text: String,
    /// Proof that the node that asks was deleted, if that was the answer. Whether it is one is to be checked.
    pub removed: Option<RemovedNode>,
}

/// What went wrong with one address, as far as somebody decides by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The machine is there, and nobody listens on it.
    NobodyListens,
    /// A node of the cluster has answered the question who leads with this code.
    Answered(Code),
    /// Anything else: silence, a broken connection, an answer that names no leader.
    Other,
}

impl ClusterClient {
    /// A client that shows this, believes nodes of that cluster only, and begins with these addresses of curators. When the list
    /// changes during a search, new addresses are asked at once.
    #[must_use]
    pub fn new(
        identity: ClientIdentity,
        authority: AuthorityCertificate,
        endpoints: watch::Receiver<Vec<SocketAddr>>,
    ) -> Self {
        Self::with(identity, authority, endpoints, None)
    }

    /// The same, which follows only whom this judge lets it follow.
    #[must_use]
    pub fn judged(
        identity: ClientIdentity,
        authority: AuthorityCertificate,
        endpoints: watch::Receiver<Vec<SocketAddr>>,
        judge: Arc<dyn Judge>,
    ) -> Self {
        Self::with(identity, authority, endpoints, Some(judge))
    }

    fn with(
        identity: ClientIdentity,
        authority: AuthorityCertificate,
        endpoints: watch::Receiver<Vec<SocketAddr>>,
        judge: Option<Arc<dyn Judge>>,
    ) -> Self {
        let (doubts, doubtful) = mpsc::channel(MAX_DOUBTS);
        let search = watch::Sender::new(Search::begun());
        let finder = Finder::new(identity, authority, endpoints, judge, search.clone(), doubtful);
        Self(Arc::new(Shared { search, doubts, finder: Mutex::new(finder) }))
    }

    /// Searches and follows, for as long as it is awaited. To be run as a task of whoever owns the client; a second one at the same
    /// time waits for the first to be dropped.
    pub async fn run(&self) -> Infallible {
        self.0.finder.lock().await.run().await
    }

    /// How far the search is, as a watched value.
    #[must_use]
    pub fn search(&self) -> watch::Receiver<Search> {
        self.0.search.subscribe()
    }

    /// The node that leads; waits for as long as there is none. Whoever does not want to wait for ever sets a limit and tells with
    /// [`ClusterClient::search`] why there is none.
    pub async fn leader(&self) -> Leader {
        self.wait_for(|search| search.leader().cloned()).await
    }

    /// Tells the search that a call to this leader failed. It decides whether that says anything about who leads.
    ///
    /// [`ClusterClient::call`] does it by itself; it is for those who use [`Leader::channel`] on their own.
    pub fn doubt(&self, leader: &Leader, status: &Status) {
        let hint = detail::leader(status);
        if hint.is_some() || is_transport_failure(status) {
            let _ = self.0.doubts.try_send(Doubt { generation: leader.generation, hint });
        }
    }

    /// Waits until the search says something.
    async fn wait_for<T>(&self, mut wanted: impl FnMut(&Search) -> Option<T>) -> T {
        let mut search = self.0.search.subscribe();
        loop {
            if let Some(found) = wanted(&search.borrow_and_update()) {
                return found;
            }
            if search.changed().await.is_err() {
                // The sender is in what we hold, so this cannot be.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Search {
    fn begun() -> Self {
        Self::Searching { since: Instant::now(), attempts: 0, failures: BTreeMap::new() }
    }

    /// The leader, once it is found.
    #[must_use]
    pub const fn leader(&self) -> Option<&Leader> {
        match self {
            Self::Found(leader) => Some(leader),
            Self::Searching { .. } => None,
        }
    }

    /// What went wrong with each address, while there is no leader.
    #[must_use]
    pub fn failures(&self) -> BTreeMap<SocketAddr, EndpointFailure> {
        match self {
            Self::Searching { failures, .. } => failures.clone(),
            Self::Found(_) => BTreeMap::new(),
        }
    }
}

impl EndpointFailure {
    /// What went wrong at this address, with the address once.
    #[must_use]
    pub fn at(&self, address: SocketAddr) -> String {
        let text = &self.text;
        let rest = text.strip_prefix(&address.to_string());
        if rest.is_some_and(|rest| rest.starts_with(' ')) { text.clone() } else { format!("{address}: {text}") }
    }

    fn now(text: impl Into<String>) -> Self {
        Self { at: Instant::now(), kind: FailureKind::Other, text: text.into(), removed: None }
    }

    fn of_connecting(error: &ConnectError) -> Self {
        let kind = match error {
            ConnectError::Refused { .. } => FailureKind::NobodyListens,
            ConnectError::TimedOut { .. }
            | ConnectError::Unreachable { .. }
            | ConnectError::NotTls { .. }
            | ConnectError::NotExpected { .. }
            | ConnectError::RefusedByServer { .. }
            | ConnectError::Closed { .. }
            | ConnectError::Handshake { .. } => FailureKind::Other,
        };
        Self { kind, ..Self::now(polis_supervisor::with_causes(error)) }
    }

    fn of_call(status: &Status) -> Self {
        let kind = if is_transport_failure(status) { FailureKind::Other } else { FailureKind::Answered(status.code()) };
        Self { kind, removed: detail::removed_node(status), ..Self::now(describe(status)) }
    }
}

/// A call to the leader that failed in a way that says that it may lead no more.
#[derive(Debug)]
struct Doubt {
    generation: u64,
    hint: Option<LeaderHint>,
}

/// A node that is said to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Claim {
    node_id: NodeId,
    address: SocketAddr,
}

impl Claim {
    /// From what the wire says. `None` if it names no node, or no place and there is none to take instead.
    fn read(node_id: &str, host: &str, port: i32, own: Option<SocketAddr>) -> Option<Self> {
        let node_id = node_id.parse().ok()?;
        let address = if host.is_empty() {
            own?
        } else {
            SocketAddr::new(host.parse().ok()?, u16::try_from(port).ok().filter(|port| *port != 0)?)
        };
        Some(Self { node_id, address })
    }

    fn of_hint(hint: &LeaderHint) -> Option<Self> {
        Self::read(&hint.node_id, &hint.host, hint.port, None)
    }
}

fn connector(identity: &ClientIdentity, authority: &AuthorityCertificate, node_id: Option<NodeId>) -> Connector {
    let expected = match node_id {
        None => ExpectedServer::Cluster(authority.clone()),
        Some(node_id) => ExpectedServer::Node(authority.clone(), node_id),
    };
    Connector::new(identity, expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_read_as_a_whole_or_not_at_all() {
        let id = "metropolis-00112233445566778899aabbccddeeff";
        let own = SocketAddr::from(([10, 0, 0, 9], 7835));
        let other = SocketAddr::from(([10, 0, 0, 1], 7836));
        for (node_id, host, port, own, address) in [
            (id, "10.0.0.1", 7836, Some(own), Some(other)),
            (id, "", 0, Some(own), Some(own)),
            (id, "", 7835, None, None),
            (id, "fd00::1", 7835, None, Some("[fd00::1]:7835".parse().unwrap())),
            (id, "node.example", 7835, Some(own), None),
            (id, "10.0.0.1", 0, Some(own), None),
            (id, "10.0.0.1", 65_536, Some(own), None),
            (id, "10.0.0.1", -1, Some(own), None),
            ("", "10.0.0.1", 7835, Some(own), None),
            ("metropolis-1", "10.0.0.1", 7835, Some(own), None),
        ] {
            let claim = Claim::read(node_id, host, port, own);
            assert_eq!(claim.map(|claim| claim.address), address, "{node_id:?} {host:?} {port} {own:?}");
        }
    }

    #[test]
    fn a_failure_names_its_address_once() {
        let address: SocketAddr = "127.0.0.1:783".parse().unwrap();
        for (text, shown) in [
            ("the connection broke: early end", "127.0.0.1:783: the connection broke: early end"),
            ("127.0.0.1:783 cannot be reached", "127.0.0.1:783 cannot be reached"),
            ("127.0.0.1:7835 cannot be reached", "127.0.0.1:783: 127.0.0.1:7835 cannot be reached"),
        ] {
            assert_eq!(EndpointFailure::now(text).at(address), shown);
        }
    }
}
