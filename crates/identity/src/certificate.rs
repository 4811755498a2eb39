//! An X.509 certificate, read as a whole.

use std::fmt;
use std::net::IpAddr;

use pem_rfc7468::LineEnding;
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer as _;

use crate::signed_document::{ed25519_signature, is_canonical, is_ed25519};
use crate::{InvalidPublicKeyError, PublicKey, SerialNumber};

const PEM_LABEL: &str = "CERTIFICATE";

/// Longest certificate that is read, in bytes. Those of a cluster have about 400; the limit keeps a peer that is not
/// authenticated yet from making us parse megabytes.
const MAX_LENGTH: usize = 16 * 1024;

/// An X.509 certificate: its DER bytes, and what they say.
///
/// That a value of this type exists says that the bytes are one certificate and nothing more; whether it is to be
/// believed is for the `verify_*` functions to say. Two certificates are equal when their bytes are.
#[derive(Clone)]
pub struct Certificate {
    der: Vec<u8>,
    content: Content,
}

/// What the rules need to know of a certificate.
#[derive(Clone)]
pub(crate) struct Content {
    /// The signed part, as bytes.
    pub(crate) signed: Vec<u8>,
    pub(crate) signature: CertificateSignature,
    pub(crate) serial_number: SerialNumber,
    /// DER of the issuer's name.
    pub(crate) issuer: Vec<u8>,
    /// DER of the subject's name.
    pub(crate) subject: Vec<u8>,
    /// Every common name of the subject; one that is not text is `None`.
    pub(crate) common_names: Vec<Option<String>>,
    pub(crate) key: SubjectKey,
    pub(crate) alternative_names: Vec<AlternativeName>,
    /// The certificate says something about being a CA: `Some(true)` that it is one, `Some(false)` that it is not.
    pub(crate) authority: Option<bool>,
    /// If the certificate limits the use of its key: whether it may sign certificates.
    pub(crate) may_sign_certificates: Option<bool>,
    pub(crate) for_servers: bool,
    pub(crate) for_clients: bool,
    pub(crate) subject_key_identifier: Option<Vec<u8>>,
    /// Object identifiers of critical extensions that are not understood here.
    pub(crate) unknown_critical_extensions: Vec<String>,
}

#[derive(Clone)]
pub(crate) enum CertificateSignature {
    Ed25519(Box<[u8; 64]>),
    /// Another algorithm, by its object identifier, or an Ed25519 signature that has no 64 bytes.
    Other(String),
}

#[derive(Clone)]
pub(crate) enum SubjectKey {
    Ed25519(PublicKey),
    /// Says that it is an Ed25519 key and is none.
    Invalid(String),
    /// Another algorithm, by its object identifier.
    Other(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AlternativeName {
    Dns(String),
    Ip(IpAddr),
    Other,
}

impl Certificate {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    ///
    /// When the bytes are not exactly one certificate whose every known extension can be read.
    pub fn from_der(der: impl Into<Vec<u8>>) -> Result<Self, ParseCertificateError> {
        let der = der.into();
        if der.len() > MAX_LENGTH {
            return Err(ParseCertificateError::TooLong { found: der.len() });
        }
        let (rest, parsed) = X509Certificate::from_der(&der)
            .map_err(|error| ParseCertificateError::NotACertificate { parser: error.into() })?;
        if !rest.is_empty() {
            return Err(ParseCertificateError::TrailingBytes { found: rest.len() });
        }
        let content = Content::read(&parsed)?;
        if let CertificateSignature::Ed25519(signature) = &content.signature
            && !is_canonical(&der, &content.signed, signature)
        {
            return Err(ParseCertificateError::NotCanonical);
        }
        Ok(Self { der, content })
    }

    /// Reads a certificate in PEM (`CERTIFICATE`); text before it is passed over.
    ///
    /// # Errors
    ///
    /// When the text is not PEM, is of another kind, or its content is not a certificate.
    pub fn from_pem(pem: &str) -> Result<Self, ParseCertificatePemError> {
        let (label, der) =
            pem_rfc7468::decode_vec(pem.as_bytes()).map_err(|source| ParseCertificatePemError::NotPem { source })?;
        if label != PEM_LABEL {
            return Err(ParseCertificatePemError::Label { found: label.to_owned() });
        }
        Self::from_der(der).map_err(|source| ParseCertificatePemError::Content { source })
    }

    /// The bytes.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// The certificate in PEM, ending with a line feed.
    #[must_use]
    pub fn pem(&self) -> String {
        pem_rfc7468::encode_string(PEM_LABEL, LineEnding::LF, &self.der).expect("a certificate fits in memory as PEM")
    }

    /// The number under which the issuer knows it, for a revocation.
    #[must_use]
    pub const fn serial_number(&self) -> &SerialNumber {
        &self.content.serial_number
    }

    /// The key that the certificate speaks of, if it is an Ed25519 key.
    #[must_use]
    pub const fn public_key(&self) -> Option<PublicKey> {
        match self.content.key {
            SubjectKey::Ed25519(key) => Some(key),
            SubjectKey::Invalid(_) | SubjectKey::Other(_) => None,
        }
    }

    /// The common name of the subject, if it has exactly one and that is text.
    #[must_use]
    pub fn common_name(&self) -> Option<&str> {
        match &self.content.common_names[..] {
            [Some(name)] => Some(name),
            _ => None,
        }
    }

    /// The DNS names among the subject's alternative names.
    pub fn dns_names(&self) -> impl Iterator<Item = &str> {
        self.content.alternative_names.iter().filter_map(|name| match name {
            AlternativeName::Dns(name) => Some(&name[..]),
            AlternativeName::Ip(_) | AlternativeName::Other => None,
        })
    }

    /// The addresses among the subject's alternative names.
    pub fn ip_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.content.alternative_names.iter().filter_map(|name| match name {
            AlternativeName::Ip(address) => Some(*address),
            AlternativeName::Dns(_) | AlternativeName::Other => None,
        })
    }

    pub(crate) const fn content(&self) -> &Content {
        &self.content
    }
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.der == other.der
    }
}

impl Eq for Certificate {}

impl fmt::Debug for Certificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.common_name().unwrap_or("?");
        write!(formatter, "Certificate({name:?}, serial number {})", self.content.serial_number)
    }
}

impl Content {
    #[expect(clippy::wildcard_enum_match_arm, reason = "of the kinds of extensions only those matter that are named")]
    fn read(certificate: &X509Certificate<'_>) -> Result<Self, ParseCertificateError> {
        let signed = &certificate.tbs_certificate;
        if certificate.signature_algorithm != signed.signature {
            return Err(ParseCertificateError::AlgorithmsDiffer);
        }
        let mut content = Self {
            signed: signed.as_ref().to_vec(),
            signature: read_signature(certificate),
            serial_number: SerialNumber::from_be_bytes(&signed.serial.to_bytes_be()),
            issuer: signed.issuer.as_raw().to_vec(),
            subject: signed.subject.as_raw().to_vec(),
            common_names: signed.subject.iter_common_name().map(|name| name.as_str().ok().map(str::to_owned)).collect(),
            key: read_key(signed),
            alternative_names: Vec::new(),
            authority: None,
            may_sign_certificates: None,
            for_servers: false,
            for_clients: false,
            subject_key_identifier: None,
            unknown_critical_extensions: Vec::new(),
        };
        // Names each extension once, or fails: RFC 5280 allows no second one of a kind, and two could say two things.
        signed.extensions_map().map_err(|parser| ParseCertificateError::NotACertificate { parser })?;
        for extension in signed.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::ParseError { .. } => {
                    return Err(ParseCertificateError::Extension { object_identifier: extension.oid.to_id_string() });
                }
                ParsedExtension::BasicConstraints(constraints) => content.authority = Some(constraints.ca),
                ParsedExtension::KeyUsage(usage) => content.may_sign_certificates = Some(usage.key_cert_sign()),
                ParsedExtension::ExtendedKeyUsage(usage) => {
                    content.for_servers = usage.server_auth;
                    content.for_clients = usage.client_auth;
                }
                ParsedExtension::SubjectAlternativeName(names) => {
                    content.alternative_names = names.general_names.iter().map(AlternativeName::read).collect();
                }
                ParsedExtension::SubjectKeyIdentifier(identifier) => {
                    content.subject_key_identifier = Some(identifier.0.to_vec());
                }
                _ if extension.critical => content.unknown_critical_extensions.push(extension.oid.to_id_string()),
                _ => {}
            }
        }
        Ok(content)
    }
}

impl AlternativeName {
    fn read(name: &GeneralName<'_>) -> Self {
        if let GeneralName::DNSName(name) = name {
            return Self::Dns((*name).to_owned());
        }
        if let GeneralName::IPAddress(octets) = name {
            if let Ok(octets) = <[u8; 4]>::try_from(*octets) {
                return Self::Ip(octets.into());
            }
            if let Ok(octets) = <[u8; 16]>::try_from(*octets) {
                return Self::Ip(octets.into());
            }
        }
        Self::Other
    }
}

fn read_signature(certificate: &X509Certificate<'_>) -> CertificateSignature {
    let algorithm = &certificate.signature_algorithm;
    match ed25519_signature(algorithm, &certificate.signature_value) {
        Some(signature) => CertificateSignature::Ed25519(Box::new(signature)),
        None => CertificateSignature::Other(algorithm.algorithm.to_id_string()),
    }
}

fn read_key(signed: &x509_parser::certificate::TbsCertificate<'_>) -> SubjectKey {
    let information = &signed.subject_pki;
    if !is_ed25519(&information.algorithm) {
        return SubjectKey::Other(information.algorithm.algorithm.to_id_string());
    }
    if information.subject_public_key.unused_bits != 0 {
        return SubjectKey::Invalid("the key is not a whole number of bytes".to_owned());
    }
    match PublicKey::try_from(&information.subject_public_key.data[..]) {
        Ok(key) => SubjectKey::Ed25519(key),
        Err(error) => SubjectKey::Invalid(InvalidPublicKeyError::to_string(&error)),
    }
}

/// Bytes that are not a [`Certificate`].
#[derive(Debug, thiserror::Error)]
pub enum ParseCertificateError {
    /// Longer than any certificate of a cluster.
    #[error("a certificate has at most {MAX_LENGTH} bytes, found {found}")]
    TooLong {
        /// Length that was given, in bytes.
        found: usize,
    },
    /// Not the DER form of a certificate.
    #[error("the bytes are not an X.509 certificate in DER")]
    NotACertificate {
        /// Where reading stopped, in the words of the parser: for those who debug, not for the message.
        parser: X509Error,
    },
    /// More bytes after the certificate.
    #[error("{found} bytes follow the certificate")]
    TrailingBytes {
        /// How many.
        found: usize,
    },
    /// Not written in the one form that DER allows.
    #[error("the certificate can be read, but is not written in the form that DER prescribes")]
    NotCanonical,
    /// The algorithm inside the signed part and the one beside the signature are not the same.
    #[error("the certificate names two different signature algorithms")]
    AlgorithmsDiffer,
    /// A known extension that cannot be read.
    #[error("the certificate's extension {object_identifier} cannot be read")]
    Extension {
        /// Object identifier of the extension, with dots.
        object_identifier: String,
    },
}

/// Text that is not a [`Certificate`] in PEM.
#[derive(Debug, thiserror::Error)]
pub enum ParseCertificatePemError {
    /// Not PEM.
    #[error("the text is not PEM")]
    NotPem {
        /// Where reading stopped.
        #[source]
        source: pem_rfc7468::Error,
    },
    /// PEM of another kind.
    #[error("the PEM block is a {found:?} and not a \"CERTIFICATE\"")]
    Label {
        /// Its kind.
        found: String,
    },
    /// The content is not a certificate.
    #[error("the PEM block holds no certificate")]
    Content {
        /// Why it is not.
        #[source]
        source: ParseCertificateError,
    },
}
