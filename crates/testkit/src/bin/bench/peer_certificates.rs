//! Certificates with which raw etcds speak to each other: of the kind that nodes have, but for the address at which each is
//! reached, as nobody stands between them who would know a node by its key.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use polis_identity::{AuthorityKey, Certificate, NodeKey, PrivateKey, PublicKey, Purpose, SerialNumber};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod,
    KeyUsagePurpose, PublicKeyData, SanType, SignatureAlgorithm, SigningKey,
};

use crate::BenchError;

/// Names of the files, in etcd's working directory.
pub(crate) mod files {
    pub(crate) const AUTHORITY: &str = "ca.pem";
    pub(crate) const CERTIFICATE: &str = "certificate.pem";
    pub(crate) const KEY: &str = "key.pem";
}

/// An authority for the members of one cluster.
pub(crate) struct PeerAuthority {
    key: AuthorityKey,
    parameters: CertificateParams,
    pem: String,
}

impl PeerAuthority {
    pub(crate) fn new() -> Result<Self, BenchError> {
        let key = AuthorityKey::generate();
        let mut parameters = parameters(&key);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = parameters.self_signed(&Signer::new(&key))?;
        let pem = Certificate::from_der(certificate.der().to_vec())?.pem();
        Ok(Self { key, parameters, pem })
    }

    /// Writes what the member at `address` needs into its directory.
    pub(crate) fn equip(&self, directory: &Path, address: IpAddr) -> Result<(), BenchError> {
        let key = NodeKey::generate();
        let mut parameters = parameters(&key);
        parameters.is_ca = IsCa::ExplicitNoCa;
        // Whatever address a member has, its connections come from the first one of the loopback, and etcd looks at that too.
        let source = IpAddr::V4(Ipv4Addr::LOCALHOST);
        parameters.subject_alt_names = vec![SanType::IpAddress(address), SanType::IpAddress(source)];
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate =
            parameters.signed_by(&Signer::new(&key), &Issuer::from_params(&self.parameters, Signer::new(&self.key)))?;
        fs::write(directory.join(files::AUTHORITY), &self.pem)?;
        fs::write(directory.join(files::CERTIFICATE), Certificate::from_der(certificate.der().to_vec())?.pem())?;
        fs::write(directory.join(files::KEY), key.pkcs8_pem().as_bytes())?;
        Ok(())
    }
}

/// What is the same for all.
fn parameters<P: Purpose>(key: &PrivateKey<P>) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.serial_number = Some((&SerialNumber::random()).into());
    // Any name that no other key has will do.
    parameters.key_identifier_method = KeyIdMethod::PreSpecified(key.public().as_bytes()[..20].to_vec());
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, key.public().to_string());
    parameters
}

/// Signs in rcgen's name.
struct Signer<'a, P: Purpose> {
    key: &'a PrivateKey<P>,
    public: PublicKey,
}

impl<'a, P: Purpose> Signer<'a, P> {
    fn new(key: &'a PrivateKey<P>) -> Self {
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
