//! Channels to one server.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use polis_identity::{AuthorityCertificate, NodeId, PublicKey};
use rustls::pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower::Service;

use crate::tls::{ClientTls, shown_key};
use crate::{ClientIdentity, ConnectError};

/// How long a connection may take until it is established, the TLS handshake included. 5 s: as long as a server gives a handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after which a quiet connection is asked whether it still lives (metropolis.md H.5).
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// How long the answer to that may take (metropolis.md H.5).
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest list of headers of an answer, in bytes. Details of a status are in them.
const MAX_HEADER_LIST: u32 = 64 * 1024;

/// Whom a client believes to be the server it wants. Names and dates in certificates do not matter.
#[derive(Clone, Debug)]
pub enum ExpectedServer {
    /// Any node of the cluster with this CA.
    Cluster(AuthorityCertificate),
    /// This node of the cluster with this CA.
    Node(AuthorityCertificate, NodeId),
    /// Whoever holds this key.
    Key(PublicKey),
    /// Whoever answers. It has to hold the key of the certificate that it shows, and that is all.
    Anybody,
}

/// Opens channels. Clones are cheap.
///
/// A channel connects when it is used, and again when its connection was lost. It asks every 10 s whether the other end still
/// lives. Each of its connections shows and expects the same.
#[derive(Clone, Debug)]
pub struct Connector {
    tls: ClientTls,
    /// Address to connect from; none leaves it to the system.
    source: Option<IpAddr>,
}

impl Connector {
    /// Opens channels that show this and expect that.
    #[must_use]
    pub fn new(identity: &ClientIdentity, expected: ExpectedServer) -> Self {
        Self { tls: ClientTls::new(identity, expected), source: None }
    }

    /// The same, connecting from this address of the machine to those of its family. A node whose address is given shows by it where
    /// it is.
    #[must_use]
    pub fn from_address(self, source: IpAddr) -> Self {
        Self { source: Some(source), ..self }
    }

    /// A channel that connects when it is first used. What goes wrong then is found below the status of the call
    /// ([`connect_error`](crate::connect_error)).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn channel(&self, address: SocketAddr) -> Channel {
        self.channel_over(address, None)
    }

    /// A channel that is connected.
    ///
    /// # Errors
    ///
    /// Tells apart why there is no connection.
    pub async fn connect(&self, address: SocketAddr) -> Result<Channel, ConnectError> {
        let stream = self.open(address).await?;
        Ok(self.channel_over(address, Some(stream)))
    }

    /// Who answers there: the key that the server has proved to hold. Whether it is that of the node that is meant is for somebody
    /// else to know; who does connects with [`ExpectedServer::Key`].
    ///
    /// # Errors
    ///
    /// Tells apart why there is no connection, or what else than the server that this connector expects is there.
    pub async fn learn_key(&self, address: SocketAddr) -> Result<PublicKey, ConnectError> {
        let stream = self.open(address).await?;
        shown_key(stream.get_ref().1.peer_certificates())
            .map_err(|source| ConnectError::NotExpected { address, source })
    }

    /// A connection, with its other end verified.
    async fn open(&self, address: SocketAddr) -> Result<TlsStream<TcpStream>, ConnectError> {
        let connect = async {
            let stream = self.connect_tcp(address).await.map_err(|error| ConnectError::from_system(address, error))?;
            // Calls are small, and waiting to fill a packet would be all that it does.
            stream.set_nodelay(true).map_err(|error| ConnectError::from_system(address, error))?;
            let connector = TlsConnector::from(Arc::clone(&self.tls.config));
            let handshake = connector.connect(ServerName::from(address.ip()), stream).await;
            handshake.map_err(|error| ConnectError::from_handshake(address, error))
        };
        let timed_out = ConnectError::TimedOut { address, after: CONNECT_TIMEOUT };
        timeout(CONNECT_TIMEOUT, connect).await.unwrap_or(Err(timed_out))
    }

    async fn connect_tcp(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        if let Some(source) = self.source.filter(|source| source.is_ipv4() == address.is_ipv4()) {
            socket.bind(SocketAddr::new(source, 0))?;
        }
        socket.connect(address).await
    }

    fn channel_over(&self, address: SocketAddr, first: Option<TlsStream<TcpStream>>) -> Channel {
        let uri = Uri::builder().scheme("http").authority(address.to_string()).path_and_query("/").build();
        Endpoint::from(uri.expect("an address is an authority"))
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .http2_max_header_list_size(MAX_HEADER_LIST)
            .connect_with_connector_lazy(Dial { connector: self.clone(), address, first: Arc::new(Mutex::new(first)) })
    }
}

/// What tonic calls when it needs a connection.
#[derive(Clone)]
struct Dial {
    connector: Connector,
    address: SocketAddr,
    /// One that is there already.
    first: Arc<Mutex<Option<TlsStream<TcpStream>>>>,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let first = this.first.lock().unwrap_or_else(PoisonError::into_inner).take();
            let stream = match first {
                Some(first) => first,
                None => this.connector.open(this.address).await?,
            };
            Ok(TokioIo::new(stream))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_an_ipv6_address_is_told_from_the_address() {
        let address: SocketAddr = "[fd00::1]:7835".parse().unwrap();
        assert!(Uri::builder().scheme("http").authority(address.to_string()).path_and_query("/").build().is_ok());
    }

    #[test]
    fn errors_of_the_system_are_told_apart() {
        let address = "127.1.0.1:1".parse().unwrap();
        let refused = ConnectError::from_system(address, io::ErrorKind::ConnectionRefused.into());
        assert!(matches!(refused, ConnectError::Refused { .. }), "{refused:?}");
        let unreachable = ConnectError::from_system(address, io::ErrorKind::HostUnreachable.into());
        assert!(matches!(unreachable, ConnectError::Unreachable { .. }), "{unreachable:?}");
    }
}
