//! Asks the etcd of another member for a sign of life, at its peer port and as a member.
//!
//! It is the only port of a member that others reach. An answer says that the machine, its etcd and the way there work at
//! this moment, and comes from the holder of the member's key: the server's certificate must be one of the peers' CA, for the
//! key from which the identity address follows.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use polis_identity::{AuthorityCertificate, Certificate, PeerAddress, verify_in_cluster};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme, version};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::dialer::outer_leg;
use crate::http;
use crate::pki::PeerPki;
use crate::version::Version;

/// Longest answer that is taken; a version has some 50 bytes, its head some 150.
const MAX_ANSWER: u64 = 4096;

/// Asks members; made once from the credentials.
#[derive(Clone)]
pub(crate) struct Prober {
    provider: Arc<CryptoProvider>,
    authority: AuthorityCertificate,
    pki: PeerPki,
}

impl Prober {
    pub(crate) fn new(pki: &PeerPki) -> Self {
        Self {
            provider: Arc::new(ring::default_provider()),
            authority: pki.authority_certificate().clone(),
            pki: pki.clone(),
        }
    }

    /// The version of the etcd of the member with this identity address, asked at `address`. It has no deadline of its own.
    pub(crate) async fn version(&self, identity_address: Ipv6Addr, address: SocketAddr) -> io::Result<Version> {
        let stream = outer_leg(address).await?;
        self.ask(identity_address, stream).await
    }

    /// How long a packet takes to a member's machine and back: the time of a connection, also of one that is refused because
    /// etcd does not run there. The rest of the call is only so that etcd does not complain of a connection without a word.
    pub(crate) async fn round_trip(&self, identity_address: Ipv6Addr, address: SocketAddr) -> Option<Duration> {
        let began = Instant::now();
        let connected = outer_leg(address).await;
        let took = began.elapsed();
        match connected {
            Ok(stream) => {
                let _ = self.ask(identity_address, stream).await;
                Some(took)
            }
            Err(error) => (error.kind() == io::ErrorKind::ConnectionRefused).then_some(took),
        }
    }

    /// A connection to the etcd of the member with this identity address, as a member.
    pub(crate) async fn connect(
        &self,
        identity_address: Ipv6Addr,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let tls = TlsConnector::from(Arc::new(self.configuration(identity_address).map_err(io::Error::other)?));
        tls.connect(ServerName::IpAddress(identity_address.into()), stream).await
    }

    async fn ask(&self, identity_address: Ipv6Addr, stream: TcpStream) -> io::Result<Version> {
        let stream = self.connect(identity_address, stream).await?;
        let answer = http::get(stream, "/version", MAX_ANSWER).await?;
        let version = serde_json::from_slice::<Value>(&answer)?;
        let version = version.get("etcdserver").and_then(Value::as_str).and_then(|version| version.parse().ok());
        version.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it does not say which version it is"))
    }

    fn configuration(&self, identity_address: Ipv6Addr) -> Result<ClientConfig, Error> {
        let verifier = MemberVerifier {
            provider: Arc::clone(&self.provider),
            authority: self.authority.clone(),
            identity_address,
        };
        let certificate = CertificateDer::from(self.pki.certificate().der().to_vec());
        let key = PrivatePkcs8KeyDer::from(self.pki.key_der().to_vec());
        ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(vec![certificate], key.into())
    }
}

/// Lets in exactly one member. No date is looked at, as no certificate of Polis ends by the clock.
#[derive(Debug)]
struct MemberVerifier {
    provider: Arc<CryptoProvider>,
    authority: AuthorityCertificate,
    identity_address: Ipv6Addr,
}

impl ServerCertVerifier for MemberVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = Certificate::from_der(&**end_entity).map_err(|_| CertificateError::BadEncoding)?;
        let key = verify_in_cluster(&certificate, &self.authority).map_err(|_| CertificateError::UnknownIssuer)?;
        if PeerAddress::of(&key).ip() != self.identity_address {
            return Err(CertificateError::NotValidForName.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
