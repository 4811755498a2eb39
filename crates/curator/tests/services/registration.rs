//! RegisterNode, ApproveNode, CommitNode and JoinNode: from a machine to a node, with every step repeated.

use polis_identity::{Certificate, JoinKey, verify_node_in_cluster};
use polis_proto::common::node_labels::Pair;
use polis_proto::common::{NodeLabels, NodeState, NodeStorageSecurity, NodeTpmUsage};
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::{JoinNodeRequest, RegisterNodeRequest};
use polis_rpc::ClientIdentity;
use tonic::Code;

use crate::world::{AUTHENTICATED, INSECURE, Machine, World, code};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_becomes_a_node_and_every_step_can_be_repeated() {
    let world = World::start().await;
    let machine = Machine::new();
    let unlock_key = [7; 32];

    assert_eq!(code(world.commit(&machine, AUTHENTICATED, &unlock_key).await), Code::NotFound, "nobody knows it");
    let first = world.register(&machine).await.unwrap();
    assert_eq!(first.tpm_usage(), NodeTpmUsage::NotPresent);
    assert_eq!(first.recommended_node_storage_security(), NodeStorageSecurity::AuthenticatedEncrypted);
    assert_eq!(first.cluster_configuration.as_ref().unwrap().cluster_domain, "cluster.internal");
    let check = async |state: NodeState, commits: Code| {
        assert_eq!(world.register(&machine).await.unwrap(), first, "the same answer in {state:?}");
        assert_eq!(world.node(&machine.id()).await.state(), state);
        if commits != Code::Ok {
            assert_eq!(code(world.commit(&machine, AUTHENTICATED, &unlock_key).await), commits, "{state:?}");
        }
    };
    check(NodeState::New, Code::PermissionDenied).await;
    world.approve(&machine).await.unwrap();
    check(NodeState::Standby, Code::Ok).await;
    world.approve(&machine).await.unwrap();
    let committed = world.commit(&machine, AUTHENTICATED, &unlock_key).await.unwrap();
    let certificate = Certificate::from_der(committed.node_certificate.clone()).unwrap();
    assert_eq!(verify_node_in_cluster(&certificate, &world.authority).unwrap().id, machine.id());
    assert_eq!(committed.ca_certificate, world.authority.der());
    check(NodeState::Up, Code::Ok).await;
    world.approve(&machine).await.unwrap();

    assert_eq!(world.commit(&machine, AUTHENTICATED, &unlock_key).await.unwrap(), committed, "the same certificate");
    let other_key = world.commit(&machine, AUTHENTICATED, &[8; 32]).await;
    assert_eq!(code(other_key), Code::FailedPrecondition);
    let other_storage = world.commit(&machine, NodeStorageSecurity::Encrypted.into(), &unlock_key).await;
    assert_eq!(code(other_storage), Code::FailedPrecondition);
    assert_eq!(code(world.commit(&machine, INSECURE, &[]).await), Code::FailedPrecondition);

    let mut joins = CuratorClient::new(world.channel(&ClientIdentity::ephemeral(&machine.join_key)));
    let joined = joins.join_node(JoinNodeRequest { using_sealed_configuration: false }).await.unwrap();
    assert_eq!(joined.into_inner().cluster_unlock_key, unlock_key);
    assert_eq!(world.nodes("").await.unwrap().len(), 2, "one entry for the machine");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_one_machines() {
    let world = World::start().await;
    let machine = Machine::new();
    let other = Machine { join_key: JoinKey::from_secret(machine.join_key.secret().clone()), ..Machine::new() };
    let again = Machine { join_key: JoinKey::generate(), ..Machine::new() };
    world.register(&machine).await.unwrap();
    assert_eq!(code(world.register(&other).await), Code::FailedPrecondition, "a copied join key");
    let mut curator = CuratorClient::new(world.channel(&ClientIdentity::ephemeral(&machine.key)));
    let request = again.registration(&world.ticket().await);
    let other_join_key = curator.register_node(request).await;
    assert_eq!(code(other_join_key), Code::FailedPrecondition, "the same node key with another join key");
    let founder = Machine {
        join_key: JoinKey::from_secret(world.etcd.join_key.secret().clone()),
        key: polis_identity::NodeKey::from_secret(world.etcd.node_key.secret().clone()),
        certificate: None,
    };
    world.register(&founder).await.unwrap();
    assert_eq!(code(world.commit(&founder, INSECURE, &[]).await), Code::FailedPrecondition, "it never committed");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_attempts_at_once_make_one_node() {
    let world = World::start().await;
    let machine = Machine::new();
    let ticket = world.ticket().await;
    let attempts = futures::future::join_all((0..8).map(|_| world.register_with(&machine, &ticket))).await;
    let first = attempts[0].as_ref().unwrap();
    assert!(attempts.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer == first)), "{attempts:?}");
    world.approve(&machine).await.unwrap();
    let attempts = futures::future::join_all((0..8).map(|_| world.commit(&machine, AUTHENTICATED, &[1; 32]))).await;
    let first = attempts[0].as_ref().unwrap();
    assert!(attempts.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer == first)));
    // Two that are not the same: one of them, and only one.
    let machine = Machine::new();
    world.register(&machine).await.unwrap();
    world.approve(&machine).await.unwrap();
    let (one, other) =
        tokio::join!(world.commit(&machine, AUTHENTICATED, &[1; 32]), world.commit(&machine, AUTHENTICATED, &[2; 32]));
    let mut codes = [code(one), code(other)];
    codes.sort_by_key(|code| *code as i32);
    assert_eq!(codes, [Code::Ok, Code::FailedPrecondition]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_call_and_what_is_malformed() {
    let world = World::start().await;
    let machine = Machine::new();
    let ticket = world.ticket().await;
    let good = machine.registration(&ticket);
    let strangers = [world.anonymous(), world.founder(), world.owner().await];
    for channel in strangers {
        let mut curator = CuratorClient::new(channel);
        assert_eq!(code(curator.register_node(good.clone()).await), Code::Unauthenticated);
        assert_eq!(
            code(curator.commit_node(polis_proto::curator_api::CommitNodeRequest::default()).await),
            Code::Unauthenticated
        );
        assert_eq!(code(curator.join_node(JoinNodeRequest::default()).await), Code::PermissionDenied);
    }
    let mut curator = CuratorClient::new(world.channel(&ClientIdentity::ephemeral(&machine.key)));
    for join_key in [vec![], vec![1; 31], vec![0; 32], vec![0xff; 33]] {
        let request = RegisterNodeRequest { join_key, ..good.clone() };
        assert_eq!(code(curator.register_node(request).await), Code::InvalidArgument);
    }
    for (security, key) in [(0, 32), (9, 32), (AUTHENTICATED, 0), (AUTHENTICATED, 31), (INSECURE, 32)] {
        let committed = world.commit(&machine, security, &vec![1; key]).await;
        assert_eq!(code(committed), Code::InvalidArgument, "{security}, {key}");
    }
    let mut joins = CuratorClient::new(world.channel(&ClientIdentity::ephemeral(&machine.join_key)));
    assert_eq!(code(joins.join_node(JoinNodeRequest::default()).await), Code::NotFound);
    curator.register_node(good).await.unwrap();
    assert_eq!(code(joins.join_node(JoinNodeRequest::default()).await), Code::FailedPrecondition, "not UP yet");
    assert_eq!(
        code(curator.join_node(JoinNodeRequest::default()).await),
        Code::NotFound,
        "the node key is no join key"
    );
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_labels_are_passed_over_and_too_many_are_cut() {
    let world = World::start().await;
    let ticket = world.ticket().await;
    let pair = |key: String, value: &str| Pair { key, value: value.into() };
    let mut pairs = vec![pair("-bad".into(), "1"), pair("k0".into(), "first"), pair("k0".into(), "again")];
    pairs.extend((1..200).map(|number| pair(format!("k{number}"), "v")));
    let machine = Machine::new();
    let request = RegisterNodeRequest { labels: Some(NodeLabels { pairs }), ..machine.registration(&ticket) };
    let mut curator = CuratorClient::new(world.channel(&ClientIdentity::ephemeral(&machine.key)));
    curator.register_node(request).await.unwrap();
    let labels = world.node(&machine.id()).await.labels.unwrap().pairs;
    assert_eq!(labels.len(), 128);
    assert_eq!((&*labels[0].key, &*labels[0].value), ("k0", "first"));
    assert_eq!(labels[127].key, "k127");
    world.finish().await;
}
