//! TLS as the cluster speaks it: version 1.3 only, Ed25519 only, ring, and nothing that is remembered between connections.
//!
//! * A session that is resumed does not run the verifier, so there is nothing to resume: no tickets, no cache, no early data.
//! * rustls asks for the time on each handshake and fails without one. It gets a constant, as no rule of ours looks at dates
//!   and a clock may stand before 1970.
//! * Certificates are read by [`polis_identity`] alone, also for the proof that the other end holds the key: two readers of the
//!   same bytes could see two keys.

mod client;
mod credential;
mod server;

use std::sync::Arc;
use std::time::Duration;

use polis_identity::{Certificate, PublicKey};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved, SignatureScheme};

pub(crate) use client::{ClientTls, shown_key};
pub(crate) use credential::Credential;
pub(crate) use server::{Judgement, ServerTls, judge, judge_key};

/// The application protocol of gRPC: HTTP/2.
const PROTOCOL: &[u8] = b"h2";

/// The application protocol of those who read pages and know nothing newer: HTTP/1.1.
const OLD_PROTOCOL: &[u8] = b"http/1.1";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The time that rustls is told.
#[derive(Debug)]
struct NoClock;

impl rustls::time_provider::TimeProvider for NoClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::ZERO))
    }
}

/// The proof that the other end holds the key of the certificate that it showed.
fn verify_possession(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    if signed.scheme != SignatureScheme::ED25519 {
        return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
    }
    let signature = <&[u8; 64]>::try_from(signed.signature()).map_err(|_| CertificateError::BadSignature)?;
    let key = read_key(certificate)?;
    key.verify(message, signature).map_err(|_| CertificateError::BadSignature)?;
    Ok(HandshakeSignatureValid::assertion())
}

fn read_key(certificate: &CertificateDer<'_>) -> Result<PublicKey, Error> {
    let certificate = Certificate::from_der(certificate.to_vec()).map_err(|_| CertificateError::BadEncoding)?;
    Ok(certificate.public_key().ok_or(CertificateError::BadEncoding)?)
}

/// There is no TLS 1.2 here, so nothing is ever signed its way.
fn refuse_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(PeerMisbehaved::SelectedUnofferedCipherSuite.into())
}
