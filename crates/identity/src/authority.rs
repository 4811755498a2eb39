//! A certificate authority: the key, its certificate, and what it issues.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, DnValue,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyUsagePurpose, RevokedCertParams, SanType,
    string::PrintableString,
};
use x509_parser::asn1_rs::{Any, Tag};
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::X509Name;

use crate::issue::{
    MAX_USER_NAME_CHARACTERS, Signer, Subject, beginning_of_time, end_of_time, finish, key_identifier, parameters,
};
use crate::revocation_list::RevocationList;
use crate::{
    AuthorityCertificate, AuthorityKey, Certificate, NodeId, NotAnAuthorityError, PeerAddress, PublicKey, SerialNumber,
    purpose, verify_certificate_authority,
};

/// A certificate authority with its private key.
///
/// There are two of them in a cluster: the one that makes nodes and users, and the one of the etcd members, whose
/// certificates are of another kind. Both live in the cluster's state, so a value of this type can be made again
/// from its parts anywhere.
#[derive(Debug)]
pub struct CertificateAuthority {
    key: AuthorityKey,
    certificate: AuthorityCertificate,
    name: DistinguishedName,
    key_identifier: Vec<u8>,
}

impl CertificateAuthority {
    /// Makes a new authority with a new key, named [`CLUSTER_AUTHORITY_NAME`](crate::CLUSTER_AUTHORITY_NAME) or
    /// [`PEER_AUTHORITY_NAME`](crate::PEER_AUTHORITY_NAME).
    #[must_use]
    pub fn generate(name: &str) -> Self {
        Self::new(AuthorityKey::generate(), name)
    }

    /// Makes a new authority that signs with `key`: a certificate signed by itself that never ends, and that may
    /// sign certificates and revocation lists (metropolis.md E.3).
    #[must_use]
    pub fn new(key: AuthorityKey, name: &str) -> Self {
        let mut parameters = parameters(name, &key.public());
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::OcspSigning,
        ];
        let certificate = finish(parameters.self_signed(&Signer::new(&key)));
        let certificate =
            verify_certificate_authority(certificate).expect("the certificate is made as the rule demands");
        let key_identifier = key_identifier(&key.public());
        Self { key, certificate, name: parameters.distinguished_name, key_identifier }
    }

    /// The authority that has this key and this certificate, which may have been made elsewhere.
    ///
    /// # Errors
    ///
    /// When the certificate is not one of an authority, the key is another's, or certificates cannot name this
    /// issuer exactly as the certificate names itself.
    pub fn from_parts(key: AuthorityKey, certificate: Certificate) -> Result<Self, AuthorityFromPartsError> {
        let certificate = verify_certificate_authority(certificate)
            .map_err(|source| AuthorityFromPartsError::NotAnAuthority { source })?;
        if certificate.public_key() != key.public() {
            return Err(AuthorityFromPartsError::OtherKey { certificate: certificate.public_key(), key: key.public() });
        }
        let content = certificate.certificate().content();
        let name = read_name(&content.subject);
        let key_identifier = content.subject_key_identifier.clone().unwrap_or_else(|| key_identifier(&key.public()));
        let authority = Self { key, certificate, name, key_identifier };
        // Others find the issuer by comparing the bytes of names, and there are several ways to write the same one.
        // Whether ours is the same is seen on a certificate that is thrown away.
        let trial = authority.issue_node(&authority.key.public());
        if trial.content().issuer == authority.certificate.certificate().content().subject {
            Ok(authority)
        } else {
            Err(AuthorityFromPartsError::Name)
        }
    }

    /// The private key, to be stored in the cluster's state.
    #[must_use]
    pub const fn key(&self) -> &AuthorityKey {
        &self.key
    }

    /// The certificate, to be given to everybody.
    #[must_use]
    pub const fn certificate(&self) -> &AuthorityCertificate {
        &self.certificate
    }

    /// Issues the certificate of a node: named by its id, for servers only (metropolis.md G.10). A node calls
    /// others with it, too; the cluster's rules ask only that.
    #[must_use]
    pub fn issue_node(&self, key: &PublicKey) -> Certificate {
        let id = NodeId::of(key).to_string();
        let mut parameters = parameters(&id, key);
        parameters.subject_alt_names = vec![dns_name(id)];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(parameters, key)
    }

    /// Issues the certificate of a user: named as given, for clients only (metropolis.md G.10).
    ///
    /// # Errors
    ///
    /// When the name is empty or has more than [`MAX_USER_NAME_CHARACTERS`] characters.
    pub fn issue_user(&self, name: &str, key: &PublicKey) -> Result<Certificate, IssueUserError> {
        let found = name.chars().count();
        if found == 0 {
            return Err(IssueUserError::Empty);
        }
        if found > MAX_USER_NAME_CHARACTERS {
            return Err(IssueUserError::TooLong { found });
        }
        let mut parameters = parameters(name, key);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Ok(self.issue(parameters, key))
    }

    /// Issues the certificate with which the etcd member of a node speaks to the others: named by the node id and
    /// the node's [`PeerAddress`], for both ends of a connection.
    #[must_use]
    pub fn issue_peer(&self, key: &PublicKey) -> Certificate {
        let id = NodeId::of(key).to_string();
        let mut parameters = parameters(&id, key);
        parameters.subject_alt_names = vec![dns_name(id), SanType::IpAddress(IpAddr::V6(PeerAddress::of(key).ip()))];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(parameters, key)
    }

    /// Makes the list of all certificates of this authority that are revoked. It never expires; of two, the one
    /// with the higher `number` counts.
    #[must_use]
    pub fn certificate_revocation_list(&self, number: u64, revoked: &[SerialNumber]) -> RevocationList {
        let list = CertificateRevocationListParams {
            this_update: beginning_of_time(),
            next_update: end_of_time(),
            crl_number: (&SerialNumber::from(number)).into(),
            issuing_distribution_point: None,
            revoked_certs: revoked
                .iter()
                .map(|serial_number| RevokedCertParams {
                    serial_number: serial_number.into(),
                    // Revoked means revoked at all times: there is no clock by which one could say since when.
                    revocation_time: beginning_of_time(),
                    reason_code: None,
                    invalidity_date: None,
                })
                .collect(),
            key_identifier_method: KeyIdMethod::PreSpecified(self.key_identifier.clone()),
        };
        let list = list.signed_by(&self.issuer()).expect("dates and issuer are as a revocation list needs them");
        RevocationList::read(list.der().to_vec(), &self.certificate).expect("a list that was just signed can be read")
    }

    fn issue(&self, mut parameters: CertificateParams, key: &PublicKey) -> Certificate {
        parameters.is_ca = IsCa::ExplicitNoCa;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.use_authority_key_identifier_extension = true;
        finish(parameters.signed_by(&Subject(key), &self.issuer()))
    }

    fn issuer(&self) -> Issuer<'static, Signer<'_, purpose::Authority>> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = self.name.clone();
        parameters.key_identifier_method = KeyIdMethod::PreSpecified(self.key_identifier.clone());
        Issuer::new(parameters, Signer::new(&self.key))
    }
}

fn dns_name(id: String) -> SanType {
    SanType::DnsName(id.try_into().expect("a node id is ASCII"))
}

/// Reads a name so that it is written again in the same way, as far as rcgen can;
/// [`CertificateAuthority::from_parts`] checks whether it could.
fn read_name(der: &[u8]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    let Ok((_, parsed)) = X509Name::from_der(der) else { return name };
    for attribute in parsed.iter_attributes() {
        if let (Some(identifier), Some(value)) = (attribute.attr_type().iter(), read_value(attribute.attr_value())) {
            name.push(DnType::from_oid(&identifier.collect::<Vec<_>>()), value);
        }
    }
    name
}

fn read_value(value: &Any<'_>) -> Option<DnValue> {
    let text = str::from_utf8(value.data).ok()?;
    match value.tag() {
        Tag::Utf8String => Some(DnValue::Utf8String(text.to_owned())),
        Tag::PrintableString => PrintableString::try_from(text).ok().map(DnValue::PrintableString),
        _ => None,
    }
}

/// Why a key and a certificate do not make a [`CertificateAuthority`].
#[derive(Debug, thiserror::Error)]
pub enum AuthorityFromPartsError {
    /// The certificate is not that of an authority.
    #[error("the certificate is not one of a certificate authority")]
    NotAnAuthority {
        /// Why.
        #[source]
        source: NotAnAuthorityError,
    },
    /// The certificate is for another key.
    #[error("the CA certificate is for the public key {certificate}, but the CA key has the public key {key}")]
    OtherKey {
        /// Public key in the certificate.
        certificate: PublicKey,
        /// Public half of the private key.
        key: PublicKey,
    },
    /// The authority's name is written in a way that certificates issued here cannot repeat.
    #[error(
        "the name in the CA certificate is written in a form that is not supported (UTF8String and PrintableString are)"
    )]
    Name,
}

/// Why a user gets no certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssueUserError {
    /// The name is empty.
    #[error("the name of a user must not be empty")]
    Empty,
    /// The name is too long for a certificate.
    #[error("the name of a user has at most {MAX_USER_NAME_CHARACTERS} characters, found {found}")]
    TooLong {
        /// Length that was given, in characters.
        found: usize,
    },
}
