//! The leader's state over a real etcd: fenced, versioned, and with its certificates.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Etcd, record};
use polis_consensus::Transaction;
use polis_curator::{
    LeaderState, NodeRecord, Seen, SignedTombstone, StateError, Tombstone, UPDATE_ATTEMPTS, claim, layout,
};
use polis_identity::{NodeId, NodeKey, SerialNumber, verify_node_in_cluster};
use polis_proto::common::NodeState;
use polis_proto::curator_state::{self, NodeEnrolment};
use polis_unlock::{Epoch, SignedMemberList};

fn new_node(key: &NodeKey) -> impl FnMut(Option<&NodeRecord>) -> Result<Option<NodeRecord>, StateError> {
    let record = record(key);
    move |known| Ok(known.is_none().then(|| record.clone()))
}

async fn add(leader: &LeaderState, key: &NodeKey) -> i64 {
    let id = NodeId::of(&key.public());
    leader.update_node("test/add", &id, new_node(key)).await.unwrap().unwrap().revision
}

#[tokio::test]
async fn a_cluster_is_born_with_its_first_member_list() {
    let (etcd, cluster) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let list = leader.get_message::<curator_state::SignedMemberList>(&layout::epoch()).await.unwrap().unwrap();
    let list = SignedMemberList::verify(list.value, &cluster.authority).unwrap();
    assert_eq!(list.list().epoch(), Epoch::FIRST);
    let [founder] = list.list().members() else { panic!("{list:?}") };
    assert_eq!(founder.public_key, etcd.node_key.public());
    assert_eq!(founder.join_key, etcd.join_key.public());
    assert_eq!(founder.share_key, Some(etcd.share_key.public()));
    assert_eq!(founder.addresses, etcd.address.borrow().into_iter().collect::<Vec<_>>());
    let enrolment = leader.get_message::<NodeEnrolment>(&layout::enrolment(&etcd.node_id())).await.unwrap().unwrap();
    assert_eq!(enrolment.value.share_key, etcd.share_key.public().as_bytes());
    etcd.stop().await;
}

#[tokio::test]
async fn a_deposed_leader_can_neither_write_nor_read() {
    let (etcd, _) = Etcd::start_cluster().await;
    let old = etcd.lead().await;
    old.transact("test/write", Transaction::new().put("key", "old")).await.unwrap();
    assert!(!old.is_lost());
    let new = etcd.lead().await;
    let lost = |error| assert!(matches!(error, StateError::LostLeadership), "{error:?}");
    lost(old.transact("test/write", Transaction::new().put("key", "late")).await.unwrap_err());
    assert!(old.is_lost(), "it has noticed");
    etcd.within("the loss is told", old.lost()).await;
    lost(old.node(&etcd.node_id()).await.unwrap_err());
    lost(old.nodes().await.unwrap_err());
    lost(old.get("key").await.unwrap_err());
    lost(old.update_node("test/add", &etcd.node_id(), new_node(&etcd.node_key)).await.unwrap_err());
    lost(old.issue_node_certificate("test/issue", &NodeKey::generate().public(), 1).await.unwrap_err());
    lost(old.ensure_authority("test/authority", "some-ca", "Some CA").await.unwrap_err());
    assert_eq!(new.get("key").await.unwrap().unwrap().value, b"old");
    // A key that is gone is as good as one that was changed.
    etcd.root().delete("test/delete", layout::leader()).await.unwrap();
    lost(new.transact("test/write", Transaction::new().put("key", "later")).await.unwrap_err());
    etcd.stop().await;
}

#[tokio::test]
async fn a_claim_is_only_good_for_what_was_seen() {
    let (etcd, _) = Etcd::start_cluster().await;
    let (state, node) = (etcd.state(), etcd.node_id());
    let claim = |seen| claim(&state, &node, 1, seen);
    let (first, has_member_list) = claim(Seen::default()).await.unwrap();
    assert!(has_member_list);
    assert!(claim(Seen::default()).await.is_err(), "there is a claim by now");
    let seen = etcd.root().get(layout::leader()).await.unwrap().unwrap().mod_revision;
    assert!(claim(Seen { claim: seen, alive: Some(0) }).await.is_err(), "there is a sign of life by now");
    assert!(!first.is_lost());
    first.transact("test/write", Transaction::new().put("key", "value")).await.unwrap();
    let alive = etcd.root().get(layout::leader_alive()).await.unwrap().unwrap().mod_revision;
    claim(Seen { claim: seen, alive: Some(alive) }).await.unwrap();
    assert!(matches!(first.read(Transaction::new()).await, Err(StateError::LostLeadership)));
    etcd.stop().await;
}

#[tokio::test]
async fn a_conflict_is_no_loss_of_the_leadership() {
    let (etcd, _) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let transaction = Transaction::new().if_absent(layout::cluster_configuration()).put("key", "value");
    let error = leader.transact("test/write", transaction).await.unwrap_err();
    assert!(matches!(error, StateError::Conflict), "{error:?}");
    assert!(!leader.is_lost());
    assert_eq!(leader.get("key").await.unwrap(), None);
    etcd.stop().await;
}

#[tokio::test]
async fn changes_of_one_node_at_the_same_time_all_happen() {
    let (etcd, _) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let id = etcd.node_id();
    let calls = AtomicU32::new(0);
    let numbers = 0..8_u8;
    let updates = numbers.clone().map(|number| {
        let (leader, calls) = (leader.clone(), &calls);
        async move {
            let decide = |record: Option<&NodeRecord>| {
                calls.fetch_add(1, Ordering::Relaxed);
                let mut record = record.unwrap().clone();
                let mut status = record.status.take().unwrap_or_default();
                status.boot_id.push(number);
                record.status = Some(status);
                Ok::<_, StateError>(Some(record))
            };
            leader.update_node("test/update", &id, decide).await
        }
    });
    for updated in futures::future::join_all(updates).await {
        updated.unwrap();
    }
    let mut found = leader.node(&id).await.unwrap().unwrap().value.status.unwrap().boot_id;
    found.sort_unstable();
    assert!(found.iter().copied().eq(numbers), "each change is there, and once: {found:?}");
    assert!(calls.load(Ordering::Relaxed) >= 8);
    etcd.stop().await;
}

#[tokio::test]
async fn a_change_that_always_conflicts_is_given_up() {
    let (etcd, _) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let mut calls = 0;
    let outcome = leader
        .update_node_and("test/update", &etcd.node_id(), |record| {
            calls += 1;
            Ok::<_, StateError>(record.cloned().map(|record| (record, Transaction::new().if_present("nowhere"))))
        })
        .await;
    assert!(matches!(outcome, Err(StateError::Conflict)), "{outcome:?}");
    assert_eq!(calls, UPDATE_ATTEMPTS);
    etcd.stop().await;
}

#[tokio::test]
async fn nodes_are_listed_as_they_are() {
    let (etcd, _) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let keys: Vec<NodeKey> = (0..5).map(|_| NodeKey::generate()).collect();
    for key in &keys {
        add(&leader, key).await;
    }
    let ids = |nodes: Vec<polis_curator::Versioned<Arc<NodeRecord>>>| {
        nodes.into_iter().map(|node| (node.value.id, node.value.state)).collect::<BTreeSet<_>>()
    };
    let first = leader.nodes().await.unwrap();
    // Checking the keys of a record is most of the work of a list: it is done once for each change of the record.
    let same = leader.nodes().await.unwrap();
    assert!(first.iter().zip(&same).all(|(one, again)| Arc::ptr_eq(&one.value, &again.value)), "decoded once");
    let all = ids(first);
    assert_eq!(all.len(), 6);
    // The second list is answered from what was decoded for the first, except for what has changed.
    let changed = NodeId::of(&keys[0].public());
    let decommission = |record: Option<&NodeRecord>| {
        Ok::<_, StateError>(record.map(|record| NodeRecord { state: NodeState::Decommissioned, ..record.clone() }))
    };
    leader.update_node("test/update", &changed, decommission).await.unwrap();
    let gone = NodeId::of(&keys[1].public());
    leader.transact("test/delete", Transaction::new().delete(layout::node(&gone))).await.unwrap();
    let mut expected = all;
    expected.retain(|(id, _)| *id != gone && *id != changed);
    expected.insert((changed, NodeState::Decommissioned));
    assert_eq!(ids(leader.nodes().await.unwrap()), expected);
    assert_eq!(ids(etcd.state().nodes().await.unwrap()), expected);
    etcd.stop().await;
}

#[tokio::test]
async fn damage_is_named_by_its_key() {
    let (etcd, _) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let (own, other) = (NodeKey::generate(), NodeKey::generate());
    let id = NodeId::of(&own.public());
    let mut unknown = record(&own).to_wire();
    unknown.fsm_state = 77;
    let cases: [(&str, Vec<u8>); 3] = [
        ("not a message", b"\xff\xff".to_vec()),
        ("another node's", record(&other).encode()),
        ("an unknown state", prost::Message::encode_to_vec(&unknown)),
    ];
    for (what, value) in cases {
        etcd.root().put("test/damage", layout::node(&id), value).await.unwrap();
        for error in [leader.node(&id).await.map(|_| ()).unwrap_err(), leader.nodes().await.map(|_| ()).unwrap_err()] {
            let StateError::Damaged { key, .. } = &error else { panic!("{what}: {error:?}") };
            assert_eq!(*key, layout::node(&id), "{what}");
            assert_eq!(tonic::Status::from(error).code(), tonic::Code::Internal, "{what}");
        }
    }
    etcd.stop().await;
}

#[tokio::test]
async fn certificates_are_issued_once_and_revoked_for_good() {
    let (etcd, cluster) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let node_key = NodeKey::generate();
    let (key, id) = (node_key.public(), NodeId::of(&node_key.public()));
    let read_at = add(&leader, &node_key).await;
    // The record changes between the look at it and the certificate, as when the node is deleted.
    leader.transact("test/delete", Transaction::new().delete(layout::node(&id))).await.unwrap();
    let late = leader.issue_node_certificate("test/issue", &key, read_at).await;
    assert!(matches!(late, Err(StateError::Conflict)), "{late:?}");
    assert!(leader.node_certificate(&id).await.unwrap().is_none(), "nothing was issued to a node that is no more");
    let revision = add(&leader, &node_key).await;
    let issued = leader.issue_node_certificate("test/issue", &key, revision).await.unwrap();
    assert_eq!(verify_node_in_cluster(&issued, &cluster.authority).unwrap().public_key, key);
    assert_eq!(leader.issue_node_certificate("test/issue", &key, revision).await.unwrap(), issued, "the same again");
    let founder = leader.issue_node_certificate("test/issue", &etcd.node_key.public(), revision).await.unwrap();
    assert_eq!(founder, cluster.node_certificate, "that of the birth");

    assert_eq!(leader.revocations().await.unwrap().value.number(), 1);
    let serials = [SerialNumber::from(4), SerialNumber::from(9)];
    for (number, serial) in (2..).zip(&serials) {
        let change = leader.revoke([serial.clone()]).await.unwrap();
        assert_eq!(change.list().number(), number);
        leader.transact("test/revoke", change.add_to(Transaction::new().put("with", "it"))).await.unwrap();
        let late = leader.transact("test/revoke", change.add_to(Transaction::new().put("with", "late"))).await;
        assert!(matches!(late, Err(StateError::Conflict)), "a list is made from the one before: {late:?}");
    }
    let revoked = leader.revocations().await.unwrap().value;
    assert_eq!(revoked.revoked().iter().cloned().collect::<Vec<_>>(), serials);
    etcd.stop().await;
}

#[tokio::test]
async fn an_authority_of_a_service_is_made_at_its_first_use_and_kept() {
    let (etcd, _) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let made = futures::future::join_all(
        (0..4).map(|_| leader.ensure_authority("test/authority", "kubernetes-ca", "Kubernetes CA")),
    );
    let made: Vec<_> = made.await.into_iter().map(|made| made.unwrap().certificate().clone()).collect();
    assert!(made.iter().all(|certificate| *certificate == made[0]), "all who ask at once get the same");
    assert_eq!(made[0].certificate().common_name(), Some("Kubernetes CA"));
    let stored = leader.issued_certificate("kubernetes-ca").await.unwrap().unwrap();
    assert_eq!(stored.value, *made[0].certificate());
    // Half of an authority is damage, and nothing is made over it.
    etcd.root().delete("test/damage", layout::issued_certificate("kubernetes-ca")).await.unwrap();
    let error = leader.ensure_authority("test/authority", "kubernetes-ca", "Kubernetes CA").await.unwrap_err();
    assert!(matches!(error, StateError::Damaged { .. }), "{error:?}");
    etcd.stop().await;
}

#[tokio::test]
async fn peers_have_certificates_of_their_own() {
    let (etcd, _) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let (key, id) = (etcd.node_key.public(), etcd.node_id());
    let own = leader.issue_peer_certificate("test/issue", &key).await.unwrap();
    assert_eq!(leader.issue_peer_certificate("test/issue", &key).await.unwrap(), own, "that of the birth, again");
    let change = leader.revoke_peer(&id).await.unwrap().unwrap();
    assert_eq!(change.list().number(), 2);
    leader.transact("test/revoke", change.add_to(Transaction::new())).await.unwrap();
    let revoked = leader.peer_revocations().await.unwrap().value;
    assert!(revoked.revoked().contains(own.serial_number()));
    assert!(leader.revoke_peer(&id).await.unwrap().is_none(), "revoked already");
    assert!(leader.revoke_peer(&NodeId::of(&NodeKey::generate().public())).await.unwrap().is_none(), "it has none");
    let again = leader.issue_peer_certificate("test/issue", &key).await.unwrap();
    assert_ne!(again, own, "who returns gets a new one");
    assert!(!leader.peer_revocations().await.unwrap().value.revoked().contains(again.serial_number()));
    etcd.stop().await;
}

#[tokio::test]
async fn a_tombstone_is_believed_by_those_who_know_the_authority() {
    let (etcd, cluster) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let public_key = NodeKey::generate().public();
    let tombstone =
        Tombstone { cluster_id: cluster.authority.cluster_id(), public_key, reason: "it was deleted".into() };
    let signed = tombstone.clone().sign(&leader.authority().await.unwrap());
    let wire: curator_state::SignedTombstone = prost::Message::decode(&signed.encode()[..]).unwrap();
    assert_eq!(*SignedTombstone::verify(wire.clone(), &cluster.authority).unwrap().tombstone(), tombstone);
    let other = polis_identity::CertificateAuthority::generate("Other CA");
    assert!(SignedTombstone::verify(wire, other.certificate()).is_err());
    etcd.stop().await;
}
