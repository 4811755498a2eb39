//! Who holds shares: the members of the cluster's consensus in one epoch, as the cluster's authority signs them.
//!
//! Anybody who knows the certificate of the cluster's authority can check a list, without a connection to the cluster.

mod lineage;
mod list;

use polis_identity::{ClusterId, InvalidPublicKeyError, NodeId, WrongSignatureError};

pub use self::lineage::{Lineage, Recovery};
pub use self::list::{MemberEntry, MemberList, SignedMemberList, Standing};

/// A signed member list that cannot be believed.
#[derive(Debug, thiserror::Error)]
pub enum InvalidMemberList {
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
    /// Its part in a change is unknown.
    #[error("the standing of {node} has the value {found}, which is unknown to this version of Polis")]
    Standing {
        /// Node that it is said to belong to.
        node: NodeId,
        /// What it says.
        found: i32,
    },
    /// The members are not ordered, or one is there twice.
    #[error("its members are not in order, or one of them is there twice")]
    Order,
}

#[cfg(test)]
mod tests;
