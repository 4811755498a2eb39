//! [`Layout`]: the whole tree of a node's directories and files, declared once (metropolis.md C.1 to C.3).
//!
//! | path | content |
//! |---|---|
//! | `esp/polis/journal.0`, `.1` | the enrolment journal, sealed |
//! | `esp/polis/directory.0`, `.1` | where the nodes of the cluster were last known to be |
//! | `esp/polis/peers.0`, `.1` | where an operator says that nodes are |
//! | `esp/polis/members.0`, `.1` | the newest signed list of consensus members |
//! | `esp/polis/unlock.0`, `.1` | the node's cluster unlock key as shares, each encrypted to the member that holds it |
//! | `esp/polis/recovery.0`, `.1` | what opens the node for whoever has the cluster's recovery key |
//! | `esp/polis/announced.0`, `.1` | numbers of announcements that were used |
//! | `esp/polis/network.0`, `.1` | the static network configuration of the last parameters that had one; machines only |
//! | `esp/polis/clock.0`, `.1` | the last time that is known, in words, each with a checksum; machines only |
//! | `esp/polis/failures` | how often in a row the machine has failed, in words; machines only |
//! | `esp/polis/parameters.pb` | node parameters that someone put there; read only |
//! | `data/partition` | whose data partition this is; written last when formatting |
//! | `data/log/` | the node's log and what the kernel left of its crashes, a file each; machines only |
//! | `data/snapshots/` | copies of the cluster's state, as this node's consensus member has made them |
//! | `data/etcd/data/` | etcd's own |
//! | `data/etcd/credentials` | the peer certificates and keys |
//! | `data/etcd/joining` | that the member has a place in the consensus and has not worked yet |
//! | `data/node/credentials` | the node's key and certificates |
//! | `data/node/roles.0`, `.1` | the roles that the node last had |
//! | `data/node/revocations.0`, `.1` | what the cluster's CA has revoked, as far as the node knows |
//! | `encrypted/partition` | whose encrypted data partition this is, if it is kept in files; written last when formatting |
//! | `encrypted/slot.0`, `.1` | configuration files of gocryptfs, each opened by one key |
//! | `encrypted/cipher/` | the ciphertext of what is mounted at `data` |
//! | `encrypted/work/` | emptied before each use: where gocryptfs makes its configuration files |
//! | `ephemeral/` | emptied at every start |
//! | `ephemeral/control.sock` | where the local commands talk to the node |
//! | `ephemeral/consensus/` | etcd's PEM files and its client socket |
//! | `last_state.json` | what the node last said about itself, for whoever asks when it is not running |

use std::path::PathBuf;
use std::sync::Arc;

use crate::disk::{Disk, DiskError};
use crate::generations::Generations;
use crate::journal::{JournalStore, Seals};
use crate::newer::NewerFile;
use crate::path::DiskPath;
use crate::placement::{Directory, EphemeralFile, Placement, PlacementError, PlainFile};
use crate::records::{
    AnnouncementCounter, ClusterDirectory, KeptNetwork, LocalRoles, MemberJoin, NodeCredentials, OperatorPeers,
    PartitionMarker, PeerCredentials, RecoveryBlob, Revocations, SignedMembers, UnlockShares,
};
use crate::stored::Stored;
use crate::two_generations::TwoGenerations;

/// The tree of one node.
#[derive(Clone)]
pub struct Layout {
    /// The root itself.
    pub directory: Directory,
    /// What is, on a machine of its own, the EFI system partition.
    pub esp: Esp,
    /// What is, on a machine of its own, the data partition.
    pub data: Data,
    /// The data partition in its encrypted form, where that is kept in files.
    pub encrypted: Encrypted,
    /// What is gone after a start.
    pub ephemeral: Ephemeral,
    /// What the node last said about itself.
    pub last_state: PlainFile,
}

/// `esp`
#[derive(Clone)]
pub struct Esp {
    /// `esp`
    pub directory: Directory,
    /// `esp/polis`
    pub polis: EspPolis,
}

/// `esp/polis`
#[derive(Clone)]
pub struct EspPolis {
    /// `esp/polis`
    pub directory: Directory,
    /// `esp/polis/journal.0` and `.1`
    pub journal: Generations,
    /// `esp/polis/directory.0` and `.1`
    pub cluster_directory: TwoGenerations<ClusterDirectory>,
    /// `esp/polis/peers.0` and `.1`
    pub operator_peers: TwoGenerations<OperatorPeers>,
    /// `esp/polis/members.0` and `.1`
    pub signed_members: TwoGenerations<SignedMembers>,
    /// `esp/polis/unlock.0` and `.1`
    pub unlock: TwoGenerations<UnlockShares>,
    /// `esp/polis/recovery.0` and `.1`
    pub recovery: TwoGenerations<RecoveryBlob>,
    /// `esp/polis/announced.0` and `.1`
    pub announced: TwoGenerations<AnnouncementCounter>,
    /// `esp/polis/network.0` and `.1`
    pub network: TwoGenerations<KeptNetwork>,
    /// `esp/polis/clock.0` and `.1`
    pub clock: [PlainFile; 2],
    /// `esp/polis/failures`
    pub failures: PlainFile,
    /// `esp/polis/parameters.pb`
    pub parameters: PlainFile,
}

/// `data`
#[derive(Clone)]
pub struct Data {
    /// `data`
    pub directory: Directory,
    /// `data/partition`
    pub partition: Stored<PartitionMarker>,
    /// `data/log`
    pub log: Directory,
    /// `data/snapshots`
    pub snapshots: Directory,
    /// `data/etcd`
    pub etcd: DataEtcd,
    /// `data/node`
    pub node: DataNode,
}

/// `data/etcd`
#[derive(Clone)]
pub struct DataEtcd {
    /// `data/etcd`
    pub directory: Directory,
    /// `data/etcd/data`
    pub data: Directory,
    /// `data/etcd/credentials`
    pub credentials: Stored<PeerCredentials>,
    /// `data/etcd/joining`
    pub joining: Stored<MemberJoin>,
}

/// `data/node`
#[derive(Clone)]
pub struct DataNode {
    /// `data/node`
    pub directory: Directory,
    /// `data/node/credentials`
    pub credentials: Stored<NodeCredentials>,
    /// `data/node/roles.0` and `.1`
    pub roles: TwoGenerations<LocalRoles>,
    /// `data/node/revocations.0` and `.1`
    pub revocations: TwoGenerations<Revocations>,
}

/// `encrypted`
#[derive(Clone)]
pub struct Encrypted {
    /// `encrypted`
    pub directory: Directory,
    /// `encrypted/partition`
    pub partition: Stored<PartitionMarker>,
    /// `encrypted/slot.0` and `.1`
    pub slots: [PlainFile; 2],
    /// `encrypted/cipher`
    pub cipher: Directory,
    /// `encrypted/work`
    pub work: Directory,
}

/// `ephemeral`
#[derive(Clone)]
pub struct Ephemeral {
    /// `ephemeral`
    pub directory: Directory,
    /// `ephemeral/control.sock`
    pub control_socket: EphemeralFile,
    /// `ephemeral/consensus`
    pub consensus: EphemeralConsensus,
}

/// `ephemeral/consensus`, the working directory of etcd.
#[derive(Clone)]
pub struct EphemeralConsensus {
    /// `ephemeral/consensus`
    pub directory: Directory,
    /// `ephemeral/consensus/client.sock:0`: etcd takes its address as `unix://client.sock:0`, host and port, and names
    /// the file so.
    pub client_socket: EphemeralFile,
    /// `ephemeral/consensus/peer-ca.pem`
    pub peer_ca: EphemeralFile,
    /// `ephemeral/consensus/peer-crl`
    pub peer_crl: EphemeralFile,
    /// `ephemeral/consensus/peer-certificate.pem`
    pub peer_certificate: EphemeralFile,
    /// `ephemeral/consensus/peer-key.pem`
    pub peer_key: EphemeralFile,
}

impl Layout {
    /// The tree on this disk. Nothing is made or looked at yet.
    ///
    /// # Panics
    ///
    /// Never: the tree does not depend on the disk, and a test places it.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self::place(&mut Placement::new(disk)).expect("the declared tree is valid")
    }

    fn place(placement: &mut Placement) -> Result<Self, PlacementError> {
        let root = placement.root();
        let esp = placement.directory(&root, "esp")?;
        let esp_polis = placement.directory(&esp, "polis")?;
        let data = placement.directory(&root, "data")?;
        let data_etcd = placement.directory(&data, "etcd")?;
        let data_node = placement.directory(&data, "node")?;
        let encrypted = placement.directory(&root, "encrypted")?;
        let ephemeral = placement.directory(&root, "ephemeral")?;
        let consensus = placement.directory(&ephemeral, "consensus")?;
        Ok(Self {
            esp: Esp {
                polis: EspPolis {
                    journal: placement.journal(&esp_polis, "journal")?,
                    cluster_directory: placement.two_generations(&esp_polis, "directory")?,
                    operator_peers: placement.two_generations(&esp_polis, "peers")?,
                    signed_members: placement.two_generations(&esp_polis, "members")?,
                    unlock: placement.two_generations(&esp_polis, "unlock")?,
                    recovery: placement.two_generations(&esp_polis, "recovery")?,
                    announced: placement.two_generations(&esp_polis, "announced")?,
                    network: placement.two_generations(&esp_polis, "network")?,
                    clock: [placement.plain_file(&esp_polis, "clock.0")?, placement.plain_file(&esp_polis, "clock.1")?],
                    failures: placement.plain_file(&esp_polis, "failures")?,
                    parameters: placement.plain_file(&esp_polis, "parameters.pb")?,
                    directory: esp_polis,
                },
                directory: esp,
            },
            data: Data {
                partition: placement.stored(&data, "partition")?,
                log: placement.directory(&data, "log")?,
                snapshots: placement.directory(&data, "snapshots")?,
                etcd: DataEtcd {
                    data: placement.directory(&data_etcd, "data")?,
                    credentials: placement.stored(&data_etcd, "credentials")?,
                    joining: placement.stored(&data_etcd, "joining")?,
                    directory: data_etcd,
                },
                node: DataNode {
                    credentials: placement.stored(&data_node, "credentials")?,
                    roles: placement.two_generations(&data_node, "roles")?,
                    revocations: placement.two_generations(&data_node, "revocations")?,
                    directory: data_node,
                },
                directory: data,
            },
            encrypted: Encrypted {
                partition: placement.stored(&encrypted, "partition")?,
                slots: [placement.plain_file(&encrypted, "slot.0")?, placement.plain_file(&encrypted, "slot.1")?],
                cipher: placement.directory(&encrypted, "cipher")?,
                work: placement.directory(&encrypted, "work")?,
                directory: encrypted,
            },
            ephemeral: Ephemeral {
                control_socket: placement.ephemeral_file(&ephemeral, "control.sock")?,
                consensus: EphemeralConsensus {
                    client_socket: placement.ephemeral_file(&consensus, "client.sock:0")?,
                    peer_ca: placement.ephemeral_file(&consensus, "peer-ca.pem")?,
                    peer_crl: placement.ephemeral_file(&consensus, "peer-crl")?,
                    peer_certificate: placement.ephemeral_file(&consensus, "peer-certificate.pem")?,
                    peer_key: placement.ephemeral_file(&consensus, "peer-key.pem")?,
                    directory: consensus,
                },
                directory: ephemeral,
            },
            last_state: placement.plain_file(&root, "last_state.json")?,
            directory: root,
        })
    }

    /// The directories below the root that are FAT on a machine of its own: there, a power cut may leave a rename half
    /// done.
    #[must_use]
    pub fn fat_directories(&self) -> Vec<DiskPath> {
        vec![self.esp.directory.path().clone()]
    }

    /// The store of the enrolment journal. It can be read before anything is made.
    #[must_use]
    pub fn journal_store(&self, seals: Seals) -> JournalStore {
        JournalStore::new(self.esp.polis.journal.clone(), seals)
    }

    /// The first file that a newer Polis has written: then this build has to leave everything alone. Changes nothing.
    #[must_use]
    pub fn newer_file(&self) -> Option<NewerFile> {
        // Taken apart, so that nobody adds a file without deciding.
        let Self { directory: _, esp, data, encrypted, ephemeral: _, last_state: _ } = self;
        let Esp { directory: _, polis } = esp;
        let EspPolis {
            directory: _,
            journal,
            cluster_directory,
            operator_peers,
            signed_members,
            unlock,
            recovery,
            announced,
            network,
            clock: _,
            failures: _,
            parameters: _,
        } = polis;
        let Data { directory: _, partition, log: _, snapshots: _, etcd, node } = data;
        let DataEtcd { directory: _, data: _, credentials: peer_credentials, joining } = etcd;
        let DataNode { directory: _, credentials, roles, revocations } = node;
        let Encrypted { directory: _, partition: encrypted_partition, slots: _, cipher: _, work: _ } = encrypted;
        (journal.newer())
            .or_else(|| cluster_directory.newer())
            .or_else(|| operator_peers.newer())
            .or_else(|| signed_members.newer())
            .or_else(|| unlock.newer())
            .or_else(|| recovery.newer())
            .or_else(|| announced.newer())
            .or_else(|| network.newer())
            .or_else(|| encrypted_partition.newer())
            .or_else(|| partition.newer())
            .or_else(|| peer_credentials.newer())
            .or_else(|| joining.newer())
            .or_else(|| credentials.newer())
            .or_else(|| roles.newer())
            .or_else(|| revocations.newer())
    }

    /// What each start does before it writes anything: empties `ephemeral`, makes `esp/polis` durably, and sweeps stale
    /// temporaries outside the data partition. Returns what was swept. The data partition is made and swept by its
    /// backend ([`crate::data::DataPartition`]).
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn prepare_start(&self) -> Result<Vec<PathBuf>, DiskError> {
        self.prepare_ephemeral()?;
        self.prepare_lasting()
    }

    /// The first half of [`Layout::prepare_start`]: makes `ephemeral` and empties it.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn prepare_ephemeral(&self) -> Result<(), DiskError> {
        self.ephemeral.directory.create_ephemeral()?;
        self.ephemeral.directory.clear()?;
        self.ephemeral.consensus.directory.create_ephemeral()
    }

    /// The second half of [`Layout::prepare_start`]: all but `ephemeral`. Nothing else may write there meanwhile.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn prepare_lasting(&self) -> Result<Vec<PathBuf>, DiskError> {
        self.esp.directory.create("layout/esp")?;
        self.esp.polis.directory.create("layout/esp/polis")?;
        let mut swept = self.directory.sweep()?;
        swept.extend(self.esp.directory.sweep()?);
        swept.extend(self.esp.polis.directory.sweep()?);
        Ok(swept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::SimulatedDisk;

    fn placement() -> Placement {
        Placement::new(Arc::new(SimulatedDisk::default()))
    }

    #[test]
    fn the_tree_is_valid_and_is_the_documented_one() {
        let mut placement = placement();
        Layout::place(&mut placement).unwrap();
        let mut paths: Vec<&str> = placement.taken().iter().map(DiskPath::as_str).collect();
        paths.sort_unstable();
        let expected = [
            "data",
            "data/etcd",
            "data/etcd/credentials",
            "data/etcd/data",
            "data/etcd/joining",
            "data/log",
            "data/node",
            "data/node/credentials",
            "data/node/revocations.0",
            "data/node/revocations.1",
            "data/node/roles.0",
            "data/node/roles.1",
            "data/partition",
            "data/snapshots",
            "encrypted",
            "encrypted/cipher",
            "encrypted/partition",
            "encrypted/slot.0",
            "encrypted/slot.1",
            "encrypted/work",
            "ephemeral",
            "ephemeral/consensus",
            "ephemeral/consensus/client.sock:0",
            "ephemeral/consensus/peer-ca.pem",
            "ephemeral/consensus/peer-certificate.pem",
            "ephemeral/consensus/peer-crl",
            "ephemeral/consensus/peer-key.pem",
            "ephemeral/control.sock",
            "esp",
            "esp/polis",
            "esp/polis/announced.0",
            "esp/polis/announced.1",
            "esp/polis/clock.0",
            "esp/polis/clock.1",
            "esp/polis/directory.0",
            "esp/polis/directory.1",
            "esp/polis/failures",
            "esp/polis/journal.0",
            "esp/polis/journal.1",
            "esp/polis/members.0",
            "esp/polis/members.1",
            "esp/polis/network.0",
            "esp/polis/network.1",
            "esp/polis/parameters.pb",
            "esp/polis/peers.0",
            "esp/polis/peers.1",
            "esp/polis/recovery.0",
            "esp/polis/recovery.1",
            "esp/polis/unlock.0",
            "esp/polis/unlock.1",
            "last_state.json",
        ];
        assert_eq!(paths, expected);
    }

    #[test]
    fn a_place_is_given_once_and_only_to_a_name() {
        let mut placement = placement();
        let root = placement.root();
        let directory = placement.directory(&root, "a").unwrap();
        for name in ["", "a/b", "..", "."] {
            assert!(matches!(placement.directory(&root, name).err(), Some(PlacementError::Name(_))), "{name:?}");
        }
        let taken = |path: &str| Some(PlacementError::Taken { path: DiskPath::parse(path).unwrap() });
        assert_eq!(placement.plain_file(&root, "a").err(), taken("a"));
        placement.plain_file(&directory, "roles.1").unwrap();
        assert_eq!(placement.two_generations::<LocalRoles>(&directory, "roles").err(), taken("a/roles.1"));
    }
}
