//! What the cluster's orders say, which member list is known, and what the node reports of its key.

use std::collections::BTreeSet;

use polis_identity::{CertificateAuthority, RevocationList};
use polis_proto::common::NodeRoles;
use polis_proto::curator_state::{DecommissionPhase, SplitReport};
use polis_proto::enrolment::Orders;
use polis_proto::enrolment::orders::Floor;
use polis_roleserve::SplitState;
use polis_rpc::testing::{TestCluster, TestNode};
use polis_unlock::{Epoch, MemberEntry, MemberList, SignedMemberList, Standing};

use crate::contact::{at, finish, list, member, scene};
use crate::leader::Leader;
use crate::node::{Node, free_address};

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_checked_made_durable_and_followed() {
    let (cluster, leader, mut node) = scene();
    let other = TestCluster::default();
    let serials = [(), ()].map(|()| cluster.node().certificate.serial_number().clone());
    let revoked =
        |authority: &CertificateAuthority, number: u64| authority.certificate_revocation_list(number, &serials);
    let orders = |list: &RevocationList, signed: &SignedMemberList, phase: DecommissionPhase| Orders {
        revocation_list: list.der().to_vec(),
        signed_list: Some(signed.wire().clone()),
        decommission: phase.into(),
        members: vec![member(&leader)],
        floors: vec![
            Floor { node_id: "nobody".to_owned(), epoch: Some(at(9).into()) },
            Floor { node_id: leader.node.id.to_string(), epoch: None },
            Floor { node_id: leader.node.id.to_string(), epoch: Some(at(list.number()).into()) },
        ],
        recovery_public_key: if list.number() == 2 { vec![7; 32] } else { Vec::new() },
        ..Orders::default()
    };
    let [older, newest] = [2, 3].map(|epoch| list(&cluster, epoch, &[&node]).sign(&cluster.authority));
    let foreign =
        MemberList::new(other.authority_certificate().cluster_id(), Epoch { incarnation: 9, epoch: 9 }, vec![]);
    let foreign = foreign.sign(&other.authority);
    leader.script.set_orders(orders(&revoked(&cluster.authority, 2), &newest, DecommissionPhase::None));
    node.start();
    let trust = node.running().role_serve.trust();
    let known = node.wait("trusting", trust.clone(), |trust| trust.is_up_to_date()).await;
    assert_eq!(known.revocations.as_ref().unwrap().number(), 2);
    leader
        .script
        .wait_reports(|reports| {
            let last = reports.last().and_then(|report| report.members_epoch);
            last.is_some_and(|epoch| (epoch.incarnation, epoch.epoch) == (1, 3))
        })
        .await;
    // They go on only as well, and the recovery key stays.
    let floor = |node: &Node| node.running().members.known().floors.of(&leader.node.id);
    assert_eq!(floor(&node), Some(at(2)));
    let recovery_key = node.running().role_serve.recovery_key();
    assert_eq!(*recovery_key.borrow(), Some([7; 32]));

    // Those of others and older ones change nothing; the phase beside them tells that they were looked at.
    let phase = node.running().role_serve.decommission();
    let members = node.running().role_serve.members();
    for (list, signed, beside) in [
        (revoked(&cluster.authority, 1), &older, DecommissionPhase::Requested),
        (revoked(&other.authority, 9), &foreign, DecommissionPhase::CleaningUp),
    ] {
        leader.script.set_orders(orders(&list, signed, beside));
        node.wait("looked at", phase.clone(), |phase| *phase == beside).await;
        assert_eq!(trust.borrow().revocations.as_ref().unwrap().number(), 2);
        assert_eq!(members.borrow().as_ref().unwrap().list().epoch().epoch, 3);
        assert_eq!(floor(&node), Some(at(if list.number() == 1 { 2 } else { 9 })));
        assert_eq!(*recovery_key.borrow(), Some([7; 32]));
    }

    // The next start has all of it before there is any contact, and says that it may have missed something.
    node.stop().await;
    leader.stop().await;
    node.start();
    let trust = node.running().role_serve.trust();
    let known = node.wait("revoking", trust, |trust| trust.revocations.is_some()).await;
    assert!(known.revocations.as_ref().unwrap().number() == 2 && !known.is_up_to_date());
    let members = node.running().role_serve.members();
    node.wait("listed", members, |members| members.as_ref().is_some_and(|members| members.list().epoch().epoch == 3))
        .await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_made_durable_is_not_fresh() {
    let (cluster, leader, mut node) = scene();
    let orders = |number| Orders {
        revocation_list: cluster.authority.certificate_revocation_list(number, &[]).der().to_vec(),
        ..Orders::default()
    };
    leader.script.set_orders(orders(2));
    node.start();
    let trust = node.running().role_serve.trust();
    node.wait("trusting", trust.clone(), |trust| trust.is_up_to_date()).await;
    // Nothing can be stored where no directory is.
    let directory = node.layout.data.node.directory.full_path();
    let aside = directory.with_extension("aside");
    std::fs::rename(&directory, &aside).unwrap();
    leader.script.set_orders(orders(3));
    let stale = node.wait("stale", trust.clone(), |trust| !trust.is_up_to_date()).await;
    assert_eq!(stale.revocations.as_ref().unwrap().number(), 2);
    std::fs::rename(&aside, &directory).unwrap();
    let fresh = node.wait("trusting again", trust, |trust| trust.is_up_to_date()).await;
    assert_eq!(fresh.revocations.as_ref().unwrap().number(), 3);
    finish(leader, node).await;
}

/// A list that the unlock port brings.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_others_bring_is_known_and_told_and_shows_the_way() {
    let cluster = TestCluster::default();
    let leader = Leader::start(cluster.node(), free_address());
    let mut node = Node::new(&cluster);
    leader.script.set_node(node.wire(NodeRoles::default()));
    node.start();
    let contact = node.running().role_serve.contact();
    node.wait("alone", contact, |contact| contact.last_failure.is_some()).await;
    let entry = |node: &TestNode, addresses| MemberEntry {
        node_id: node.id,
        public_key: node.key.public(),
        join_key: node.key.public(),
        share_key: None,
        addresses,
        standing: Standing::Stays,
    };
    let entries = vec![entry(&leader.node, vec![leader.ip]), entry(&node.node, Vec::new())];
    let brought = MemberList::new(cluster.authority_certificate().cluster_id(), at(4), entries);
    assert!(node.running().members.take_over(brought.sign(&cluster.authority)).await.unwrap());
    let members = node.running().role_serve.members();
    node.wait("listed", members, |members| members.as_ref().is_some_and(|members| members.list().epoch() == at(4)))
        .await;
    node.in_contact().await;
    let is_told = |reports: &Vec<_>| reports.last().is_some_and(|it| told(it).0 == Some(at(4)));
    leader.script.wait_reports(is_told).await;
    finish(leader, node).await;
}

/// The list, and how the key was split.
fn told(report: &polis_proto::enrolment::ReportNodeRequest) -> (Option<Epoch>, SplitReport) {
    (report.members_epoch.map(Epoch::from), report.split.clone().expect("a node always tells how it keeps its key"))
}

#[tokio::test(flavor = "multi_thread")]
async fn how_the_key_is_split_is_told_for_every_list_and_after_every_start() {
    let (_, leader, mut node) = scene();
    let mut all: Vec<SplitReport> = Vec::new();
    node.start();
    let expect = async |node: &Node, all: &mut Vec<SplitReport>, state: Option<SplitState>, report: SplitReport| {
        node.split.send_replace(state);
        all.push(report);
        leader.script.wait_reports(|reports| reports.len() >= all.len()).await;
    };
    // It can, and has not done so yet.
    expect(&node, &mut all, None, SplitReport::default()).await;
    let split = SplitState {
        list: at(4),
        split: at(4),
        shares_needed: 1,
        holders: BTreeSet::from([leader.node.id]),
        is_verified: false,
    };
    let report = SplitReport {
        epoch: Some(at(4).into()),
        shares_needed: 1,
        holders: vec![leader.node.id.to_string()],
        verified: false,
        list_epoch: Some(at(4).into()),
    };
    let (tried, tried_report) =
        (SplitState { is_verified: true, ..split.clone() }, SplitReport { verified: true, ..report.clone() });
    // The next list asks for what it has.
    let (fits, fits_report) = (
        SplitState { list: at(5), ..tried.clone() },
        SplitReport { list_epoch: Some(at(5).into()), ..tried_report.clone() },
    );
    expect(&node, &mut all, Some(split), report).await;
    expect(&node, &mut all, Some(tried), tried_report).await;
    expect(&node, &mut all, Some(fits.clone()), fits_report.clone()).await;
    node.stop().await;
    node.start();
    expect(&node, &mut all, Some(fits), fits_report).await;
    node.stop().await;
    let script = leader.stop().await;
    let reports: Vec<SplitReport> = script.reports().iter().map(|report| told(report).1).collect();
    assert_eq!(reports, all, "each once");
}
