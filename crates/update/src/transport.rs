//! Connections to a registry: plain, or with TLS and the usual authorities of the web.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Longest time to open a connection. A handshake over the worst of links takes some seconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Ports where none is named.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// What bytes come and go through.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Not within the time.
    #[error("no connection within {} seconds", CONNECT_TIMEOUT.as_secs())]
    Late,
    /// The system or the other side refused.
    #[error("no connection")]
    Refused(#[source] io::Error),
    /// TLS did not come to be: the certificate, or what the other side speaks.
    #[error("no connection by TLS 1.3 that can be trusted")]
    Tls(#[source] io::Error),
    /// No certificate can be for this host.
    #[error("the host has a name that no certificate can be for")]
    Name(#[source] InvalidDnsNameError),
}

/// Opens connections.
#[derive(Clone)]
pub(crate) struct Transport(TlsConnector);

impl Transport {
    /// One that believes these authorities, or those of the web.
    pub(crate) fn new(roots: Option<RootCertStore>) -> Self {
        let roots = roots.unwrap_or_else(|| webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let configuration = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has TLS 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self(TlsConnector::from(Arc::new(configuration)))
    }

    /// Connects to the host of this URI.
    pub(crate) async fn connect(&self, uri: &http::Uri) -> Result<Box<dyn Stream>, ConnectError> {
        timeout(CONNECT_TIMEOUT, self.connect_at_leisure(uri)).await.map_err(|_| ConnectError::Late)?
    }

    async fn connect_at_leisure(&self, uri: &http::Uri) -> Result<Box<dyn Stream>, ConnectError> {
        let is_secure = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if is_secure { HTTPS_PORT } else { HTTP_PORT });
        let stream = TcpStream::connect((host.as_str(), port)).await.map_err(ConnectError::Refused)?;
        if !is_secure {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(host).map_err(ConnectError::Name)?;
        let stream = self.0.connect(name, stream).await.map_err(ConnectError::Tls)?;
        Ok(Box::new(stream))
    }
}
