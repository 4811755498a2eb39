//! Whom the cluster lets go is gone at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use polis_rpc::testing::{TestCluster, TestServer, full_trust};
use polis_rpc::{Connector, ExpectedServer, News, Trust, detail};
use tonic::Code;

use crate::fake::{Ended, Fake, READ, Silent, UPDATE_SELF, begin, call, one, wait_until};

#[tokio::test]
async fn revocation_and_removal_end_open_streams() {
    let ended = Arc::new(AtomicUsize::new(0));
    let handler_ended = Arc::clone(&ended);
    let routes = Fake::routes(move |_, _, _| {
        let silent = Silent(Ended(Arc::clone(&handler_ended)));
        async move { Ok(one("first").chain(silent).boxed()) }
    });
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, routes);
    let [revoked, removed, stays] = [cluster.node(), cluster.node(), cluster.node()];
    let mut streams = Vec::new();
    for node in [&revoked, &removed, &stays] {
        let connector = Connector::new(&node.identity.client_identity(), ExpectedServer::Anybody);
        let channel = connector.channel(server.address);
        let mut answers = begin(&channel, READ, stream::pending()).await.unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap(), b"first");
        streams.push((channel, answers));
    }
    let (stays_channel, mut stays_answers) = streams.pop().unwrap();

    let serial_number = revoked.certificate.serial_number().clone();
    let began = Instant::now();
    server.trust.send_replace(Arc::new(Trust {
        revocations: Some(cluster.authority.certificate_revocation_list(2, &[serial_number])),
        removed_nodes: [(removed.id, b"proof".to_vec())].into(),
        ..full_trust()
    }));
    for (_, answers) in &mut streams {
        let status = answers.message().await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(1), "it took {:?}", began.elapsed());
    wait_until("the handlers are dropped", async || ended.load(Ordering::SeqCst) == 2).await;
    // On whatever connection they come again, they are told.
    for (index, (channel, _)) in streams.iter().enumerate() {
        let status = begin(channel, READ, stream::pending()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
        assert_eq!(detail::removed_node(&status).is_some(), index == 1, "{status:?}");
    }
    let next = tokio::time::timeout(Duration::from_millis(300), stays_answers.message()).await;
    assert!(next.is_err(), "the stream of another node goes on: {next:?}");
    assert!(begin(&stays_channel, READ, stream::pending()).await.is_ok());
    server.finish().await;
}

#[tokio::test]
async fn the_answer_to_the_call_that_revokes_its_caller_arrives() {
    let cluster = TestCluster::default();
    let owner = cluster.user("owner");
    let list = cluster.authority.certificate_revocation_list(2, &[owner.certificate.serial_number().clone()]);
    let trust = Arc::new(std::sync::OnceLock::<tokio::sync::watch::Sender<Arc<Trust>>>::new());
    let handler_trust = Arc::clone(&trust);
    let routes = Fake::routes(move |_, _, _| {
        let revoked = Trust { revocations: Some(list.clone()), ..full_trust() };
        let trust = handler_trust.get().unwrap().clone();
        async move {
            trust.send_replace(Arc::new(revoked));
            // As long as a slow disk takes to acknowledge.
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(one("rotated"))
        }
    });
    let server = TestServer::start(&cluster.node().identity, routes);
    trust.set(server.trust.clone()).unwrap();
    let channel = Connector::new(&owner.identity, ExpectedServer::Anybody).channel(server.address);
    assert_eq!(call(&channel, READ, b"").await.unwrap(), b"rotated");
    let status = call(&channel, READ, b"").await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    server.finish().await;
}

#[tokio::test]
async fn without_contact_nodes_may_look_and_owners_may_act() {
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, Fake::answering());
    let node = Connector::new(&cluster.node().identity.client_identity(), ExpectedServer::Anybody);
    let node = node.channel(server.address);
    let owner = Connector::new(&cluster.user("owner").identity, ExpectedServer::Anybody).channel(server.address);
    assert!(call(&node, UPDATE_SELF, b"").await.is_ok());
    server.trust.send_replace(Arc::new(Trust::default()));
    assert_eq!(call(&node, UPDATE_SELF, b"").await.unwrap_err().code(), Code::Unavailable);
    assert!(call(&node, READ, b"").await.is_ok());
    assert!(call(&owner, UPDATE_SELF, b"").await.is_ok());
    server.trust.send_replace(Arc::new(full_trust()));
    assert!(call(&node, UPDATE_SELF, b"").await.is_ok());
    server.finish().await;
}

#[tokio::test]
async fn a_node_is_answered_nothing_between_contact_and_what_was_missed() {
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, Fake::answering());
    let deleted = cluster.node();
    let node = Connector::new(&deleted.identity.client_identity(), ExpectedServer::Anybody).channel(server.address);
    let owner = Connector::new(&cluster.user("owner").identity, ExpectedServer::Anybody).channel(server.address);
    // The node is deleted while the server has no contact.
    server.trust.send_replace(Arc::new(Trust::default()));
    assert!(call(&node, READ, b"").await.is_ok());
    server.trust.send_replace(Arc::new(Trust { news: News::CatchingUp, ..Trust::default() }));
    for method in [READ, UPDATE_SELF] {
        let status = call(&node, method, b"").await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{method}: {status:?}");
        assert!(call(&owner, method, b"").await.is_ok(), "{method}");
    }
    let removed_nodes = [(deleted.id, b"proof".to_vec())].into();
    server.trust.send_replace(Arc::new(Trust { removed_nodes, ..full_trust() }));
    let status = call(&node, READ, b"").await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    server.finish().await;
}
