//! What the node knows of the cluster's members, on its disk: the signed list on the ESP, and under the journal's seal the highest
//! epoch that it has seen and the floors of the others.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use polis_condition::Severity;
use polis_identity::{AuthorityCertificate, NodeId};
use polis_proto::curator_state;
use polis_storage::journal::{self, EpochFloor};
use polis_storage::{
    GenerationsError, Journal, JournalError, JournalStore, Loaded, SignedMembers, TwoGenerations, TwoGenerationsError,
};
use polis_supervisor::{BoxError, Context, with_causes};
use polis_unlock::{Epoch, Floors, SignedMemberList};
use polis_unlock_service::{KnownMembers, Store};
use prost::Message as _;

use crate::consensus::ConsensusProvider;
use crate::failure::Failure;
use crate::gate::Gate;
use crate::manager::Inner;
use crate::trouble::{Ended, Trouble};

/// Name of the condition that the signed member list was damaged.
const MEMBERS_DAMAGED: &str = "members-damaged";

/// Where it is noted that an epoch was seen.
const SEEN_SITE: &str = "journal/members";

/// What is wrong when the list is neither good nor damaged.
const LIST_UNUSABLE: &str = "the signed member list cannot be used";

/// Keeps what the node knows of the members. One write is over before the next begins, and none is done any more once the node's
/// membership has ended.
pub(crate) struct MemberStore {
    /// Of the present life of the Manager's runnable, which waits for what is being written; absent between two.
    context: Mutex<Option<Context>>,
    gate: Gate,
    journal: JournalStore,
    list: TwoGenerations<SignedMembers>,
}

/// Why something about the members could not be made durable.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    /// The list.
    #[error(transparent)]
    List(#[from] TwoGenerationsError),
    /// What is under the seal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// There is no journal any more.
    #[error("the enrolment journal was there when this node started, and it is gone")]
    JournalGone,
    /// Nothing is written any more.
    #[error("the membership of this node in its cluster has ended")]
    Ended,
}

impl From<KeepError> for Trouble {
    fn from(error: KeepError) -> Self {
        match error {
            KeepError::List(error) => Self::of_generations(error, LIST_UNUSABLE),
            KeepError::Journal(error) => error.into(),
            KeepError::JournalGone | KeepError::Ended => {
                Self::Final(Failure::Disk { what: "the enrolment journal cannot be used", source: error.into() })
            }
        }
    }
}

/// What was kept of the members.
struct Kept {
    known: KnownMembers,
    /// What was wrong with the files of the list.
    damage: Option<String>,
}

impl MemberStore {
    /// From here on, work on the disk belongs to this life of the Manager's runnable; without one, none is done.
    pub(crate) fn belong_to(&self, context: Option<&Context>) {
        *self.context.lock().unwrap_or_else(PoisonError::into_inner) = context.cloned();
    }

    async fn write<F>(&self, work: F) -> Result<(), BoxError>
    where
        F: FnOnce(&JournalStore, &TwoGenerations<SignedMembers>) -> Result<(), KeepError> + Send + 'static,
    {
        let context = self.context.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let context = context.ok_or(KeepError::Ended)?;
        let (gate, journal, list) = (self.gate.clone(), self.journal.clone(), self.list.clone());
        let written = context.blocking(move || gate.pass(|| work(&journal, &list))).await;
        Ok(written.ok_or(KeepError::Ended)??)
    }
}

#[async_trait]
impl Store for MemberStore {
    async fn store_list(&self, list: &SignedMemberList) -> Result<(), BoxError> {
        let list = list.clone();
        self.write(move |journal, file| keep_list(journal, file, &list)).await
    }

    async fn store_floors(&self, floors: &Floors) -> Result<(), BoxError> {
        let floors = to_journal_floors(floors);
        self.write(move |journal, _| change(journal, "journal/floors", |journal| journal.epoch_floors = floors)).await
    }
}

impl<C: ConsensusProvider> Inner<C> {
    /// Where what is known of the members is kept, and what was kept before, of a node with this journal in the cluster of this
    /// authority.
    pub(super) async fn load_members(
        &self,
        context: &Context,
        journal: &Journal,
        authority: &AuthorityCertificate,
    ) -> Result<(MemberStore, KnownMembers), Ended> {
        let (store, file) = (self.journal.clone(), self.layout.esp.polis.signed_members.clone());
        let (newest, authority) = (journal.clone(), authority.clone());
        let Kept { known, damage } = self.on_disk(context, move || load(&store, &file, &newest, &authority)).await?;
        if let Some(damage) = damage {
            tracing::warn!(damage, "the signed list of consensus members on this node's disk was damaged");
            context.conditions().raise(
                MEMBERS_DAMAGED,
                Severity::Warning,
                format!("the signed list of consensus members was damaged and is written anew: {damage}"),
                "nothing is lost once the cluster has been reached; look at the disk if it happens again",
            );
        }
        let store = MemberStore {
            context: Mutex::new(Some(context.clone())),
            gate: self.gate.clone(),
            journal: self.journal.clone(),
            list: self.layout.esp.polis.signed_members.clone(),
        };
        Ok((store, known))
    }
}

/// Loads what was kept, of a node with this journal. A list of which the journal does not know that it was seen was cut off on its way
/// there, and is noted now.
fn load(
    store: &JournalStore,
    file: &TwoGenerations<SignedMembers>,
    journal: &Journal,
    authority: &AuthorityCertificate,
) -> Result<Kept, KeepError> {
    let (record, damage) = load_list(file)?;
    // Not verified is not there; another member will show one.
    let list = record
        .and_then(|record| curator_state::SignedMemberList::decode(&record.signed_list[..]).ok())
        .and_then(|wire| SignedMemberList::verify(wire, authority).ok());
    let seen = journal.highest_epoch.map(of_journal);
    let listed = list.as_ref().map(|list| list.list().epoch());
    if let Some(epoch) = listed.filter(|epoch| seen < Some(*epoch)) {
        change(store, SEEN_SITE, |journal| see(journal, epoch))?;
    }
    let floors = journal.epoch_floors.iter();
    let floors =
        floors.filter_map(|floor| Some((floor.owner_node_id.parse().ok()?, of_journal(floor.epoch)))).collect();
    Ok(Kept { known: KnownMembers { list, highest: seen.max(listed), floors }, damage })
}

/// Keeps a list, and then that it was seen: a cut between the two leaves a list that is newer than what was seen, which the next start
/// sees, and never the other way round.
fn keep_list(
    store: &JournalStore,
    file: &TwoGenerations<SignedMembers>,
    list: &SignedMemberList,
) -> Result<(), KeepError> {
    store_list(file, &SignedMembers { signed_list: list.encode() })?;
    change(store, SEEN_SITE, |journal| see(journal, list.list().epoch()))
}

/// Loads the list, and what was wrong with its files. One of which a generation is damaged is written over that: as long as nothing
/// changes nobody else would, and a second fault would cost the list. A disk that does not take it now stops nobody: the next start
/// tries again.
fn load_list(file: &TwoGenerations<SignedMembers>) -> Result<(Option<SignedMembers>, Option<String>), KeepError> {
    match file.load() {
        Ok(None) => Ok((None, None)),
        Ok(Some(Loaded { value, fault: None, .. })) => Ok((Some(value), None)),
        Ok(Some(Loaded { value, fault: Some(fault), .. })) => {
            if let Err(error) = file.store(&value, "members/mend") {
                tracing::warn!(reason = with_causes(&error), "the signed member list cannot be written anew yet");
            }
            Ok((Some(value), Some(format!("one of its two files is damaged, and the other is used: {fault}"))))
        }
        Err(error) if is_damage(&error) => Ok((None, Some(with_causes(&error)))),
        Err(error) => Err(error.into()),
    }
}

/// Writes the next generation of the list, also over two that cannot be used.
fn store_list(file: &TwoGenerations<SignedMembers>, record: &SignedMembers) -> Result<(), TwoGenerationsError> {
    match file.store(record, "members/newest") {
        Err(error) if is_damage(&error) => {
            file.discard("members/discard")?;
            file.store(record, "members/newest")
        }
        stored => stored,
    }
}

/// What is whole and not of the future, and yet cannot be read, was not written by anybody who meant it.
pub(super) const fn is_damage(error: &TwoGenerationsError) -> bool {
    match error {
        TwoGenerationsError::Files(GenerationsError::BothUnusable { .. }) | TwoGenerationsError::Invalid { .. } => true,
        TwoGenerationsError::Files(
            GenerationsError::Disk(_) | GenerationsError::FutureVersion { .. } | GenerationsError::TooLong { .. },
        ) => false,
    }
}

/// Changes the newest journal.
fn change(store: &JournalStore, site: &'static str, change: impl FnOnce(&mut Journal)) -> Result<(), KeepError> {
    let mut journal = store.load()?.ok_or(KeepError::JournalGone)?.value;
    change(&mut journal);
    Ok(store.store(&journal, site)?)
}

/// Notes that this epoch was seen.
fn see(journal: &mut Journal, epoch: Epoch) {
    journal.highest_epoch = journal.highest_epoch.max(Some(to_journal(epoch)));
}

fn to_journal_floors(floors: &Floors) -> Vec<EpochFloor> {
    let floor =
        |(owner, epoch): (&NodeId, &Epoch)| EpochFloor { owner_node_id: owner.to_string(), epoch: to_journal(*epoch) };
    floors.iter().map(floor).collect()
}

const fn of_journal(epoch: journal::Epoch) -> Epoch {
    Epoch { incarnation: epoch.incarnation, epoch: epoch.epoch }
}

const fn to_journal(epoch: Epoch) -> journal::Epoch {
    journal::Epoch { incarnation: epoch.incarnation, epoch: epoch.epoch }
}

#[cfg(test)]
mod tests;
