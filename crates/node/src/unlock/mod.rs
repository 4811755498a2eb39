//! The unlock port of a node: members of its cluster open each other's data there, and anybody learns whether it is locked.
//!
//! It is served as soon as it is known who the node is among the members, which the journal says, whether its data are locked or
//! open. A node whose journal cannot be unsealed shows a key of the moment instead: nobody but somebody with the recovery key has
//! anything to do there, and that person compares its fingerprint.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use polis_condition::Severity;
use polis_identity::JoinKey;
use polis_manager::{EtcdProvider, Manager, MemberKeys};
use polis_recovery::Fingerprint;
use polis_rpc::{KeyIdentity, UNLOCK_PORT};
use polis_supervisor::{Context, RunnableResult};
use polis_unlock_service::{CurrentKeys, HolderSettings, Lock, Oneself, Recovery, UnlockServer};
use tokio::sync::watch;

use crate::serving::{Port, serve_at};

const UNLOCK: Port = Port {
    number: UNLOCK_PORT,
    condition: "unlock-cannot-listen",
    consequence: "Other members get no help from this node when they have to open their data, and the recovery key cannot reach it",
};

/// Name of the condition that the node cannot unseal its own keys, and which key it shows instead.
const DATA_SEALED: &str = "data-sealed";

/// The unlock port of a node.
#[derive(Clone)]
pub(crate) struct UnlockPort {
    manager: Manager<EtcdProvider>,
    address: watch::Receiver<Option<IpAddr>>,
    keys: Arc<dyn CurrentKeys>,
    /// Shown while the node cannot unseal its own. It is new in each process, and opens nothing.
    fresh: JoinKey,
}

/// As whom the node serves.
enum Face {
    Member(Arc<MemberKeys>),
    Sealed,
}

impl UnlockPort {
    pub(crate) fn new(
        manager: Manager<EtcdProvider>,
        address: watch::Receiver<Option<IpAddr>>,
        keys: Arc<dyn CurrentKeys>,
    ) -> Self {
        Self { manager, address, keys, fresh: JoinKey::generate() }
    }

    /// Fingerprint of the key that the node shows when it cannot unseal its own.
    pub(crate) fn fingerprint(&self) -> String {
        Fingerprint::of_fresh_key(&self.fresh.public()).to_string()
    }

    /// Serves the port: a runnable.
    pub(crate) async fn serve(self, context: Context) -> RunnableResult {
        context.healthy();
        let served = tokio::select! {
            served = self.serve_as_known(&context) => served,
            never = self.tell_sealed(&context) => match never {},
        };
        context.conditions().clear(DATA_SEALED);
        served
    }

    async fn serve_as_known(&self, context: &Context) -> RunnableResult {
        let (mut keys, mut lock) = (self.manager.member_keys(), self.manager.lock());
        loop {
            let member = keys.borrow_and_update().clone();
            let is_sealed = matches!(*lock.borrow_and_update(), Lock::Sealed { .. });
            let face = match (member, is_sealed) {
                (Some(member), _) => Some(Face::Member(member)),
                (None, true) => Some(Face::Sealed),
                (None, false) => None,
            };
            let serve = async {
                let Some(face) = face else { return std::future::pending().await };
                let server = self.server(&face);
                serve_at(context, self.address.clone(), UNLOCK, |listener| {
                    server.clone().serve(context.clone(), listener)
                })
                .await
            };
            tokio::select! {
                served = serve => return served,
                cancelled = context.cancelled() => return Err(cancelled.into()),
                changed = keys.changed() => changed?,
                sealed = lock.wait_for(|lock| matches!(lock, Lock::Sealed { .. }) != is_sealed) => drop(sealed?),
            }
        }
    }

    fn server(&self, face: &Face) -> UnlockServer {
        let (identity, oneself, holder) = match face {
            Face::Member(member) => {
                let MemberKeys { id, public_key: _, authority, join_key, share_key, members } = &**member;
                let fingerprint = Fingerprint::of_fresh_key(&join_key.public()).to_string();
                let holder = HolderSettings {
                    id: *id,
                    authority: authority.clone(),
                    share_key: share_key.clone(),
                    members: members.clone(),
                    contacts: self.manager.contacts(),
                    keys: Arc::clone(&self.keys),
                };
                let oneself = Oneself { id: Some(*id), cluster: Some(authority.cluster_id()), fingerprint };
                (KeyIdentity::new(join_key), oneself, Some(holder))
            }
            Face::Sealed => {
                let oneself = Oneself { id: None, cluster: None, fingerprint: self.fingerprint() };
                (KeyIdentity::new(&self.fresh), oneself, None)
            }
        };
        UnlockServer {
            identity,
            oneself,
            holder,
            lock: self.manager.lock(),
            status: self.manager.unlock_status(),
            recovery: Arc::new(self.manager.clone()) as Arc<dyn Recovery>,
        }
    }

    /// Says which key the node shows while it cannot unseal its own, where an operator looks: conditions are on the console and in the
    /// log as well.
    async fn tell_sealed(&self, context: &Context) -> Infallible {
        let mut lock = self.manager.lock();
        loop {
            match lock.borrow_and_update().clone() {
                Lock::Sealed { reason } => {
                    let fingerprint = self.fingerprint();
                    context.conditions().raise(
                        DATA_SEALED,
                        Severity::Error,
                        format!(
                            "this node cannot unseal its own keys, and shows another one on the unlock port, with the fingerprint \
                             {fingerprint}: {reason}"
                        ),
                        format!(
                            "cure what the message names, and the node goes on by itself; or open it with the recovery key of its \
                             cluster: polis unlock --recovery - --fingerprint {fingerprint}"
                        ),
                    );
                }
                Lock::Open | Lock::Locked => context.conditions().clear(DATA_SEALED),
            }
            if lock.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
