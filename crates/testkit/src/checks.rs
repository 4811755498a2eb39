//! What must be true of every node, whatever has happened to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use polis_control::{NodeState, Status};
use polis_identity::{Certificate, NodeId, PublicKey, verify_certificate_authority};
pub use polis_storage::journal::Phase;
use polis_storage::journal::Seals;
use polis_storage::{HostDisk, Layout, Loaded, TwoGenerationsError};

use crate::host::Host;
use crate::node_data::NodeData;
use crate::store::{Content, Entry, Store};
use crate::{mounts, processes, scratch};

/// Where the index of join keys begins in etcd (metropolis.md, G.1).
const JOIN_KEYS: &str = "namespaced:curator//join_keys/";
/// The CA's certificate.
const CLUSTER_CA: &str = "namespaced:curator//cluster-pki/issued/cluster-ca-cert.der";
/// Where everything of a cluster of Polis begins in etcd.
const OURS: [&str; 3] = ["namespaced:curator/", "namespaced:etcd-pki/", "namespaced:polis/"];

/// What the birth of a cluster makes in one transaction (metropolis.md, G.1, the peers' CA, and what Polis keeps beside it);
/// besides, the first node's join key. `{}` is the first node's id.
const BIRTH: [&str; 13] = [
    CLUSTER_CA,
    "namespaced:curator//cluster-pki/cluster-ca-crl.der",
    "namespaced:curator//cluster-pki/issued/node-{}-cert.der",
    "namespaced:curator//cluster-pki/keys/cluster-ca-privkey.bin",
    "namespaced:curator//cluster/configuration",
    "namespaced:curator//global/initial_owner",
    "namespaced:curator//nodes/{}",
    "namespaced:etcd-pki//pki/etcd-ca-crl.der",
    "namespaced:etcd-pki//pki/issued/etcd-ca-cert.der",
    "namespaced:etcd-pki//pki/issued/{}-cert.der",
    "namespaced:etcd-pki//pki/keys/etcd-ca-privkey.bin",
    "namespaced:polis//membership/epoch",
    "namespaced:polis//nodes/{}/enrolment",
];

/// What a member writes before it is Running.
const LAST_START: &str = "namespaced:polis//nodes/{}/last_start";

/// Who leads, and its sign of life. Both are made in the transaction with which the first leader claims.
const LEADERSHIP: [&str; 2] = ["namespaced:curator//leader/current", "namespaced:curator//leader/alive"];

/// What every temporary file of ours has in its name.
const TEMPORARY_MARK: &str = ".polis-tmp";

/// What a node that does not run has made durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnDisk {
    /// Who it is; absent while it has no intent.
    pub node_id: Option<String>,
    /// Phase of its journal.
    pub phase: Option<Phase>,
    /// Certificate of its cluster's CA, as its credentials have it.
    pub cluster_ca: Option<Vec<u8>>,
}

/// Reads what a node that does not run has made durable, with the code of storage but not through the node.
///
/// # Panics
///
/// When something is there and is not whole, as SIGKILL tears no file; or when the directory of nodes lacks the node itself
/// (window W11).
#[must_use]
pub fn on_disk(root: &Path) -> OnDisk {
    let Ok(disk) = HostDisk::open(root) else { return OnDisk::default() };
    let layout = Layout::new(Arc::new(disk));
    let journal = layout.journal_store(Seals::plain_only()).load().expect("the journal is whole");
    let data = NodeData::of(root);
    let cluster_ca = if data.is_locked() {
        // A member of a larger cluster: the other half of its key is there. What it knows of its cluster is in the journal too.
        journal.as_ref().and_then(|journal| journal.value.cluster_ca.clone())
    } else {
        let data = data.layout().data;
        let _ = whole("the list of revocations", data.node.revocations.load());
        let credentials = data.node.credentials.load().expect("the credentials are whole");
        credentials.map(|credentials| credentials.ca_certificate)
    };
    let directory = whole("the directory of nodes", layout.esp.polis.cluster_directory.load());
    let _ = whole("the signed member list", layout.esp.polis.signed_members.load());
    let _ = whole("the unlock file", layout.esp.polis.unlock.load());
    let Some(journal) = journal else { return OnDisk { cluster_ca, ..OnDisk::default() } };
    assert!(journal.fault.is_none(), "one generation of the journal is not whole: {:?}", journal.fault);
    let key = PublicKey::new(journal.value.node_public_key).expect("the journal has a public key");
    let node_id = NodeId::of(&key).to_string();
    if let Some(directory) = directory {
        assert!(directory.nodes.iter().any(|node| node.node_id == node_id), "{node_id} is not in {directory:?}");
    }
    OnDisk { node_id: Some(node_id), phase: Some(journal.value.phase().clone()), cluster_ca }
}

/// The newest generation of a record, of which the other one is whole as well.
fn whole<T>(what: &str, loaded: Result<Option<Loaded<T>>, TwoGenerationsError>) -> Option<T> {
    let Loaded { value, fault, .. } = loaded.unwrap_or_else(|error| panic!("{what} is not whole: {error:?}"))?;
    assert!(fault.is_none(), "one generation of {what} is not whole: {fault:?}");
    Some(value)
}

/// Where a node that does not run was last, as its directory of nodes has it, the newest first.
///
/// # Panics
///
/// When it has no directory, or is not in it.
#[must_use]
pub fn own_addresses(root: &Path) -> Vec<String> {
    let node_id = on_disk(root).node_id.expect("it has an identity");
    let layout = Layout::new(Arc::new(HostDisk::open(root).expect("there is a root")));
    let directory = whole("the directory of nodes", layout.esp.polis.cluster_directory.load()).expect("it has one");
    directory.nodes.into_iter().find(|node| node.node_id == node_id).expect("it is in it").addresses
}

/// Names of the conditions of a node but for those that say how its data are protected: that they are plain, or what to know of
/// the way in which they are encrypted.
#[must_use]
pub fn faults(status: &Status) -> Vec<&str> {
    const OF_STORAGE: [&str; 2] = ["storage-insecure", "storage-limits"];
    let names = status.conditions.iter().map(|condition| &*condition.name);
    names.filter(|name| !OF_STORAGE.contains(name)).collect()
}

/// Checks a node that runs against what it had on its disk before this start: the same node, once; one member; one cluster,
/// made by one transaction. Returns all that its etcd holds.
///
/// # Panics
///
/// When something is not so.
pub fn running(root: &Path, status: &Status, before: &OnDisk) -> Content {
    assert_eq!(status.state, NodeState::Running);
    assert_eq!(faults(status), Vec::<&str>::new(), "{:?}", status.conditions);
    let node_id = status.node_id.clone().expect("a running node has an id");
    if let Some(known) = &before.node_id {
        assert_eq!(&node_id, known, "it is another node than before");
    }
    let content = Store::of_node(root).read();

    let [member] = &content.members[..] else { panic!("not one member: {:?}", content.members) };
    assert_eq!(member.name, node_id);
    let consensus = status.consensus.as_ref().expect("it is a consensus member");
    assert_eq!(consensus.member_id, Some(format!("{:x}", member.id)));
    assert_eq!(consensus.members.len(), 1);

    let join_keys: Vec<(&str, &Entry)> = content.below(JOIN_KEYS).collect();
    let [(join_key, found)] = join_keys[..] else { panic!("not one join key: {join_keys:?}") };
    assert_eq!(found.value, node_id.as_bytes());
    keys(&content, &node_id, join_key);

    let authority = &content.entries[CLUSTER_CA].value;
    if let Some(known) = &before.cluster_ca {
        assert_eq!(authority, known, "it is another cluster than before");
    }
    let authority = Certificate::from_der(authority.clone()).expect("the CA has a certificate");
    let authority = verify_certificate_authority(authority).expect("it is that of a CA");
    assert_eq!(status.cluster_id, Some(authority.cluster_id().to_string()));
    content
}

/// Checks that a cluster of one node has exactly the keys that it must have.
fn keys(content: &Content, node_id: &str, join_key: &str) {
    let named = |template: &str| template.replace("{}", node_id);
    let created = |keys: &[String]| {
        let created: BTreeSet<u64> = keys
            .iter()
            .map(|key| content.entries.get(key).unwrap_or_else(|| panic!("there is no {key}")).created)
            .collect();
        assert_eq!(created.len(), 1, "not one transaction: {keys:?}");
    };
    let mut known: Vec<String> = BIRTH.iter().map(|template| named(template)).collect();
    known.push(join_key.to_owned());
    created(&known);
    known.push(named(LAST_START));
    // Who leads is found out beside the start.
    if content.below(LEADERSHIP[0]).next().is_some() {
        let leadership = LEADERSHIP.map(named);
        created(&leadership);
        known.extend(leadership);
    }
    let mut found: Vec<&str> = OURS.iter().flat_map(|prefix| content.below(prefix)).map(|(key, _)| key).collect();
    found.sort_unstable();
    known.sort_unstable();
    assert_eq!(found, known);
}

/// Checks a node of a cluster of its own that has come into contact with its leader: it leads, and says so.
///
/// # Panics
///
/// When something is not so.
pub fn leads(root: &Path, status: &Status) {
    let contact = status.contact.as_ref().expect("it has an identity in a cluster");
    assert!(contact.in_contact && contact.last_failure.is_none(), "{contact:?}");
    assert_eq!(contact.leader.map(|leader| leader.to_string()), status.node_id);
    let content = Store::of_node(root).read();
    for key in LEADERSHIP {
        let value = &content.entries.get(key).unwrap_or_else(|| panic!("there is no {key}")).value;
        let id = status.node_id.as_deref().expect("it has an identity").as_bytes();
        assert!(value.windows(id.len()).any(|part| part == id), "{key} does not name this node: {value:?}");
    }
}

/// Checks a node that was stopped in order: nothing runs, and no write is half done.
///
/// # Panics
///
/// When something is left.
pub fn stopped(host: &Host) {
    processes::wait_until_gone(&host.root()).unwrap_or_else(|left| panic!("{left}"));
    assert_eq!(mounts::below(&host.root()), Vec::<std::path::PathBuf>::new(), "a mount is left");
    let temporaries: Vec<_> = scratch::files(&host.root())
        .into_iter()
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(TEMPORARY_MARK)))
        .collect();
    assert!(temporaries.is_empty(), "temporary files are left: {temporaries:?}");
    let last =
        fs::read_to_string(host.root().join(polis_control::LAST_STATE_FILE)).expect("the last state was written");
    let last: polis_control::LastState = serde_json::from_str(&last).expect("the last state can be read");
    assert_eq!(last.status.state, NodeState::Running, "the last state is an older one");
}
