//! What must be true of every node, whatever has happened to it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use polis_control::{NodeState, Status};
use polis_identity::{Certificate, NodeId, PublicKey, verify_certificate_authority};
use polis_storage::journal::{Phase, PlainSeal};
use polis_storage::{HostDisk, Layout};

use crate::host::Host;
use crate::store::{Content, Store};
use crate::{processes, scratch};

/// Where the records of nodes begin in etcd (metropolis.md, G.1).
const NODES: &str = "namespaced:curator//nodes/";
/// Where the index of join keys begins.
const JOIN_KEYS: &str = "namespaced:curator//join_keys/";
/// Where everything of the cluster's CA begins.
const CLUSTER_PKI: &str = "namespaced:curator//cluster-pki/";
/// The CA's certificate.
const CLUSTER_CA: &str = "namespaced:curator//cluster-pki/issued/cluster-ca-cert.der";
/// Where everything that the birth of a cluster makes begins.
const BIRTH: [&str; 2] = ["namespaced:curator/", "namespaced:etcd-pki/"];
/// How many keys a birth makes (metropolis.md, G.1, and the peers' CA).
const BIRTH_KEYS: usize = 12;

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
/// When something is there and is not whole: SIGKILL tears no file.
#[must_use]
pub fn on_disk(root: &Path) -> OnDisk {
    let Ok(disk) = HostDisk::open(root) else { return OnDisk::default() };
    let layout = Layout::new(Arc::new(disk));
    let journal = layout.journal_store(Arc::new(PlainSeal)).load().expect("the journal is whole");
    let credentials = layout.data.node.credentials.load().expect("the credentials are whole");
    let cluster_ca = credentials.map(|credentials| credentials.ca_certificate);
    let Some(journal) = journal else { return OnDisk { cluster_ca, ..OnDisk::default() } };
    assert!(journal.fault.is_none(), "one generation of the journal is not whole: {:?}", journal.fault);
    let key = PublicKey::new(journal.value.node_public_key).expect("the journal has a public key");
    OnDisk { node_id: Some(NodeId::of(&key).to_string()), phase: Some(journal.value.phase().clone()), cluster_ca }
}

/// Names of the conditions of a node but for the one that every node with plain data has: that they are plain.
#[must_use]
pub fn faults(status: &Status) -> Vec<&str> {
    let names = status.conditions.iter().map(|condition| &*condition.name);
    names.filter(|name| *name != "storage-insecure").collect()
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

    let records: Vec<&str> = content.below(NODES).map(|(key, _)| &key[NODES.len()..]).collect();
    assert_eq!(records, [&node_id], "not one node record");
    let join_keys: Vec<&[u8]> = content.below(JOIN_KEYS).map(|(_, entry)| &entry.value[..]).collect();
    assert_eq!(join_keys, [node_id.as_bytes()], "not one join key");
    assert_eq!(content.below(CLUSTER_PKI).count(), 4, "{:?}", content.below(CLUSTER_PKI).collect::<Vec<_>>());
    let born: Vec<(&str, u64)> =
        BIRTH.iter().flat_map(|prefix| content.below(prefix)).map(|(key, entry)| (key, entry.created)).collect();
    assert_eq!(born.len(), BIRTH_KEYS, "{born:?}");
    assert!(born.iter().all(|(_, revision)| *revision == born[0].1), "not one transaction: {born:?}");

    let authority = &content.entries[CLUSTER_CA].value;
    if let Some(known) = &before.cluster_ca {
        assert_eq!(authority, known, "it is another cluster than before");
    }
    let authority = Certificate::from_der(authority.clone()).expect("the CA has a certificate");
    let authority = verify_certificate_authority(authority).expect("it is that of a CA");
    assert_eq!(status.cluster_id, Some(authority.cluster_id().to_string()));
    content
}

/// Checks a node that was stopped in order: nothing runs, and no write is half done.
///
/// # Panics
///
/// When something is left.
pub fn stopped(host: &Host) {
    processes::wait_until_gone(&host.root()).unwrap_or_else(|left| panic!("{left}"));
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
