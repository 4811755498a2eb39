//! The Manager: the state machine that takes a node from New to Running, and back to Running after anything.
//!
//! ```text
//!             +--- no journal, parameters: bootstrap ---> CreatingCluster ---+
//! New --------+--- no journal, parameters: register ----> Registering -------+--> Running --+
//!             +--- journal: enrolled -------------------> Joining -----------+              +--> Failed
//!             +--- journal: an earlier phase: on with what was begun         +--------------+
//! ```
//!
//! Three rules stand behind it (`crash-windows.md`). What is irreversible is written to the journal before it is done. Every
//! step derives what is left to do from what is durable, so it can be repeated after any crash. Nothing that may pass is a
//! failure: it is retried for ever, with a condition that says what is missing; a failure is what a human must decide.
//!
//! Being let in and being let go are the two ends. A machine asks with the same keys until it is answered, however long an operator
//! takes, whoever leads, and however often either is restarted; each call can be repeated, and what an answer means is one table. A
//! node that the cluster has removed, which it must prove, says so for ever and touches nothing ([`Manager::remove`]); one that is
//! decommissioned has erased its keys before ([`Manager::erase_keys`]).
//!
//! Encrypted data open with two halves of a key. Where they come from at a start is decided from the journal alone, in one function
//! (module `unlock`); who keeps the cluster's half while the node runs, and how it is replaced so that some key opens whatever is cut
//! off, is the business of one more runnable ([`Manager::key_keeper`], module `unlock_keys`).
//!
//! A node that nobody else opens comes back by the cluster's recovery key: what is sealed to that is kept by another runnable
//! ([`Manager::blob_keeper`]), and a locked node offers it and takes what somebody makes of it (module `recovery`).
//!
//! The decisions are pure: [`State`] with [`TRANSITIONS`], [`decide`], and the classification of errors and answers. The rest is a
//! thin loop around them that reads, writes, calls the cluster ([`ClusterAccess`]) and starts the consensus member
//! ([`ConsensusProvider`]) through traits, so that tests run it on a simulated disk beside a scripted cluster.

#![forbid(unsafe_code)]

mod bring_up;
mod cluster_access;
mod cold_start;
mod consensus;
mod create_cluster;
mod data;
mod data_offline;
mod decision;
mod ending;
mod enrolment;
mod etcd;
mod failure;
mod gate;
mod join;
mod manager;
mod node;
mod pace;
mod parameter_source;
mod petition;
mod preflight;
mod prepare;
mod progress;
mod recovery;
mod register;
mod restoration;
mod sealing;
mod state;
mod storage_choice;
mod trouble;
mod unlock;
mod unlock_keys;
mod verdict;

pub use cluster_access::{
    Admission, Applicant, ApplicantKey, ApplicantLink, Attempt, AttemptProblem, CallFailure, ClusterAccess, Commitment,
    InCluster, KeptKey, Membership, News, Registration, RpcAccess, Unheard,
};
pub use cold_start::MemberKeys;
pub use consensus::{ConsensusProvider, MemberSettings, WithoutData};
pub use data_offline::{KeepCopyError, OfflineData, OpenOfflineError};
pub use decision::{Decision, NewParameters, decide};
pub use etcd::EtcdProvider;
pub use failure::Failure;
pub use manager::{Manager, Settings};
pub use node::Node;
pub use parameter_source::{FIRMWARE_PARAMETERS, GivenParameters, ParameterSource, ParametersOrigin};
pub use preflight::preflight;
pub use prepare::{prepare_ephemeral, prepare_lasting};
pub use progress::{Outcome, Progress};
pub use restoration::{Restoration, RestorationError, is_restoration};
pub use state::{State, TRANSITIONS};
pub use storage_choice::{can_begin, recommended_storage};
pub use unlock::ColdStart;
pub use unlock_keys::{KeyOrderError, Place, Standing};
