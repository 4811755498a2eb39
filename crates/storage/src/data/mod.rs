//! [`DataPartition`]: where everything lives that a node must not lose, behind one of several backends.
//!
//! A backend may take long (formatting an authenticated disk writes all of it) and may be a child process that dies, so
//! every operation is asynchronous, reports progress, can be repeated after any failure in the same process (window
//! W18), and continues what an earlier process left half done.

mod plain;
mod tree;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use polis_secret::Secret32;
use tokio::sync::watch;

pub use plain::PlainData;
pub use tree::{DataTree, blocking};

use crate::disk::DiskError;
use crate::journal::{FormatPermit, StorageSecurity};
use crate::stored::{LoadError, StoreError};

/// A backend for the data partition of one node.
#[async_trait]
pub trait DataPartition: Send + Sync {
    /// What it is and what it protects from.
    fn describe(&self) -> Description;

    /// Looks at what is there and changes nothing, but for clearing what a dead process left (a stale mount).
    ///
    /// # Errors
    ///
    /// See [`DataError`].
    async fn prepare(&self, progress: &ProgressSender) -> Result<Found, DataError>;

    /// Formats it for node `owner`; a finished format of the same node is done already, a half-done one is finished.
    /// The marker is written last. Nothing of anyone else is touched.
    ///
    /// # Errors
    ///
    /// See [`DataError`].
    async fn format(
        &self,
        permit: FormatPermit,
        owner: &str,
        keys: Option<&UnlockKeys>,
        progress: &ProgressSender,
    ) -> Result<(), DataError>;

    /// Opens it, so that its files can be used, and sweeps stale temporaries; one that is open stays so. Changes nothing
    /// unless it belongs to `owner`.
    ///
    /// # Errors
    ///
    /// See [`DataError`].
    async fn open(&self, owner: &str, keys: Option<&UnlockKeys>, progress: &ProgressSender) -> Result<(), DataError>;

    /// Whether these keys open it, found out without opening it.
    ///
    /// # Errors
    ///
    /// See [`DataError`].
    async fn test_open(&self, keys: &UnlockKeys) -> Result<bool, DataError>;

    /// Lets it be opened by `new` too.
    ///
    /// # Errors
    ///
    /// See [`DataError`].
    async fn add_key(&self, existing: &UnlockKeys, new: &UnlockKeys) -> Result<(), DataError>;

    /// How many keys open it, known or not.
    ///
    /// # Errors
    ///
    /// See [`DataError`].
    async fn count_keys(&self) -> Result<usize, DataError>;

    /// Makes nothing but `remaining` open it, which must open it; also not what nobody knows any more.
    ///
    /// # Errors
    ///
    /// See [`DataError`].
    async fn remove_others(&self, remaining: &UnlockKeys) -> Result<(), DataError>;

    /// Returns, with the reason, when an open partition is lost, for example because the process behind it died: stop
    /// consensus first, then open it again. A backend that cannot be lost never returns.
    async fn lost(&self) -> String;

    /// Closes it; one that is closed stays so.
    ///
    /// # Errors
    ///
    /// See [`DataError`].
    async fn close(&self) -> Result<(), DataError>;
}

/// The backends that this host has, by what they must protect from. What a host cannot do is refused with the reason and
/// never replaced by something weaker.
pub trait DataBackends: Send + Sync {
    /// The backend for exactly this protection. Asked again, it is the same one.
    ///
    /// # Errors
    ///
    /// When this host cannot protect data so.
    fn choose(&self, security: StorageSecurity) -> Result<Arc<dyn DataPartition>, DataUnavailable>;

    /// Those that might have been used here before: a first start looks through the eyes of each, so that it takes
    /// nothing for free that holds somebody's data.
    fn all(&self) -> Vec<Arc<dyn DataPartition>>;
}

/// Why a host cannot protect a data partition as it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host cannot keep a data partition that is {security}: {reason}")]
pub struct DataUnavailable {
    /// The protection that was asked for.
    pub security: StorageSecurity,
    /// What is missing, for people.
    pub reason: String,
    /// What to do about it, with the line that installs what is missing.
    pub remedy: String,
}

/// What a backend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its name, as in the partition's marker.
    pub backend: &'static str,
    /// What it protects from.
    pub storage_security: StorageSecurity,
    /// What people must know before they trust it; none if there is nothing.
    pub warning: Option<&'static str>,
}

/// What was found where the data partition is or will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// A format that was begun and not finished.
    HalfFormatted,
    /// A formatted partition; whose it is, is known only when it is open, or at once if the backend does not encrypt.
    Formatted {
        /// Node that formatted it, if that can be read.
        owner: Option<String>,
    },
    /// Something else, which is left alone.
    Foreign {
        /// The first thing that is not ours.
        path: PathBuf,
    },
}

/// The two keys from which a backend derives the one that opens it. Has no `Debug`: they are secret.
#[derive(Clone, PartialEq, Eq)]
pub struct UnlockKeys {
    /// The node unlock key: this machine's half.
    pub node: Secret32,
    /// The cluster unlock key: the cluster's half.
    pub cluster: Secret32,
}

/// Where an operation tells how far it is; only the newest is kept.
pub type ProgressSender = watch::Sender<Progress>;

/// How far an operation is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, for people.
    pub step: &'static str,
    /// Bytes done in this step.
    pub done: u64,
    /// Bytes to do in this step; absent if the step is not counted.
    pub total: Option<u64>,
}

/// An operation that not every backend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOperation {
    /// [`DataPartition::test_open`]
    TestOpen,
    /// [`DataPartition::add_key`]
    AddKey,
    /// [`DataPartition::count_keys`]
    CountKeys,
    /// [`DataPartition::remove_others`]
    RemoveOthers,
    /// Formatting or opening with keys.
    Unlock,
}

impl fmt::Display for KeyOperation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::TestOpen => "testing a key",
            Self::AddKey => "adding a key",
            Self::CountKeys => "counting keys",
            Self::RemoveOthers => "removing keys",
            Self::Unlock => "unlocking with keys",
        })
    }
}

/// Why an operation on the data partition failed. Each can be tried again; nothing was destroyed.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// It belongs to another node.
    #[error(
        "the data directory {} belongs to node {found}, and this is node {expected}; nothing was changed: give each node \
         a root of its own, or put the right disk back",
        path.display()
    )]
    OtherNode {
        /// Full path of the data directory.
        path: PathBuf,
        /// Node in its marker.
        found: String,
        /// This node.
        expected: String,
    },
    /// It was made by another backend.
    #[error(
        "the data directory {} was formatted with backend {found}, and this node uses {expected}; nothing was changed: \
         start the node as it was started before",
        path.display()
    )]
    OtherBackend {
        /// Full path of the data directory.
        path: PathBuf,
        /// Backend in its marker.
        found: String,
        /// Backend of this node.
        expected: &'static str,
    },
    /// There is something that this node did not make.
    #[error(
        "the data directory {} is not formatted, but there is {} in it, which this node did not make; nothing was \
         changed: move it away, or give the node another root",
        directory.display(),
        found.display()
    )]
    ForeignContent {
        /// Full path of the data directory.
        directory: PathBuf,
        /// Full path of the first thing that is not ours.
        found: PathBuf,
    },
    /// It is not formatted.
    #[error(
        "the data directory {} is not formatted, though this node's journal says that it was; nothing was changed: put \
         the right disk back, or restore it",
        path.display()
    )]
    NotFormatted {
        /// Full path of the data directory.
        path: PathBuf,
    },
    /// The marker cannot be read.
    #[error("it is not known to whom the data directory {} belongs, so nothing was changed", path.display())]
    Marker {
        /// Full path of the data directory.
        path: PathBuf,
        /// Why the marker cannot be read.
        #[source]
        source: LoadError,
    },
    /// The marker cannot be written.
    #[error("cannot finish the data directory {}", path.display())]
    Finish {
        /// Full path of the data directory.
        path: PathBuf,
        /// Why the marker cannot be written.
        #[source]
        source: StoreError,
    },
    /// The keys do not open it.
    #[error(
        "the keys of this node do not open the data partition {} ({backend}); nothing was changed: if the node's esp and \
         data directories, or disks, were swapped or restored, put back those that belong together",
        path.display()
    )]
    WrongKeys {
        /// Full path of what did not open.
        path: PathBuf,
        /// The backend.
        backend: &'static str,
    },
    /// What is on the disk is not as the backend left it.
    #[error(
        "the data partition {} ({backend}) is damaged: {problem}; nothing was changed: restore it from a backup, or replace \
         this node",
        path.display()
    )]
    Damaged {
        /// Full path of what is damaged.
        path: PathBuf,
        /// The backend.
        backend: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A tool that the backend needs is not there, or the host lacks a feature.
    #[error("the data partition {} cannot be used with the {} backend now", path.display(), backend)]
    Unavailable {
        /// Full path of the data partition.
        path: PathBuf,
        /// The backend.
        backend: &'static str,
        /// What is missing.
        #[source]
        source: DataUnavailable,
    },
    /// A tool of the backend failed.
    #[error("{action} failed for the data partition {} ({backend}); nothing was lost", path.display())]
    Tool {
        /// What was being done, as a noun: "mounting", "formatting".
        action: &'static str,
        /// Full path of the data partition.
        path: PathBuf,
        /// The backend.
        backend: &'static str,
        /// What the tool said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync + 'static>,
    },
    /// The backend has no such operation.
    #[error("{operation} is not supported by the {backend} backend of the data partition")]
    NotSupported {
        /// The operation.
        operation: KeyOperation,
        /// The backend.
        backend: &'static str,
    },
    /// The work was cut off before it ended: the process is stopping.
    #[error("work on the data directory {} was stopped", path.display())]
    Stopped {
        /// Full path of the data directory.
        path: PathBuf,
    },
}

impl DataError {
    /// The failure of the disk, if that is what it was.
    #[must_use]
    pub const fn disk_error(&self) -> Option<&DiskError> {
        match self {
            Self::Disk(error) => Some(error),
            Self::Marker { source, .. } => source.disk_error(),
            Self::Finish { source, .. } => source.disk_error(),
            Self::OtherNode { .. }
            | Self::OtherBackend { .. }
            | Self::ForeignContent { .. }
            | Self::NotFormatted { .. }
            | Self::WrongKeys { .. }
            | Self::Damaged { .. }
            | Self::Unavailable { .. }
            | Self::Tool { .. }
            | Self::NotSupported { .. }
            | Self::Stopped { .. } => None,
        }
    }
}

/// Tells that a step has begun which is not counted.
pub fn report(progress: &ProgressSender, step: &'static str) {
    progress.send_replace(Progress { step, done: 0, total: None });
}
