//! What can be known before a start touches anything: whether it could do anything at all.

use std::path::PathBuf;
use std::sync::Arc;

use polis_identity::{NodeId, PublicKey};
use polis_storage::data::{DataError, Found, ProgressSender};
use polis_storage::journal::{Phase, Seals, StorageSecurity};
use polis_storage::{DataBackends, Disk, Journal, Layout};

use crate::decision::decide;
use crate::ending::{is_erased, keys_are_left};
use crate::failure::Failure;
use crate::parameter_source::ParameterSource;
use crate::recovery::is_recoverable;
use crate::storage_choice::{can_begin, founders_storage};
use crate::trouble::Trouble;

/// Whether a start of the node could do anything, seen without changing anything: the decision of a Manager that is not run,
/// whether the host has what is asked for, and whether the data partition is one that this node may use. The Manager itself checks all
/// of this again.
///
/// # Errors
///
/// The failure that the Manager would end with, or what is missing for a node that has not begun.
pub async fn preflight(
    disk: Arc<dyn Disk>,
    seals: &Seals,
    backends: &dyn DataBackends,
    parameters: &ParameterSource,
) -> Result<(), Failure> {
    let layout = Layout::new(disk);
    let journal = match layout.journal_store(seals.clone()).load() {
        Ok(loaded) => loaded.map(|loaded| loaded.value),
        // The node starts, and waits for whoever has the recovery key.
        Err(error) if is_recoverable(&layout, &error) => {
            return match layout.newer_file() {
                Some(newer) => Err(Failure::NewerFile(newer)),
                None => Ok(()),
            };
        }
        Err(error) => return only_final(error),
    };
    if let Some(journal) = &journal
        && is_erased(journal)
    {
        match keys_are_left(&layout, journal) {
            Ok(false) => {}
            // There is something to do before it is over.
            Ok(true) => return Ok(()),
            Err(error) => return only_final(error),
        }
    }
    if let Some(newer) = layout.newer_file() {
        return Err(Failure::NewerFile(newer));
    }
    let decision = decide(journal.clone(), || parameters.read())?;
    can_begin(&decision, parameters, seals, backends)?;
    match journal {
        None => look_without_journal(&layout, backends, founders_storage(&decision)).await,
        Some(journal) => look_with_journal(&layout, &journal, backends).await,
    }
}

/// A disk without a journal is that of a new node, and everything on it is somebody else's. What is in the way of one backend may be
/// no more than what another one has begun, so only that one counts which will be used; where the cluster has yet to say which, all.
async fn look_without_journal(
    layout: &Layout,
    backends: &dyn DataBackends,
    security: Option<StorageSecurity>,
) -> Result<(), Failure> {
    let path = layout.data.directory.full_path();
    let chosen = security.and_then(|security| backends.choose(security).ok()).map(|data| data.describe().backend);
    let mut in_the_way = None;
    let mut is_usable = false;
    for data in backends.all() {
        match data.prepare(&ProgressSender::default()).await {
            Err(error) => only_final(error)?,
            Ok(Found::Formatted { owner }) => {
                let owner = owner.unwrap_or_else(|| "a node that cannot be told".to_owned());
                let journal = layout.esp.polis.journal.full_paths();
                return Err(Failure::DataWithoutJournal { path, journal, owner });
            }
            Ok(_) if chosen.is_some_and(|chosen| chosen != data.describe().backend) => {}
            Ok(Found::Foreign { path: found }) => in_the_way = Some(found),
            Ok(Found::Nothing | Found::HalfFormatted) => is_usable = true,
        }
    }
    match in_the_way {
        Some(found) if !is_usable => only_final(DataError::ForeignContent { directory: path, found }),
        Some(_) | None => Ok(()),
    }
}

/// The partition must be the one that the journal is about.
async fn look_with_journal(layout: &Layout, journal: &Journal, backends: &dyn DataBackends) -> Result<(), Failure> {
    // Before that is decided there is none.
    let Some(security) = journal.storage_security else { return Ok(()) };
    let data = match backends.choose(security) {
        Ok(data) => data,
        Err(error) => return only_final(error),
    };
    match data.prepare(&ProgressSender::default()).await {
        Err(error) => only_final(error),
        Ok(found) => match fault_of(journal, found, layout.data.directory.full_path()) {
            Some(fault) => only_final(fault),
            None => Ok(()),
        },
    }
}

/// Why the data partition that was found is not one that this journal can go on with.
fn fault_of(journal: &Journal, found: Found, path: PathBuf) -> Option<DataError> {
    let owner = PublicKey::new(journal.node_public_key).map(|key| NodeId::of(&key).to_string()).unwrap_or_default();
    match (journal.phase(), found) {
        (_, Found::Formatted { owner: Some(found) }) if found != owner => {
            Some(DataError::OtherNode { path, found, expected: owner })
        }
        // Whose it is shows when it is open.
        (_, Found::Formatted { .. }) => None,
        (Phase::Formattable, Found::Foreign { path: found }) => {
            Some(DataError::ForeignContent { directory: path, found })
        }
        (Phase::Formatted | Phase::Enrolled, Found::Foreign { .. } | Found::Nothing | Found::HalfFormatted) => {
            Some(DataError::NotFormatted { path })
        }
        (Phase::Formattable, Found::Nothing | Found::HalfFormatted) | (Phase::Removed { .. }, _) => None,
    }
}

/// What may pass is not looked into here: the node starts and says so by a condition.
fn only_final(error: impl Into<Trouble>) -> Result<(), Failure> {
    match error.into() {
        Trouble::Final(failure) => Err(failure),
        Trouble::Curable(_) => Ok(()),
    }
}
