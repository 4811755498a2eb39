//! The unlock port.

use std::convert::Infallible;
use std::sync::Arc;

use async_trait::async_trait;
use polis_identity::{AuthorityCertificate, NodeId, ShareKey};
use polis_proto::unlock::unlock_server;
use polis_rpc::{KeyIdentity, KeyServerSettings, KnownKeys, serve_by_key};
use polis_supervisor::{Context, RunnableResult};
use polis_unlock::ClusterWord;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::service::Routes;

use crate::limits::LIMITS;
use crate::members::KnownMembers;
use crate::service::Service;
use crate::{Contacts, Lock, Members, Oneself, Recovery, UnlockStatus};

/// What the running cluster says of the keys that it keeps.
#[async_trait]
pub trait CurrentKeys: Send + Sync + 'static {
    /// Whether this node is UP, and its key, from a read with quorum. [`ClusterWord::Unavailable`] at once while this node is locked or
    /// knows that it has no quorum.
    async fn word(&self, owner: NodeId) -> ClusterWord;
}

/// What a node has that can answer members: one that could unseal its record.
#[derive(Clone)]
pub struct HolderSettings {
    /// The node.
    pub id: NodeId,
    /// The authority of its cluster.
    pub authority: AuthorityCertificate,
    /// The key to which the shares of others are encrypted.
    pub share_key: ShareKey,
    /// Who the members are.
    pub members: Members,
    /// Takes down who has called.
    pub contacts: Contacts,
    /// What the running cluster says.
    pub keys: Arc<dyn CurrentKeys>,
}

/// What the unlock port is and knows.
#[derive(Clone)]
pub struct UnlockServer {
    /// The key by which the node is known: its join key, or one of the moment when it cannot unseal that.
    pub identity: KeyIdentity,
    /// Who the node says that it is.
    pub oneself: Oneself,
    /// Answers members; none on a node that cannot unseal its record.
    pub holder: Option<HolderSettings>,
    /// Whether the node is locked.
    pub lock: watch::Receiver<Lock>,
    /// How far it is, while it is.
    pub status: watch::Receiver<Arc<UnlockStatus>>,
    /// What the recovery key can do.
    pub recovery: Arc<dyn Recovery>,
}

impl UnlockServer {
    /// Serves members, locked or not, and whoever asks about the lock, until the context is cancelled. Does not signal Healthy: the
    /// runnable that calls it does, before.
    ///
    /// # Errors
    ///
    /// [`polis_supervisor::Cancelled`].
    pub async fn serve(self, context: Context, listener: TcpListener) -> RunnableResult {
        let known = watch::Sender::new(Arc::default());
        let holder = self.holder.clone();
        if let Some(holder) = &holder {
            known.send_replace(known_keys(&holder.id, &holder.members.known()));
        }
        let settings = KeyServerSettings {
            name: "unlock",
            identity: self.identity.clone(),
            known: known.subscribe(),
            limits: LIMITS,
        };
        let routes = Routes::new(unlock_server::UnlockServer::new(Service::new(context.clone(), self)));
        let follow = async {
            match &holder {
                Some(holder) => follow(&holder.id, holder.members.watch(), &known).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            served = serve_by_key(context, listener, settings, routes) => served,
            never = follow => match never {},
        }
    }
}

/// Whoever is on the member list is known to the port.
async fn follow(
    id: &NodeId,
    mut members: watch::Receiver<Arc<KnownMembers>>,
    known: &watch::Sender<Arc<KnownKeys>>,
) -> Infallible {
    loop {
        let keys = known_keys(id, &members.borrow_and_update());
        known.send_if_modified(|known| {
            let is_new = *known != keys;
            *known = keys;
            is_new
        });
        if members.changed().await.is_err() {
            // Nothing changes any more.
            std::future::pending::<()>().await;
        }
    }
}

fn known_keys(id: &NodeId, members: &KnownMembers) -> Arc<KnownKeys> {
    let others = members.list.iter().flat_map(|list| list.list().members()).filter(|member| member.node_id != *id);
    let mut known = KnownKeys::default();
    for member in others {
        known.keys.insert(member.join_key);
        known.addresses.extend(&member.addresses);
    }
    Arc::new(known)
}
