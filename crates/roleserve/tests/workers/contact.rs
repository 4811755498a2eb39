//! Contact with the leader: heartbeats, status, report, record, orders, tombstones, and what is on the disk at the next start.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use polis_curator::{SignedTombstone, Tombstone};
use polis_identity::{CertificateAuthority, NodeId};
use polis_proto::common::NodeRoles;
use polis_proto::common::node_roles::{KubernetesController, KubernetesWorker};
use polis_proto::enrolment::Orders;
use polis_proto::enrolment::get_members_response::ConsensusMember;
use polis_proto::rpc_detail::RemovedNode;
use polis_roleserve::{
    LockedNode, NO_CONTACT, RUNS_TWICE, Removal, UNKNOWN_TO_CLUSTER, announce_while_locked, store_first_directory,
};
use polis_rpc::detail;
use polis_rpc::testing::TestCluster;
use polis_storage::LocalRoles;
use polis_supervisor::Context;
use polis_supervisor::testing::Harness;
use polis_unlock::{Epoch, MemberEntry, MemberList, Standing};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::Status;

use crate::leader::Leader;
use crate::node::{Node, PATIENCE, free_address};

/// A cluster with a leader, and a node that has been told where the leader is.
pub(crate) fn scene() -> (TestCluster, Leader, Node) {
    let cluster = TestCluster::default();
    let leader = Leader::start(cluster.node(), free_address());
    let node = Node::new(&cluster);
    store_first_directory(&node.disk, [(leader.node.id, vec![leader.ip])]).unwrap();
    leader.script.set_node(node.wire(NodeRoles::default()));
    (cluster, leader, node)
}

fn worker() -> NodeRoles {
    NodeRoles { kubernetes_worker: Some(KubernetesWorker {}), ..NodeRoles::default() }
}

pub(crate) fn member(leader: &Leader) -> ConsensusMember {
    ConsensusMember {
        node_id: leader.node.id.to_string(),
        public_key: leader.node.key.public().as_bytes().to_vec(),
        addresses: vec![leader.ip.to_string()],
        learner: false,
        started: true,
    }
}

pub(crate) fn at(epoch: u64) -> Epoch {
    Epoch { incarnation: 1, epoch }
}

pub(crate) fn list(cluster: &TestCluster, epoch: u64, nodes: &[&Node]) -> MemberList {
    let entries = nodes.iter().map(|node| MemberEntry {
        node_id: node.id(),
        public_key: node.identity.public_key(),
        join_key: node.identity.join_key.public(),
        share_key: None,
        addresses: vec![node.ip()],
        standing: Standing::Stays,
    });
    MemberList::new(cluster.authority_certificate().cluster_id(), at(epoch), entries.collect())
}

pub(crate) async fn finish(leader: Leader, mut node: Node) {
    node.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_makes_itself_known_once_and_tells_what_changes() {
    let (_, leader, mut node) = scene();
    node.start();
    node.in_contact().await;
    let contact = node.running().role_serve.contact().borrow().clone();
    assert_eq!((contact.leader, contact.last_failure), (Some(leader.node.id), None));
    assert!(contact.last_heartbeat.is_some());

    leader.script.wait_statuses(|statuses| !statuses.is_empty()).await;
    let first = leader.script.statuses()[0].clone();
    assert_eq!(first.node_id, node.id().to_string());
    let status = first.status.unwrap();
    assert_eq!(status.external_address, node.ip().to_string());
    assert_eq!(status.boot_id.len(), 16);
    assert_eq!(status.running_curator, None);
    let share_key = node.identity.share_public.as_bytes().to_vec();
    leader.script.wait_reports(|reports| reports.first().is_some_and(|report| report.share_key == share_key)).await;

    // Another leadership is no news, another address is.
    leader.script.end_streams();
    leader.script.wait_heartbeats(2).await;
    let moved = free_address();
    node.address.send_replace(Some(moved));
    leader.script.wait_statuses(|statuses| statuses.len() > 1).await;
    let addresses: Vec<String> =
        leader.script.statuses().into_iter().map(|told| told.status.unwrap().external_address).collect();
    assert_eq!(addresses.len(), 2);
    assert_eq!(addresses[1], moved.to_string());
    finish(leader, node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_are_durable_before_they_are_seen() {
    let (_, leader, mut node) = scene();
    node.start();
    let roles = node.running().role_serve.roles();
    node.wait("without roles", roles.clone(), |roles| *roles == Some(LocalRoles::default())).await;
    leader.script.set_node(node.wire(worker()));
    let expected = LocalRoles { kubernetes_worker: true, ..LocalRoles::default() };
    node.wait("a worker", roles, |roles| *roles == Some(expected)).await;
    assert_eq!(node.layout.data.node.roles.load().unwrap().unwrap().value, expected);

    // The next start knows them without anybody's help.
    node.stop().await;
    let script = leader.stop().await;
    node.start();
    let roles = node.running().role_serve.roles();
    node.wait("a worker still", roles, |roles| *roles == Some(expected)).await;
    node.stop().await;
    drop(script);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_gone_is_missed_and_found_again() {
    let (_, leader, mut node) = scene();
    node.start();
    node.in_contact().await;
    let (identity, ip) = (leader.node.clone(), leader.ip);
    let script = leader.stop().await;
    let contact = node.running().role_serve.contact();
    let lost = node.wait("lost", contact.clone(), |contact| !contact.established).await;
    assert!(lost.last_failure.is_some() && lost.last_heartbeat.is_some(), "{lost:?}");
    // After a while it says whom it asks, and what came of it.
    let said = |failure: &String| failure.contains("no node is known to lead") && failure.contains(&ip.to_string());
    node.wait("searching", contact, |contact| contact.last_failure.as_ref().is_some_and(said)).await;
    node.wait_condition(NO_CONTACT, true).await;

    script.set_node(node.wire(worker()));
    let leader = Leader::go_on(identity, ip, script);
    node.in_contact().await;
    node.wait_condition(NO_CONTACT, false).await;
    let roles = node.running().role_serve.roles();
    node.wait("a worker", roles, |roles| roles.is_some_and(|roles| roles.kubernetes_worker)).await;
    finish(leader, node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_runs_twice_says_so_until_it_does_not() {
    let (_, leader, mut node) = scene();
    node.start();
    node.in_contact().await;
    leader.script.refuse(Some(Status::already_exists("it runs twice")));
    node.wait_condition(RUNS_TWICE, true).await;
    leader.script.refuse(None);
    node.wait_condition(RUNS_TWICE, false).await;
    finish(leader, node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_does_not_answer_is_no_contact() {
    let (_, leader, mut node) = scene();
    leader.script.answer_heartbeats(false);
    node.start();
    leader.script.wait_heartbeats(1).await;
    let contact = node.running().role_serve.contact();
    let late = node.wait("silent", contact, |contact| contact.last_failure.is_some()).await;
    assert!(!late.established && late.last_failure.unwrap().contains("no answer to a heartbeat within 5 s"));
    leader.script.answer_heartbeats(true);
    node.in_contact().await;
    finish(leader, node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_come_every_interval() {
    let (_, leader, mut node) = scene();
    node.start();
    node.in_contact().await;
    let begun = tokio::time::Instant::now();
    let before = leader.script.heartbeats();
    leader.script.wait_heartbeats(before + 2).await;
    let taken = begun.elapsed();
    assert!((Duration::from_secs(8)..Duration::from_secs(13)).contains(&taken), "{taken:?}");
    finish(leader, node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_directory_always_has_the_node_itself_and_every_member() {
    let (cluster, leader, mut node) = scene();
    let worker_node = Node::new(&cluster);
    leader.script.set_node(worker_node.wire(worker()));
    leader.script.set_orders(Orders { members: vec![member(&leader)], ..Orders::default() });
    node.start();
    let stored = |node: &Node| {
        let record = node.layout.esp.polis.cluster_directory.load().unwrap().unwrap().value;
        let entry = |node: &polis_storage::DirectoryNode| {
            (node.node_id.parse::<NodeId>().unwrap(), node.addresses.first().cloned(), node.consensus_member)
        };
        record.nodes.iter().map(entry).collect::<Vec<_>>()
    };
    let (own_id, first) = (node.id(), node.ip());
    let expected = |own: IpAddr, with_worker: bool| {
        let mut all = vec![(leader.node.id, Some(leader.ip.to_string()), true), (own_id, Some(own.to_string()), false)];
        if with_worker {
            all.push((worker_node.id(), Some(worker_node.ip().to_string()), false));
        }
        all.sort_by_key(|(id, ..)| id.to_string());
        all
    };
    let wait = async |own: IpAddr, with_worker: bool| {
        let what = expected(own, with_worker);
        let is_it = async {
            while stored(&node) != what {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if timeout(PATIENCE, is_it).await.is_err() {
            panic!("{:?} is not {what:?}", stored(&node));
        }
    };
    wait(first, true).await;
    leader.script.remove_node(&worker_node.id().to_string());
    wait(first, false).await;
    let moved = free_address();
    node.address.send_replace(Some(moved));
    wait(moved, false).await;
    finish(leader, node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_to_what_can_be_told_again_stops_nobody() {
    let (_, leader, mut node) = scene();
    leader.script.set_orders(Orders { members: vec![member(&leader)], ..Orders::default() });
    leader.script.set_node(node.wire(worker()));
    // All of it, in both of its files, from the start.
    let paths = [
        node.layout.esp.polis.cluster_directory.full_paths(),
        node.layout.esp.polis.signed_members.full_paths(),
        node.layout.data.node.roles.full_paths(),
        node.layout.data.node.revocations.full_paths(),
    ];
    for path in paths.as_flattened() {
        std::fs::write(path, b"garbage").unwrap();
    }
    node.peers.send_replace(vec![(leader.node.id, leader.ip)]);
    node.start();
    node.in_contact().await;
    for name in ["directory-damaged", "roles-damaged", "revocations-damaged"] {
        node.wait_condition(name, true).await;
    }
    let roles = node.running().role_serve.roles();
    node.wait("a worker", roles, |roles| roles.is_some_and(|roles| roles.kubernetes_worker)).await;
    assert!(node.layout.data.node.roles.load().unwrap().unwrap().value.kubernetes_worker);
    let whole = async {
        while !matches!(node.layout.esp.polis.cluster_directory.load(), Ok(Some(loaded)) if loaded.value.nodes.len() == 2)
        {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, whole).await.unwrap();
    finish(leader, node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_proof_makes_a_node_believe_that_it_was_deleted() {
    let (cluster, leader, mut node) = scene();
    node.start();
    node.in_contact().await;
    let tombstone = |authority: &CertificateAuthority, key| {
        let cluster_id = authority.certificate().cluster_id();
        Tombstone { cluster_id, public_key: key, reason: "sold".to_owned() }.sign(authority)
    };
    let refusal = |signed: &SignedTombstone| {
        detail::with_removed_node(
            Status::unauthenticated("you were deleted"),
            &RemovedNode { signed_tombstone: signed.encode() },
        )
    };
    let own = node.identity.public_key();
    let removed = node.running().role_serve.removed();
    // Of another cluster, and about another node.
    for forged in
        [tombstone(&TestCluster::default().authority, own), tombstone(&cluster.authority, leader.node.key.public())]
    {
        leader.script.refuse(Some(refusal(&forged)));
        let contact = node.running().role_serve.contact();
        node.wait("refused", contact, |contact| {
            contact.last_failure.as_ref().is_some_and(|failure| failure.contains("you were deleted"))
        })
        .await;
        // The heartbeats go on only after what the refusal says was looked at.
        leader.script.refuse(None);
        node.in_contact().await;
        assert_eq!(*removed.borrow(), None);
    }
    leader.script.refuse(Some(refusal(&tombstone(&cluster.authority, own))));
    let expected = Removal::Deleted { reason: "sold".to_owned() };
    node.wait("removed", removed, |removed| removed.as_ref() == Some(&expected)).await;
    finish(leader, node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_does_not_know_the_node_is_asked_why() {
    let (cluster, leader, mut node) = scene();
    node.start();
    node.in_contact().await;
    // A restored cluster may be older than the node: nothing is proved, and the node goes on asking.
    leader.script.refuse(Some(Status::not_found("no such node")));
    node.wait_condition(UNKNOWN_TO_CLUSTER, true).await;
    assert_eq!(*node.running().role_serve.removed().borrow(), None);
    leader.script.refuse(None);
    node.wait_condition(UNKNOWN_TO_CLUSTER, false).await;

    let cluster_id = cluster.authority_certificate().cluster_id();
    let tombstone = Tombstone { cluster_id, public_key: node.identity.public_key(), reason: String::new() };
    leader.script.bury(&node.id().to_string(), tombstone.sign(&cluster.authority).wire().clone());
    leader.script.remove_node(&node.id().to_string());
    let removed = node.running().role_serve.removed();
    node.wait("removed", removed, Option::is_some).await;
    finish(leader, node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_others_delete_is_refused_here_and_told_why() {
    let (cluster, leader, mut node) = scene();
    let other = Node::new(&cluster);
    leader.script.set_node(other.wire(worker()));
    leader.script.set_orders(Orders { members: vec![member(&leader)], ..Orders::default() });
    node.start();
    let trust = node.running().role_serve.trust();
    node.wait("in contact", trust.clone(), |trust| trust.is_up_to_date()).await;
    let cluster_id = cluster.authority_certificate().cluster_id();
    let tombstone = Tombstone { cluster_id, public_key: other.identity.public_key(), reason: String::new() };
    let signed = tombstone.sign(&cluster.authority);
    leader.script.bury(&other.id().to_string(), signed.wire().clone());
    leader.script.remove_node(&other.id().to_string());
    let known = node.wait("told", trust, |trust| !trust.removed_nodes.is_empty()).await;
    assert_eq!(known.removed_nodes[&other.id()], signed.encode());
    finish(leader, node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_can_say_where_the_cluster_is() {
    let cluster = TestCluster::default();
    let leader = Leader::start(cluster.node(), free_address());
    let mut node = Node::new(&cluster);
    leader.script.set_node(node.wire(NodeRoles { kubernetes_controller: Some(KubernetesController {}), ..worker() }));
    node.start();
    let contact = node.running().role_serve.contact();
    let alone = node.wait("alone", contact, |contact| contact.last_failure.is_some()).await;
    assert!(alone.last_failure.unwrap().contains("nobody is known who could be asked"));
    node.peers.send_replace(vec![(leader.node.id, leader.ip)]);
    node.in_contact().await;
    finish(leader, node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_lost_each_other_find_each_other_on_the_link() {
    let cluster = TestCluster::default();
    let (mut first, mut second) = (Node::new(&cluster), Node::new(&cluster));
    let signed = list(&cluster, 1, &[&first, &second]).sign(&cluster.authority);
    for node in [&mut first, &mut second] {
        node.announce = polis_roleserve::Announce::Everywhere;
        let record = polis_storage::SignedMembers { signed_list: signed.encode() };
        node.layout.esp.polis.signed_members.store(&record, "test").unwrap();
    }
    // Both have moved since the list was signed.
    for node in [&first, &second] {
        node.address.send_replace(Some(free_address()));
    }
    let leader = Leader::start(second.node.clone(), second.ip());
    leader.script.set_node(first.wire(NodeRoles::default()));
    leader.script.answer_heartbeats(true);
    first.start();
    second.start();
    first.in_contact().await;
    first.stop().await;
    second.stop().await;
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_member_hears_from_those_that_are_well_where_they_are_now() {
    let cluster = TestCluster::default();
    let (locked, mut well, leading) = (Node::new(&cluster), Node::new(&cluster), Node::new(&cluster));
    let signed = list(&cluster, 1, &[&locked, &well, &leading]).sign(&cluster.authority);
    for node in [&locked, &well] {
        let record = polis_storage::SignedMembers { signed_list: signed.encode() };
        node.layout.esp.polis.signed_members.store(&record, "test").unwrap();
    }
    well.announce = polis_roleserve::Announce::Everywhere;
    // It has moved since the list was signed, and has not lost anybody by that.
    well.address.send_replace(Some(free_address()));
    let leader = Leader::start(leading.node.clone(), leading.ip());
    leader.script.set_node(well.wire(NodeRoles::default()));
    leader.script.answer_heartbeats(true);
    well.start();
    well.in_contact().await;

    let heard = watch::Sender::<BTreeMap<NodeId, IpAddr>>::default();
    let mut told = heard.subscribe();
    let (identity, disk, address) = (Arc::clone(&locked.identity), Arc::clone(&locked.disk), locked.address.clone());
    let harness = Harness::start(move |context: Context| {
        let node = LockedNode {
            node: identity.public_key(),
            join_key: identity.join_key.clone(),
            authority: identity.authority.clone(),
            disk: Arc::clone(&disk),
            address: address.subscribe(),
            announce: polis_roleserve::Announce::Everywhere,
            heard: heard.clone(),
        };
        async move {
            context.healthy();
            context.unless_cancelled(announce_while_locked(&context, node)).await?
        }
    });
    let (id, ip) = (well.id(), well.ip());
    let waited = timeout(PATIENCE, told.wait_for(|heard| heard.get(&id) == Some(&ip))).await.is_ok();
    assert!(waited, "not heard: {:?}\n{}", *told.borrow(), harness.describe());
    harness.finish().await;
    well.stop().await;
    leader.stop().await;
}
