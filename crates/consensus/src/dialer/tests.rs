//! What callers of the dialer can do, and what they cannot.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::*;
use crate::peer_url::PEER_PORT;

const PATIENCE: Duration = Duration::from_secs(10);
const MAPPED: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

/// An address of this test alone.
fn free_address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id();
    let middle = u8::try_from((process >> 8) % 254 + 1).unwrap();
    Ipv4Addr::new(127, middle, process.to_le_bytes()[0], NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// A dialer that runs, and a peer that it can reach.
struct Setup {
    dialer: Dialer,
    peers: watch::Sender<PeerMap>,
    peer: TcpListener,
    serving: JoinHandle<()>,
}

impl Setup {
    async fn new() -> Self {
        let peer = TcpListener::bind((free_address(), 0)).await.unwrap();
        let peers = watch::Sender::new(PeerMap::from([(MAPPED, peer.local_addr().unwrap())]));
        let dialer = Dialer::bind(peers.subscribe()).unwrap();
        let serve = dialer.clone();
        let serving = tokio::spawn(async move { serve.serve().await });
        Self { dialer, peers, peer, serving }
    }

    fn authorization(&self) -> String {
        format!("Proxy-Authorization: {}\r\n", String::from_utf8_lossy(self.dialer.0.authorization.expose()))
    }

    async fn caller(&self) -> TcpStream {
        TcpStream::connect(self.dialer.local_address()).await.unwrap()
    }

    /// Sends `request`; everything that comes back until the end.
    async fn ask(&self, request: &[u8]) -> String {
        let mut caller = self.caller().await;
        // A refusal may arrive, and the connection end, before all is written.
        let _ = caller.write_all(request).await;
        let mut answer = Vec::new();
        let _ = timeout(PATIENCE, caller.read_to_end(&mut answer)).await.expect("the dialer ends the connection");
        String::from_utf8(answer).unwrap()
    }

    /// A tunnel to the peer: both ends.
    async fn tunnel(&self) -> (TcpStream, TcpStream) {
        let mut caller = self.caller().await;
        let request = format!("CONNECT [{MAPPED}]:{PEER_PORT} HTTP/1.1\r\nHost: x\r\n{}\r\n", self.authorization());
        caller.write_all(request.as_bytes()).await.unwrap();
        let (peer, _) = timeout(PATIENCE, self.peer.accept()).await.unwrap().unwrap();
        let expected = b"HTTP/1.1 200 Connection established\r\n\r\n";
        let mut answer = vec![0; expected.len()];
        timeout(PATIENCE, caller.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer, expected);
        (caller, peer)
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn assert_ended(stream: &mut TcpStream) {
    let mut byte = [0];
    let end = timeout(PATIENCE, stream.read(&mut byte)).await.expect("the connection ends");
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
}

#[tokio::test]
async fn what_is_not_a_request_of_our_etcd_is_refused() {
    let setup = Setup::new().await;
    let good = setup.authorization();
    let wrong = good.replace("Basic ", "Basic a");
    let cut = good.replace("\r\n", "");
    let cut = format!("{}\r\n", &cut[..cut.len() - 1]);
    let target = format!("[{MAPPED}]:{PEER_PORT}");
    let connect = |target: &str, headers: &str| format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
    let table: Vec<(&str, Vec<u8>, &str)> = vec![
        ("no token", connect(&target, "").into(), "407"),
        ("a wrong token", connect(&target, &wrong).into(), "407"),
        ("a shorter token", connect(&target, &cut).into(), "407"),
        ("an empty token", connect(&target, "Proxy-Authorization: \r\n").into(), "407"),
        ("two tokens, one of them right", connect(&target, &format!("{good}{wrong}")).into(), "407"),
        ("the token twice", connect(&target, &format!("{good}{good}")).into(), "407"),
        ("no token, unmapped", connect("[fd00::2]:7834", "").into(), "407"),
        ("no token, another method", b"GET / HTTP/1.1\r\n\r\n".to_vec(), "407"),
        ("another method", format!("GET {target} HTTP/1.1\r\n{good}\r\n").into(), "405"),
        ("an absolute URL", format!("GET http://localhost/ HTTP/1.1\r\n{good}\r\n").into(), "405"),
        ("unmapped", connect("[fd00::2]:7834", &good).into(), "403"),
        ("another port", connect(&format!("[{MAPPED}]:22"), &good).into(), "403"),
        (
            "another port that is the peer's",
            connect(&setup.peer.local_addr().unwrap().to_string(), &good).into(),
            "403",
        ),
        ("loopback", connect("127.0.0.1:7834", &good).into(), "403"),
        ("loopback in version 6", connect("[::1]:7834", &good).into(), "403"),
        ("a mapped version 4 address", connect("[::ffff:127.0.0.1]:7834", &good).into(), "403"),
        ("a zone", connect(&format!("[{MAPPED}%1]:7834"), &good).into(), "403"),
        ("a name", connect("localhost:7834", &good).into(), "403"),
        ("a unix socket", connect("unix:client.sock", &good).into(), "403"),
        ("no words", b"\r\n\r\n".to_vec(), "400"),
        ("another protocol", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), "400"),
        ("another version", format!("CONNECT {target} HTTP/2.0\r\n{good}\r\n").into(), "400"),
        ("too many words", format!("CONNECT {target} x HTTP/1.1\r\n{good}\r\n").into(), "400"),
        ("bytes before the answer", format!("{}early", connect(&target, &good)).into(), "400"),
        ("a head without end", vec![b'a'; 100_000], "431"),
        ("a long header", connect(&target, &format!("{good}X: {}\r\n", "x".repeat(5000))).into(), "431"),
    ];
    for (name, request, expected) in table {
        let answer = setup.ask(&request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{name}: {answer:?}");
        assert!(answer.ends_with("\r\n\r\n"), "{name}: {answer:?}");
    }
    let nobody = timeout(Duration::from_millis(100), setup.peer.accept()).await;
    assert!(nobody.is_err(), "no refused caller reaches the peer");
    // It serves on.
    setup.tunnel().await;
}

#[tokio::test]
async fn who_says_nothing_is_left_within_the_deadline() {
    let setup = Setup::new().await;
    for beginning in [&b""[..], b"CONNECT", b"CONNECT [fd00::1]:7834 HTTP/1.1\r\nHost: x\r\n"] {
        let began = Instant::now();
        assert_eq!(setup.ask(beginning).await, "");
        assert!(began.elapsed() < Duration::from_secs(3), "{beginning:?}");
    }
}

#[tokio::test]
async fn a_head_in_pieces_is_a_head() {
    let setup = Setup::new().await;
    let request = format!("CONNECT [{MAPPED}]:{PEER_PORT} HTTP/1.1\r\n{}\r\n", setup.authorization());
    let mut caller = setup.caller().await;
    caller.set_nodelay(true).unwrap();
    for piece in request.as_bytes().chunks(7) {
        caller.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    timeout(PATIENCE, setup.peer.accept()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_tunnel_carries_both_ways_and_ends_with_either_leg() {
    let setup = Setup::new().await;
    let (mut caller, mut peer) = setup.tunnel().await;
    let sent: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    for (from, to) in [(&mut caller, &mut peer)] {
        let mut received = vec![0; sent.len()];
        let (written, read) = tokio::join!(from.write_all(&sent), to.read_exact(&mut received));
        written.unwrap();
        read.unwrap();
        assert_eq!(received, sent);
    }
    peer.write_all(b"answer").await.unwrap();
    let mut answer = [0; 6];
    caller.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"answer");
    drop(peer);
    assert_ended(&mut caller).await;

    let (caller, mut peer) = setup.tunnel().await;
    drop(caller);
    assert_ended(&mut peer).await;
}

#[tokio::test]
async fn what_a_leg_sent_before_its_end_still_arrives() {
    let setup = Setup::new().await;
    let (mut caller, mut peer) = setup.tunnel().await;
    peer.write_all(b"last words").await.unwrap();
    drop(peer);
    let mut received = Vec::new();
    timeout(PATIENCE, caller.read_to_end(&mut received)).await.unwrap().unwrap();
    assert_eq!(received, b"last words");
}

#[tokio::test]
async fn a_peer_that_moves_loses_its_old_connections_and_others_keep_theirs() {
    let setup = Setup::new().await;
    let other = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    let (mut caller, mut peer) = setup.tunnel().await;
    // Another peer appears: nothing happens to this one.
    let address = setup.peer.local_addr().unwrap();
    setup.peers.send_modify(|peers| {
        peers.insert(other, address);
    });
    caller.write_all(b"x").await.unwrap();
    let mut byte = [0];
    timeout(PATIENCE, peer.read_exact(&mut byte)).await.unwrap().unwrap();
    // It moves.
    let moved = TcpListener::bind((free_address(), 0)).await.unwrap();
    setup.peers.send_modify(|peers| {
        peers.insert(MAPPED, moved.local_addr().unwrap());
    });
    assert_ended(&mut caller).await;
    assert_ended(&mut peer).await;
    // It is no longer known.
    setup.peers.send_modify(|peers| {
        peers.remove(&MAPPED);
    });
    let request = format!("CONNECT [{MAPPED}]:{PEER_PORT} HTTP/1.1\r\n{}\r\n", setup.authorization());
    assert!(setup.ask(request.as_bytes()).await.starts_with("HTTP/1.1 403 "));
}

#[tokio::test]
async fn a_peer_that_does_not_accept_is_a_bad_gateway_within_the_deadline() {
    let setup = Setup::new().await;
    let request = format!("CONNECT [{MAPPED}]:{PEER_PORT} HTTP/1.1\r\n{}\r\n", setup.authorization());
    // Nobody listens there.
    let closed = SocketAddr::new(free_address(), PEER_PORT);
    // Somebody listens and never accepts, and there is no more room to wait in.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((free_address(), 0).into()).unwrap();
    let full = socket.listen(0).unwrap();
    let address = full.local_addr().unwrap();
    let _waiting = TcpStream::connect(address).await.unwrap();
    for address in [closed, address] {
        setup.peers.send_modify(|peers| {
            peers.insert(MAPPED, address);
        });
        let began = Instant::now();
        let answer = setup.ask(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer:?}");
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn callers_past_the_limit_are_left_at_once_and_the_rest_is_served_afterwards() {
    let setup = Setup::new().await;
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        silent.push(setup.caller().await);
    }
    assert_eq!(setup.ask(b"").await, "");
    drop(silent);
    // It takes a moment until it has seen that they are gone.
    let deadline = Instant::now() + PATIENCE;
    while !setup.ask(b"GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 407 ") {
        assert!(Instant::now() < deadline);
    }
    setup.tunnel().await;
}

#[tokio::test]
async fn dropping_the_service_ends_every_tunnel() {
    let setup = Setup::new().await;
    let (mut caller, mut peer) = setup.tunnel().await;
    setup.serving.abort();
    assert_ended(&mut caller).await;
    assert_ended(&mut peer).await;
}

#[tokio::test]
async fn the_proxy_url_carries_what_lets_etcd_in() {
    let setup = Setup::new().await;
    let url = setup.dialer.proxy_url();
    let (credentials, address) = url.strip_prefix("http://").unwrap().split_once('@').unwrap();
    assert_eq!(address, setup.dialer.local_address().to_string());
    let encoded = base64::engine::general_purpose::STANDARD.encode(credentials);
    assert_eq!(setup.authorization(), format!("Proxy-Authorization: Basic {encoded}\r\n"));
}
