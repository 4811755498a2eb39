//! Who is at the other end of a connection.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use polis_identity::{NodeId, NodeIdentity, PublicKey, UserIdentity};

/// Who calls, as far as the certificate says. The one who calls has proved to hold the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Showed no certificate.
    Anonymous,
    /// Showed a certificate that says nothing but that its holder has this key.
    Ephemeral(PublicKey),
    /// A node of this cluster that the cluster has not let go.
    Node(NodeIdentity),
    /// A user of this cluster whose certificate is not revoked.
    User(UserIdentity),
}

impl Peer {
    /// Whether the certificate is one of this cluster.
    #[must_use]
    pub const fn is_authenticated(&self) -> bool {
        match self {
            Self::Node(_) | Self::User(_) => true,
            Self::Anonymous | Self::Ephemeral(_) => false,
        }
    }

    /// The node that calls, if it is one.
    #[must_use]
    pub const fn node(&self) -> Option<NodeId> {
        match self {
            Self::Node(node) => Some(node.id),
            Self::User(_) | Self::Anonymous | Self::Ephemeral(_) => None,
        }
    }

    /// The key whose possession was proved, if one was shown.
    #[must_use]
    pub const fn public_key(&self) -> Option<PublicKey> {
        match self {
            Self::Ephemeral(key) => Some(*key),
            Self::Node(node) => Some(node.public_key),
            Self::User(user) => Some(user.public_key),
            Self::Anonymous => None,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => formatter.write_str("anonymous"),
            Self::Ephemeral(key) => write!(formatter, "key {key}"),
            Self::Node(node) => write!(formatter, "node {}", node.id),
            Self::User(user) => write!(formatter, "user {:?}", user.name),
        }
    }
}

/// Who makes a call, and from where. In the extensions of each request that [`serve`](crate::serve) lets through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who.
    pub peer: Peer,
    /// From where.
    pub address: SocketAddr,
}

/// Stands for the caller of a request that came by no connection of ours: it may do the least.
static NOBODY: Caller =
    Caller { peer: Peer::Anonymous, address: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0) };

impl Caller {
    /// The caller of this request. One that did not come through [`serve`](crate::serve) is from nobody: anonymous, from
    /// 0.0.0.0:0.
    #[must_use]
    pub fn of<T>(request: &tonic::Request<T>) -> &Self {
        request.extensions().get().unwrap_or(&NOBODY)
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} at {}", self.peer, self.address)
    }
}
