//! What `polis cluster recover` asks of the files of a node that does not run.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use polis_identity::NodeId;
use polis_recovery::RecoveryKey;

use crate::NodeFilesError;

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoverRequest {
    /// The root of the node that is left.
    pub root: PathBuf,
    /// The etcd program, if it is not to be looked for.
    pub etcd: Option<PathBuf>,
    /// A snapshot to be used instead of what the node's own member has.
    pub snapshot: Option<PathBuf>,
    /// The device with the data partition, if the node has one for it.
    pub data_device: Option<PathBuf>,
    /// What opens a snapshot that is encrypted, and encrypted data of the node whose key is with those that are gone.
    pub recovery_key: Option<RecoveryKey>,
    /// Somebody says that the others are gone for good.
    pub others_are_gone: bool,
}

/// A recovery was not begun, or not ended.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// It would endanger a cluster that lives.
    #[error(transparent)]
    Refused(NodeFilesError),
    /// Something is missing that has to be installed.
    #[error(transparent)]
    Missing(NodeFilesError),
    /// It did not work. Nothing of the node was changed, unless the text says so.
    #[error(transparent)]
    Failed(NodeFilesError),
}

/// What there is before a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoverFound {
    /// The node that is left.
    pub node_id: NodeId,
    /// Its cluster.
    pub cluster_id: String,
    /// The members by the newest signed list on the node's disk; empty when it has none.
    pub members: Vec<NodeId>,
    /// Addresses at which the others were looked for, and what came of it.
    pub asked: Vec<(String, String)>,
    /// How long ago the data that are used were written last.
    pub age: Option<Duration>,
    /// Bytes of them.
    pub bytes: u64,
    /// Revision of the state in them; absent when it cannot be read. Of a snapshot it is exact; what a member's log has beyond its database
    /// is used as well, so that of its data it is the least.
    pub revision: Option<i64>,
    /// The snapshot that is used, if it is one.
    pub snapshot: Option<PathBuf>,
}

/// What a recovery has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoverReport {
    /// Revision of the state: what was acknowledged after it is lost.
    pub revision: i64,
    /// The nodes that were members besides this one. They are nodes of the cluster still, and no members.
    pub others: Vec<NodeId>,
    /// The nodes besides this one with encrypted data whose key the state has, as of its revision; each with the time of its last report
    /// that the state knows.
    pub with_keys: Vec<(NodeId, Option<SystemTime>)>,
    /// The new incarnation of the cluster's membership.
    pub incarnation: u64,
    /// Where the data of before are kept; absent when there were none.
    pub kept: Option<PathBuf>,
}

/// A recovery that was looked into, and holds the lock of its node.
pub trait Recovery {
    /// What there is.
    fn found(&self) -> &RecoverFound;

    /// Does it, and tells of each step as it begins. A kill at any point leaves the node as it was, or recovered.
    ///
    /// # Errors
    ///
    /// When it did not work.
    fn run(self: Box<Self>, tell: &dyn Fn(&str)) -> Result<RecoverReport, RecoverError>;
}
