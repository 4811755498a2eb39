//! What the tests of membership decisions are held against: a small raft, and a small cluster around it.

pub(crate) mod cluster;
pub(crate) mod keys;
pub(crate) mod raft;

use polis_identity::{NodeId, NodeKey, PublicKey};
use polis_secret::Secret32;

/// Key of the node with this number, the same each time.
pub(crate) fn key(index: usize) -> PublicKey {
    let mut secret = [7; 32];
    secret[..8].copy_from_slice(&index.to_le_bytes());
    NodeKey::from_secret(Secret32::new(secret)).public()
}

/// The node with this number.
pub(crate) fn node(index: usize) -> NodeId {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    thread_local! {
        // Computing a key takes longer than everything that a test does with it.
        static KNOWN: RefCell<BTreeMap<usize, NodeId>> = const { RefCell::new(BTreeMap::new()) };
    }
    KNOWN.with_borrow_mut(|known| *known.entry(index).or_insert_with(|| NodeId::of(&key(index))))
}
