//! What a client shows.

use std::sync::Arc;

use polis_identity::{Certificate, NodeKey, OwnerKey, PrivateKey, PublicKey, Purpose, issue_ephemeral};

use crate::tls::Credential;

/// What a client shows of itself. Clones share the key.
#[derive(Clone, Debug)]
pub struct ClientIdentity(Shown);

#[derive(Clone, Debug)]
enum Shown {
    Nothing,
    Ephemeral(Arc<Credential>),
    Certified(Arc<Credential>),
}

impl ClientIdentity {
    /// Shows no certificate.
    #[must_use]
    pub const fn anonymous() -> Self {
        Self(Shown::Nothing)
    }

    /// Shows that it holds this key, and nothing else (metropolis.md H.2): a node with its node or join key, an owner who has no
    /// certificate yet.
    #[must_use]
    pub fn ephemeral<P: Purpose>(key: &PrivateKey<P>) -> Self {
        Self(Shown::Ephemeral(Arc::new(Credential::new(key, &issue_ephemeral(key)))))
    }

    /// Shows the certificate of a node.
    ///
    /// # Errors
    ///
    /// When the certificate is for another key.
    pub fn node(key: &NodeKey, certificate: &Certificate) -> Result<Self, ForeignCertificateError> {
        Self::checked(key, certificate)
    }

    /// Shows the certificate of a user.
    ///
    /// # Errors
    ///
    /// When the certificate is for another key.
    pub fn user(key: &OwnerKey, certificate: &Certificate) -> Result<Self, ForeignCertificateError> {
        Self::checked(key, certificate)
    }

    fn checked<P: Purpose>(key: &PrivateKey<P>, certificate: &Certificate) -> Result<Self, ForeignCertificateError> {
        if certificate.public_key() == Some(key.public()) {
            Ok(Self::certified(Arc::new(Credential::new(key, certificate))))
        } else {
            Err(ForeignCertificateError { certificate: certificate.public_key(), key: key.public() })
        }
    }

    pub(crate) const fn certified(credential: Arc<Credential>) -> Self {
        Self(Shown::Certified(credential))
    }

    pub(crate) const fn credential(&self) -> Option<&Arc<Credential>> {
        match &self.0 {
            Shown::Nothing => None,
            Shown::Ephemeral(credential) | Shown::Certified(credential) => Some(credential),
        }
    }
}

/// A certificate that is for another key than the one that was to go with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the certificate is for the public key {}, but the key at hand has the public key {key}",
    certificate.map_or("of another kind than Ed25519".to_owned(), |key| key.to_string())
)]
pub struct ForeignCertificateError {
    /// Public key in the certificate, if it is an Ed25519 key.
    pub certificate: Option<PublicKey>,
    /// Public half of the key at hand.
    pub key: PublicKey,
}
