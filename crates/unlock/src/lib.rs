//! Quorum unlock: how the members of a cluster open each other's data after all of them have lost power (`cold-start.md`).
//!
//! The key of a node's data has two halves. One is under the node's own seal; the other, the [`ClusterUnlockKey`], is kept by
//! the cluster. Each member also [`split`]s its own to the others, for the day on which no cluster runs that could give it back, and
//! keeps the shares, each encrypted to its holder, in an [`UnlockFile`] of its own. Its peers keep nothing for it: at a start it asks
//! them to decrypt.
//!
//! - [`Scheme`] says how many shares it takes, for each number of voters and while that number changes.
//! - [`SignedMemberList`] says who holds shares; the newer list wins on every contact.
//! - [`Holder`] is the peer's side: a request, and what it has at hand, to an answer.
//! - [`Collector`] is the owner's side: events to actions, until the data are open. [`Drill`] is the same while they are open.
//!
//! Everything here is a value or a function of values: no file, no connection, no clock. Randomness is taken by [`split`] alone, and
//! comes in as an argument.

#![forbid(unsafe_code)]

mod collector;
mod drill;
mod epoch;
mod file;
mod holder;
mod key;
mod members;
mod progress;
mod request;
mod sealing;
mod share;
mod split;
mod threshold;

#[cfg(test)]
mod scene;

pub use collector::{ANSWER_TICKS, Action, Alarm, Collector, Event, LONGEST_PAUSE_TICKS, Proof, Settings};
pub use drill::{Drill, DrillAction, NoDrill};
pub use epoch::Epoch;
pub use file::{HeldShare, InvalidUnlockFile, SealedUnlockFile, Split, UnlockFile};
pub use holder::{ClusterWord, Decision, Floors, Holder, Rate};
pub use key::{ClusterUnlockKey, KeyCheckValue};
pub use members::{InvalidMemberList, Lineage, MemberEntry, MemberList, Recovery, SignedMemberList, Standing};
pub use progress::{NotNamed, PeerAnswer, PeerProgress, Progress};
pub use request::{Counts, InvalidUnlockMessage, Reason, Refusal, SealedShare, UnlockReply, UnlockRequest, Want};
pub use sealing::{Binding, Hpke, SEALED_SHARE_LENGTH, Sealing, UnusableShareKey};
pub use share::{Share, ShareHash};
pub use split::{SplitError, split};
pub use threshold::{NoScheme, Scheme, VOTERS_LIMIT, quorum};
