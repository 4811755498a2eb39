//! Mutating calls leave one line each, and no content.

use futures::stream;
use polis_logtree::ReadOptions;
use polis_rpc::testing::{TestCluster, TestServer};
use polis_rpc::{ClientIdentity, Connector, ExpectedServer};
use tonic::Status;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::fake::{ANYBODY, Fake, READ, REGISTER, UPDATE_SELF, begin, call, one, wait_until};

#[tokio::test]
async fn mutating_calls_leave_one_line_each() {
    let routes = Fake::routes(|_, _, mut messages| async move {
        match messages.message().await?.as_deref() {
            Some(b"refuse secret-in-request") => Err(Status::failed_precondition("secret-in-answer")),
            Some(b"hang") => std::future::pending().await,
            _ => Ok(one("secret-in-answer")),
        }
    });
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, routes);
    let tree = server.harness().log_tree().clone();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(tree.layer()));
    let node = cluster.node();
    let of_node = Connector::new(&node.identity.client_identity(), ExpectedServer::Anybody).channel(server.address);
    let of_nobody = Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Anybody).channel(server.address);

    call(&of_node, UPDATE_SELF, b"secret-in-request").await.unwrap();
    call(&of_node, READ, b"secret-in-request").await.unwrap();
    call(&of_node, UPDATE_SELF, b"refuse secret-in-request").await.unwrap_err();
    call(&of_nobody, UPDATE_SELF, b"secret-in-request").await.unwrap_err();
    call(&of_nobody, REGISTER, b"secret-in-request").await.unwrap();
    call(&of_nobody, ANYBODY, b"secret-in-request").await.unwrap();
    let hanging = begin(&of_node, UPDATE_SELF, stream::iter([b"hang".to_vec()]));
    assert!(tokio::time::timeout(std::time::Duration::from_millis(200), hanging).await.is_err());

    let lines = || -> Vec<String> {
        let log = server.harness().describe();
        log.lines().filter(|line| line.contains("mutating call")).map(str::to_owned).collect()
    };
    wait_until("five lines are there", async || lines().len() >= 5).await;
    let lines = lines();
    let caller = format!("node {}", node.id);
    let wanted = [
        [UPDATE_SELF, &caller, "Ok"],
        [UPDATE_SELF, &caller, "FailedPrecondition"],
        [UPDATE_SELF, "anonymous", "Unauthenticated"],
        [REGISTER, "anonymous", "Ok"],
        [UPDATE_SELF, &caller, "abandoned"],
    ];
    assert_eq!(lines.len(), wanted.len(), "{lines:#?}");
    for (line, words) in lines.iter().zip(wanted) {
        for word in words.into_iter().chain(["address", "127.0.0.1:", "duration_ms"]) {
            assert!(line.contains(word), "{word:?} is not in {line:?}");
        }
    }
    let log = server.harness().describe();
    assert!(!log.contains("secret-in"), "content of a call is in the log:\n{log}");
    server.finish().await;
}

#[tokio::test]
async fn a_line_says_what_the_call_is_about_and_those_of_nodes_push_out_none_of_people() {
    let routes = Fake::routes_with_object(|object, _, mut messages| async move {
        if let Some(wanted) = messages.message().await? {
            object.set(format_args!("about {}", String::from_utf8_lossy(&wanted)));
            object.set("something else");
        }
        Err(Status::failed_precondition("refused all the same"))
    });
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, routes);
    let tree = server.harness().log_tree().clone();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(tree.layer()));
    let channel = |identity: &ClientIdentity| Connector::new(identity, ExpectedServer::Anybody).channel(server.address);
    let owner = channel(&cluster.user("owner").identity);
    let node = channel(&cluster.node().identity.client_identity());
    let long = "y".repeat(10_000);
    for (caller, about) in
        [(&owner, "metropolis-1: +site"), (&owner, "two\nlines"), (&owner, &long), (&node, "metropolis-2")]
    {
        call(caller, UPDATE_SELF, about.as_bytes()).await.unwrap_err();
    }
    // What only looks has no line, whatever its handler says.
    call(&owner, READ, b"looking").await.unwrap_err();
    let journals = || -> Vec<(String, String)> {
        let names = tree.names().into_iter().filter(|name| name.as_str().contains(".audit"));
        let lines = names.flat_map(|name| {
            let reader = tree.read(&name, ReadOptions::default()).unwrap();
            let journal = name.as_str().rsplit('.').next().unwrap().to_owned();
            reader.backlog.iter().map(|entry| (journal.clone(), entry.text().into_owned())).collect::<Vec<_>>()
        });
        lines.collect()
    };
    wait_until("all lines are there", async || journals().len() >= 4).await;
    let found = journals();
    let long = format!("about {}", "y".repeat(300));
    let wanted = [
        ("audit", "about metropolis-1: +site"),
        ("audit", "about two"),
        ("audit", &*long),
        ("audit-of-nodes", "about metropolis-2"),
    ];
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
    for ((journal, line), (wanted_journal, word)) in found.iter().zip(wanted) {
        assert_eq!(journal, wanted_journal, "{line}");
        assert!(
            line.contains(word) && line.contains("FailedPrecondition") && !line.contains("else"),
            "{word} in {line}"
        );
        assert!(line.len() < 1_500, "{line}");
    }
    server.finish().await;
}

#[tokio::test]
async fn strangers_cannot_fill_the_log() {
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, Fake::answering());
    let tree = server.harness().log_tree().clone();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(tree.layer()));
    let of_node = Connector::new(&cluster.node().identity.client_identity(), ExpectedServer::Anybody);
    let of_node = of_node.channel(server.address);
    let of_nobody = Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Anybody).channel(server.address);
    for _ in 0..400 {
        call(&of_nobody, UPDATE_SELF, b"").await.unwrap_err();
    }
    call(&of_node, UPDATE_SELF, b"").await.unwrap();
    let log = server.harness().describe();
    let (strangers, others): (Vec<_>, Vec<_>) =
        log.lines().filter(|line| line.contains("mutating call")).partition(|line| line.contains("anonymous"));
    assert!((100..150).contains(&strangers.len()), "{} lines", strangers.len());
    assert!(others.len() == 1 && others[0].contains("untold="), "{others:?}");
    server.finish().await;
}
