//! The unlock file of a running node: the key, split among the other members, and written so that it is there.

use polis_secret::Secret32;
use polis_storage::{GenerationsError, TwoGenerations, TwoGenerationsError, UnlockShares};
use polis_supervisor::Context;
use polis_unlock::{ClusterUnlockKey, Hpke, MemberList, Split, UnlockFile, split};

use super::demand::fits;
use super::error::SettleError;
use super::memory::Memory;
use crate::cold_start::MemberKeys;
use crate::consensus::ConsensusProvider;
use crate::manager::Inner;

impl<C: ConsensusProvider> Inner<C> {
    /// Splits the keys as the list asks, and writes that down. What is split already as it asks stays. When this returns, the file is
    /// durable, and was read back.
    pub(super) async fn split_keys(
        &self,
        context: &Context,
        memory: &mut Memory,
        member: &MemberKeys,
        list: &MemberList,
        (node_unlock_key, opened): (&Secret32, &ClusterUnlockKey),
    ) -> Result<(), SettleError> {
        let piece = |key: &ClusterUnlockKey| match memory.split_of(key) {
            Some(kept) if fits(kept, list, &member.id) && !memory.is_useless(kept) => Ok(kept.clone()),
            Some(_) | None => split(&member.id, key, list, &Hpke, &mut rand::rng()),
        };
        let current = piece(opened)?;
        let pending = memory.next.clone().map(ClusterUnlockKey::new);
        let pending = pending.as_ref().map(piece).transpose()?;
        let file = UnlockFile { cluster: *list.cluster_id(), owner: member.id, current, pending };
        let sealed = file.seal(node_unlock_key);
        let record = UnlockShares { content: sealed.content, mac: sealed.mac };
        let stored = self.layout.esp.polis.unlock.clone();
        self.on_disk(context, move || replace(&stored, &record)).await?;
        let found = self.load_unlock_file(context, node_unlock_key, &member.authority, &member.id).await?;
        if found.as_ref() != Some(&file) {
            return Err(SettleError::ReadBack);
        }
        let Split { epoch, scheme, .. } = &file.current;
        tracing::info!(
            %epoch,
            shares_needed = scheme.shares_needed(),
            holders = file.current.holders.len(),
            with_next = file.pending.is_some(),
            "the cluster unlock key of this node is split among the members"
        );
        memory.set_file(Some(file));
        Ok(())
    }

    /// Removes the unlock file.
    pub(super) async fn forget_split(&self, context: &Context, memory: &mut Memory) -> Result<(), SettleError> {
        let stored = self.layout.esp.polis.unlock.clone();
        self.on_disk(context, move || stored.discard("unlock/forget")).await?;
        memory.set_file(None);
        tracing::info!("the cluster unlock key of this node is not split among the members any more");
        Ok(())
    }
}

/// Writes the next generation, also over two that cannot be used.
fn replace(stored: &TwoGenerations<UnlockShares>, record: &UnlockShares) -> Result<(), TwoGenerationsError> {
    const SITE: &str = "unlock/split";
    match stored.store(record, SITE) {
        // Whatever was there opened nothing, and its owner makes it anew.
        Err(TwoGenerationsError::Files(GenerationsError::BothUnusable { .. })) => {
            stored.discard("unlock/discard")?;
            stored.store(record, SITE)
        }
        written => written,
    }
}
