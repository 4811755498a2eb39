//! A panic of a handler fails its call and nothing else.

use futures::stream::{self, StreamExt as _};
use polis_rpc::testing::{TestCluster, TestServer};
use polis_rpc::{Connector, ExpectedServer};
use tonic::{Code, Status};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::fake::{Fake, READ, begin, call, one};

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        // A second panic while the first one unwinds would end the process whatever anybody does.
        if !std::thread::panicking() {
            panic!("the bomb of a test");
        }
    }
}

#[tokio::test]
async fn a_panic_fails_one_call() {
    let routes = Fake::routes(|_, _, mut messages| async move {
        let message = messages.message().await?.unwrap_or_default();
        match &message[..] {
            b"at once" => panic!("the panic of a test, at once"),
            b"in the stream" => {
                let first = one("first");
                let rest = stream::once(async {
                    // What is there is sent before.
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                    panic!("the panic of a test, in the stream")
                });
                Ok(first.chain(rest).boxed())
            }
            b"in the drop of the stream" => {
                let bomb = Bomb;
                let rest = stream::poll_fn(move |_| {
                    let _ = &bomb;
                    std::task::Poll::<Option<Result<Vec<u8>, Status>>>::Ready(None)
                });
                Ok(one("first").chain(rest).boxed())
            }
            b"in the drop of the call" => {
                let bomb = Bomb;
                std::future::pending::<()>().await;
                drop(bomb);
                Err(Status::internal("not reached"))
            }
            _ => Ok(one("fine")),
        }
    });
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, routes);
    let tree = server.harness().log_tree().clone();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(tree.layer()));
    let owner = cluster.user("owner").identity;
    let channel = Connector::new(&owner, ExpectedServer::Anybody).channel(server.address);
    // A call beside them, on the same connection, that must not be hurt.
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let beside = stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
    let beside = tokio::spawn({
        let channel = channel.clone();
        async move {
            let mut answers = begin(&channel, READ, beside).await?;
            answers.message().await
        }
    });

    let status = call(&channel, READ, b"at once").await.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status:?}");
    assert!(status.message().contains("panicked") && !status.message().contains("of a test"), "{status:?}");

    let mut answers = begin(&channel, READ, stream::iter([b"in the stream".to_vec()])).await.unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap(), b"first");
    let status = answers.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status:?}");

    let status = call(&channel, READ, b"in the drop of the stream").await.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status:?}");

    let abandoned = call(&channel, READ, b"in the drop of the call");
    assert!(tokio::time::timeout(std::time::Duration::from_millis(100), abandoned).await.is_err());

    assert_eq!(call(&channel, READ, b"").await.unwrap(), b"fine");
    sender.send(b"now".to_vec()).await.unwrap();
    assert_eq!(beside.await.unwrap().unwrap().unwrap(), b"fine");
    let log = server.harness().describe();
    for line in ["of a test, at once", "of a test, in the stream", READ] {
        assert!(log.contains(line), "{line:?} is not in the log:\n{log}");
    }
    server.finish().await;
}
