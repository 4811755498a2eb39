//! What commands do to the files of a node that does not run ([`polis_control::NodeFiles`]).

mod recover;
mod reset;
#[cfg(test)]
mod reset_tests;

use std::path::Path;
use std::sync::Arc;

use polis_control::{NodeFiles, NodeFilesError, Peer, RecoverError, RecoverRequest, Recovery, Reset};
use polis_encryption::GocryptfsData;
use polis_storage::{DataGate, Disk, Layout, RootDirectory, RootError};

use crate::peers;

/// The files of nodes on this machine. Whoever changes something there holds the lock of the node's root meanwhile, so that no
/// node runs there.
#[derive(Clone, Copy, Debug, Default)]
pub struct FilesOnDisk;

impl NodeFiles for FilesOnDisk {
    fn reset(&self, root: &Path) -> Result<Box<dyn Reset>, NodeFilesError> {
        let root = open(root)?;
        // A mount of encrypted data that a killed node has left is dead: nothing could be listed there.
        GocryptfsData::new(root.disk(), DataGate::closed()).clear_left_mount().map_err(|error| {
            failed(
                format!("what is mounted for the node at {} does not go", root.path().display()),
                error,
                Some("nothing was deleted; unmount it, and repeat the reset"),
            )
        })?;
        let reset = reset::NodeReset::look(root.disk()).map_err(|error| {
            failed(
                format!("it cannot be seen what is to be deleted of the node at {}", root.path().display()),
                error,
                Some("nothing was changed; see to the disk and repeat it"),
            )
        })?;
        Ok(Box::new(reset::HeldReset { root, reset }))
    }

    fn set_peers(&self, root: &Path, peers: &[Peer]) -> Result<(), NodeFilesError> {
        let root = open(root)?;
        let disk: Arc<dyn Disk> = root.disk();
        let what = || format!("the peers could not be written down for the node at {}", root.path().display());
        let hint = Some("those from before still hold; see to the disk and repeat it");
        // A node that has never started has no directory for them yet.
        Layout::new(Arc::clone(&disk)).prepare_lasting().map_err(|error| failed(what(), error, hint))?;
        peers::store(&disk, &peers::pairs(peers)).map_err(|error| failed(what(), error, hint))
    }

    fn recover(&self, request: &RecoverRequest) -> Result<Box<dyn Recovery>, RecoverError> {
        recover::look(request)
    }
}

fn open(root: &Path) -> Result<RootDirectory, NodeFilesError> {
    RootDirectory::open(root).map_err(|error| unusable(root, error))
}

fn unusable(root: &Path, error: RootError) -> NodeFilesError {
    let hint = match &error {
        RootError::InUse { .. } => Some("stop the node first, with SIGTERM or `systemctl stop`, and repeat this"),
        RootError::Absent { .. } => Some("check the path after --root"),
        RootError::NotADirectory { .. }
        | RootError::ReadOnly { .. }
        | RootError::OtherOwner { .. }
        | RootError::Name { .. }
        | RootError::Disk(_) => None,
    };
    failed(format!("the files of the node at {} cannot be worked with", root.display()), error, hint)
}

fn failed(
    what: String,
    source: impl std::error::Error + Send + Sync + 'static,
    hint: Option<&'static str>,
) -> NodeFilesError {
    NodeFilesError { what, hint: hint.map(str::to_owned), source: Some(Box::new(source)) }
}
