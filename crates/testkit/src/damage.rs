//! Disks of nodes as mistakes and accidents leave them, made with the code of storage and not through a node.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polis_storage::journal::{JOURNAL_FORMAT, Phase, PlainSeal};
use polis_storage::{HostDisk, Layout, LocalRoles};

/// The two generations of a node's journal.
#[must_use]
pub fn journal(root: &Path) -> [PathBuf; 2] {
    ["journal.0", "journal.1"].map(|name| root.join("esp/polis").join(name))
}

/// The two generations of a node's roles.
#[must_use]
pub fn roles(root: &Path) -> [PathBuf; 2] {
    ["roles.0", "roles.1"].map(|name| root.join("data/node").join(name))
}

/// Cuts a file in half, as a torn write would.
///
/// # Panics
///
/// When there is no such file.
pub fn tear(file: &Path) {
    let whole = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    fs::write(file, &whole[..whole.len() / 2]).expect("the file can be written");
}

/// Makes of a generation of the journal one that a later version of Polis has written.
///
/// # Panics
///
/// When it is not a generation of a journal.
pub fn from_the_future(journal: &Path) {
    let bytes = fs::read(journal).expect("there is a journal");
    let envelope = JOURNAL_FORMAT.decode(&bytes).expect("the journal is whole");
    let later = polis_storage::envelope::Format { version: JOURNAL_FORMAT.version + 1, ..JOURNAL_FORMAT };
    let bytes = later.encode(envelope.kind, envelope.generation, &envelope.payload).expect("it is as long as before");
    fs::write(journal, &*bytes).expect("the journal can be written");
}

/// Writes the roles of a node that does not run once more, so that both generations are there.
///
/// # Panics
///
/// When the node has no roles.
pub fn write_roles_again(root: &Path) {
    let roles = Layout::new(Arc::new(HostDisk::open(root).expect("there is a root"))).data.node.roles;
    let loaded = roles.load().expect("the roles are whole").expect("there are roles");
    roles.store(&loaded.value, "test/roles").expect("the roles can be written");
}

/// Takes the role of a Kubernetes controller from the roles that a node which does not run has on its disk, as if it had never been
/// saved there.
///
/// # Panics
///
/// When the node has no roles.
pub fn lose_controller_role(root: &Path) {
    let roles = Layout::new(Arc::new(HostDisk::open(root).expect("there is a root"))).data.node.roles;
    let loaded = roles.load().expect("the roles are whole").expect("there are roles");
    assert!(loaded.value.kubernetes_controller, "the node has not that role");
    let fewer = LocalRoles { kubernetes_controller: false, ..loaded.value };
    roles.store(&fewer, "test/roles").expect("the roles can be written");
}

/// Records in the journal of a node that its cluster has removed it.
///
/// # Panics
///
/// When the node has no journal.
pub fn removed(root: &Path, reason: &str) {
    let disk = HostDisk::open(root).expect("there is a root");
    let store = Layout::new(Arc::new(disk)).journal_store(Arc::new(PlainSeal));
    let journal = store.load().expect("the journal is whole").expect("there is a journal").value;
    let journal = journal.advance(Phase::Removed { reason: reason.to_owned() }).expect("a member can be removed");
    store.store(&journal, "test/removed").expect("the journal can be written");
}
