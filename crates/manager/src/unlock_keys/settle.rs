//! Bringing the keys of a node into order, one planned step after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use polis_fault::point;
use polis_secret::Secret32;
use polis_storage::Journal;
use polis_storage::data::UnlockKeys;
use polis_storage::journal::ClusterUnlockKey as JournalKey;
use polis_supervisor::Context;
use polis_unlock::{ClusterUnlockKey, KeyCheckValue, SignedMemberList, Split};

use super::demand::{Standing, demand, fits};
use super::error::SettleError;
use super::memory::Memory;
use super::plan::{Copied, Demand, Filed, Piece, Step, View, Waiting, plan};
use crate::cluster_access::CallFailure;
use crate::cold_start::MemberKeys;
use crate::consensus::ConsensusProvider;
use crate::data::Opened;
use crate::manager::Inner;

/// How far the keys are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// They are, or there are none yet that could be.
    InOrder,
    /// The data are not encrypted.
    NoKeys,
    /// As far as they can be until the other members have opened their shares.
    Drilling {
        /// Whether the journal still has a copy of the key.
        has_copy: bool,
    },
    /// As far as they can be without contact with the leader.
    WithoutCluster,
}

/// Everything that there is to be seen.
pub(super) struct Sight {
    pub(super) opened: Opened,
    pub(super) keys: UnlockKeys,
    pub(super) journal: Journal,
    pub(super) member: Option<Arc<MemberKeys>>,
    pub(super) list: Option<SignedMemberList>,
    pub(super) view: View,
}

/// What the cluster has said of the key, since the look at it began.
struct Word {
    kept: Option<KeyCheckValue>,
    standing: Standing,
}

impl<C: ConsensusProvider> Inner<C> {
    /// Brings the keys into order, as far as that goes now. The cluster is asked only `with_cluster`, as that may take its time.
    pub(super) async fn settle(
        &self,
        context: &Context,
        memory: &mut Memory,
        with_cluster: bool,
    ) -> Result<Settled, SettleError> {
        let mut word = None;
        let mut failure = None;
        loop {
            if self.opened.borrow().as_ref().is_none_or(|opened| opened.keys.is_none()) {
                return Ok(Settled::NoKeys);
            }
            if with_cluster && word.is_none() && failure.is_none() {
                match self.ask_cluster().await {
                    Ok(answer) => word = Some(answer),
                    // What needs nobody is done all the same.
                    Err(error) => failure = Some(error),
                }
            }
            let Some(sight) = self.look(context, memory, word.as_ref()).await? else { return Ok(Settled::InOrder) };
            self.publish_split(memory, &sight);
            self.begin_drill(memory, &sight);
            match plan(&sight.view) {
                Step::Settled => return Ok(Settled::InOrder),
                Step::Wait(Waiting::Drill(_)) => {
                    return Ok(Settled::Drilling { has_copy: sight.view.copy.is_some() });
                }
                Step::Wait(Waiting::Cluster) => match failure {
                    Some(error) => return Err(error.into()),
                    None => return Ok(Settled::WithoutCluster),
                },
                Step::Wait(Waiting::List) => return Err(SettleError::NoList),
                Step::Tell => {
                    self.tell_cluster(&sight.keys.cluster).await?;
                    // It is asked once more: what it says then is what it keeps.
                    word = None;
                }
                step @ (Step::Copy
                | Step::DropCopy
                | Step::Begin { .. }
                | Step::Split
                | Step::AddKey
                | Step::RemoveOthers
                | Step::Forget) => self.carry_out(context, memory, &sight, step).await?,
            }
        }
    }

    async fn ask_cluster(&self) -> Result<Word, CallFailure> {
        let kept = self.settings.access.check_unlock_key().await?;
        Ok(Word { kept: kept.hash.map(KeyCheckValue::new), standing: kept.standing })
    }

    async fn tell_cluster(&self, key: &Secret32) -> Result<(), CallFailure> {
        point("rekey/cluster", "before");
        self.settings.access.store_unlock_key(key).await?;
        point("rekey/cluster", "after");
        tracing::info!("the cluster was told the key of this node's data");
        Ok(())
    }

    /// Looks at everything; nothing when there is no open partition any more, or no journal.
    async fn look(
        &self,
        context: &Context,
        memory: &mut Memory,
        word: Option<&Word>,
    ) -> Result<Option<Sight>, SettleError> {
        let opened = self.opened.borrow().clone();
        let Some(opened) = opened else { return Ok(None) };
        let Some(keys) = opened.keys.clone() else { return Ok(None) };
        let Some(journal) = self.read_journal(context).await? else { return Ok(None) };
        let member = self.cold_start.keys.borrow().clone();
        if memory.file.is_none()
            && let Some(member) = &member
        {
            let file = self.load_unlock_file(context, &keys.node, &member.authority, &member.id).await?;
            memory.set_file(file);
        }
        let list = member.as_ref().and_then(|member| member.members.known().list.clone());
        let asked = match &member {
            Some(member) => {
                let list = list.as_ref().map(SignedMemberList::list);
                demand(list, &member.id, word.map(|word| word.standing))
            }
            None => Demand::Unsaid,
        };
        match asked {
            Demand::Copy | Demand::Shares { .. } => memory.was_member = true,
            Demand::Unsaid | Demand::Guest => {}
        }
        let value = |key: &Secret32| ClusterUnlockKey::new(key.clone()).check_value();
        if memory.next.is_none()
            && let Some(JournalKey { current, pending: Some(pending) }) = &journal.cluster_unlock_key
            && *current == keys.cluster
        {
            memory.next = Some(pending.clone());
        }
        let piece = |split: &Split| Piece {
            key: split.check_value,
            needed: split.scheme.shares_needed(),
            fits: member.as_ref().zip(list.as_ref()).is_some_and(|(member, list)| fits(split, list.list(), &member.id))
                && !memory.is_useless(split),
            is_verified: memory.is_verified(split),
        };
        let view = View {
            demand: asked,
            opened: value(&keys.cluster),
            next: memory.next.as_ref().map(value),
            copy: journal
                .cluster_unlock_key
                .as_ref()
                .map(|copy| Copied { current: value(&copy.current), pending: copy.pending.as_ref().map(value) }),
            file: memory
                .file
                .iter()
                .flatten()
                .next()
                .map(|file| Filed { current: piece(&file.current), pending: file.pending.as_ref().map(piece) }),
            kept: word.map(|word| word.kept),
            keys: opened.partition.count_keys().await?,
            is_rekey_asked: memory.is_rekey_asked,
            may_have_been_member: memory.was_member || !self.has_registered.load(Ordering::Relaxed),
        };
        Ok(Some(Sight { opened, keys, journal, member, list, view }))
    }

    /// Carries out a step that changes something here.
    async fn carry_out(
        &self,
        context: &Context,
        memory: &mut Memory,
        sight: &Sight,
        step: Step,
    ) -> Result<(), SettleError> {
        let (key, partition) = (&sight.keys.cluster, &sight.opened.partition);
        match step {
            Step::Copy => {
                // The end of a change, or the beginning of having a copy.
                let is_end = sight.journal.cluster_unlock_key.as_ref().is_some_and(|copy| copy.pending.is_some());
                let site = if is_end { "journal/rekey/done" } else { "journal/unlock-key" };
                let copy = JournalKey { current: key.clone(), pending: None };
                self.put_copy(context, site, true, Some(copy)).await?;
                tracing::info!("this node has a copy of its cluster unlock key under its seal");
            }
            Step::DropCopy => {
                self.put_copy(context, "journal/unlock-key", true, None).await?;
                tracing::info!("this node has no copy of its cluster unlock key any more");
            }
            Step::Begin { in_journal } => {
                let next = Secret32::random();
                if in_journal {
                    let both = JournalKey { current: key.clone(), pending: Some(next.clone()) };
                    self.put_copy(context, "journal/rekey/begin", false, Some(both)).await?;
                }
                memory.next = Some(next);
                memory.is_rekey_asked = false;
            }
            Step::Split => {
                let (Some(member), Some(list)) = (&sight.member, &sight.list) else { return Ok(()) };
                let opened = ClusterUnlockKey::new(key.clone());
                self.split_keys(context, memory, member, list.list(), (&sight.keys.node, &opened)).await?;
            }
            Step::AddKey => {
                let Some(next) = memory.next.clone() else { return Ok(()) };
                let new = UnlockKeys { node: sight.keys.node.clone(), cluster: next.clone() };
                if !partition.test_open(&new).await? {
                    point("rekey/slot", "before");
                    partition.add_key(&sight.keys, &new).await?;
                    point("rekey/slot", "after");
                }
                if !partition.test_open(&new).await? {
                    return Err(SettleError::DoesNotOpen);
                }
                self.opened.send_modify(|opened| {
                    if let Some(keys) = opened.as_mut().and_then(|opened| opened.keys.as_mut()) {
                        keys.cluster = next;
                    }
                });
                memory.next = None;
            }
            Step::RemoveOthers => {
                self.keep_recoverable(context, key).await?;
                point("rekey/old-slot", "before");
                partition.remove_others(&sight.keys).await?;
                point("rekey/old-slot", "after");
                tracing::info!("no other key than the present one opens the data of this node any more");
            }
            Step::Forget => {
                self.forget_split(context, memory).await?;
                memory.is_rekey_asked |= memory.next.take().is_some();
            }
            Step::Tell | Step::Wait(_) | Step::Settled => {}
        }
        Ok(())
    }

    async fn put_copy(
        &self,
        context: &Context,
        site: &'static str,
        both: bool,
        copy: Option<JournalKey>,
    ) -> Result<(), SettleError> {
        self.change_journal(context, site, both, move |journal| journal.cluster_unlock_key = copy.clone()).await?;
        Ok(())
    }
}
