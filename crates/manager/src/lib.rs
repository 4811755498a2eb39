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
//! The decisions are pure: [`State`] with [`TRANSITIONS`], [`decide`], and the classification of errors. The rest is a thin loop
//! around them that reads, writes and starts the consensus member through traits, so that tests run it on a simulated disk.

#![forbid(unsafe_code)]

mod bring_up;
mod consensus;
mod create_cluster;
mod decision;
mod etcd;
mod failure;
mod join;
mod manager;
mod node;
mod parameter_source;
mod preflight;
mod prepare;
mod progress;
mod state;
mod trouble;

pub use consensus::{ConsensusProvider, MemberSettings, WithoutData};
pub use decision::{Decision, decide};
pub use etcd::EtcdProvider;
pub use failure::Failure;
pub use manager::{Manager, Settings};
pub use node::Node;
pub use parameter_source::{FIRMWARE_PARAMETERS, GivenParameters, ParameterSource, ParametersOrigin};
pub use preflight::preflight;
pub use prepare::{prepare_ephemeral, prepare_lasting};
pub use progress::{Outcome, Progress};
pub use state::{State, TRANSITIONS};
