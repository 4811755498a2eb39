//! What must be there, and be free, before etcd is started. Blocks.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::PoisonError;

use polis_storage::{Action, DIRECTORY_MODE, DiskError, durable};

use crate::consensus::{Inner, Start};
use crate::fault::Fault;
use crate::peer_url::PEER_PORT;
use crate::wal;

/// Directory in etcd's data directory in which it keeps everything.
pub(crate) const MEMBER_DIRECTORY: &str = "member";

/// What etcd needs on disk could not be prepared.
#[derive(Debug, thiserror::Error)]
#[error("cannot prepare the directory {directory} for etcd")]
pub(crate) struct PrepareError {
    directory: String,
    #[source]
    source: DiskError,
}

/// Everything on disk that etcd needs. Idempotent.
pub(crate) fn prepare_files(inner: &Inner) -> Result<(), PrepareError> {
    let failed =
        |directory: &Path, source: DiskError| PrepareError { directory: directory.display().to_string(), source };
    let data = inner.layout.data.etcd.data.path();
    let member = data.child(MEMBER_DIRECTORY).expect("the name is one that is allowed");
    let directories = || -> Result<(), DiskError> {
        if matches!(inner.start, Start::Found) && !has_worked(inner)? {
            // An etcd that was killed while it founded the cluster cannot go on from what it has left. Nobody was told of
            // it. That it is gone becomes durable with the directory.
            inner.disk.clear_directory(data)?;
        }
        match (&inner.start, inner.disk.metadata(data)?) {
            // Nothing is made in the place of what is missing; `initial_cluster` says so.
            (Start::Existing, None) => return Ok(()),
            // Setting aside what was there before may have been cut off.
            (Start::Join(_), None) => {
                durable::create_directory(&*inner.disk, "etcd/data-directory", data, DIRECTORY_MODE)?;
            }
            (Start::Found | Start::Existing | Start::Join(_), _) => {}
        }
        // etcd makes this directory itself, but leaves its name to luck when the power fails: what it has acknowledged
        // would be gone with it.
        durable::create_directory(&*inner.disk, "etcd/member-directory", &member, DIRECTORY_MODE)
    };
    directories().map_err(|error| failed(&inner.data_path, error))?;
    // Nothing in here needs to outlast a power cut.
    let ephemeral = || -> Result<(), DiskError> {
        // Somebody who tidies up may have taken all of it away since the start.
        inner.layout.ephemeral.directory.create_ephemeral()?;
        let ephemeral = &inner.layout.ephemeral.consensus;
        ephemeral.directory.create_ephemeral()?;
        // An etcd that was killed leaves its socket, and the next one does not start while it is there.
        ephemeral.client_socket.remove()?;
        inner.pki.lock().unwrap_or_else(PoisonError::into_inner).write_pem_files(ephemeral)
    };
    ephemeral().map_err(|error| failed(&inner.ephemeral_path, error))
}

/// Whether etcd has ever begun to work with the data that are there.
fn has_worked(inner: &Inner) -> Result<bool, DiskError> {
    let path = inner.data_path.join(MEMBER_DIRECTORY).join("wal");
    wal::has_hard_state(&path).map_err(|source| DiskError { action: Action::Read, path, source })
}

/// What stands in the way of etcd listening on `address`: etcd itself would only exit.
pub(crate) fn probe(address: IpAddr) -> Option<Fault> {
    match TcpListener::bind(SocketAddr::new(address, PEER_PORT)) {
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Some(Fault::PortTaken(address)),
        Err(error) => Some(Fault::AddressNotHere { address, reason: error.to_string() }),
    }
}
