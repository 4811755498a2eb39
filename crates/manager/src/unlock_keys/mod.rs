//! The keys of the data partition while the node runs: who keeps the cluster's half, and how it is replaced.
//!
//! One runnable does all of it, so nothing of it happens twice at a time. Whenever contact with the leader begins, or the members
//! of the consensus change, and before a member of this node starts that may soon have a vote, it compares its key with the one that the cluster keeps and sends it if that is another (after a
//! restore), and sees whether its journal has to hold the key ([`plan`]). Once an hour it asks whether the journal's seal would
//! open at the next start.
//!
//! # Replacing the key
//!
//! | step | a start after a kill here |
//! |---|---|
//! | journal: the present key and the new one | opens with the present one, and goes on |
//! | a slot for the new key | the same, or with the new one |
//! | the cluster keeps the new one | with the new one, which the journal has as well |
//! | the new one is tried, and the cluster is asked once more which one it keeps | the same |
//! | the slot of the old one is removed | with the new one |
//! | journal: the new one alone, or none, in both generations | with the new one, which the cluster has |
//!
//! The journal comes before the slot, and not after it: a key that opens and that nobody knows would be left behind by a kill
//! between the two, and both backends have room for two.

mod keeper;
mod orders;
mod plan;
mod rotation;

pub use orders::KeyOrderError;
pub(crate) use orders::{KeyOrder, KeyOrders};
pub use plan::{Place, Standing};
