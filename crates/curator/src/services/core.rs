//! What all services share.

use std::net::IpAddr;
use std::time::Duration;

use polis_consensus::Consensus;
use polis_identity::{NodeId, NodeIdentity, PublicKey};
use polis_proto::rpc_detail::RemovedNode;
use polis_rpc::{Caller, Peer, ServerIdentity, detail};
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::timeout;
use tonic::{Request, Status};

use super::Services;
use super::leader::{Tenure, no_leader};
use super::text::shown;
use crate::leadership::Leadership;
use crate::membership::Members;
use crate::watch::Nodes;
use crate::{Heartbeats, LeaderState, StateError, layout};

/// How long a request waits for another one that changes the same kind of thing. Each takes a few milliseconds, unless the store
/// does not answer, and then those behind it are told so and do not pile up.
const TURN_PATIENCE: Duration = Duration::from_secs(5);

/// What all services share.
pub(super) struct Core {
    leadership: watch::Receiver<Leadership>,
    pub(super) nodes: Nodes,
    pub(super) heartbeats: Heartbeats,
    pub(super) consensus: Consensus,
    pub(super) members: Members,
    pub(super) identity: ServerIdentity,
    address: watch::Receiver<Option<IpAddr>>,
    /// Held while a WireGuard key is looked for among all nodes and written to one: no two nodes get the same.
    networking: Mutex<()>,
    /// Held while roles are given to a node, and while one is asked to be decommissioned: never both.
    lifecycle: Mutex<()>,
}

impl Core {
    pub(super) fn new(services: Services) -> Self {
        let Services { leadership, nodes, heartbeats, consensus, members, identity, address } = services;
        let (networking, lifecycle) = (Mutex::default(), Mutex::default());
        Self { leadership, nodes, heartbeats, consensus, members, identity, address, networking, lifecycle }
    }

    /// The state in the hands of this node, if it leads.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, naming the leader, if it does not.
    pub(super) fn leader(&self) -> Result<LeaderState, Status> {
        let leadership = self.leadership.borrow();
        leadership.leader().cloned().ok_or_else(|| no_leader(&leadership))
    }

    /// The same, and the end of it, for streams.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, naming the leader, if it does not lead.
    pub(super) fn tenure(&self) -> Result<Tenure, Status> {
        Tenure::of(self.leadership.clone())
    }

    /// Who leads, now and from now on.
    pub(super) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// Where this node is.
    pub(super) fn address(&self) -> Option<IpAddr> {
        *self.address.borrow()
    }

    /// Waits for the turn to write how the pods of a node are reached. Only this node writes while it leads, so what is held
    /// here is enough.
    pub(super) async fn networking(&self) -> Result<MutexGuard<'_, ()>, Status> {
        turn(&self.networking).await
    }

    /// The same, to give roles to a node or to ask one to be decommissioned.
    pub(super) async fn lifecycle(&self) -> Result<MutexGuard<'_, ()>, Status> {
        turn(&self.lifecycle).await
    }

    /// Says that there is no such node, with the proof if it was deleted.
    pub(super) async fn unknown_node(leader: &LeaderState, id: &NodeId) -> Result<Status, StateError> {
        let tombstone = leader.get(&layout::tombstone(id)).await?;
        let message = match &tombstone {
            Some(_) => format!("the node {id} was removed from the cluster"),
            None => format!("the cluster knows no node {id}"),
        };
        Ok(with_tombstone(Status::not_found(message), tombstone.map(|found| found.value)))
    }
}

async fn turn(lock: &Mutex<()>) -> Result<MutexGuard<'_, ()>, Status> {
    let turn = timeout(TURN_PATIENCE, lock.lock()).await;
    turn.map_err(|_| {
        Status::unavailable("the store has not answered the requests before this one for some seconds; ask again")
    })
}

/// The status, with the proof that the node was deleted, if it was.
pub(super) fn with_tombstone(status: Status, tombstone: Option<Vec<u8>>) -> Status {
    match tombstone {
        Some(signed_tombstone) => detail::with_removed_node(status, &RemovedNode { signed_tombstone }),
        None => status,
    }
}

/// The node that calls.
///
/// # Errors
///
/// PERMISSION_DENIED for anybody else.
pub(super) fn calling_node<T>(request: &Request<T>) -> Result<NodeIdentity, Status> {
    match &Caller::of(request).peer {
        Peer::Node(node) => Ok(*node),
        peer @ (Peer::Anonymous | Peer::Ephemeral(_) | Peer::User(_)) => {
            Err(Status::permission_denied(format!("only nodes of the cluster may call this, and the caller is {peer}")))
        }
    }
}

/// The key of a caller who has shown nothing but that.
pub(super) fn calling_key<T>(request: &Request<T>) -> Option<PublicKey> {
    match &Caller::of(request).peer {
        Peer::Ephemeral(key) => Some(*key),
        Peer::Anonymous | Peer::Node(_) | Peer::User(_) => None,
    }
}

/// Reads a node id of a request.
///
/// # Errors
///
/// INVALID_ARGUMENT.
pub(super) fn parse_id(field: &str, text: &str) -> Result<NodeId, Status> {
    text.parse().map_err(|_| {
        Status::invalid_argument(format!(
            "{field} is {:?}, which is no node id; one is `metropolis-` and 32 hexadecimal digits",
            shown(text)
        ))
    })
}

/// Reads a public key of a request.
///
/// # Errors
///
/// INVALID_ARGUMENT.
pub(super) fn parse_key(field: &str, bytes: &[u8]) -> Result<PublicKey, Status> {
    PublicKey::try_from(bytes).map_err(|error| Status::invalid_argument(format!("{field} is not usable: {error}")))
}
