//! What the cluster's authority signs for those who cannot ask the cluster: who its members are, and that a node was deleted.
//!
//! Anybody who knows the certificate of the cluster's authority can check them, without a connection to the cluster. They are
//! signed under prefixes of their own, so that none can be read as another or as a certificate.

mod epoch;
mod member_list;
mod tombstone;

use polis_identity::{ClusterId, InvalidPublicKeyError, NodeId, WrongSignatureError};

pub use self::epoch::Epoch;
pub use self::member_list::{MemberEntry, MemberList, SignedMemberList};
pub use self::tombstone::{SignedTombstone, Tombstone};

/// A signed statement that cannot be believed.
#[derive(Debug, thiserror::Error)]
pub enum InvalidStatement {
    /// The cluster's authority did not sign it.
    #[error("it was not signed by the certificate authority of the cluster {cluster}")]
    Signature {
        /// The cluster.
        cluster: ClusterId,
        /// Why the signature is not good.
        #[source]
        source: WrongSignatureError,
    },
    /// The signed bytes are no such message.
    #[error("it is signed, but cannot be read")]
    Message(#[from] prost::DecodeError),
    /// It names another cluster than the one whose authority signed it.
    #[error("it is about the cluster {found:?}, but was signed by the authority of {expected}")]
    OtherCluster {
        /// What it says.
        found: String,
        /// The cluster of the authority.
        expected: ClusterId,
    },
    /// A part of it is missing.
    #[error("it has no {field}")]
    Missing {
        /// Name of the part.
        field: &'static str,
    },
    /// A key in it is none.
    #[error("the {field} of {node} is not a public key")]
    Key {
        /// Name of the field.
        field: &'static str,
        /// Node that it is said to belong to.
        node: String,
        /// Why it is not.
        #[source]
        source: InvalidPublicKeyError,
    },
    /// A share key in it has another length.
    #[error("the share key of {node} has {found} bytes instead of 32")]
    ShareKey {
        /// Node that it is said to belong to.
        node: NodeId,
        /// Length that was found, in bytes.
        found: usize,
    },
    /// An id is not that of its key.
    #[error("it calls {expected} by the id {found:?}")]
    Id {
        /// What it says.
        found: String,
        /// What the key says.
        expected: NodeId,
    },
    /// An address is none.
    #[error("the address {found:?} of {node} is not an IP address")]
    Address {
        /// Node that it is said to belong to.
        node: NodeId,
        /// What it says.
        found: String,
    },
    /// The members are not ordered, or one is there twice.
    #[error("its members are not in order, or one of them is there twice")]
    Order,
}

/// Checks that a statement is about the cluster whose authority signed it.
fn check_cluster(found: String, expected: ClusterId) -> Result<ClusterId, InvalidStatement> {
    if found == expected.to_string() { Ok(expected) } else { Err(InvalidStatement::OtherCluster { found, expected }) }
}

#[cfg(test)]
mod tests;
