//! Every RPC with every kind of credentials.

use std::fmt;
use std::sync::Arc;

use polis_identity::{JoinKey, NodeKey};
use polis_proto::authorization::{Authorization, METHODS, Method};
use polis_proto::ext::Permission;
use polis_rpc::testing::{TestCluster, TestServer, full_trust};
use polis_rpc::{ClientIdentity, Connector, ExpectedServer, News, Peer, Trust, detail};
use tonic::Code;

use crate::fake::{Fake, call};

/// What a caller may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Anonymous,
    Ephemeral,
    Node,
    Owner,
    OtherUser,
    ForeignNode,
    ForeignUser,
    RevokedNode,
    RevokedOwner,
    RemovedNode,
}

const ALL: [Who; 10] = [
    Who::Anonymous,
    Who::Ephemeral,
    Who::Node,
    Who::Owner,
    Who::OtherUser,
    Who::ForeignNode,
    Who::ForeignUser,
    Who::RevokedNode,
    Who::RevokedOwner,
    Who::RemovedNode,
];

impl fmt::Display for Who {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// The rule of metropolis.md G.4, written down once more.
fn expected(method: &Method, who: Who, news: News) -> Code {
    let is_open = method.authorization == Authorization::AllowUnauthenticated;
    let needed = match method.authorization {
        Authorization::Need(needed) => needed,
        Authorization::AllowUnauthenticated => &[],
    };
    let of_nodes = [Permission::ReadClusterStatus, Permission::UpdateNodeSelf];
    match who {
        Who::ForeignNode | Who::ForeignUser | Who::RevokedNode | Who::RevokedOwner | Who::RemovedNode => {
            Code::Unauthenticated
        }
        Who::Owner => Code::Ok,
        Who::Anonymous | Who::Ephemeral | Who::Node | Who::OtherUser if is_open => Code::Ok,
        Who::Anonymous | Who::Ephemeral => Code::Unauthenticated,
        Who::OtherUser => Code::PermissionDenied,
        Who::Node if !needed.iter().all(|needed| of_nodes.contains(needed)) => Code::PermissionDenied,
        Who::Node if news == News::CatchingUp => Code::Unavailable,
        Who::Node if news == News::CutOff && needed.contains(&Permission::UpdateNodeSelf) => Code::Unavailable,
        Who::Node => Code::Ok,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_with_every_kind_of_credentials() {
    let cluster = TestCluster::default();
    let foreign = TestCluster::default();
    let server_node = cluster.node();
    let revoked_node = cluster.node();
    let revoked_owner = cluster.user("owner");
    let removed_node = cluster.node();
    let identity = |who: Who| match who {
        Who::Anonymous => ClientIdentity::anonymous(),
        Who::Ephemeral => ClientIdentity::ephemeral(&JoinKey::generate()),
        Who::Node => cluster.node().identity.client_identity(),
        Who::Owner => cluster.user("owner").identity,
        Who::OtherUser => cluster.user("somebody").identity,
        Who::ForeignNode => foreign.node().identity.client_identity(),
        Who::ForeignUser => foreign.user("owner").identity,
        Who::RevokedNode => revoked_node.identity.client_identity(),
        Who::RevokedOwner => revoked_owner.identity.clone(),
        Who::RemovedNode => removed_node.identity.client_identity(),
    };
    let revoked = [&revoked_node.certificate, &revoked_owner.certificate].map(|of| of.serial_number().clone());
    let trust = |news| {
        Arc::new(Trust {
            revocations: Some(cluster.authority.certificate_revocation_list(7, &revoked)),
            removed_nodes: [(removed_node.id, b"the proof".to_vec())].into(),
            news,
        })
    };
    let server = TestServer::start(&server_node.identity, Fake::answering());
    let expected_server = ExpectedServer::Node(cluster.authority_certificate(), server_node.id);
    let mut wrong = Vec::new();
    let mut calls = 0;
    for news in [News::UpToDate, News::CatchingUp, News::CutOff] {
        server.trust.send_replace(trust(news));
        for who in ALL {
            let channel =
                Connector::new(&identity(who), expected_server.clone()).connect(server.address).await.unwrap();
            for method in METHODS {
                let result = call(&channel, method.path, b"").await;
                let code = result.as_ref().map_or_else(tonic::Status::code, |_| Code::Ok);
                let wanted = expected(method, who, news);
                if code != wanted {
                    wrong.push(format!("{}, {who}, {news:?}: {result:?}, not {wanted:?}", method.path));
                }
                let proof = result.err().as_ref().and_then(detail::removed_node);
                let wanted = (who == Who::RemovedNode).then(|| b"the proof".to_vec());
                if proof.map(|proof| proof.signed_tombstone) != wanted {
                    wrong.push(format!("{}, {who}: the proof of removal", method.path));
                }
                calls += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {calls}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(METHODS.len() > 30, "the table of methods is there");
    server.finish().await;
}

#[tokio::test]
async fn handlers_learn_who_calls() {
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, Fake::answering());
    let node = cluster.node();
    let ephemeral = NodeKey::generate();
    let owner = cluster.user("owner");
    let ephemeral_peer = Peer::Ephemeral(ephemeral.public()).to_string();
    for (identity, told) in [
        (ClientIdentity::anonymous(), "anonymous".to_owned()),
        (ClientIdentity::ephemeral(&ephemeral), ephemeral_peer),
        // A self-made certificate says nothing but the key, whatever else its key is known for.
        (ClientIdentity::ephemeral(&node.key), Peer::Ephemeral(node.key.public()).to_string()),
        (node.identity.client_identity(), format!("node {}", node.id)),
        (owner.identity, "user \"owner\"".to_owned()),
    ] {
        let channel = Connector::new(&identity, ExpectedServer::Anybody).channel(server.address);
        let answer = call(&channel, crate::fake::ANYBODY, b"").await.unwrap();
        assert_eq!(String::from_utf8(answer).unwrap(), told);
    }
    server.finish().await;
}

#[tokio::test]
async fn refusals_say_why() {
    let cluster = TestCluster::default();
    let foreign = TestCluster::default();
    let revoked = cluster.user("owner");
    let removed = cluster.node();
    let server = TestServer::start(&cluster.node().identity, Fake::answering());
    let serial_number = revoked.certificate.serial_number().clone();
    server.trust.send_replace(Arc::new(Trust {
        revocations: Some(cluster.authority.certificate_revocation_list(2, &[serial_number])),
        removed_nodes: [(removed.id, Vec::new())].into(),
        ..full_trust()
    }));
    let cluster_id = cluster.authority_certificate().cluster_id().to_string();
    for (identity, words) in [
        (ClientIdentity::anonymous(), vec!["none was shown"]),
        (ClientIdentity::ephemeral(&JoinKey::generate()), vec!["made by its holder"]),
        (foreign.node().identity.client_identity(), vec!["not", cluster_id.as_str(), "did not sign it"]),
        (foreign.user("owner").identity, vec!["not", cluster_id.as_str(), "did not sign it"]),
        (revoked.identity, vec!["owner", "revoked"]),
        (removed.identity.client_identity(), vec!["removed from the cluster"]),
    ] {
        let channel = Connector::new(&identity, ExpectedServer::Anybody).channel(server.address);
        let status = call(&channel, crate::fake::READ, b"").await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
        for word in words {
            assert!(status.message().contains(word), "{word:?} is not in {:?}", status.message());
        }
    }
    let status = {
        let channel = Connector::new(&cluster.user("guest").identity, ExpectedServer::Anybody).channel(server.address);
        call(&channel, crate::fake::READ, b"").await.unwrap_err()
    };
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("PERMISSION_READ_CLUSTER_STATUS"), "{status:?}");
    server.finish().await;
}

#[tokio::test]
async fn a_method_without_an_entry_never_runs() {
    let cluster = TestCluster::default();
    let server = TestServer::start(&cluster.node().identity, Fake::answering());
    let owner = cluster.user("owner").identity;
    let channel = Connector::new(&owner, ExpectedServer::Anybody).channel(server.address);
    for path in [
        "/metropolis.proto.api.Management/NoSuchMethod",
        "/no.such.Service/GetNodes",
        "/metropolis.proto.api.Management/GetNodes/",
        "//metropolis.proto.api.Management/GetNodes",
        "/",
    ] {
        let status = call(&channel, path, b"").await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{path}: {status:?}");
        assert!(status.message().contains(concat!("runs Polis ", env!("CARGO_PKG_VERSION"))), "{path}: {status:?}");
    }
    server.finish().await;
}
