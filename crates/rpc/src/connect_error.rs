//! Why there is no connection to a server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use polis_identity::{ClusterId, NodeId, NotANodeError, ParseCertificateError, PublicKey};
use rustls::AlertDescription;

/// Why there is no connection to a server. Cheap to clone, so that it can be kept as the last failure of an endpoint.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens there.
    #[error("{address} refuses connections: nothing listens on this port, or it is shutting down")]
    Refused {
        /// Address that was tried.
        address: SocketAddr,
        /// The system's words.
        #[source]
        source: Arc<io::Error>,
    },
    /// No answer in time.
    #[error("{address} did not answer within {after:?}: the machine is down or unreachable, or the process hangs")]
    TimedOut {
        /// Address that was tried.
        address: SocketAddr,
        /// How long it was waited for.
        after: Duration,
    },
    /// The network or the system knows no way there.
    #[error("{address} cannot be reached")]
    Unreachable {
        /// Address that was tried.
        address: SocketAddr,
        /// The system's words.
        #[source]
        source: Arc<io::Error>,
    },
    /// Something else than TLS answers there.
    #[error("{address} does not speak TLS: it is not the port of a node")]
    NotTls {
        /// Address that was tried.
        address: SocketAddr,
    },
    /// The server is not the one that was expected.
    #[error("the server at {address} is not the one that was expected")]
    NotExpected {
        /// Address that was tried.
        address: SocketAddr,
        /// Why.
        #[source]
        source: ServerRefusal,
    },
    /// The server broke the handshake off.
    #[error("{address} refused the TLS handshake with the alert {alert:?}")]
    RefusedByServer {
        /// Address that was tried.
        address: SocketAddr,
        /// Its one word.
        alert: AlertDescription,
    },
    /// The connection was closed during the handshake.
    #[error("{address} closed the connection during the handshake: it is shutting down or overloaded")]
    Closed {
        /// Address that was tried.
        address: SocketAddr,
        /// The system's words.
        #[source]
        source: Arc<io::Error>,
    },
    /// Another fault of the handshake.
    #[error("the TLS handshake with {address} failed")]
    Handshake {
        /// Address that was tried.
        address: SocketAddr,
        /// What is wrong.
        #[source]
        source: rustls::Error,
    },
}

impl ConnectError {
    /// Address that was tried.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        match self {
            Self::Refused { address, .. }
            | Self::TimedOut { address, .. }
            | Self::Unreachable { address, .. }
            | Self::NotTls { address }
            | Self::NotExpected { address, .. }
            | Self::RefusedByServer { address, .. }
            | Self::Closed { address, .. }
            | Self::Handshake { address, .. } => *address,
        }
    }

    /// From what the system said when it was to connect.
    pub(crate) fn from_system(address: SocketAddr, error: io::Error) -> Self {
        let source = Arc::new(error);
        if source.kind() == io::ErrorKind::ConnectionRefused {
            Self::Refused { address, source }
        } else {
            Self::Unreachable { address, source }
        }
    }

    /// From what tokio-rustls said of a handshake.
    pub(crate) fn from_handshake(address: SocketAddr, error: io::Error) -> Self {
        match error.get_ref().and_then(|inside| inside.downcast_ref()) {
            Some(tls) => Self::from_tls(address, tls),
            None => Self::Closed { address, source: Arc::new(error) },
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the errors of rustls are many, and all others are one case here"
    )]
    fn from_tls(address: SocketAddr, error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidMessage(_) => Self::NotTls { address },
            rustls::Error::AlertReceived(alert) => Self::RefusedByServer { address, alert: *alert },
            rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other)) => {
                match other.0.downcast_ref::<ServerRefusal>() {
                    Some(refusal) => Self::NotExpected { address, source: refusal.clone() },
                    None => Self::Handshake { address, source: error.clone() },
                }
            }
            other => Self::Handshake { address, source: other.clone() },
        }
    }
}

/// Why a server is not the one that was expected.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ServerRefusal {
    /// Not exactly one certificate.
    #[error("it showed {found} certificates, and a node shows exactly one")]
    Certificates {
        /// How many it showed.
        found: usize,
    },
    /// What it showed cannot be read.
    #[error("it showed something that is no certificate")]
    NoCertificate {
        /// Where reading stopped.
        #[source]
        source: Arc<ParseCertificateError>,
    },
    /// Not a node of the cluster.
    #[error("it is not a node of the cluster {expected}")]
    OtherCluster {
        /// Cluster that was expected.
        expected: ClusterId,
        /// What is wrong with its certificate.
        #[source]
        source: NotANodeError,
    },
    /// Its certificate has another kind of key than all that Polis makes.
    #[error("it showed a certificate whose key is no Ed25519 key")]
    NoKey,
    /// Somebody who holds another key.
    #[error("it holds the key {found}, and {expected} was expected: somebody else may have its address now")]
    OtherKey {
        /// Key that was expected.
        expected: PublicKey,
        /// Key that it holds.
        found: PublicKey,
    },
    /// A node of the cluster, and not the one.
    #[error("it is the node {found}, and {expected} was expected")]
    OtherNode {
        /// Node that was expected.
        expected: NodeId,
        /// Node that is there.
        found: NodeId,
    },
}
