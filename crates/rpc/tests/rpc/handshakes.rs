//! What a server makes of clients that are not what they should be.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use http::Uri;
use hyper_util::rt::TokioIo;
use polis_identity::NodeKey;
use polis_rpc::describe;
use polis_rpc::testing::{TestCluster, TestServer};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, HandshakeKind};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::fake::{Fake, READ, call};
use crate::forged;

async fn shake_hands(address: SocketAddr, config: &ClientConfig) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let connector = TlsConnector::from(Arc::new(config.clone()));
    timeout(forged::HANDSHAKE, connector.connect(ServerName::from(address.ip()), stream)).await?
}

fn channel(address: SocketAddr, config: &ClientConfig) -> Channel {
    let config = config.clone();
    Endpoint::from_static("http://test").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let config = config.clone();
        async move { shake_hands(address, &config).await.map(TokioIo::new) }
    }))
}

/// A call of a client that shows these certificates and has this key.
async fn called(address: SocketAddr, certificates: &[&[u8]], key: &NodeKey) -> Result<Vec<u8>, Status> {
    let certificates = certificates.iter().map(|der| CertificateDer::from(der.to_vec())).collect();
    let config = forged::client(Some(forged::certified(certificates, key)));
    call(&channel(address, &config), READ, b"").await
}

#[tokio::test]
async fn the_key_of_the_certificate_has_to_be_there() {
    let cluster = TestCluster::default();
    let node = cluster.node();
    let server = TestServer::start(&node.identity, Fake::answering());
    let victim = cluster.node();
    let owner = cluster.user("owner");
    let thief = NodeKey::generate();
    for certificate in [&victim.certificate, &owner.certificate, &node.certificate] {
        let status = called(server.address, &[certificate.der()], &thief).await.unwrap_err();
        // It is over in the handshake: the server says nothing but an alert.
        assert!(polis_rpc::is_transport_failure(&status), "{status:?}");
        assert!(describe(&status).contains("DecryptError"), "{}: {status:?}", describe(&status));
    }
    // The same with the right key, so that it is seen that nothing else is wrong.
    assert!(called(server.address, &[victim.certificate.der()], &victim.key).await.is_ok());
    server.finish().await;
}

#[tokio::test]
async fn certificates_that_are_not_believed() {
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, Fake::answering());
    let node = cluster.node();
    let other = cluster.node();
    let der = node.certificate.der();
    let chain = called(server.address, &[der, other.certificate.der()], &node.key).await.unwrap_err();
    assert_eq!(chain.code(), Code::Unauthenticated, "{chain:?}");
    assert!(chain.message().contains("2 certificates"), "{chain:?}");
    // The cluster's own CA may come along, which is what OpenSSL makes of a certificate whose CA it knows.
    let authority = node.identity.authority();
    assert!(called(server.address, &[der, authority.der()], &node.key).await.is_ok());
    let three = called(server.address, &[der, authority.der(), authority.der()], &node.key).await.unwrap_err();
    assert!(three.message().contains("3 certificates"), "{three:?}");

    let mut changed = der.to_vec();
    // In the signature, which is the end: everything else stays readable.
    *changed.last_mut().unwrap() ^= 1;
    let changed = called(server.address, &[&changed], &node.key).await.unwrap_err();
    assert_eq!(changed.code(), Code::Unauthenticated, "{changed:?}");

    let authority = cluster.authority.certificate().der();
    let as_authority = NodeKey::from_secret(cluster.authority.key().secret().clone());
    let as_authority = called(server.address, &[authority], &as_authority).await.unwrap_err();
    assert_eq!(as_authority.code(), Code::Unauthenticated, "{as_authority:?}");

    // Signed by the right CA, and neither a node's nor that of a user who may do anything.
    let neither = cluster.authority.issue_peer(&node.key.public());
    let neither = called(server.address, &[neither.der()], &node.key).await.unwrap_err();
    assert_eq!(neither.code(), Code::PermissionDenied, "{neither:?}");

    for garbage in [&b""[..], b"garbage", &der[..der.len() - 1]] {
        let status = called(server.address, &[garbage], &node.key).await.unwrap_err();
        assert!(polis_rpc::is_transport_failure(&status), "{status:?}");
    }
    server.finish().await;
}

#[tokio::test]
async fn dates_do_not_matter() {
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, Fake::answering());
    let key = NodeKey::generate();
    let expired = forged::expired(&cluster.authority, &key);
    let answer = called(server.address, &[&expired], &key).await.unwrap();
    assert!(answer.starts_with(b"node metropolis-"), "{answer:?}");
    server.finish().await;
}

#[tokio::test]
async fn nothing_can_be_resumed() {
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, Fake::answering());
    let node = cluster.node();
    let shown = forged::certified(vec![node.certificate.der().to_vec().into()], &node.key);
    // Remembers sessions, as rustls does by default.
    let config = forged::client(Some(shown));
    for _ in 0..3 {
        let mut stream = shake_hands(server.address, &config).await.unwrap();
        // A ticket would come before the first frame of HTTP/2.
        stream.read_exact(&mut [0; 9]).await.unwrap();
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(stream.get_ref().1.tls13_tickets_received(), 0);
    }
    server.finish().await;
}

#[tokio::test]
async fn garbage_ends_one_connection() {
    use tokio::io::AsyncWriteExt as _;

    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, Fake::answering());
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0; 5_000], &[0x16, 3, 1, 255, 255]]
    {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        // Reset or closed, with an alert or without.
        let _ = timeout(forged::HANDSHAKE, stream.read_to_end(&mut answer)).await.expect("the server closes");
    }
    let node = cluster.node();
    assert!(called(server.address, &[node.certificate.der()], &node.key).await.is_ok());
    server.finish().await;
}
