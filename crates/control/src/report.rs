//! What a running node tells about its inside, for `polis node report`. For reading by people: fields may come and go.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Status;

/// What a running node tells about its inside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When it was made, by the node's own clock.
    pub made: Timestamp,
    /// Version of Polis that runs.
    pub version: String,
    /// How the node is.
    pub status: Status,
    /// Its process.
    pub process: ProcessReport,
    /// The tree of runnables, parents before their children.
    pub runnables: Vec<RunnableReport>,
    /// Its consensus member; absent while it runs none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub etcd: Option<EtcdReport>,
    /// Its metrics, in the form in which they are served.
    pub metrics: String,
    /// The newest lines of each journal.
    pub journals: Vec<JournalReport>,
}

/// The process of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Process id.
    pub process_id: u32,
    /// Memory that it holds, in bytes; absent when the system does not say.
    pub resident_bytes: Option<u64>,
    /// Open file descriptors; absent when the system does not say.
    pub open_files: Option<u64>,
    /// How many it may open.
    pub open_files_limit: Option<u64>,
    /// How it was started; values of options are in it, no secret can be one.
    pub command_line: Vec<String>,
}

/// One runnable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunnableReport {
    /// Its distinguished name.
    pub name: String,
    /// Its state.
    pub state: String,
    /// Since when, by the node's own clock.
    pub since: Timestamp,
    /// How often it was started again.
    pub restarts: u64,
    /// How often it died in a row.
    pub failures_in_a_row: u32,
    /// What it died of last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_error: Option<String>,
    /// Seconds until it is started again, when that is planned.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub starts_in: Option<f64>,
    /// Whether anything of it runs.
    pub running: bool,
    /// Whether it did not stop within its deadline.
    pub overdue: bool,
}

/// The consensus member of a node, as the node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdReport {
    /// What it is doing.
    pub phase: String,
    /// Version of etcd, once it is known.
    pub version: Option<String>,
    /// Process id, while it runs.
    pub process_id: Option<u32>,
    /// Raft's term; 0 when it is not known.
    pub raft_term: u64,
    /// Raft's timing.
    pub timing: String,
    /// Members, with whether they have started and where their identity address is.
    pub members: Vec<String>,
}

/// The newest lines of one journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalReport {
    /// Its distinguished name.
    pub name: String,
    /// Oldest first, rendered.
    pub lines: Vec<String>,
}

/// How far the replacement of the owner is, after this node's proposal was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerProposed {
    /// How many consensus members' root users have proposed this key.
    pub proposals: u32,
    /// How many it takes: a quorum of the consensus members.
    pub needed: u32,
    /// Whether the key is the owner's now.
    pub replaced: bool,
}
