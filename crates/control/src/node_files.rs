//! What commands do to the files of a node that does not run.
//!
//! The commands know nothing of what a node keeps on its disk, and the node nothing of commands. This trait stands between
//! them; the binary, which knows both, hands an implementation to the commands.

use std::path::{Path, PathBuf};

use polis_identity::NodeId;

use crate::{EnrolmentPhase, Peer, RecoverError, RecoverRequest, Recovery};

/// The files of nodes on this machine.
pub trait NodeFiles: Sync {
    /// Looks at the node at `root`, which must not run, and holds it until the value is dropped. Nothing is changed yet.
    ///
    /// # Errors
    ///
    /// When there is none, when it runs, or when its files cannot be looked at.
    fn reset(&self, root: &Path) -> Result<Box<dyn Reset>, NodeFilesError>;

    /// Writes down where other nodes are, for the next start of the node at `root`, which must not run.
    ///
    /// # Errors
    ///
    /// When there is none, when it runs, or when it cannot be written.
    fn set_peers(&self, root: &Path, peers: &[Peer]) -> Result<(), NodeFilesError>;

    /// Looks whether a cluster of one can be made of what the node at a root has, which must not run, after the others are gone for
    /// good; asks those first. Nothing is changed yet.
    ///
    /// # Errors
    ///
    /// When it cannot be done, or must not.
    fn recover(&self, request: &RecoverRequest) -> Result<Box<dyn Recovery>, RecoverError>;
}

/// A node that is about to become nothing.
pub trait Reset {
    /// What will be deleted, and what stays.
    fn plan(&self) -> &ResetPlan;

    /// Deletes it. A kill in the middle leaves what can be reset again and does not start as a node.
    ///
    /// # Errors
    ///
    /// When something could not be deleted; it can be repeated.
    fn run(self: Box<Self>) -> Result<ResetOutcome, NodeFilesError>;
}

/// What a reset will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetPlan {
    /// Who the node is, when its journal says so.
    pub node_id: Option<NodeId>,
    /// Its cluster, when its journal says so.
    pub cluster_id: Option<String>,
    /// How far it came; absent when the journal cannot be read.
    pub phase: Option<EnrolmentPhase>,
    /// Why the journal cannot be read, in one line.
    pub journal_problem: Option<String>,
    /// Whether it last ran a member of its cluster's consensus.
    pub consensus_member: bool,
    /// What will be deleted, in this order.
    pub items: Vec<ResetItem>,
    /// What lies between and is not the node's own: it stays.
    pub stays: Vec<PathBuf>,
}

/// Something that will be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetItem {
    /// Where it is.
    pub path: PathBuf,
    /// What it is, for people.
    pub what: &'static str,
}

/// What a reset has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetOutcome {
    /// What is still below the root, and not the node's own.
    pub stays: Vec<PathBuf>,
}

/// Something could not be done to the files of a node.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct NodeFilesError {
    /// What could not be done, and where.
    pub what: String,
    /// What to do next; absent when the causes say it.
    pub hint: Option<String>,
    /// Why not.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync + 'static>>,
}
