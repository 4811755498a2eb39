//! Drills: whether the members would open this node, tried while its data are open.

use std::sync::Arc;

use polis_rpc::{KeyIdentity, UNLOCK_PORT};
use polis_supervisor::{Context, RunnableResult};
use polis_unlock_service::{KnownAddresses, Surroundings, UnlockStatus, drills};
use tokio::sync::watch;

use super::{MemberKeys, changed};
use crate::consensus::ConsensusProvider;
use crate::manager::Inner;

impl<C: ConsensusProvider> Inner<C> {
    /// One life of the runnable that drills whatever the keeper of the keys says.
    pub(crate) async fn run_drills(
        &self,
        context: Context,
        addresses: watch::Receiver<Arc<KnownAddresses>>,
    ) -> RunnableResult {
        context.healthy();
        let mut keys = self.cold_start.keys.subscribe();
        // The Manager holds the sender.
        let known = context.unless_cancelled(keys.wait_for(Option::is_some)).await??.clone();
        let Some(keys) = known else { return Err(context.cancelled().await.into()) };
        let mut address = self.settings.address.clone();
        loop {
            address.mark_unchanged();
            let surroundings = self.surroundings(&keys, addresses.clone(), self.cold_start.drilling.clone());
            let drills = drills(&surroundings, self.exercise.subscribe(), self.drilled.clone());
            tokio::select! {
                ended = context.unless_cancelled(drills) => match ended? {
                    Ok(never) => match never {},
                    Err(error) => return Err(error.into()),
                },
                // It calls from its address, and has another one now.
                () = changed(&mut address) => {}
            }
        }
    }

    /// What the node has around it when it asks the others, now.
    pub(super) fn surroundings(
        &self,
        keys: &MemberKeys,
        addresses: watch::Receiver<Arc<KnownAddresses>>,
        status: watch::Sender<Arc<UnlockStatus>>,
    ) -> Surroundings {
        Surroundings {
            identity: KeyIdentity::new(&keys.join_key),
            from: *self.settings.address.borrow(),
            members: keys.members.clone(),
            contacts: self.cold_start.contacts.clone(),
            addresses,
            port: UNLOCK_PORT,
            status,
        }
    }
}
