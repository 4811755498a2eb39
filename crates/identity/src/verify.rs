//! The rules by which certificates are believed (metropolis.md H.1).
//!
//! A cluster's certificate authority is pinned, not looked up, so there are no chains, no names to follow and no
//! roots of the system. Validity times are not checked: no clock is trusted, and what ends a certificate is the removal
//! of its node or user.
//!
//! Two rules are stricter than those of Metropolis, whose own certificates all keep them: a node's certificate has
//! no alternative name but the one DNS name, and no certificate has a critical extension that is not understood
//! here (RFC 5280, 4.2).

use crate::certificate::{AlternativeName, CertificateSignature, SubjectKey};
use crate::{Certificate, ClusterId, NodeId, PublicKey};

/// The certificate of a certificate authority: one that passed [`verify_certificate_authority`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityCertificate {
    certificate: Certificate,
    public_key: PublicKey,
}

impl AuthorityCertificate {
    /// The certificate itself.
    #[must_use]
    pub const fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The bytes of the certificate.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        self.certificate.der()
    }

    /// The certificate in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// The key that signs for the authority.
    #[must_use]
    pub const fn public_key(&self) -> PublicKey {
        self.public_key
    }

    /// The name of the cluster that has this authority.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        ClusterId::of(&self.public_key)
    }
}

/// A node, as its certificate names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Name of the node.
    pub id: NodeId,
    /// Its key.
    pub public_key: PublicKey,
}

/// A user, as the user's certificate names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserIdentity {
    /// Name of the user, not empty.
    pub name: String,
    /// The user's key.
    pub public_key: PublicKey,
}

/// Checks that a certificate has the shape of a certificate authority: an Ed25519 key, the CA flag, and, if it
/// limits the use of its key, leave to sign certificates.
///
/// Whether it is the *right* authority nobody can see from the certificate: that is what pinning it is for. Its own
/// signature is not looked at, as a pinned authority need not be self-signed.
///
/// # Errors
///
/// When it has another shape.
pub fn verify_certificate_authority(certificate: Certificate) -> Result<AuthorityCertificate, NotAnAuthorityError> {
    let content = certificate.content();
    let public_key = match &content.key {
        SubjectKey::Ed25519(key) => *key,
        SubjectKey::Invalid(reason) => return Err(NotAnAuthorityError::InvalidKey { reason: reason.clone() }),
        SubjectKey::Other(object_identifier) => {
            return Err(NotAnAuthorityError::OtherKey { object_identifier: object_identifier.clone() });
        }
    };
    match content.authority {
        Some(true) => {}
        Some(false) | None => return Err(NotAnAuthorityError::NoAuthorityFlag),
    }
    if content.may_sign_certificates == Some(false) {
        return Err(NotAnAuthorityError::MayNotSign);
    }
    if let Some(object_identifier) = content.unknown_critical_extensions.first() {
        return Err(NotAnAuthorityError::UnknownCriticalExtension { object_identifier: object_identifier.clone() });
    }
    Ok(AuthorityCertificate { certificate, public_key })
}

/// Checks that `authority` signed a certificate for an Ed25519 key that is not an authority itself.
///
/// # Errors
///
/// When it did not, or the certificate is of another kind.
pub fn verify_in_cluster(
    certificate: &Certificate,
    authority: &AuthorityCertificate,
) -> Result<PublicKey, NotInClusterError> {
    let content = certificate.content();
    let signature = match &content.signature {
        CertificateSignature::Ed25519(signature) => signature,
        CertificateSignature::Other(object_identifier) => {
            return Err(NotInClusterError::OtherSignature { object_identifier: object_identifier.clone() });
        }
    };
    authority
        .public_key
        .verify(&content.signed, signature)
        .map_err(|_| NotInClusterError::NotSignedByAuthority { authority: authority.public_key })?;
    // From here on the authority itself vouches for the content, and the rest catches what it should not have issued.
    let public_key = match &content.key {
        SubjectKey::Ed25519(key) => *key,
        SubjectKey::Invalid(reason) => return Err(NotInClusterError::InvalidKey { reason: reason.clone() }),
        SubjectKey::Other(object_identifier) => {
            return Err(NotInClusterError::OtherKey { object_identifier: object_identifier.clone() });
        }
    };
    if content.authority == Some(true) {
        return Err(NotInClusterError::IsAuthority);
    }
    if let Some(object_identifier) = content.unknown_critical_extensions.first() {
        return Err(NotInClusterError::UnknownCriticalExtension { object_identifier: object_identifier.clone() });
    }
    Ok(public_key)
}

/// Checks that a certificate makes its holder a node of the cluster: [`verify_in_cluster`], issued for servers,
/// with one DNS name that equals the common name and is the node id of the key.
///
/// # Errors
///
/// When it does not.
pub fn verify_node_in_cluster(
    certificate: &Certificate,
    authority: &AuthorityCertificate,
) -> Result<NodeIdentity, NotANodeError> {
    let public_key =
        verify_in_cluster(certificate, authority).map_err(|source| NotANodeError::NotInCluster { source })?;
    let content = certificate.content();
    if !content.for_servers {
        return Err(NotANodeError::NotForServers);
    }
    let [AlternativeName::Dns(name)] = &content.alternative_names[..] else {
        return Err(NotANodeError::AlternativeNames {
            dns: certificate.dns_names().count(),
            all: content.alternative_names.len(),
        });
    };
    let common_name = certificate.common_name();
    if common_name != Some(name) {
        return Err(NotANodeError::CommonName { common_name: common_name.map(str::to_owned), dns_name: name.clone() });
    }
    let id = NodeId::of(&public_key);
    if *name == id.to_string() {
        Ok(NodeIdentity { id, public_key })
    } else {
        Err(NotANodeError::OtherNode { found: name.clone(), expected: id })
    }
}

/// Checks that a certificate makes its holder a user of the cluster: [`verify_in_cluster`], issued for clients,
/// with a common name that is not empty.
///
/// # Errors
///
/// When it does not.
pub fn verify_user_in_cluster(
    certificate: &Certificate,
    authority: &AuthorityCertificate,
) -> Result<UserIdentity, NotAUserError> {
    let public_key =
        verify_in_cluster(certificate, authority).map_err(|source| NotAUserError::NotInCluster { source })?;
    if !certificate.content().for_clients {
        return Err(NotAUserError::NotForClients);
    }
    match certificate.common_name() {
        Some(name) if !name.is_empty() => Ok(UserIdentity { name: name.to_owned(), public_key }),
        Some(_) | None => Err(NotAUserError::NoName),
    }
}

/// Why a certificate is not that of a certificate authority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnAuthorityError {
    /// The key is of another kind than Ed25519.
    #[error("the CA certificate has a key of the kind {object_identifier}, not an Ed25519 key")]
    OtherKey {
        /// Object identifier of the kind of key.
        object_identifier: String,
    },
    /// The key says it is Ed25519 and is not.
    #[error("the CA certificate has an invalid Ed25519 key: {reason}")]
    InvalidKey {
        /// What is wrong with it.
        reason: String,
    },
    /// The basic constraints do not say that it is a CA, or are missing.
    #[error("the certificate does not say that it is one of a certificate authority")]
    NoAuthorityFlag,
    /// The key usage leaves out signing certificates.
    #[error("the key usage of the CA certificate does not allow signing certificates")]
    MayNotSign,
    /// A critical extension that is not understood.
    #[error("the CA certificate has the critical extension {object_identifier}, which is unknown here")]
    UnknownCriticalExtension {
        /// Object identifier of the extension.
        object_identifier: String,
    },
}

/// Why a certificate does not belong to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotInClusterError {
    /// The signature is of another kind than Ed25519.
    #[error("the certificate has a signature of the kind {object_identifier}, not a whole Ed25519 signature")]
    OtherSignature {
        /// Object identifier of the kind of signature.
        object_identifier: String,
    },
    /// Another key signed it, or it was changed after it was signed.
    #[error("the certificate was not signed by the cluster's certificate authority (public key {authority})")]
    NotSignedByAuthority {
        /// Key of the cluster's authority.
        authority: PublicKey,
    },
    /// The key is of another kind than Ed25519.
    #[error("the certificate has a key of the kind {object_identifier}, not an Ed25519 key")]
    OtherKey {
        /// Object identifier of the kind of key.
        object_identifier: String,
    },
    /// The key says it is Ed25519 and is not.
    #[error("the certificate has an invalid Ed25519 key: {reason}")]
    InvalidKey {
        /// What is wrong with it.
        reason: String,
    },
    /// It is the certificate of an authority, which serves and calls nobody.
    #[error("the certificate is one of a certificate authority, not one of a node or user")]
    IsAuthority,
    /// A critical extension that is not understood.
    #[error("the certificate has the critical extension {object_identifier}, which is unknown here")]
    UnknownCriticalExtension {
        /// Object identifier of the extension.
        object_identifier: String,
    },
}

/// Why a certificate is not that of a node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotANodeError {
    /// It does not belong to the cluster.
    #[error("the certificate does not belong to the cluster")]
    NotInCluster {
        /// Why.
        #[source]
        source: NotInClusterError,
    },
    /// Not issued for servers; a user's certificate is such a one.
    #[error("the certificate was not issued for servers, as a node's is")]
    NotForServers,
    /// Not exactly one alternative name, or one that is not a DNS name.
    #[error("a node's certificate has one DNS name and no other alternative name, found {dns} among {all}")]
    AlternativeNames {
        /// Number of DNS names.
        dns: usize,
        /// Number of alternative names of any kind.
        all: usize,
    },
    /// The common name is another than the DNS name.
    #[error("the certificate has the common name {common_name:?} and the DNS name {dns_name:?}, which must be equal")]
    CommonName {
        /// The common name; `None` if there is not exactly one, or it is not text.
        common_name: Option<String>,
        /// The DNS name.
        dns_name: String,
    },
    /// The name is not the node id of the key.
    #[error("the certificate is named {found:?}, but its key is that of the node {expected}")]
    OtherNode {
        /// Name in the certificate.
        found: String,
        /// Node id of the key in the certificate.
        expected: NodeId,
    },
}

/// Why a certificate is not that of a user of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAUserError {
    /// It does not belong to the cluster.
    #[error("the certificate does not belong to the cluster")]
    NotInCluster {
        /// Why.
        #[source]
        source: NotInClusterError,
    },
    /// Not issued for clients; a node's certificate is such a one.
    #[error("the certificate was not issued for clients, as a user's is")]
    NotForClients,
    /// No common name, an empty one, more than one, or one that is not text.
    #[error("the certificate does not name a user: it must have exactly one common name that is not empty")]
    NoName,
}
