//! The keys of the data partition while the node runs: who gives the cluster's half back, and how it is replaced (`cold-start.md`).
//!
//! One runnable does all of it, so nothing of it happens twice at a time. Whenever contact with the leader begins, a newer list of the
//! consensus members comes, or a drill has shown something, and before a member of this node starts that may soon have a vote, it looks
//! at everything ([`settle`]) and does one planned step after the other ([`plan`]) until nothing is left to do or something has to be
//! waited for. Once an hour it asks whether the journal's seal would open at the next start.
//!
//! # Where the key is
//!
//! | the newest list | what the node has |
//! |---|---|
//! | one member, or two that an operator has not confirmed | a copy in the journal; no unlock file |
//! | more | an unlock file; the copy is dropped once the others have opened enough shares, in a drill |
//! | does not name it | nothing: the running cluster gives it its key |
//!
//! # Replacing the key
//!
//! It is replaced when an operator asks for it, when a copy goes that has lain in the journal, and when more shares are needed than have
//! been enough for it. A kill after any step leaves a key that opens, and the next start goes on.
//!
//! | step | with a copy | with shares |
//! |---|---|---|
//! | the next key is written down | in the journal, beside the present one | in the unlock file, split, beside the present one; then a drill of both |
//! | a slot for it; from here on it is the key of the data | | |
//! | the cluster keeps it, and is asked once more which one it keeps | | |
//! | a copy of the old one goes | | out of both generations of the journal |
//! | nothing else opens the data any more | | |
//! | the old one is forgotten | in both generations of the journal | in the unlock file |
//!
//! With shares, a next key is known to the life of the node alone that has made it. When that ends in the middle, the next one opens the
//! data with either, and begins anew with another next key if it has opened with the old one.

mod demand;
mod error;
mod journal;
mod keeper;
mod memory;
mod orders;
mod plan;
mod seal;
mod settle;
mod tell;
mod unlock_file;

pub use demand::{Place, Standing};
pub use orders::KeyOrderError;
pub(crate) use orders::{KeyOrder, KeyOrders};
