//! The server's end: a certificate is asked for and not demanded, and whatever is shown is judged.
//!
//! In TLS 1.3 a client learns of the refusal of its certificate when it thinks itself connected, as a broken connection with an
//! alert of one word. So only what cannot be read is refused in the handshake. Everything else is let in once possession of the
//! key is proved, and what is wrong with it is the answer to each call.

use std::sync::Arc;

use polis_identity::{
    AuthorityCertificate, Certificate, NotAUserError, NotInClusterError, SerialNumber, verify_ephemeral,
    verify_node_in_cluster, verify_user_in_cluster,
};
use polis_supervisor::with_causes;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme};
use tokio_rustls::TlsAcceptor;

use super::{Credential, NoClock, OLD_PROTOCOL, PROTOCOL, provider, read_key, refuse_tls12, verify_possession};
use crate::Peer;

/// What a server needs for its handshakes.
#[derive(Clone)]
pub(crate) struct ServerTls {
    pub(crate) acceptor: TlsAcceptor,
}

impl ServerTls {
    /// For gRPC only, or also for those who read pages over HTTP/1.1.
    pub(crate) fn new(credential: &Credential, pages: bool) -> Self {
        let mut config = ServerConfig::builder_with_details(provider(), Arc::new(NoClock))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring has cipher suites for TLS 1.3")
            .with_client_cert_verifier(Arc::new(AskForCertificate))
            .with_cert_resolver(credential.resolver());
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        if pages {
            config.alpn_protocols.push(OLD_PROTOCOL.to_vec());
        }
        Self { acceptor: TlsAcceptor::from(Arc::new(config)) }
    }

    /// Whether the other end speaks HTTP/1.1, as one does that names no protocol at all.
    pub(crate) fn is_old(protocol: Option<&[u8]>) -> bool {
        protocol != Some(PROTOCOL)
    }
}

/// What a certificate makes of the one who showed it, for as long as the connection lasts. What the cluster thinks of it changes
/// and is asked at each call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// No certificate of this cluster is involved, or one that is whole.
    Believed {
        peer: Peer,
        /// Of the certificate of this cluster, for revocations; `None` if it is none.
        serial_number: Option<SerialNumber>,
    },
    /// For people: what is wrong with the certificate.
    NotBelieved(String),
}

/// Judges what was shown to a server that knows its callers by their keys: whatever else the certificate says, who showed it holds
/// its key.
pub(crate) fn judge_key(shown: Option<&[CertificateDer<'_>]>) -> Judgement {
    match shown {
        None | Some([]) => Judgement::Believed { peer: Peer::Anonymous, serial_number: None },
        Some([certificate]) => match read_key(certificate) {
            Ok(key) => Judgement::Believed { peer: Peer::Ephemeral(key), serial_number: None },
            Err(error) => Judgement::NotBelieved(error.to_string()),
        },
        Some(chain) => too_many(chain),
    }
}

/// Judges what was shown. Nobody who shows a certificate that is not believed is treated as if they had shown none: they would
/// never learn what is wrong.
pub(crate) fn judge(shown: Option<&[CertificateDer<'_>]>, authority: &AuthorityCertificate) -> Judgement {
    let certificate = match shown {
        None | Some([]) => return Judgement::Believed { peer: Peer::Anonymous, serial_number: None },
        Some([certificate]) => certificate,
        // OpenSSL sends the CA along when it knows it. That proves nothing and does no harm.
        Some([certificate, issuer]) if **issuer == *authority.der() => certificate,
        Some(chain) => return too_many(chain),
    };
    let certificate = match Certificate::from_der(certificate.to_vec()) {
        Ok(certificate) => certificate,
        Err(error) => return Judgement::NotBelieved(with_causes(&error)),
    };
    let serial_number = Some(certificate.serial_number().clone());
    let not_a_node = match verify_node_in_cluster(&certificate, authority) {
        Ok(node) => return Judgement::Believed { peer: Peer::Node(node), serial_number },
        Err(error) => error,
    };
    match verify_user_in_cluster(&certificate, authority) {
        Ok(user) => Judgement::Believed { peer: Peer::User(user), serial_number },
        Err(NotAUserError::NotInCluster { source: NotInClusterError::NotSignedByAuthority { .. } }) => {
            match verify_ephemeral(&certificate) {
                Ok(key) => Judgement::Believed { peer: Peer::Ephemeral(key), serial_number: None },
                Err(not_ephemeral) => Judgement::NotBelieved(format!(
                    "it is neither one of this cluster (cluster id {}), whose CA did not sign it, nor one that was made \
                     for the occasion ({not_ephemeral})",
                    authority.cluster_id()
                )),
            }
        }
        Err(NotAUserError::NotInCluster { source }) => Judgement::NotBelieved(with_causes(&source)),
        Err(not_a_user @ (NotAUserError::NotForClients | NotAUserError::NoName)) => Judgement::NotBelieved(format!(
            "it is signed by the cluster's CA, but names no node ({not_a_node}) and no user ({not_a_user})"
        )),
    }
}

fn too_many(chain: &[CertificateDer<'_>]) -> Judgement {
    Judgement::NotBelieved(format!("{} certificates were shown, and exactly one is wanted", chain.len()))
}

/// Asks for a certificate and demands that whoever shows one holds its key. It is judged after the handshake.
#[derive(Debug)]
struct AskForCertificate;

impl ClientCertVerifier for AskForCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Clients with ephemeral certificates would otherwise see that theirs is not asked for.
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Without a key that can be read there is no proof of possession, and nobody to speak to.
        read_key(certificate).map(|_| ClientCertVerified::assertion())
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
