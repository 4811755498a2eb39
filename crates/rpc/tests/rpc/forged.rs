//! TLS ends that a proper client or server would never be: certificates of any kind with any key.

use std::sync::Arc;
use std::time::Duration;

use polis_identity::{CertificateAuthority, NodeId, NodeKey, PrivateKey, PublicKey, Purpose, purpose};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, PublicKeyData, SanType, SigningKey};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, Signer, SingleCertAndKey};
use rustls::{ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureAlgorithm, SignatureScheme};

/// These certificates, and this key, whether or not they have to do with each other.
pub(crate) fn certified(certificates: Vec<CertificateDer<'static>>, key: &NodeKey) -> Arc<SingleCertAndKey> {
    Arc::new(CertifiedKey::new(certificates, Arc::new(AnyKey(key.clone()))).into())
}

/// A client that shows what it is told to and believes every server.
pub(crate) fn client(shown: Option<Arc<SingleCertAndKey>>) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Credulous));
    let mut config = match shown {
        Some(shown) => builder.with_client_cert_resolver(shown),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// A server that shows what it is told to and asks nothing.
pub(crate) fn server(shown: Arc<SingleCertAndKey>) -> ServerConfig {
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let mut config = builder.with_no_client_auth().with_cert_resolver(shown);
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// The certificate of a node that ended in 1971.
pub(crate) fn expired(authority: &CertificateAuthority, key: &NodeKey) -> CertificateDer<'static> {
    let id = NodeId::of(&key.public()).to_string();
    let mut parameters = CertificateParams::default();
    parameters.not_before = rcgen::date_time_ymd(1970, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(1971, 1, 1);
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, id.clone());
    parameters.subject_alt_names = vec![SanType::DnsName(id.try_into().unwrap())];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    parameters.serial_number = Some(1_u64.into());
    parameters.key_identifier_method = rcgen::KeyIdMethod::PreSpecified(vec![1]);
    let mut issuer = CertificateParams::default();
    issuer.distinguished_name = rcgen::DistinguishedName::new();
    issuer.distinguished_name.push(DnType::CommonName, polis_identity::CLUSTER_AUTHORITY_NAME);
    issuer.key_identifier_method = rcgen::KeyIdMethod::PreSpecified(vec![2]);
    let issuer = Issuer::new(issuer, Issues::<purpose::Authority>::new(authority.key()));
    parameters.signed_by(&Issues::new(key), &issuer).unwrap().der().clone()
}

struct Issues<P: Purpose>(PrivateKey<P>, PublicKey);

impl<P: Purpose> Issues<P> {
    fn new(key: &PrivateKey<P>) -> Self {
        Self(key.clone(), key.public())
    }
}

impl<P: Purpose> PublicKeyData for Issues<P> {
    fn der_bytes(&self) -> &[u8] {
        self.1.as_bytes()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

impl<P: Purpose> SigningKey for Issues<P> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.0.sign(message).to_vec())
    }
}

#[derive(Clone, Debug)]
struct AnyKey(NodeKey);

impl rustls::sign::SigningKey for AnyKey {
    fn choose_scheme(&self, _: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        Some(Box::new(self.clone()))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl Signer for AnyKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.0.sign(message).to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}

#[derive(Debug)]
struct Credulous;

impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// How long a handshake of a test may take.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);
