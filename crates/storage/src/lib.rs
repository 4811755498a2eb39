//! What a node keeps on its disks, and how it survives there.
//!
//! - [`Disk`] is the small set of file operations that everything stands on: [`HostDisk`] is the machine's, and
//!   [`simulation::SimulatedDisk`] one that can lose power.
//! - [`durable`] has the only functions that make something survive a power cut; each call names its site, and a fault
//!   point stands before and after each step.
//! - [`envelope`] is the common form of all files, with magic, version and checksum. A [`Record`] is a typed value with
//!   such a form; it is kept [`Stored`] in one file or in [`TwoGenerations`].
//! - [`journal`] is the enrolment journal: how far this node has come on its way into a cluster.
//! - [`Layout`] is the declared tree of all directories and files, [`RootDirectory`] the checked and locked place it is in.
//! - [`data`] is the data partition behind its backends; [`GuardedDisk`] lets nobody past one that is not open.
//!
//! This crate knows nothing of clusters: who is a member of what, and why a key is kept, is decided above.
//!
//! Two rules hold everywhere. *Nothing that is unreadable is ever treated as absent.* And *what was read is durable before
//! anyone acts on it* ([`durable::settle`]): a process may have died between making a file visible and making it durable,
//! and its successor must not build on what a power cut can still take away.

#![forbid(unsafe_code)]

pub mod data;
mod disk;
pub mod durable;
pub mod envelope;
mod generations;
mod guard;
mod host;
pub mod journal;
mod layout;
mod newer;
mod path;
mod placement;
mod record;
mod records;
mod root;
pub mod simulation;
mod stored;
mod two_generations;

pub use data::{DataBackends, DataPartition, DataUnavailable, PlainData};
pub use disk::{Action, DIRECTORY_MODE, Disk, DiskError, FILE_MODE, LIST_LIMIT, Metadata, read_if_present};
pub use generations::{Generations, GenerationsError, Loaded, SlotFault, SlotProblem};
pub use guard::{DataClosed, DataGate, GuardedDisk};
pub use host::HostDisk;
pub use journal::{Journal, JournalError, JournalStore};
pub use layout::{Data, DataEtcd, DataNode, Encrypted, Ephemeral, EphemeralConsensus, Esp, EspPolis, Layout};
pub use newer::NewerFile;
pub use path::{DiskPath, InvalidName, NAME_LIMIT};
pub use placement::{Directory, EphemeralFile, PlainFile};
pub use record::{InvalidRecord, Record};
pub use records::{
    AnnouncementCounter, ClusterDirectory, DirectoryNode, KeptNetwork, LocalRoles, MemberJoin, NodeCredentials,
    OperatorPeer, OperatorPeers, PartitionMarker, PeerCredentials, RECOVERY_BLOB_LIMIT, RecoveryBlob, Revocations,
    SignedMembers, UnlockShares,
};
pub use root::{RootDirectory, RootError};
pub use stored::{LoadError, StoreError, Stored};
pub use two_generations::{TwoGenerations, TwoGenerationsError};
