//! The unlock file: how a node gets its own cluster unlock key back from the others.

use hkdf::Hkdf;
use polis_identity::{ClusterId, NodeId};
use polis_proto::storage;
use polis_secret::Secret32;
use prost::Message as _;
use sha2::Sha256;

use crate::{Epoch, KeyCheckValue, Scheme, ShareHash};

mod message;

/// What the key of the MAC is derived for.
const MAC_LABEL: &[u8] = b"polis unlock file v1\0";

/// How a node gets its own cluster unlock key back from the others. It is written by its owner alone, as one file, so that the old
/// and the new one are both whole at any crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnlockFile {
    /// The cluster.
    pub cluster: ClusterId,
    /// Whose key it is.
    pub owner: NodeId,
    /// The key that opens the data.
    pub current: Split,
    /// The key that will; absent unless it is being replaced.
    pub pending: Option<Split>,
}

/// One key, split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Epoch of the member list for which it was made.
    pub epoch: Epoch,
    /// How many shares give the key.
    pub scheme: Scheme,
    /// Who holds a share, ordered by x; nobody with [`Scheme::Local`].
    pub holders: Vec<HeldShare>,
    /// What tells the key from a wrong one.
    pub check_value: KeyCheckValue,
}

/// A share, as its owner keeps it for the one who can open it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldShare {
    /// Who can.
    pub holder: NodeId,
    /// Which share it is.
    pub x: u8,
    /// The share, encrypted to the holder.
    pub ciphertext: Vec<u8>,
    /// What tells the share from a wrong one.
    pub hash: ShareHash,
}

/// An unlock file as it is stored. Nothing in it is secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedUnlockFile {
    /// Serialized `polis.storage.v1.UnlockFile.Content`.
    pub content: Vec<u8>,
    /// HMAC-SHA-256 over the content, under a key that follows from the node unlock key.
    pub mac: [u8; 32],
}

/// An unlock file that cannot be believed.
#[derive(Debug, thiserror::Error)]
pub enum InvalidUnlockFile {
    /// The node has not written it, or not with the half of the key that it has.
    #[error("its MAC is not one that this node made for its cluster: it is damaged, or of another node")]
    Mac,
    /// Its content is no such message, though the node has written it.
    #[error("it cannot be read")]
    Message(#[from] prost::DecodeError),
    /// It is about another node.
    #[error("it is about the key of {found:?}, and this node is {expected}")]
    OtherOwner {
        /// What it says.
        found: String,
        /// This node.
        expected: NodeId,
    },
    /// It is about another cluster.
    #[error("it is about the cluster {found:?}, and this node is in {expected}")]
    OtherCluster {
        /// What it says.
        found: String,
        /// The node's cluster.
        expected: ClusterId,
    },
    /// A part of it makes no sense.
    #[error("its field {field} is wrong: {problem}")]
    Field {
        /// Name of the field in the schema.
        field: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
}

impl UnlockFile {
    /// The bytes to store.
    #[must_use]
    pub fn seal(&self, node_unlock_key: &Secret32) -> SealedUnlockFile {
        let content = message::content(self).encode_to_vec();
        let mac = *mac(node_unlock_key, &self.cluster, &self.owner, &content).expose();
        SealedUnlockFile { content, mac }
    }

    /// Reads a file as that of this node in this cluster.
    ///
    /// # Errors
    ///
    /// When it is not: of another node or cluster, damaged, or nonsense. Then it is as if there were none: the node can still be given
    /// its key by members that run.
    pub fn open(
        sealed: &SealedUnlockFile,
        node_unlock_key: &Secret32,
        cluster: &ClusterId,
        owner: &NodeId,
    ) -> Result<Self, InvalidUnlockFile> {
        if mac(node_unlock_key, cluster, owner, &sealed.content) != Secret32::new(sealed.mac) {
            return Err(InvalidUnlockFile::Mac);
        }
        message::file(storage::unlock_file::Content::decode(&sealed.content[..])?, *cluster, *owner)
    }

    /// The keys, in the order in which they are tried.
    pub fn splits(&self) -> impl Iterator<Item = &Split> {
        self.pending.iter().chain([&self.current])
    }
}

impl Split {
    /// The share that this node holds.
    #[must_use]
    pub fn held_by(&self, holder: &NodeId) -> Option<&HeldShare> {
        self.holders.iter().find(|held| held.holder == *holder)
    }
}

/// HMAC-SHA-256, which is what HKDF calls extraction, under a key for this file of this node.
fn mac(node_unlock_key: &Secret32, cluster: &ClusterId, owner: &NodeId, content: &[u8]) -> Secret32 {
    let info = [MAC_LABEL, cluster.as_bytes(), owner.to_string().as_bytes()].concat();
    let mut key = zeroize::Zeroizing::new([0; 32]);
    Hkdf::<Sha256>::new(None, node_unlock_key.expose())
        .expand(&info, &mut *key)
        .expect("a key is shorter than what HKDF can give");
    let (mac, _) = Hkdf::<Sha256>::extract(Some(&*key), content);
    Secret32::new(mac.into())
}

#[cfg(test)]
mod tests;
