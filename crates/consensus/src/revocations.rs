//! Tells a running etcd of peers that were let go.
//!
//! etcd reads the file of revocations at each handshake, so that a new file is all it takes; and it closes the connections of
//! a member that is removed by itself.

use std::sync::PoisonError;

use polis_identity::{ReadRevocationListError, RevocationList};
use polis_storage::{DiskError, FILE_MODE};

use crate::consensus::Inner;

/// Name of the file while it is written, beside that which etcd reads.
const NEW_FILE: &str = "peer-crl.new";

/// A list of revocations was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceRevocationsError {
    /// It is not of this cluster's peers.
    #[error("the list of revoked peers is not one of this cluster's authority for peers; it is ignored")]
    Foreign(#[source] ReadRevocationListError),
    /// It cannot be written for etcd.
    #[error("the list of revoked peers cannot be given to etcd, which goes on with the one before")]
    Write(#[source] DiskError),
}

/// Puts a newer list in the place of the one that etcd reads. Each handshake sees the old or the new one, whole.
pub(crate) fn replace(inner: &Inner, list: RevocationList) -> Result<(), ReplaceRevocationsError> {
    let mut pki = inner.pki.lock().unwrap_or_else(PoisonError::into_inner);
    let list =
        RevocationList::read(list.der(), pki.authority_certificate()).map_err(ReplaceRevocationsError::Foreign)?;
    if list.number() <= pki.revocations().number() {
        return Ok(());
    }
    // The lock is held until the file is there: of two calls the newer list is the last to be written.
    write(inner, &list).map_err(ReplaceRevocationsError::Write)?;
    *pki = pki.clone().with_revocations(list);
    Ok(())
}

/// Nothing of it is durable: it is written anew at each start of etcd.
fn write(inner: &Inner, list: &RevocationList) -> Result<(), DiskError> {
    let files = &inner.layout.ephemeral.consensus;
    if !files.directory.exists()? {
        // etcd has not been started yet; it will get the list then.
        return Ok(());
    }
    let temporary = files.directory.path().child(NEW_FILE).expect("the name is one that is allowed");
    match inner.disk.remove_file(&temporary) {
        Err(error) if !error.is_absent() => return Err(error),
        Ok(()) | Err(_) => {}
    }
    inner.disk.create_exclusive(&temporary, FILE_MODE, list.pem().as_bytes())?;
    inner.disk.rename(&temporary, files.peer_crl.path())
}
