//! Certificates that say nothing but "I hold this key" (metropolis.md H.2).

use rcgen::{ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose};

use crate::certificate::{CertificateSignature, SubjectKey};
use crate::issue::{Signer, finish, parameters};
use crate::{Certificate, PrivateKey, PublicKey, Purpose};

/// Common name of an ephemeral certificate. It is no node id, and nobody reads it.
const NAME: &str = "Polis ephemeral client";

/// Makes the client certificate of someone who has no certificate of the cluster yet: signed by the key itself, for
/// clients.
///
/// With it, a node shows its node or join key, and an owner the owner key, on a connection.
#[must_use]
pub fn issue_ephemeral<P: Purpose>(key: &PrivateKey<P>) -> Certificate {
    let mut parameters = parameters(NAME, &key.public());
    parameters.is_ca = IsCa::ExplicitNoCa;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    finish(parameters.self_signed(&Signer::new(key)))
}

/// Checks that a certificate is an ephemeral one, and returns the key that it stands for.
///
/// It proves that whoever made it holds the key; that the one who shows it does is for the TLS handshake to prove.
///
/// # Errors
///
/// When it is not an Ed25519 certificate that was signed by its own key for clients.
pub fn verify_ephemeral(certificate: &Certificate) -> Result<PublicKey, NotEphemeralError> {
    let content = certificate.content();
    let (SubjectKey::Ed25519(key), CertificateSignature::Ed25519(signature)) = (&content.key, &content.signature)
    else {
        return Err(NotEphemeralError::NotEd25519);
    };
    if content.issuer != content.subject {
        return Err(NotEphemeralError::OtherIssuer);
    }
    key.verify(&content.signed, signature).map_err(|_| NotEphemeralError::NotSignedByItself { key: *key })?;
    if content.authority == Some(true) {
        return Err(NotEphemeralError::IsAuthority);
    }
    if !content.for_clients {
        return Err(NotEphemeralError::NotForClients);
    }
    Ok(*key)
}

/// Why a certificate is not an ephemeral one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotEphemeralError {
    /// The key or the signature is of another kind, or no valid one.
    #[error("the certificate has no valid Ed25519 key and signature")]
    NotEd25519,
    /// It names another issuer than its subject.
    #[error("the certificate names an issuer other than itself")]
    OtherIssuer,
    /// Another key signed it, or it was changed after it was signed.
    #[error("the certificate was not signed by its own key ({key})")]
    NotSignedByItself {
        /// Key in the certificate.
        key: PublicKey,
    },
    /// It is the certificate of an authority.
    #[error("the certificate is one of a certificate authority")]
    IsAuthority,
    /// Not issued for clients.
    #[error("the certificate was not made for clients")]
    NotForClients,
}
