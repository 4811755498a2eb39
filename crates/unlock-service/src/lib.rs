//! The unlock service: members of a cluster that ask each other for what opens their data, over the network (cold-start.md,
//! Protocol).
//!
//! What is asked and answered is decided in [`polis_unlock`]; here are the port, the connections, time, and what is durable when.
//!
//! * [`UnlockServer`] answers on port [`polis_rpc::UNLOCK_PORT`], while the node is locked and while it is not. A member is known by
//!   its join key alone: no names, no dates, as there may be no clock yet. It is told what it may know once that is durable.
//!   Anybody may ask why the node is locked, and whoever has the recovery key may open it.
//! * [`unlock`] asks the others until the data are open, for ever if need be. It never formats and never gives up; it says what it
//!   waits for ([`UnlockStatus`]).
//! * [`drills`] runs the same path while the data are open, after each boot and each split, so that it is known to work before it is
//!   needed.
//! * [`Members`] is what all of these know of the members. A newer list wins, whoever brought it, once it is durable.
//! * [`Contacts`] is what the port tells those who ask: a member that calls is up, and is asked at once. So a cold start is over some
//!   milliseconds after enough members are there, and members find each other whose addresses have changed while all were off.
//!
//! # Strangers
//!
//! The limits of the port are small ([`polis_rpc::Limits`]): 32 handshakes at a time and 4 from one address, half of them kept for where
//! members are or came from last; the oldest goes first; messages of at most 4 KiB. No counter of failures locks anything, and a
//! member's connections have seats that nobody else can take.

#![forbid(unsafe_code)]

mod contacts;
mod drills;
mod engine;
mod limits;
mod line;
mod lock;
mod members;
mod pace;
mod peers;
mod rates;
mod recovery;
mod server;
mod service;
mod status;
mod unlock;

pub use contacts::Contacts;
pub use drills::{DrillOutcome, Drilled, Exercise, drills};
pub use lock::{Lock, Oneself};
pub use members::{KnownMembers, Members, Store, StoreMembersError};
pub use peers::KnownAddresses;
pub use recovery::{RecoverError, Recovery, RecoveryAnswer};
pub use server::{CurrentKeys, HolderSettings, UnlockServer};
pub use status::UnlockStatus;
pub use unlock::{DrillError, OpenError, Opener, Owner, Surroundings, UnlockError, drill, unlock};
