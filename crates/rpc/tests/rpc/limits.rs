//! What strangers may use up, and that nobody else notices.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::stream::{self, FuturesUnordered, StreamExt as _};
use polis_rpc::testing::{TestCluster, TestServer, test_listener};
use polis_rpc::{ClientIdentity, Connector, ExpectedServer, Limits};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::fake::{ANYBODY, Ended, Fake, PATIENCE, READ, REGISTER, Silent, begin, call, one, wait_until};

fn stranger(address: SocketAddr) -> Channel {
    Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Anybody).channel(address)
}

fn member(cluster: &TestCluster, address: SocketAddr) -> Channel {
    Connector::new(&cluster.user("owner").identity, ExpectedServer::Anybody).channel(address)
}

#[tokio::test]
async fn messages_that_are_too_long_are_refused_when_they_are_announced() {
    let received = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&received);
    let routes = Fake::routes(move |_, _, mut messages| {
        let counter = Arc::clone(&counter);
        async move {
            while let Some(message) = messages.message().await? {
                counter.fetch_add(message.len(), Ordering::SeqCst);
            }
            Ok(one("fine"))
        }
    });
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, routes);
    let limits = Limits::default();
    for (channel, path, longest) in [
        (stranger(server.address), REGISTER, limits.message_of_stranger),
        (member(&cluster, server.address), READ, limits.message_of_member),
    ] {
        received.store(0, Ordering::SeqCst);
        // A few bytes of every message are not its content.
        assert!(call(&channel, path, &vec![7; longest - 16]).await.is_ok());
        assert_eq!(received.load(Ordering::SeqCst), longest - 16);
        for length in [longest + 1, 10 * 1024 * 1024] {
            let status = call(&channel, path, &vec![7; length]).await.unwrap_err();
            assert_eq!(status.code(), Code::ResourceExhausted, "{length}: {status:?}");
            assert!(status.message().contains(&longest.to_string()), "{status:?}");
        }
        assert_eq!(received.load(Ordering::SeqCst), longest - 16, "a handler saw a message that is too long");
        // The connection goes on.
        assert!(call(&channel, path, b"").await.is_ok());
    }
    server.finish().await;
}

#[tokio::test]
async fn strangers_may_make_so_many_calls_and_members_any_number() {
    let cluster = TestCluster::default();
    let limits = Limits { calls_at_once: 20.0, calls_per_second: 10.0, ..Limits::default() };
    let server = TestServer::start_at(test_listener(), &cluster.node().identity, limits, Fake::answering());
    let first = stranger(server.address);
    let second = stranger(server.address);
    let owner = member(&cluster, server.address);
    let mut refused = 0;
    for channel in [&first, &second].into_iter().cycle().take(60) {
        match call(channel, ANYBODY, b"").await {
            Ok(_) => {}
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                refused += 1;
            }
        }
    }
    assert!((20..=40).contains(&refused), "{refused} of 60 calls were refused");
    for _ in 0..200 {
        call(&owner, READ, b"").await.unwrap();
    }
    wait_until("strangers are heard again", async || call(&first, ANYBODY, b"").await.is_ok()).await;
    server.finish().await;
}

#[tokio::test]
async fn a_request_that_is_never_finished_ends() {
    let cluster = TestCluster::default();
    let limits = Limits { request_timeout_of_stranger: Duration::from_millis(100), ..Limits::default() };
    let server = TestServer::start_at(test_listener(), &cluster.node().identity, limits, Fake::answering());
    let endless = stream::iter([vec![1]]).chain(stream::pending());
    let status = match begin(&stranger(server.address), REGISTER, endless).await {
        Ok(mut answers) => answers.message().await.unwrap_err(),
        Err(status) => status,
    };
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    server.finish().await;
}

#[tokio::test]
async fn connections_without_a_call_are_closed() {
    let cluster = TestCluster::default();
    let limits = Limits {
        idle_timeout: Duration::from_millis(150),
        handshake_timeout: Duration::from_millis(150),
        ..Limits::default()
    };
    let server = TestServer::start_at(test_listener(), &cluster.node().identity, limits, Fake::answering());
    let node = cluster.node();
    let shown = crate::forged::certified(vec![node.certificate.der().to_vec().into()], &node.key);
    // One that begins no handshake, one that begins it and stops, and those that finish it and say nothing.
    let silent = TcpStream::connect(server.address).await.unwrap();
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
    let tls = async |config| {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let name = server.address.ip().into();
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    };
    let anonymous = tls(crate::forged::client(None)).await;
    let certified = tls(crate::forged::client(Some(shown))).await;
    // One that has made a call, as a stranger and as a node.
    let stranger = stranger(server.address);
    call(&stranger, ANYBODY, b"").await.unwrap();
    let began = Instant::now();
    let closed = |mut stream: Box<dyn tokio::io::AsyncRead + Send + Unpin>| async move {
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the server closes");
    };
    tokio::join!(
        closed(Box::new(silent)),
        closed(Box::new(half)),
        closed(Box::new(anonymous)),
        closed(Box::new(certified))
    );
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // Its channel connects again, whatever has become of its connection.
    wait_until("the stranger is heard again", async || call(&stranger, ANYBODY, b"").await.is_ok()).await;
    server.finish().await;
}

#[tokio::test]
async fn a_member_may_be_quiet_and_a_stranger_may_wait_for_an_answer() {
    let cluster = TestCluster::default();
    let idle_timeout = Duration::from_millis(100);
    let ended = Arc::new(AtomicUsize::new(0));
    let handler_ended = Arc::clone(&ended);
    let routes = Fake::routes(move |_, path, _| {
        let silent = (path == ANYBODY).then(|| Silent(Ended(Arc::clone(&handler_ended))));
        async move { Ok(silent.map_or_else(|| one("fine"), |silent| one("first").chain(silent).boxed())) }
    });
    let limits = Limits { idle_timeout, ..Limits::default() };
    let server = TestServer::start_at(test_listener(), &cluster.node().identity, limits, routes);
    let mut waiting = begin(&stranger(server.address), ANYBODY, stream::empty()).await.unwrap();
    waiting.message().await.unwrap();
    // A connection of its own, so that it is seen whether it is the same one later.
    let node = cluster.node();
    let shown = crate::forged::certified(vec![node.certificate.der().to_vec().into()], &node.key);
    let connections = Arc::new(AtomicUsize::new(0));
    let channel = counted(server.address, crate::forged::client(Some(shown)), Arc::clone(&connections));
    call(&channel, READ, b"").await.unwrap();
    tokio::time::sleep(idle_timeout * 5).await;
    call(&channel, READ, b"").await.unwrap();
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    drop(waiting);
    server.finish().await;
}

/// A channel that counts its connections.
fn counted(address: SocketAddr, config: rustls::ClientConfig, connections: Arc<AtomicUsize>) -> Channel {
    let config = Arc::new(config);
    let endpoint = tonic::transport::Endpoint::from_static("http://test");
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_: http::Uri| {
        let config = Arc::clone(&config);
        connections.fetch_add(1, Ordering::SeqCst);
        async move {
            let stream = TcpStream::connect(address).await?;
            let stream = tokio_rustls::TlsConnector::from(config).connect(address.ip().into(), stream).await?;
            std::io::Result::Ok(hyper_util::rt::TokioIo::new(stream))
        }
    }))
}

#[tokio::test]
async fn the_seats_of_strangers_are_theirs_and_the_idle_go_first() {
    let ended = Arc::new(AtomicUsize::new(0));
    let handler_ended = Arc::clone(&ended);
    let routes = Fake::routes(move |_, path, _| {
        let silent = (path == ANYBODY).then(|| Silent(Ended(Arc::clone(&handler_ended))));
        async move { Ok(silent.map_or_else(|| one("fine"), |silent| one("first").chain(silent).boxed())) }
    });
    let cluster = TestCluster::default();
    let limits = Limits { strangers: 4, strangers_per_address: 4, ..Limits::default() };
    let server = TestServer::start_at(test_listener(), &cluster.node().identity, limits, routes);
    let owner = member(&cluster, server.address);
    call(&owner, READ, b"").await.unwrap();
    // Three wait for an answer, and one is idle.
    let mut busy = Vec::new();
    for _ in 0..3 {
        let mut answers = begin(&stranger(server.address), ANYBODY, stream::empty()).await.unwrap();
        answers.message().await.unwrap();
        busy.push(answers);
    }
    // Each of these takes the seat of the one before.
    let mut idle = Vec::new();
    for _ in 0..10 {
        let channel = stranger(server.address);
        call(&channel, REGISTER, b"").await.unwrap();
        idle.push(channel);
    }
    assert_eq!(ended.load(Ordering::SeqCst), 0, "one that was waiting for an answer was closed");
    // And when all are waiting, the one that waits for longest goes.
    let mut last = begin(&stranger(server.address), ANYBODY, stream::empty()).await.unwrap();
    last.message().await.unwrap();
    assert_eq!(ended.load(Ordering::SeqCst), 0, "the idle one went first");
    let mut one_more = begin(&stranger(server.address), ANYBODY, stream::empty()).await.unwrap();
    one_more.message().await.unwrap();
    wait_until("the oldest is closed", async || ended.load(Ordering::SeqCst) == 1).await;
    assert!(busy.remove(0).message().await.is_err());
    call(&owner, READ, b"").await.unwrap();
    server.finish().await;
}

#[tokio::test]
async fn calls_of_one_connection_are_bounded() {
    let cluster = TestCluster::default();
    let started = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&started);
    let routes = Fake::routes(move |_, _, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<_, Status>>()
    });
    let limits = Limits { streams_of_stranger: 3, ..Limits::default() };
    let server = TestServer::start_at(test_listener(), &cluster.node().identity, limits, routes);
    let channel = stranger(server.address);
    let calls: FuturesUnordered<_> = (0..20).map(|_| call(&channel, ANYBODY, b"")).collect();
    let all = calls.collect::<Vec<_>>();
    assert!(tokio::time::timeout(Duration::from_millis(300), all).await.is_err());
    // A client may send a few before it has heard of the limit; these are refused, and sent again by it, or fail.
    assert!(started.load(Ordering::SeqCst) <= 3, "{} calls were made", started.load(Ordering::SeqCst));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_who_does_not_read_holds_little_and_nobody_up() {
    const MESSAGE: usize = 16 * 1024;
    let produced = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&produced);
    let routes = Fake::routes(move |_, _, mut messages| {
        let counter = Arc::clone(&counter);
        async move {
            if messages.message().await?.is_none_or(|message| message.is_empty()) {
                return Ok(one("fine"));
            }
            Ok(stream::repeat_with(move || {
                counter.fetch_add(MESSAGE, Ordering::SeqCst);
                Ok(vec![7; MESSAGE])
            })
            .boxed())
        }
    });
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, routes);
    let owner = member(&cluster, server.address);
    let answers = begin(&owner, READ, stream::iter([b"all".to_vec()])).await.unwrap();
    // It stops by itself, before it has made a few MiB: what fits into the windows of client, system and server.
    let mut before = usize::MAX;
    wait_until("it stops", async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = produced.load(Ordering::SeqCst);
        std::mem::replace(&mut before, now) == now
    })
    .await;
    assert!(before < 8 * 1024 * 1024, "{before} bytes were made for one who does not read");
    // Beside it, on the same connection and on another, all goes on.
    call(&member(&cluster, server.address), READ, b"").await.unwrap();
    call(&owner, READ, b"").await.unwrap();
    drop(answers);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_connections_that_say_nothing() {
    // Both ends are in this process, and the server keeps as many as it has seats.
    let raised = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: raised, maximum: raised }).unwrap();
    let seats = Limits::default().handshakes;
    let possible = raised.map_or(usize::MAX, |raised| usize::try_from(raised).unwrap_or(usize::MAX));
    let count = 10_000.min(possible.saturating_sub(seats + 1_000));
    assert!(count > seats, "{possible} file descriptors are too few for this test");

    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, Fake::answering());
    let before = member(&cluster, server.address);
    call(&before, READ, b"").await.unwrap();
    let slowest = Arc::new(AtomicUsize::new(0));
    // Nodes and owners who come meanwhile.
    let newcomers = tokio::spawn({
        let owner = cluster.user("owner").identity;
        let address = server.address;
        let slowest = Arc::clone(&slowest);
        async move {
            loop {
                let began = Instant::now();
                let channel = Connector::new(&owner, ExpectedServer::Anybody).channel(address);
                call(&channel, READ, b"").await.unwrap();
                let took = usize::try_from(began.elapsed().as_millis()).unwrap();
                slowest.fetch_max(took, Ordering::SeqCst);
            }
        }
    });
    let mut silent = Vec::with_capacity(count);
    for number in 0..count {
        // From many addresses, as one alone has not so many ports.
        let socket = TcpSocket::new_v4().unwrap();
        let [_, _, high, low] = u32::try_from(number / 500).unwrap().to_be_bytes();
        socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 2, high, low + 1)), 0)).unwrap();
        let mut stream = tokio::time::timeout(PATIENCE, socket.connect(server.address)).await.unwrap().unwrap();
        if number % 2 == 0 {
            // Half of a greeting. Where the seat is taken away already, it cannot be written.
            let _ = stream.write_all(&[0x16, 3, 1, 2, 0, 1]).await;
        }
        silent.push(stream);
    }
    call(&before, READ, b"").await.unwrap();
    let began = Instant::now();
    call(&member(&cluster, server.address), READ, b"").await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "a newcomer waited {:?}", began.elapsed());
    assert!(!newcomers.is_finished(), "a newcomer failed");
    newcomers.abort();
    let slowest = slowest.load(Ordering::SeqCst);
    assert!(slowest < 5_000, "a newcomer waited {slowest} ms during the flood");
    drop(silent);
    server.finish().await;
}
