//! What can be known before a start touches anything: whether it could do anything at all.

use std::path::PathBuf;
use std::sync::Arc;

use polis_identity::{NodeId, PublicKey};
use polis_storage::data::{DataError, Found, ProgressSender};
use polis_storage::journal::{Phase, PlainSeal};
use polis_storage::{DataPartition, Disk, Journal, Layout};

use crate::decision::decide;
use crate::ending::{is_erased, keys_are_left};
use crate::failure::Failure;
use crate::parameter_source::ParameterSource;
use crate::trouble::Trouble;

/// Whether a start of the node could do anything, seen without changing anything: the decision of a Manager that is not run,
/// and whether the data partition is one that this node may use. The Manager itself checks all of this again.
///
/// # Errors
///
/// The failure that the Manager would end with.
pub async fn preflight(
    disk: Arc<dyn Disk>,
    data: &dyn DataPartition,
    parameters: &ParameterSource,
) -> Result<(), Failure> {
    let layout = Layout::new(disk);
    let journal = match layout.journal_store(Arc::new(PlainSeal)).load() {
        Ok(loaded) => loaded.map(|loaded| loaded.value),
        Err(error) => return only_final(error),
    };
    if let Some(journal) = &journal
        && is_erased(journal)
    {
        match keys_are_left(&layout) {
            Ok(false) => {}
            // There is something to do before it is over.
            Ok(true) => return Ok(()),
            Err(error) => return only_final(error),
        }
    }
    if let Some(newer) = layout.newer_file() {
        return Err(Failure::NewerFile(newer));
    }
    decide(journal.clone(), || parameters.read())?;
    let path = layout.data.directory.full_path();
    let fault = match data.prepare(&ProgressSender::default()).await {
        Err(error) => return only_final(error),
        Ok(found) => match (journal, found) {
            // A disk without a journal is that of a new node, and everything on it is somebody else's.
            (None, Found::Formatted { owner }) => {
                let owner = owner.unwrap_or_else(|| "a node that cannot be told".to_owned());
                return Err(Failure::DataWithoutJournal {
                    path,
                    journal: layout.esp.polis.journal.full_paths(),
                    owner,
                });
            }
            (None, Found::Foreign { path: found }) => DataError::ForeignContent { directory: path, found },
            (None, Found::Nothing | Found::HalfFormatted) => return Ok(()),
            (Some(journal), found) => match fault_of(&journal, found, path) {
                Some(fault) => fault,
                None => return Ok(()),
            },
        },
    };
    only_final(fault)
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
