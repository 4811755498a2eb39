//! Nodes with keys that are made once, and a sealing that is cheap and honest.

use std::sync::LazyLock;

use polis_identity::{CertificateAuthority, JoinKey, NodeId, NodeKey, ShareKey, SharePublicKey};
use polis_secret::Secret32;
use polis_unlock::{Binding, MemberEntry, Sealing, Standing, UnusableShareKey};
use rand::CryptoRng;
use sha2::{Digest as _, Sha256};

/// Most nodes that a history has, by their numbers from 0.
pub(crate) const NODES: usize = 12;

pub(crate) static AUTHORITY: LazyLock<CertificateAuthority> =
    LazyLock::new(|| CertificateAuthority::generate("Test CA"));
static KEYS: LazyLock<Vec<Keys>> = LazyLock::new(|| (0..NODES as u8).map(Keys::new).collect());

/// What a node is born with.
pub(crate) struct Keys {
    pub(crate) entry: MemberEntry,
    pub(crate) share_key: ShareKey,
    pub(crate) node_unlock_key: Secret32,
}

impl Keys {
    fn new(number: u8) -> Self {
        let public_key = NodeKey::from_secret(Secret32::new([number + 1; 32])).public();
        let share_key = ShareKey::from_secret(Secret32::new([number + 101; 32]));
        let entry = MemberEntry {
            node_id: NodeId::of(&public_key),
            public_key,
            join_key: JoinKey::from_secret(Secret32::new([number + 51; 32])).public(),
            share_key: Some(share_key.public()),
            addresses: Vec::new(),
            standing: Standing::Stays,
        };
        Self { entry, share_key, node_unlock_key: Secret32::new([number + 151; 32]) }
    }
}

pub(crate) fn keys(node: usize) -> &'static Keys {
    &KEYS[node]
}

pub(crate) fn id(node: usize) -> NodeId {
    keys(node).entry.node_id
}

pub(crate) fn number(id: &NodeId) -> usize {
    KEYS.iter().position(|keys| keys.entry.node_id == *id).expect("it is one of them")
}

/// Says to whom and for what it is sealed, and opens for nobody and nothing else; the share itself lies open. Ten thousand histories
/// would take half an hour with HPKE.
pub(crate) struct Cheap;

fn tag(to: &SharePublicKey, binding: &Binding) -> Vec<u8> {
    Sha256::new().chain_update(to.as_bytes()).chain_update(binding.to_bytes()).finalize().to_vec()
}

impl Sealing for Cheap {
    fn seal(
        &self,
        to: &SharePublicKey,
        binding: &Binding,
        share: &Secret32,
        _random: &mut dyn CryptoRng,
    ) -> Result<Vec<u8>, UnusableShareKey> {
        Ok([&tag(to, binding)[..], share.expose()].concat())
    }

    fn open(&self, key: &ShareKey, binding: &Binding, sealed: &[u8]) -> Option<Secret32> {
        // To derive the public half would take most of the time.
        let public = KEYS.iter().find(|keys| keys.share_key == *key)?.entry.share_key?;
        let share = sealed.strip_prefix(&tag(&public, binding)[..])?;
        Secret32::try_from(share).ok()
    }
}
