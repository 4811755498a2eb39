//! What a client makes of servers that are not what they should be.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polis_identity::NodeKey;
use polis_rpc::testing::{TestCluster, TestServer, test_listener};
use polis_rpc::{
    ClientIdentity, ConnectError, Connector, ExpectedServer, ServerIdentity, ServerIdentityError, ServerRefusal,
    connect_error, describe,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tonic::Code;

use crate::fake::{Fake, READ, call};
use crate::forged;

/// A server that speaks TLS with this configuration and closes after it.
fn tls_server(config: rustls::ServerConfig) -> (SocketAddr, JoinHandle<()>) {
    let listener = test_listener();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let _ = stream.read(&mut [0; 1]).await;
            }
        }
    });
    (address, task)
}

/// A server that answers everything with these bytes and closes.
fn plain_server(answer: &'static [u8]) -> (SocketAddr, JoinHandle<()>) {
    let listener = test_listener();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4_096]).await;
            let _ = stream.write_all(answer).await;
            let _ = stream.shutdown().await;
        }
    });
    (address, task)
}

#[tokio::test]
async fn what_went_wrong_is_told_apart() {
    let cluster = TestCluster::default();
    let foreign = TestCluster::default();
    let node = cluster.node();
    let other = cluster.node();
    let expected = ExpectedServer::Node(cluster.authority_certificate(), node.id);
    let connector = Connector::new(&cluster.user("owner").identity, expected);
    let error = async |address| connector.connect(address).await.map(|_| ()).unwrap_err();

    let closed = test_listener().local_addr().unwrap();
    let refused = error(closed).await;
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused:?}");

    let (address, task) = plain_server(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let not_tls = error(address).await;
    assert!(matches!(not_tls, ConnectError::NotTls { .. }), "{not_tls:?}");
    task.abort();

    let (address, task) = plain_server(b"");
    let ended = error(address).await;
    assert!(matches!(ended, ConnectError::Closed { .. }), "{ended:?}");
    task.abort();

    let server = TestServer::start(&foreign.node().identity, Fake::answering());
    let foreign_cluster = error(server.address).await;
    let refusal = |error: &ConnectError| {
        let ConnectError::NotExpected { source, .. } = error else { panic!("{error:?}") };
        source.clone()
    };
    assert!(
        matches!(refusal(&foreign_cluster), ServerRefusal::OtherCluster { expected, .. } if expected == cluster.authority_certificate().cluster_id())
    );
    // The same cause is found below the status of a call.
    let status = call(&connector.channel(server.address), READ, b"").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(matches!(refusal(connect_error(&status).unwrap()), ServerRefusal::OtherCluster { .. }));
    assert!(describe(&status).contains("not a node of the cluster"), "{}", describe(&status));
    server.finish().await;

    let server = TestServer::start(&other.identity, Fake::answering());
    let other_node = refusal(&error(server.address).await);
    assert!(
        matches!(other_node, ServerRefusal::OtherNode { expected, found } if expected == node.id && found == other.id)
    );
    server.finish().await;

    // A user's certificate does not make a server, and neither does somebody else's.
    let owner = cluster.user("owner");
    let owner_key = NodeKey::from_secret(owner.key.secret().clone());
    let der = |certificate: &polis_identity::Certificate| certificate.der().to_vec().into();
    let (address, task) = tls_server(forged::server(forged::certified(vec![der(&owner.certificate)], &owner_key)));
    assert!(matches!(refusal(&error(address).await), ServerRefusal::OtherCluster { .. }));
    task.abort();
    let chain = vec![der(&node.certificate), der(&other.certificate)];
    let (address, task) = tls_server(forged::server(forged::certified(chain, &node.key)));
    assert!(matches!(refusal(&error(address).await), ServerRefusal::Certificates { found: 2 }));
    task.abort();
    let thief = NodeKey::generate();
    let (address, task) = tls_server(forged::server(forged::certified(vec![der(&node.certificate)], &thief)));
    let stolen = error(address).await;
    assert!(matches!(stolen, ConnectError::Handshake { .. }), "{stolen:?}");
    task.abort();

    // No protocol in common: the server says so by an alert.
    let mut config = forged::server(forged::certified(vec![der(&node.certificate)], &node.key));
    config.alpn_protocols = vec![b"other".to_vec()];
    let (address, task) = tls_server(config);
    let alert = error(address).await;
    assert!(matches!(alert, ConnectError::RefusedByServer { .. }), "{alert:?}");
    task.abort();
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up() {
    let listener = test_listener();
    let connector = Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Anybody);
    let began = Instant::now();
    let error = connector.connect(listener.local_addr().unwrap()).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_server_is_believed_by_its_key_and_nothing_else() {
    let cluster = TestCluster::default();
    let node = cluster.node();
    let server = TestServer::start(&node.identity, Fake::answering());
    let owner = cluster.user("owner").identity;
    for expected in [
        ExpectedServer::Anybody,
        ExpectedServer::Cluster(cluster.authority_certificate()),
        ExpectedServer::Node(cluster.authority_certificate(), node.id),
    ] {
        let channel = Connector::new(&owner, expected).connect(server.address).await.unwrap();
        assert!(call(&channel, READ, b"").await.is_ok());
    }
    server.finish().await;

    // Certificates that ended long ago are as good as any.
    let key = NodeKey::generate();
    let expired = forged::expired(&cluster.authority, &key);
    let (address, task) = tls_server(forged::server(forged::certified(vec![expired], &key)));
    let expected = ExpectedServer::Node(cluster.authority_certificate(), (&key.public()).into());
    Connector::new(&owner, expected).connect(address).await.unwrap();
    task.abort();
}

#[tokio::test]
async fn a_channel_connects_again() {
    let cluster = TestCluster::default();
    let node = cluster.node();
    let server = TestServer::start(&node.identity, Fake::answering());
    let address = server.address;
    let channel =
        Connector::new(&cluster.user("owner").identity, ExpectedServer::Anybody).connect(address).await.unwrap();
    assert!(call(&channel, READ, b"").await.is_ok());
    server.finish().await;
    let status = call(&channel, READ, b"").await.unwrap_err();
    assert!(matches!(connect_error(&status), Some(ConnectError::Refused { .. })), "{status:?}");
    let listener = polis_rpc::listen(address).unwrap();
    let server = TestServer::start_at(listener, &node.identity, polis_rpc::Limits::default(), Fake::answering());
    assert!(call(&channel, READ, b"").await.is_ok());
    server.finish().await;
}

#[test]
fn credentials_that_do_not_belong_together_are_refused() {
    let cluster = TestCluster::default();
    let foreign = TestCluster::default();
    let [node, other] = [cluster.node(), cluster.node()];
    let owner = cluster.user("owner");
    assert!(matches!(
        ServerIdentity::new(&other.key, node.certificate.clone(), cluster.authority_certificate()),
        Err(ServerIdentityError::OtherKey { .. })
    ));
    assert!(matches!(
        ServerIdentity::new(&node.key, node.certificate.clone(), foreign.authority_certificate()),
        Err(ServerIdentityError::NotANode { .. })
    ));
    assert!(ClientIdentity::node(&other.key, &node.certificate).is_err());
    assert!(ClientIdentity::user(&owner.key, &node.certificate).is_err());
    let debug = format!("{:?} {:?} {:?}", node.identity, owner.identity, ClientIdentity::ephemeral(&owner.key));
    assert!(debug.len() < 100_000 && !debug.contains(&format!("{:?}", owner.key.secret().expose())), "{debug}");
}
