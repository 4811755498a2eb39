//! Disks of nodes as mistakes and accidents leave them, made with the code of storage and not through a node.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polis_storage::journal::{JOURNAL_FORMAT, Journal, Phase, Seals};
use polis_storage::{HostDisk, Layout, LocalRoles};

use crate::node_data::NodeData;

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
    let data = NodeData::of(root);
    let roles = data.layout().data.node.roles;
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
    let data = NodeData::of(root);
    let roles = data.layout().data.node.roles;
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
    let store = Layout::new(Arc::new(disk)).journal_store(Seals::plain_only());
    let journal = store.load().expect("the journal is whole").expect("there is a journal").value;
    let journal = journal.advance(Phase::Removed { reason: reason.to_owned() }).expect("a member can be removed");
    store.store(&journal, "test/removed").expect("the journal can be written");
}

/// Gives the journal of a node that does not run another cluster unlock key than the one that its data have.
///
/// # Panics
///
/// When the node has no journal, or no such key in it.
pub fn other_cluster_unlock_key(root: &Path) {
    change_journal(root, |journal| {
        let key = journal.cluster_unlock_key.as_mut().expect("it keeps the cluster's half");
        key.current = OTHER_KEY.as_slice().try_into().expect("it has the length of a key");
    });
}

/// Gives the journal of a node that does not run another node unlock key than the one that its data have.
///
/// # Panics
///
/// When the node has no journal.
pub fn other_node_unlock_key(root: &Path) {
    change_journal(root, |journal| {
        journal.node_unlock_key = Some(OTHER_KEY.as_slice().try_into().expect("it has the length of a key"));
    });
}

/// A key that nothing was made with.
const OTHER_KEY: [u8; 32] = [0x5a; 32];

fn change_journal(root: &Path, change: impl FnOnce(&mut Journal)) {
    let disk = HostDisk::open(root).expect("there is a root");
    let store = Layout::new(Arc::new(disk)).journal_store(Seals::plain_only());
    let mut journal = store.load().expect("the journal is whole").expect("there is a journal").value;
    change(&mut journal);
    // In both generations, as if the node had known it for long.
    store.store_both(&journal, "test/journal").expect("the journal can be written");
}
