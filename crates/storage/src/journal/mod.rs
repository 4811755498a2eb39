//! The enrolment journal: what this node has decided and done about its membership.
//!
//! It is written before each irreversible step, so that a node that dies anywhere knows afterwards how far it came.
//! [`Journal`] is the value with its rules, [`JournalStore`] keeps it in two sealed generations.

mod message;
mod phase;
mod seal;
mod store;

use std::fmt;

use polis_secret::Secret32;

pub use phase::{FormatForbidden, FormatPermit, Phase, TransitionError};
pub use seal::{PlainSeal, Seal, SealError, SealKind, SealTrouble, Seals};
pub(crate) use store::JOURNAL_LOAD_SITE;
pub use store::{JOURNAL_FORMAT, JournalError, JournalStore};

/// Longest node parameters in bytes that a journal keeps: a directory of a thousand nodes with their certificates.
pub const PARAMETERS_LIMIT: usize = 1024 * 1024;
/// Most epoch floors that a journal keeps: one for each node whose share this node holds or held.
pub const EPOCH_FLOORS_LIMIT: usize = 4096;

/// The journal. Has no `Debug`: nearly all of it is secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Journal {
    phase: Phase,
    /// Serialized `metropolis.proto.api.NodeParameters` that the node was first started with: its intent.
    pub parameters: Vec<u8>,
    /// Ed25519 private key of the node. Absent once it is stored on the data partition.
    pub node_key: Option<Secret32>,
    /// Ed25519 public key of the node: who this node is, also once `node_key` is gone.
    pub node_public_key: [u8; 32],
    /// Ed25519 private key for joining, unlocking and announcements.
    pub join_key: Secret32,
    /// X25519 private key to which shares of other nodes' keys are encrypted.
    pub share_key: Secret32,
    /// How the data partition is protected; absent while nobody has decided it, which ends before formatting does.
    pub storage_security: Option<StorageSecurity>,
    /// Absent with insecure storage.
    pub node_unlock_key: Option<Secret32>,
    /// Absent with insecure storage, and once the cluster is known to hold it (with one member: never).
    pub cluster_unlock_key: Option<ClusterUnlockKey>,
    /// Certificate of the cluster's CA, DER; absent until known.
    pub cluster_ca: Option<Vec<u8>>,
    /// 32 hexadecimal digits; absent until known.
    pub cluster_id: Option<String>,
    /// Highest membership epoch seen; absent until one was.
    pub highest_epoch: Option<Epoch>,
    /// Oldest epochs for which shares may still be handed out, by owner.
    pub epoch_floors: Vec<EpochFloor>,
}

/// What a node decides before it does anything else.
pub struct Intent {
    /// Serialized `metropolis.proto.api.NodeParameters`.
    pub parameters: Vec<u8>,
    /// Ed25519 private key of the node.
    pub node_key: Secret32,
    /// Its public key.
    pub node_public_key: [u8; 32],
    /// Ed25519 private key for joining, unlocking and announcements.
    pub join_key: Secret32,
    /// X25519 private key for shares.
    pub share_key: Secret32,
    /// How the data partition will be protected; absent if the cluster will say so.
    pub storage_security: Option<StorageSecurity>,
}

/// How a data partition is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageSecurity {
    /// Not at all.
    Insecure,
    /// Encrypted.
    Encrypted,
    /// Encrypted, and changes are detected.
    AuthenticatedEncrypted,
}

impl fmt::Display for StorageSecurity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Insecure => "insecure",
            Self::Encrypted => "encrypted",
            Self::AuthenticatedEncrypted => "authenticated and encrypted",
        })
    }
}

/// A cluster unlock key, perhaps on its way from one value to the next. Has no `Debug`: it is secret.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterUnlockKey {
    /// The one that opens the data partition.
    pub current: Secret32,
    /// The one that will; absent unless a change is under way.
    pub pending: Option<Secret32>,
}

/// A point in the cluster's membership history. The order is the history's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// Raised by recovery and restore.
    pub incarnation: u64,
    /// Raised by each change of members.
    pub epoch: u64,
}

/// Oldest epoch for which a share of this owner may still be handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochFloor {
    /// Node id of the owner.
    pub owner_node_id: String,
    /// The epoch.
    pub epoch: Epoch,
}

impl Journal {
    /// The journal of a node that has decided what it wants to become and done nothing yet: phase `Formattable`.
    #[must_use]
    pub fn new(intent: Intent) -> Self {
        let Intent { parameters, node_key, node_public_key, join_key, share_key, storage_security } = intent;
        Self {
            phase: Phase::Formattable,
            parameters,
            node_key: Some(node_key),
            node_public_key,
            join_key,
            share_key,
            storage_security,
            node_unlock_key: None,
            cluster_unlock_key: None,
            cluster_ca: None,
            cluster_id: None,
            highest_epoch: None,
            epoch_floors: Vec::new(),
        }
    }

    /// How far the node has come.
    #[must_use]
    pub const fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The journal of the same node in phase `next`. The phase that it is in already is no change: a step that is
    /// repeated after a kill is the same step, and the first reason of a removal stays.
    ///
    /// # Errors
    ///
    /// When the phases do not lead there: nothing goes back, and none is skipped.
    pub fn advance(&self, next: Phase) -> Result<Self, TransitionError> {
        Ok(Self { phase: self.phase.advance(next)?, ..self.clone() })
    }

    /// The permission to format the data partition: in phase `Formattable` only.
    ///
    /// # Errors
    ///
    /// In any other phase.
    pub fn permit_format(&self) -> Result<FormatPermit, FormatForbidden> {
        self.phase.permit_format()
    }
}
