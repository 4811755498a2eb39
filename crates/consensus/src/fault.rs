//! What can be wrong with the member of this node, in words that an operator can act on.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use polis_condition::{Conditions, Severity};

use crate::arguments::QUOTA_BYTES;
use crate::peer_url::PEER_PORT;

/// Name of the condition for [`Fault::PortTaken`].
pub(crate) const PORT_TAKEN: &str = "consensus-port-taken";
/// Name of the condition for [`Fault::AddressNotHere`].
pub(crate) const ADDRESS_NOT_HERE: &str = "consensus-address-not-here";
/// Name of the condition for [`Fault::EtcdUnusable`].
pub(crate) const ETCD_UNUSABLE: &str = "consensus-etcd-unusable";
/// Name of the condition for [`Fault::DataMissing`].
pub(crate) const DATA_MISSING: &str = "consensus-data-missing";
/// Name of the condition for [`Fault::EtcdExiting`].
pub(crate) const ETCD_EXITING: &str = "consensus-etcd-exiting";
/// Name of the condition for [`Fault::EtcdHanging`].
pub(crate) const ETCD_HANGING: &str = "consensus-etcd-hanging";
/// Name of the condition for [`Fault::NoLeader`].
pub(crate) const NO_LEADER: &str = "consensus-no-leader";
/// Name of the condition for [`Fault::DiskFull`].
pub(crate) const DISK_FULL: &str = "consensus-disk-full";
/// Name of the condition for [`Fault::DataDamaged`].
pub(crate) const DATA_DAMAGED: &str = "consensus-data-damaged";
/// Name of the condition for [`Fault::RunsElsewhere`].
pub(crate) const RUNS_ELSEWHERE: &str = "consensus-runs-elsewhere";

/// All conditions that this crate raises.
pub(crate) const ALL_CONDITIONS: [&str; 10] = [
    PORT_TAKEN,
    ADDRESS_NOT_HERE,
    ETCD_UNUSABLE,
    DATA_MISSING,
    DATA_DAMAGED,
    ETCD_EXITING,
    ETCD_HANGING,
    NO_LEADER,
    DISK_FULL,
    RUNS_ELSEWHERE,
];

/// Something that is wrong. Each is raised as a condition and cleared when it is cured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Another program has the peer port.
    PortTaken(IpAddr),
    /// The node's address cannot be used on this machine.
    AddressNotHere { address: IpAddr, reason: String },
    /// There is no etcd that can be started, or what it needs cannot be prepared.
    EtcdUnusable(String),
    /// The data of a member that exists are not there.
    DataMissing(String),
    /// etcd cannot read its data.
    DataDamaged { directory: String, said: String },
    /// etcd ended before it was ready.
    EtcdExiting { status: String, last_lines: Vec<String> },
    /// etcd runs and does not answer.
    EtcdHanging { process_id: Option<u32>, silent_for: Duration },
    /// No quorum.
    NoLeader { members: usize },
    /// No space for etcd, on its disk or within its quota.
    DiskFull { directory: String, fullness: Fullness },
    /// An etcd with the key of this member runs where this node was before.
    RunsElsewhere(SocketAddr),
}

/// What is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fullness {
    /// etcd's database has reached its quota, here or on another member. Sizes of this member's, in bytes.
    Quota {
        /// Of the file.
        size: u64,
        /// Of what the file holds.
        in_use: u64,
    },
    /// The file system is full; what is known of its room.
    Disk(Option<Room>),
}

/// The room on a file system for which etcd waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Free bytes.
    pub(crate) free: u64,
    /// Bytes that must be free for a start.
    pub(crate) needed: u64,
}

impl Fault {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::PortTaken(_) => PORT_TAKEN,
            Self::AddressNotHere { .. } => ADDRESS_NOT_HERE,
            Self::EtcdUnusable(_) => ETCD_UNUSABLE,
            Self::DataMissing(_) => DATA_MISSING,
            Self::DataDamaged { .. } => DATA_DAMAGED,
            Self::EtcdExiting { .. } => ETCD_EXITING,
            Self::EtcdHanging { .. } => ETCD_HANGING,
            Self::NoLeader { .. } => NO_LEADER,
            Self::DiskFull { .. } => DISK_FULL,
            Self::RunsElsewhere(_) => RUNS_ELSEWHERE,
        }
    }

    /// Raises it.
    pub(crate) fn raise(&self, conditions: &Conditions) {
        conditions.raise(self.name(), Severity::Error, self.message(), self.hint());
    }

    fn message(&self) -> String {
        match self {
            Self::PortTaken(address) => format!(
                "etcd cannot be started: another program has {}, on which other members reach this one; \
                 it is tried again every few seconds",
                SocketAddr::new(*address, PEER_PORT)
            ),
            Self::AddressNotHere { address, reason } => format!(
                "etcd cannot be started: the address {address} cannot be used on this machine ({reason}); \
                 it is tried again every few seconds"
            ),
            Self::EtcdUnusable(reason) => format!("etcd cannot be started: {reason}"),
            Self::DataMissing(directory) => format!(
                "etcd is not started: this node is a member of its cluster, and the member's data are not in {directory}. \
                 Started without them it would be a member that has forgotten what it promised"
            ),
            Self::DataDamaged { directory, said } => format!(
                "etcd is not started again: it cannot read the data of this member in {directory}. It has said: {said}. That \
                 happens when the power fails while it writes, or when the disk does. Nothing in there was taken away"
            ),
            Self::EtcdExiting { status, last_lines } if last_lines.is_empty() => {
                format!("etcd ends before it is ready ({status}) and says nothing; it is started again")
            }
            Self::EtcdExiting { status, last_lines } => format!(
                "etcd ends before it is ready ({status}); it is started again. Its last complaints: {}",
                last_lines.join(" | ")
            ),
            Self::EtcdHanging { process_id, silent_for } => format!(
                "etcd (process {}) runs and has not answered for more than {} s; nothing can be read or written \
                 through this node",
                process_id.unwrap_or_default(),
                silent_for.as_secs()
            ),
            Self::NoLeader { members: 0 } => {
                "the cluster has no leader: this member does not reach enough of the others".to_owned()
            }
            Self::NoLeader { members } => format!(
                "the cluster has no leader: of its {members} voting members fewer than {} reach each other, so nothing can \
                 be read or written",
                members / 2 + 1
            ),
            Self::DiskFull { directory, fullness: Fullness::Quota { size, in_use } } => format!(
                "etcd has no space for its data in {directory}: its database has reached its quota, here or on another member, and \
                 takes no writes. Here the file has {} MiB, of which {} MiB are in use; the quota is {} MiB",
                mebibytes(*size),
                mebibytes(*in_use),
                mebibytes(QUOTA_BYTES)
            ),
            Self::DiskFull { directory, fullness: Fullness::Disk(None) } => {
                format!("etcd has no space for its data in {directory}: no space left on the disk")
            }
            Self::DiskFull { directory, fullness: Fullness::Disk(Some(Room { free, needed })) } => format!(
                "etcd has no space for its data in {directory}: no space left on the disk. {} MiB are free there, and it is started \
                 again, by itself, once there are {} MiB",
                mebibytes(*free),
                mebibytes(*needed)
            ),
            Self::RunsElsewhere(address) => format!(
                "etcd is not started: another process with the key of this member answers at {address}, where this node was before. \
                 Two of them would have one vote twice, and could break what the consensus has promised"
            ),
        }
    }

    const fn hint(&self) -> &'static str {
        match self {
            Self::PortTaken(_) => {
                "End the program that listens there (`ss -ltnp` names it), or give this node an address of its own."
            }
            Self::AddressNotHere { .. } => {
                "Give the address to an interface, or start the node with an address it has."
            }
            Self::EtcdUnusable(_) => "Cure what the message names; the start is tried again by itself.",
            Self::DataMissing(_) => "Make the data available again (is the right disk mounted?); nothing was changed.",
            Self::DataDamaged { .. } => {
                "While the other members have a quorum, nothing: the cluster replaces this member, and what is in that directory now \
                 is kept beside it. Otherwise start other members, or wait for them; if they are gone for good, `polis cluster recover` \
                 makes a new cluster of what a member's disk still has, or of a snapshot. A start of this node tries once more."
            }
            Self::EtcdExiting { .. } => "The log of etcd says more; the start is tried again by itself.",
            Self::EtcdHanging { .. } => {
                "Look at the load and the disk of this machine. A stopped process goes on after SIGCONT; a killed one is \
                 started again."
            }
            Self::NoLeader { .. } => "Start the other members, or repair the network between them.",
            Self::DiskFull { fullness: Fullness::Quota { .. }, .. } => {
                "Nothing, if less than nine tenths of the quota are in use: room is made within minutes, and writes are let in again. Else \
                 delete what the cluster does not need; the rest follows by itself. Reads work, and nothing is lost."
            }
            Self::DiskFull { fullness: Fullness::Disk(_), .. } => {
                "Make room on that disk; what was acknowledged is not lost."
            }
            Self::RunsElsewhere(_) => {
                "If this root directory is a copy of that node's, stop this node and delete the directory. If the node has moved here, \
                 stop it there; this one goes on by itself then."
            }
        }
    }
}

/// In whole MiB, rounded up, so that what is there is never shown as nothing.
const fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}
