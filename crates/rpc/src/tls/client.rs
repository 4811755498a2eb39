//! The client's end: whom it believes to be a server.

use std::sync::Arc;

use polis_identity::{AuthorityCertificate, Certificate, NodeIdentity, PublicKey, verify_node_in_cluster};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, SignatureScheme};

use super::{NoClock, PROTOCOL, provider, read_key, refuse_tls12, verify_possession};
use crate::{ClientIdentity, ExpectedServer, ServerRefusal};

/// What a client needs for its handshakes. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
}

impl ClientTls {
    pub(crate) fn new(identity: &ClientIdentity, expected: ExpectedServer) -> Self {
        let builder = ClientConfig::builder_with_details(provider(), Arc::new(NoClock))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring has cipher suites for TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(VerifyServer(expected)));
        let mut config = match identity.credential() {
            Some(credential) => builder.with_client_cert_resolver(credential.resolver()),
            None => builder.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Self { config: Arc::new(config) }
    }
}

/// The rule: exactly one certificate, of a node of the pinned cluster, and of the one node if one is named; or of the pinned key,
/// and then nothing else in it matters. Names and dates never do.
fn verify(
    expected: &ExpectedServer,
    certificate: &CertificateDer<'_>,
    others: &[CertificateDer<'_>],
) -> Result<(), ServerRefusal> {
    if !others.is_empty() {
        return Err(ServerRefusal::Certificates { found: 1 + others.len() });
    }
    let certificate = read(certificate)?;
    match expected {
        ExpectedServer::Key(expected) => {
            let found = certificate.public_key().ok_or(ServerRefusal::NoKey)?;
            if found == *expected { Ok(()) } else { Err(ServerRefusal::OtherKey { expected: *expected, found }) }
        }
        ExpectedServer::Anybody => Ok(()),
        ExpectedServer::Cluster(authority) => node(&certificate, authority).map(|_| ()),
        ExpectedServer::Node(authority, expected) => {
            let found = node(&certificate, authority)?.id;
            if found == *expected { Ok(()) } else { Err(ServerRefusal::OtherNode { expected: *expected, found }) }
        }
    }
}

/// The key of a server whose certificate was verified.
pub(crate) fn shown_key(shown: Option<&[CertificateDer<'_>]>) -> Result<PublicKey, ServerRefusal> {
    let Some([certificate]) = shown else {
        return Err(ServerRefusal::Certificates { found: shown.map_or(0, <[_]>::len) });
    };
    read(certificate)?.public_key().ok_or(ServerRefusal::NoKey)
}

fn read(certificate: &CertificateDer<'_>) -> Result<Certificate, ServerRefusal> {
    Certificate::from_der(certificate.to_vec())
        .map_err(|source| ServerRefusal::NoCertificate { source: Arc::new(source) })
}

fn node(certificate: &Certificate, authority: &AuthorityCertificate) -> Result<NodeIdentity, ServerRefusal> {
    verify_node_in_cluster(certificate, authority)
        .map_err(|source| ServerRefusal::OtherCluster { expected: authority.cluster_id(), source })
}

#[derive(Debug)]
struct VerifyServer(ExpectedServer);

impl ServerCertVerifier for VerifyServer {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        verify(&self.0, certificate, others)
            .map_err(|refusal| CertificateError::Other(OtherError(Arc::new(refusal))))?;
        read_key(certificate).map(|_| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        refuse_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_possession(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
