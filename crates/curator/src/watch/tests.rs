//! Following nodes: the index against a model, and the whole over a real etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use polis_consensus::{Compacted, Phase, Transaction};
use polis_identity::{NodeId, NodeKey, SerialNumber};
use polis_proto::common::NodeState;
use polis_proto::curator_state::{DecommissionPhase, NodeEnrolment};
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, Runnable as _};
use proptest::prelude::*;
use prost::Message as _;
use tokio::sync::watch;

use super::index::Index;
use super::{AllNodes, Nodes, RecordChange};
use crate::common::{Etcd, record};
use crate::{LeaderState, NodeRecord, StateError, Tombstone, Versioned, layout};

/// What a reader has been told.
type Told = BTreeMap<NodeId, i64>;

fn tell(told: &mut Told, changes: Vec<RecordChange>) {
    for change in changes {
        match change {
            RecordChange::Present(record) => told.insert(record.value.id, record.revision),
            RecordChange::Deleted(id) => told.remove(&id),
        };
    }
}

proptest! {
    /// However far behind a reader is and however little it takes at a time, in the end it knows what is there; and it is never
    /// told of the deletion of a node that was gone before it began.
    #[test]
    fn a_reader_catches_up_with_whatever_happened(
        steps in prop::collection::vec((0..6_usize, any::<bool>(), prop::option::of(1..4_usize)), 0..60),
        begins_at in 0..30_usize,
    ) {
        let keys: Vec<NodeKey> = (0..6).map(|number| {
            NodeKey::from_secret(polis_secret::Secret32::new([number; 32]))
        }).collect();
        let records: Vec<Arc<NodeRecord>> = keys.iter().map(|key| Arc::new(record(key))).collect();
        let (mut index, mut truth, mut told) = (Index::default(), Told::new(), Told::new());
        let (mut after, mut began, mut gone_before) = (0, 0, BTreeSet::new());
        for (number, (node, is_put, read)) in steps.iter().enumerate() {
            if number == begins_at {
                began = index.latest();
                gone_before = records.iter().map(|record| record.id).filter(|id| !truth.contains_key(id)).collect();
            }
            let (id, revision) = (records[*node].id, i64::try_from(number).unwrap() + 1);
            if *is_put {
                index.set_record(id, Some(Versioned { value: Arc::clone(&records[*node]), revision }));
                truth.insert(id, revision);
            } else {
                index.set_record(id, None);
                truth.remove(&id);
            }
            if let Some(limit) = read.filter(|_| number >= begins_at) {
                let (changes, next) = index.changes(after, began, limit);
                prop_assert!(changes.len() <= limit);
                prop_assert!(next >= after);
                after = next;
                if number == begins_at {
                    let gone = changes.iter().filter(|change| matches!(change, RecordChange::Deleted(_)));
                    for change in gone {
                        prop_assert!(*change.node_id() == id || !gone_before.contains(change.node_id()));
                    }
                }
                tell(&mut told, changes);
            }
        }
        while after < index.latest() {
            let (changes, next) = index.changes(after, began, 2);
            prop_assert!(next > after, "each step gets further");
            after = next;
            tell(&mut told, changes);
        }
        prop_assert_eq!(told, truth);
        let (nothing, same) = index.changes(after, began, 2);
        prop_assert_eq!((nothing, same), (vec![], after));
    }
}

/// Runs the nodes of an etcd by themselves.
fn run(nodes: &Nodes) -> Harness {
    let nodes = nodes.clone();
    Harness::start(move |context: Context| {
        let nodes = nodes.clone();
        async move {
            context.run("nodes", move |context: Context| nodes.run(context))?;
            context.healthy();
            Err(context.cancelled().await.into())
        }
    })
}

fn nodes(etcd: &Etcd) -> Nodes {
    Nodes::new(etcd.state(), etcd.status())
}

async fn put(leader: &LeaderState, record: &NodeRecord) -> i64 {
    let transaction = Transaction::new().put(layout::node(&record.id), record.encode());
    leader.transact("test/put", transaction).await.unwrap().revision
}

async fn delete(leader: &LeaderState, id: &NodeId) {
    leader.transact("test/delete", Transaction::new().delete(layout::node(id))).await.unwrap();
}

fn present(change: RecordChange) -> Versioned<Arc<NodeRecord>> {
    match change {
        RecordChange::Present(record) => record,
        RecordChange::Deleted(id) => panic!("{id} was deleted"),
    }
}

/// Reads until a batch is complete, and returns which nodes it told of.
async fn batch(etcd: &Etcd, all: &mut AllNodes, limit: usize) -> Vec<RecordChange> {
    let mut found = Vec::new();
    loop {
        let changes = etcd.within("changes come", all.next(limit)).await;
        assert!(changes.changes.len() <= limit);
        found.extend(changes.changes);
        if changes.is_complete {
            return found;
        }
    }
}

#[tokio::test]
async fn one_node_is_followed_from_before_it_is_there_until_it_is_gone() {
    let (etcd, _) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let nodes = nodes(&etcd);
    let harness = run(&nodes);
    let [mut own, mut other] = [NodeKey::generate(), NodeKey::generate()].map(|key| record(&key));
    let (mut subscription, mut another) = (nodes.subscribe_node(own.id), nodes.subscribe_node(other.id));
    put(&leader, &other).await;
    present(etcd.within("the other is there", another.next_record()).await);
    let revision = put(&leader, &own).await;
    let told = present(etcd.within("it is there", subscription.next_record()).await);
    assert_eq!((&*told.value, told.revision), (&own, revision));
    own.state = NodeState::Decommissioned;
    let revision = put(&leader, &own).await;
    assert_eq!(present(etcd.within("it has changed", subscription.next_record()).await).revision, revision);
    // A change of what is beside the record is none of the record.
    let enrolment = NodeEnrolment { decommission: DecommissionPhase::Requested.into(), ..NodeEnrolment::default() };
    let beside = Transaction::new().put(layout::enrolment(&own.id), enrolment.encode_to_vec());
    leader.transact("test/put", beside).await.unwrap();
    let view = etcd.within("the enrolment is there", subscription.changed()).await;
    assert_eq!(*view.enrolment.unwrap().value, enrolment);
    assert_eq!(*view.record.unwrap().value, own);
    delete(&leader, &own.id).await;
    assert_eq!(etcd.within("it is gone", subscription.next_record()).await, RecordChange::Deleted(own.id));
    // The other subscriber has slept through all of it.
    other.state = NodeState::Standby;
    let revision = put(&leader, &other).await;
    assert_eq!(present(etcd.within("the other has changed", another.next_record()).await).revision, revision);
    // Who comes back is there again.
    let revision = put(&leader, &own).await;
    assert_eq!(present(etcd.within("it is back", subscription.next_record()).await).revision, revision);
    harness.finish().await;
    etcd.stop().await;
}

#[tokio::test]
async fn a_change_of_one_node_wakes_nobody_else() {
    let (etcd, _) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let nodes = nodes(&etcd);
    let harness = run(&nodes);
    etcd.within("the nodes are listed", nodes.listed()).await;
    let records: Vec<NodeRecord> = (0..20).map(|_| record(&NodeKey::generate())).collect();
    for record in &records {
        put(&leader, record).await;
    }
    let mut subscriptions: Vec<_> = records.iter().map(|record| nodes.subscribe_node(record.id)).collect();
    for subscription in &mut subscriptions {
        etcd.within("it is there", subscription.next_record()).await;
        let _ = subscription.view();
    }
    put(&leader, &records[7]).await;
    etcd.within("the seventh has changed", subscriptions[7].next_record()).await;
    for (number, subscription) in subscriptions.iter_mut().enumerate() {
        let woken = tokio::task::unconstrained(subscription.changed());
        assert!(futures::FutureExt::now_or_never(woken).is_none(), "{number} was woken");
    }
    harness.finish().await;
    etcd.stop().await;
}

#[tokio::test]
async fn a_node_that_was_deleted_before_is_told_as_such() {
    let (etcd, cluster) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let key = NodeKey::generate().public();
    let tombstone = Tombstone { cluster_id: cluster.authority.cluster_id(), public_key: key, reason: "test".into() };
    let signed = tombstone.sign(&leader.authority().await.unwrap());
    let id = NodeId::of(&key);
    leader.transact("test/delete", Transaction::new().put(layout::tombstone(&id), signed.encode())).await.unwrap();
    let nodes = nodes(&etcd);
    let harness = run(&nodes);
    let mut subscription = nodes.subscribe_node(id);
    assert_eq!(etcd.within("it is gone", subscription.next_record()).await, RecordChange::Deleted(id));
    assert_eq!(nodes.view(&id).tombstone.as_deref(), Some(&signed.encode()[..]));
    harness.finish().await;
    etcd.stop().await;
}

#[tokio::test]
async fn all_nodes_come_in_batches_and_then_their_changes() {
    let (etcd, _) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let mut records: Vec<NodeRecord> = (0..7).map(|_| record(&NodeKey::generate())).collect();
    for record in &records {
        put(&leader, record).await;
    }
    let nodes = nodes(&etcd);
    let mut early = nodes.subscribe_all();
    let harness = run(&nodes);
    let ids = |changes: &[RecordChange]| changes.iter().map(|change| *change.node_id()).collect::<BTreeSet<_>>();
    let backlog = batch(&etcd, &mut early, 3).await;
    assert_eq!(backlog.len(), 8);
    assert_eq!(ids(&backlog), nodes.living().into_iter().collect());

    records[2].state = NodeState::Standby;
    put(&leader, &records[2]).await;
    let changes = batch(&etcd, &mut early, 3).await;
    assert_eq!(ids(&changes), BTreeSet::from([records[2].id]));
    // A slow reader gets the newest state of each node once.
    for _ in 0..50 {
        put(&leader, &records[3]).await;
    }
    let revision = put(&leader, &records[3]).await;
    delete(&leader, &records[4].id).await;
    let mut follower = nodes.subscribe_node(records[4].id);
    let mut view = follower.view();
    while view.record.is_some() {
        view = etcd.within("it is gone", follower.changed()).await;
    }
    let changes = batch(&etcd, &mut early, 1).await;
    let [RecordChange::Present(third), RecordChange::Deleted(fourth)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((third.value.id, third.revision, *fourth), (records[3].id, revision, records[4].id));

    // Who comes later is not told of a node that it has never seen.
    let mut late = nodes.subscribe_all();
    let backlog = batch(&etcd, &mut late, 100).await;
    assert_eq!(ids(&backlog), nodes.living().into_iter().collect());
    assert!(backlog.iter().all(|change| matches!(change, RecordChange::Present(_))), "{backlog:?}");
    delete(&leader, &records[5].id).await;
    for reader in [&mut early, &mut late] {
        assert_eq!(batch(&etcd, reader, 100).await, [RecordChange::Deleted(records[5].id)]);
    }
    harness.finish().await;
    etcd.stop().await;
}

#[tokio::test]
async fn an_empty_backlog_is_told_at_once() {
    let etcd = Etcd::start().await;
    etcd.give_birth().await;
    let leader = etcd.lead().await;
    delete(&leader, &etcd.node_id()).await;
    let nodes = nodes(&etcd);
    let harness = run(&nodes);
    let mut all = nodes.subscribe_all();
    let first = etcd.within("the empty backlog comes", all.next(10)).await;
    assert_eq!((first.changes, first.is_complete), (vec![], true));
    harness.finish().await;
    etcd.stop().await;
}

#[tokio::test]
async fn after_a_compaction_everything_is_listed_again() {
    let (etcd, cluster) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let [gone, changed, new] = [(); 3].map(|()| record(&NodeKey::generate()));
    put(&leader, &gone).await;
    let seen = put(&leader, &changed).await;
    let nodes = nodes(&etcd);
    nodes.take(nodes.list().await.unwrap());
    let mut all = nodes.subscribe_all();
    assert_eq!(batch(&etcd, &mut all, 10).await.len(), 3);
    let mut subscription = nodes.subscribe_node(gone.id);
    present(etcd.within("it is there", subscription.next_record()).await);

    // What happens while nobody watches, and is no longer kept when somebody does.
    delete(&leader, &gone.id).await;
    put(&leader, &new).await;
    let latest = put(&leader, &changed).await;
    etcd.compact(latest);
    let outcome = etcd.within("the compaction is seen", nodes.follow_changes(seen, &cluster.authority)).await;
    assert_eq!(outcome, Compacted { oldest: latest });
    let harness = run(&nodes);
    assert_eq!(etcd.within("it is gone", subscription.next_record()).await, RecordChange::Deleted(gone.id));
    let changes = batch(&etcd, &mut all, 10).await;
    let present: BTreeSet<_> = changes
        .iter()
        .filter(|change| matches!(change, RecordChange::Present(_)))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|change| *change.node_id())
        .collect();
    assert_eq!(present, BTreeSet::from([changed.id, new.id]));
    assert!(changes.contains(&RecordChange::Deleted(gone.id)));
    // And it goes on from there.
    let revision = put(&leader, &new).await;
    let changes = batch(&etcd, &mut all, 10).await;
    assert!(matches!(&changes[..], [RecordChange::Present(record)] if record.revision == revision), "{changes:?}");
    harness.finish().await;
    etcd.stop().await;
}

#[tokio::test]
async fn a_damaged_record_hides_no_other_change() {
    let (etcd, _) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let [damaged, good] = [(); 2].map(|()| record(&NodeKey::generate()));
    put(&leader, &damaged).await;
    let nodes = nodes(&etcd);
    let harness = run(&nodes);
    let mut subscription = nodes.subscribe_node(damaged.id);
    let before = present(etcd.within("it is there", subscription.next_record()).await);
    etcd.root().put("test/damage", layout::node(&damaged.id), "\u{ff}").await.unwrap();
    put(&leader, &good).await;
    let mut other = nodes.subscribe_node(good.id);
    present(etcd.within("the next change is told", other.next_record()).await);
    assert_eq!(nodes.get(&damaged.id), Some(before), "what was known is kept");
    harness.finish().await;
    etcd.stop().await;
}

#[tokio::test]
async fn trust_and_orders_follow_deletions_revocations_and_the_member() {
    let (etcd, cluster) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let nodes = nodes(&etcd);
    let (mut trust, mut orders) = (nodes.trust(), nodes.orders());
    assert!(!trust.borrow().is_up_to_date(), "nobody follows yet");
    let harness = run(&nodes);
    let known =
        etcd.within("the list is known", trust.wait_for(|trust| trust.revocations.is_some())).await.unwrap().clone();
    assert!(known.revocations.as_ref().unwrap().revoked().is_empty());
    etcd.within("it has contact", trust.wait_for(|trust| trust.is_up_to_date())).await.unwrap();
    let order = etcd
        .within("orders come", orders.wait_for(|orders| orders.signed_list.is_some() && !orders.members.is_empty()))
        .await
        .unwrap()
        .clone();
    let [founder] = &order.members[..] else { panic!("{order:?}") };
    assert_eq!((founder.public_key, founder.is_learner, founder.is_started), (etcd.node_key.public(), false, true));

    // A deletion, as it is made: record, tombstone and revocation in one transaction.
    let key = NodeKey::generate();
    let doomed = record(&key);
    put(&leader, &doomed).await;
    let tombstone =
        Tombstone { cluster_id: cluster.authority.cluster_id(), public_key: key.public(), reason: "test".into() };
    let signed = tombstone.sign(&leader.authority().await.unwrap());
    let revocation = leader.revoke([SerialNumber::from(77)]).await.unwrap();
    let transaction =
        Transaction::new().delete(layout::node(&doomed.id)).put(layout::tombstone(&doomed.id), signed.encode());
    leader.transact("test/delete", revocation.add_to(transaction)).await.unwrap();
    let is_complete = |trust: &Arc<polis_rpc::Trust>| {
        trust.removed_nodes.get(&doomed.id) == Some(&signed.encode())
            && trust.revocations.as_ref().is_some_and(|list| list.revoked().contains(&SerialNumber::from(77)))
    };
    etcd.within("the deletion is known", trust.wait_for(is_complete)).await.unwrap();
    let list = revocation.list().der();
    etcd.within("the order goes out", orders.wait_for(|orders| orders.revocation_list == list)).await.unwrap();

    // The founder moves: those who look for members hear of it.
    let address = "127.9.9.9";
    let moved = |record: Option<&NodeRecord>| {
        let mut record = record.unwrap().clone();
        record.status =
            Some(polis_proto::common::NodeStatus { external_address: address.into(), ..Default::default() });
        Ok::<_, StateError>(Some(record))
    };
    leader.update_node("test/move", &etcd.node_id(), moved).await.unwrap();
    let wanted: Vec<std::net::IpAddr> = vec![address.parse().unwrap()];
    etcd.within("the address is known", orders.wait_for(|orders| orders.members[0].addresses == wanted)).await.unwrap();
    harness.finish().await;
    assert!(!trust.borrow_and_update().is_up_to_date(), "nobody follows any more");
    etcd.stop().await;
}

#[tokio::test]
async fn contact_is_claimed_only_once_all_is_known_that_was_missed() {
    let (etcd, cluster) = Etcd::start_cluster().await;
    let leader = etcd.lead().await;
    let status = watch::Sender::new(etcd.status().borrow().clone());
    let nodes = Nodes::new(etcd.state(), status.subscribe());
    let mut trust = nodes.trust();
    let cluster_id = cluster.authority.cluster_id();
    let delete_one = async || {
        let tombstone = Tombstone { cluster_id, public_key: NodeKey::generate().public(), reason: "test".into() };
        let id = tombstone.node_id();
        let signed = tombstone.sign(&leader.authority().await.unwrap());
        let transaction = Transaction::new().put(layout::tombstone(&id), signed.encode());
        leader.transact("test/delete", transaction).await.unwrap();
        id
    };
    let before = delete_one().await;
    let harness = run(&nodes);
    let known = etcd.within("it has contact", trust.wait_for(|trust| trust.is_up_to_date())).await.unwrap().clone();
    assert!(known.removed_nodes.contains_key(&before) && known.revocations.is_some(), "{known:?}");
    // The member loses its quorum, and a node is deleted meanwhile.
    status.send_modify(|status| status.phase = Phase::Leaderless);
    etcd.within("it has no contact", trust.wait_for(|trust| !trust.is_up_to_date())).await.unwrap();
    let meanwhile = delete_one().await;
    status.send_modify(|status| status.phase = Phase::Ready);
    let known = etcd.within("it has contact", trust.wait_for(|trust| trust.is_up_to_date())).await.unwrap().clone();
    assert!(known.removed_nodes.contains_key(&meanwhile), "{known:?}");
    harness.finish().await;
    etcd.stop().await;
}

#[tokio::test]
async fn nothing_is_kept_for_subscriptions_that_are_gone() {
    let etcd = Etcd::start().await;
    let nodes = nodes(&etcd);
    let id = NodeId::of(&NodeKey::generate().public());
    let (one, two) = (nodes.subscribe_node(id), nodes.subscribe_node(id));
    assert_eq!(nodes.index().size(), 1);
    drop(one);
    assert_eq!(nodes.index().size(), 1, "the other is still there");
    drop(two);
    assert_eq!(nodes.index().size(), 0);
    etcd.stop().await;
}
