//! A server stops in order, and soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use polis_rpc::testing::{TestCluster, TestServer};
use polis_rpc::{Connector, ExpectedServer, STOP_GRACE};
use tokio::io::AsyncReadExt as _;
use tokio::sync::Notify;
use tonic::Code;

use crate::fake::{Fake, READ, begin, call, one, wait_until};

#[tokio::test]
async fn streams_end_and_short_calls_finish() {
    let begun = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&begun);
    let stop = Arc::new(Notify::new());
    let stopping = Arc::clone(&stop);
    let routes = Fake::routes(move |_, _, mut messages| {
        let (counter, stopping) = (Arc::clone(&counter), Arc::clone(&stopping));
        async move {
            let message = messages.message().await?.unwrap_or_default();
            counter.fetch_add(1, Ordering::SeqCst);
            match &message[..] {
                b"short" => {
                    stopping.notified().await;
                    tokio::time::sleep(STOP_GRACE / 3).await;
                    Ok(one("done"))
                }
                b"for ever" => std::future::pending().await,
                _ => Ok(one("first").chain(stream::pending()).boxed()),
            }
        }
    });
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, routes);
    let owner = cluster.user("owner").identity;
    let connect = || Connector::new(&owner, ExpectedServer::Anybody).channel(server.address);
    let channel = connect();
    let mut watch = begin(&channel, READ, stream::iter([b"watch".to_vec()])).await.unwrap();
    watch.message().await.unwrap();
    let call_of = |message: &'static [u8]| {
        let channel = connect();
        tokio::spawn(async move { call(&channel, READ, message).await })
    };
    let short = call_of(b"short");
    let for_ever = call_of(b"for ever");
    // One that never says anything.
    let mut silent = tokio::net::TcpStream::connect(server.address).await.unwrap();
    wait_until("all calls have begun", async || begun.load(Ordering::SeqCst) == 3).await;

    let began = Instant::now();
    stop.notify_one();
    let finished = tokio::spawn(server.finish());
    let status = watch.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(began.elapsed() < STOP_GRACE, "the stream ended after {:?}", began.elapsed());
    assert_eq!(short.await.unwrap().unwrap(), b"done");
    assert_eq!(for_ever.await.unwrap().unwrap_err().code(), Code::Unavailable);
    finished.await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(600), "the server stopped after {:?}", began.elapsed());
    assert_eq!(silent.read(&mut [0; 1]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn an_idle_server_stops_at_once_and_its_address_is_free() {
    let cluster = TestCluster::default();
    let node = cluster.node();
    let owner = cluster.user("owner").identity;
    let mut address = None;
    for _ in 0..3 {
        let listener = match address {
            Some(address) => polis_rpc::listen(address).unwrap(),
            None => polis_rpc::testing::test_listener(),
        };
        let server = TestServer::start_at(listener, &node.identity, polis_rpc::Limits::default(), Fake::answering());
        address = Some(server.address);
        let channel = Connector::new(&owner, ExpectedServer::Anybody).channel(server.address);
        call(&channel, READ, b"").await.unwrap();
        let began = Instant::now();
        server.finish().await;
        assert!(began.elapsed() < STOP_GRACE, "the server stopped after {:?}", began.elapsed());
    }
}
