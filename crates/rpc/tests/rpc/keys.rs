//! Servers and clients that know each other by their keys.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream::{self, StreamExt as _};
use polis_identity::{JoinKey, NodeKey, PublicKey};
use polis_rpc::testing::{TestCluster, TestKeyServer, TestServer, test_listener};
use polis_rpc::{
    ClientIdentity, ConnectError, Connector, ExpectedServer, KeyIdentity, KnownKeys, Limits, Peer, ServerRefusal,
    connect_error,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::fake::{ANYBODY, Ended, Fake, PATIENCE, READ, Silent, begin, call, one, wait_until};

fn server(limits: Limits) -> (TestKeyServer, PublicKey) {
    let identity = KeyIdentity::new(&JoinKey::generate());
    (TestKeyServer::start_at(test_listener(), &identity, limits, Fake::answering()), identity.public_key())
}

fn know(server: &TestKeyServer, keys: &[&JoinKey], addresses: &[IpAddr]) {
    let keys = keys.iter().map(|key| key.public()).collect();
    server.known.send_replace(Arc::new(KnownKeys { keys, addresses: addresses.iter().copied().collect() }));
}

fn channel(address: SocketAddr, shown: &JoinKey, expected: ExpectedServer) -> Channel {
    Connector::new(&KeyIdentity::new(shown).client_identity(), expected).channel(address)
}

fn refusal(status: &Status) -> ServerRefusal {
    let Some(ConnectError::NotExpected { source, .. }) = connect_error(status) else { panic!("{status:?}") };
    source.clone()
}

#[tokio::test]
async fn both_sides_know_the_key_of_the_other() {
    let (server, server_key) = server(Limits::default());
    let [member, stranger] = [JoinKey::generate(), JoinKey::generate()];
    know(&server, &[&member], &[]);
    for key in [&member, &stranger] {
        let answer = call(&channel(server.address, key, ExpectedServer::Key(server_key)), ANYBODY, b"").await.unwrap();
        assert_eq!(String::from_utf8(answer).unwrap(), Peer::Ephemeral(key.public()).to_string());
    }
    let anonymous = Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Anybody);
    assert_eq!(call(&anonymous.channel(server.address), ANYBODY, b"").await.unwrap(), b"anonymous");
    assert_eq!(anonymous.learn_key(server.address).await.unwrap(), server_key);

    // Nobody has a permission here, and a certificate of a cluster is as good as its key.
    let cluster = TestCluster::default();
    let owner = cluster.user("owner");
    let of_owner = Connector::new(&owner.identity, ExpectedServer::Key(server_key)).channel(server.address);
    let answer = call(&of_owner, ANYBODY, b"").await.unwrap();
    assert_eq!(String::from_utf8(answer).unwrap(), Peer::Ephemeral(owner.key.public()).to_string());
    assert_eq!(call(&of_owner, READ, b"").await.unwrap_err().code(), Code::Unauthenticated);
    server.finish().await;
}

#[tokio::test]
async fn a_server_with_another_key_is_not_the_one() {
    let (server, server_key) = server(Limits::default());
    let expected = JoinKey::generate().public();
    let status =
        call(&channel(server.address, &JoinKey::generate(), ExpectedServer::Key(expected)), ANYBODY, b"").await;
    let refusal_by_key = refusal(&status.unwrap_err());
    assert!(
        matches!(refusal_by_key, ServerRefusal::OtherKey { expected: wanted, found } if wanted == expected && found == server_key),
        "{refusal_by_key:?}"
    );
    // One that knows its callers by their keys is no node of a cluster, and a node of a cluster is found by its key too.
    let cluster = TestCluster::default();
    let of_cluster = ExpectedServer::Cluster(cluster.authority_certificate());
    let status = call(&channel(server.address, &JoinKey::generate(), of_cluster), ANYBODY, b"").await.unwrap_err();
    assert!(matches!(refusal(&status), ServerRefusal::OtherCluster { .. }), "{status:?}");
    let node = cluster.node();
    let of_node = TestServer::start(&node.identity, Fake::answering());
    let by_key = ExpectedServer::Key(node.key.public());
    assert!(call(&channel(of_node.address, &JoinKey::generate(), by_key), ANYBODY, b"").await.is_ok());
    of_node.finish().await;
    server.finish().await;
}

#[tokio::test]
async fn the_key_has_to_be_there() {
    let (server, _) = server(Limits::default());
    let victim = polis_identity::issue_ephemeral(&JoinKey::generate());
    let shown = crate::forged::certified(vec![victim.der().to_vec().into()], &NodeKey::generate());
    let config = Arc::new(crate::forged::client(Some(shown)));
    let stream = TcpStream::connect(server.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(config);
    // In TLS 1.3 the client thinks itself connected before the server has looked.
    if let Ok(mut stream) = connector.connect(server.address.ip().into(), stream).await {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the server closes");
        assert!(ended.is_err_and(|error| error.to_string().contains("DecryptError")));
    }
    server.finish().await;
}

#[tokio::test]
async fn who_is_no_member_any_more_is_let_go() {
    let ended = Arc::new(AtomicUsize::new(0));
    let handler_ended = Arc::clone(&ended);
    let routes = Fake::routes(move |_, _, _| {
        let silent = Silent(Ended(Arc::clone(&handler_ended)));
        async move { Ok(one("first").chain(silent).boxed()) }
    });
    let identity = KeyIdentity::new(&JoinKey::generate());
    let server = TestKeyServer::start_at(test_listener(), &identity, Limits::default(), routes);
    let [stays, goes, stranger] = [JoinKey::generate(), JoinKey::generate(), JoinKey::generate()];
    know(&server, &[&stays, &goes], &[]);
    let open = async |key: &JoinKey| {
        let channel = channel(server.address, key, ExpectedServer::Key(identity.public_key()));
        let mut answers = begin(&channel, ANYBODY, stream::empty()).await.unwrap();
        answers.message().await.unwrap();
        answers
    };
    let _staying = open(&stays).await;
    let mut going = open(&goes).await;
    // Who never was one is not told anything new by it.
    let _stranger = open(&stranger).await;
    know(&server, &[&stays], &[]);
    let status = going.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    wait_until("its call ends", async || ended.load(Ordering::SeqCst) == 1).await;
    server.finish().await;
}

#[tokio::test]
async fn a_client_connects_from_where_it_is_told_to() {
    let routes = Fake::routes(|caller, _, _| async move { Ok(one(caller.address.ip().to_string())) });
    let identity = KeyIdentity::new(&JoinKey::generate());
    let server = TestKeyServer::start_at(test_listener(), &identity, Limits::default(), routes);
    let connector = Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Key(identity.public_key()));
    for (source, expected) in [("127.9.2.1", "127.9.2.1"), ("::1", "127.0.0.1")] {
        let channel = connector.clone().from_address(source.parse().unwrap()).channel(server.address);
        assert_eq!(String::from_utf8(call(&channel, ANYBODY, b"").await.unwrap()).unwrap(), expected);
    }
    server.finish().await;
}

async fn connect_from(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from, 0)).unwrap();
    tokio::time::timeout(PATIENCE, socket.connect(to)).await.unwrap().unwrap()
}

/// Whether the server still wants to shake hands on this connection.
async fn completes(stream: TcpStream) -> bool {
    let config = Arc::new(crate::forged::client(None));
    let address = stream.peer_addr().unwrap().ip();
    let shake = tokio_rustls::TlsConnector::from(config).connect(address.into(), stream);
    tokio::time::timeout(PATIENCE, shake).await.expect("an answer or an end").is_ok()
}

#[tokio::test]
async fn handshakes_from_where_members_are_survive_a_flood_from_elsewhere() {
    let limits = Limits { handshakes: 8, handshakes_kept: 4, handshakes_per_address: 2, ..Limits::default() };
    let identity = KeyIdentity::new(&JoinKey::generate());
    let routes = Fake::routes(|_, _, _| async { Ok(one("fine")) });
    let server = TestKeyServer::start_at(test_listener(), &identity, limits, routes);
    let [told, used, unknown] = [1, 2, 3].map(|last| IpAddr::from(Ipv4Addr::new(127, 9, 0, last)));
    let member = JoinKey::generate();
    know(&server, &[&member], &[told]);
    // From the second the member itself has come, from the third only somebody else.
    for (from, key) in [(used, &member), (unknown, &JoinKey::generate())] {
        let shown = polis_identity::issue_ephemeral(key);
        let key = NodeKey::from_secret(key.secret().clone());
        let shown = crate::forged::certified(vec![shown.der().to_vec().into()], &key);
        let config = Arc::new(crate::forged::client(Some(shown)));
        let stream = connect_from(from, server.address).await;
        let connector = tokio_rustls::TlsConnector::from(config);
        let mut stream = connector.connect(server.address.ip().into(), stream).await.unwrap();
        // The server speaks first, once it knows who is there.
        stream.read_exact(&mut [0; 9]).await.unwrap();
    }
    let slow = [told, used, unknown];
    let mut waiting = Vec::new();
    for from in slow {
        waiting.push(connect_from(from, server.address).await);
    }
    let mut flood = Vec::new();
    for number in 0..100_u8 {
        let from = IpAddr::from(Ipv4Addr::new(127, 9, 1, number + 1));
        flood.push(connect_from(from, server.address).await);
    }
    // The last of the flood is alive, so that all of it has been accepted; the first is not.
    assert!(completes(flood.pop().unwrap()).await);
    assert!(!completes(flood.remove(0)).await);
    let mut completed = Vec::new();
    for stream in waiting {
        completed.push(completes(stream).await);
    }
    assert_eq!(completed, [true, true, false], "of {slow:?}");
    server.finish().await;
}
