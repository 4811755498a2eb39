//! What all certificates and revocation lists that are issued here have in common.

use std::time::Duration;

use rcgen::{
    CertificateParams, DistinguishedName, DnType, DnValue, KeyIdMethod, PublicKeyData, SignatureAlgorithm, SigningKey,
};
use sha2::{Digest as _, Sha256};

use crate::{Certificate, PrivateKey, PublicKey, Purpose, SerialNumber};

/// Common name of a cluster's certificate authority (metropolis.md G.10).
pub const CLUSTER_AUTHORITY_NAME: &str = "Metropolis Cluster CA";

/// Common name of the authority of the etcd members, which is another than the cluster's.
pub const PEER_AUTHORITY_NAME: &str = "Polis Peer CA";

/// Longest name of a user, in characters: the upper bound that X.509 sets for a common name.
pub const MAX_USER_NAME_CHARACTERS: usize = 64;

/// Signs in rcgen's name with one of our keys, so that the secret never leaves its own type.
pub(crate) struct Signer<'a, P: Purpose> {
    key: &'a PrivateKey<P>,
    public: PublicKey,
}

impl<'a, P: Purpose> Signer<'a, P> {
    pub(crate) const fn new(key: &'a PrivateKey<P>) -> Self {
        Self { key, public: key.public() }
    }
}

impl<P: Purpose> PublicKeyData for Signer<'_, P> {
    fn der_bytes(&self) -> &[u8] {
        self.public.as_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

impl<P: Purpose> SigningKey for Signer<'_, P> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.key.sign(message).to_vec())
    }
}

/// The key for which a certificate is issued.
pub(crate) struct Subject<'a>(pub(crate) &'a PublicKey);

impl PublicKeyData for Subject<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

/// Parameters of a certificate for `key` with this one name and nothing else yet.
pub(crate) fn parameters(common_name: &str, key: &PublicKey) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.not_before = beginning_of_time();
    parameters.not_after = end_of_time();
    parameters.serial_number = Some((&SerialNumber::random()).into());
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, DnValue::Utf8String(common_name.to_owned()));
    parameters.key_identifier_method = KeyIdMethod::PreSpecified(key_identifier(key));
    parameters
}

/// Reads back what rcgen wrote. Nothing that is put into a certificate here can make this fail: names are checked
/// before, and keys are valid by type.
pub(crate) fn finish(certificate: Result<rcgen::Certificate, rcgen::Error>) -> Certificate {
    let certificate = certificate.expect("checked parameters make a certificate");
    Certificate::from_der(certificate.der().to_vec()).expect("a certificate that was just written can be read")
}

/// 1970-01-01: when certificates and revocation lists of Polis begin.
///
/// No clock is trusted when they are issued, and others that do look at times (etcd, OpenSSL) may run on a machine
/// whose clock stands at its beginning: a date that no clock is before is the only one that holds everywhere.
pub(crate) fn beginning_of_time() -> time::OffsetDateTime {
    rcgen::date_time_ymd(1970, 1, 1)
}

/// 9999-12-31 23:59:59: the date that stands for "never ends" (RFC 5280, 4.1.2.5).
pub(crate) fn end_of_time() -> time::OffsetDateTime {
    rcgen::date_time_ymd(9999, 12, 31) + Duration::from_secs(24 * 60 * 60 - 1)
}

/// Key identifier by the first method of RFC 7093: the first 160 bits of SHA-256 over the key.
pub(crate) fn key_identifier(key: &PublicKey) -> Vec<u8> {
    Sha256::digest(key.as_bytes())[..20].to_vec()
}
