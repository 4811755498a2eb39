//! The list of certificates that an authority has revoked.

use std::collections::BTreeSet;

use pem_rfc7468::LineEnding;
use x509_parser::error::X509Error;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::signed_document::{ed25519_signature, is_canonical};
use crate::{AuthorityCertificate, PublicKey, SerialNumber};

/// Number of an authority's first revocation list, which revokes nothing.
pub const FIRST_REVOCATION_LIST: u64 = 1;

/// A certificate revocation list that its authority has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationList {
    der: Vec<u8>,
    number: u64,
    revoked: BTreeSet<SerialNumber>,
}

impl RevocationList {
    /// Reads a list in DER, and checks that `authority` signed it.
    ///
    /// # Errors
    ///
    /// When the bytes are not exactly one list with a number, or another key signed it.
    pub fn read(der: impl Into<Vec<u8>>, authority: &AuthorityCertificate) -> Result<Self, ReadRevocationListError> {
        let der = der.into();
        let (rest, list) = CertificateRevocationList::from_der(&der)
            .map_err(|error| ReadRevocationListError::NotARevocationList { source: error.into() })?;
        if !rest.is_empty() {
            return Err(ReadRevocationListError::TrailingBytes { found: rest.len() });
        }
        let signed = list.tbs_cert_list.as_ref();
        let is_signed = list.signature_algorithm == list.tbs_cert_list.signature
            && ed25519_signature(&list.signature_algorithm, &list.signature_value).is_some_and(|signature| {
                is_canonical(&der, signed, &signature) && authority.public_key().verify(signed, &signature).is_ok()
            });
        if !is_signed {
            return Err(ReadRevocationListError::NotSignedByAuthority { authority: authority.public_key() });
        }
        let number = list.crl_number().and_then(|number| u64::try_from(number.clone()).ok());
        let number = number.ok_or(ReadRevocationListError::Number)?;
        let serial_numbers = list.iter_revoked_certificates().map(|revoked| revoked.serial().to_bytes_be());
        let revoked = serial_numbers.map(|bytes| SerialNumber::from_be_bytes(&bytes)).collect();
        Ok(Self { der, number, revoked })
    }

    /// The bytes.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// The list in PEM (`X509 CRL`), ending with a line feed.
    #[must_use]
    pub fn pem(&self) -> String {
        pem_rfc7468::encode_string("X509 CRL", LineEnding::LF, &self.der).expect("a list fits in memory as PEM")
    }

    /// Number of this list; every later one of the same authority has a higher one.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The serial numbers of the revoked certificates.
    #[must_use]
    pub const fn revoked(&self) -> &BTreeSet<SerialNumber> {
        &self.revoked
    }
}

/// Bytes that are not a [`RevocationList`] of the authority.
#[derive(Debug, thiserror::Error)]
pub enum ReadRevocationListError {
    /// Not the DER form of a list.
    #[error("the bytes are not a certificate revocation list in DER")]
    NotARevocationList {
        /// Where reading stopped.
        #[source]
        source: X509Error,
    },
    /// More bytes after the list.
    #[error("{found} bytes follow the certificate revocation list")]
    TrailingBytes {
        /// How many.
        found: usize,
    },
    /// Another key signed it, or it was changed after it was signed.
    #[error("the certificate revocation list was not signed by the certificate authority (public key {authority})")]
    NotSignedByAuthority {
        /// Key of the authority.
        authority: PublicKey,
    },
    /// It has no number, or one of more than 64 bits.
    #[error("the certificate revocation list has no number that fits in 64 bits")]
    Number,
}
