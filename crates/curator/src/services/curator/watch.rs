//! Watch: nodes as they are and as they change.
//!
//! However many watch, the state is followed once for this process (`crate::watch`). A client that reads slowly holds
//! nothing up: it gets the newest state of what has changed meanwhile.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use polis_identity::NodeId;
use polis_proto::curator_api::watch_event::{NodeTombstone, Progress};
use polis_proto::curator_api::watch_request::Kind;
use polis_proto::curator_api::{Node, WatchEvent, WatchRequest};
use prost::Message as _;
use tonic::Status;

use crate::NodeRecord;
use crate::services::core::{Core, parse_id};
use crate::services::leader::Tenure;
use crate::watch::{AllNodes, Changes, NodeSubscription, RecordChange};

/// Largest event, in bytes (metropolis.md, G.4). Clients refuse messages of more than 4 MiB.
const MAX_EVENT_SIZE: usize = 2 << 20;

/// Nodes that are taken at once. More would only wait in memory.
const BATCH: usize = 256;

type Events = BoxStream<'static, Result<WatchEvent, Status>>;

/// Watches what the request says.
pub(super) fn watch(core: &Arc<Core>, request: WatchRequest) -> Result<Events, Status> {
    let tenure = core.tenure()?;
    match request.kind {
        Some(Kind::NodeInCluster(node)) => {
            let id = parse_id("node_id", &node.node_id)?;
            Ok(one(tenure, core.nodes.subscribe_node(id)))
        }
        Some(Kind::NodesInCluster(_)) => Ok(all(tenure, core.nodes.subscribe_all())),
        None => Err(Status::unimplemented("kind is not set, or is of a kind that this version does not know")),
    }
}

/// Each state of one node. One that does not exist is waited for.
fn one(tenure: Tenure, subscription: NodeSubscription) -> Events {
    let events = stream::unfold(Some((tenure, subscription)), async |watch| {
        let (mut tenure, mut subscription) = watch?;
        tokio::select! {
            status = tenure.ended() => Some((Err(status), None)),
            change = subscription.next_record() => {
                let mut event = WatchEvent::default();
                add(&mut event, &change);
                Some((Ok(event), Some((tenure, subscription))))
            }
        }
    });
    events.boxed()
}

/// All nodes, and then each change.
fn all(tenure: Tenure, nodes: AllNodes) -> Events {
    /// Whether everything that was there at the beginning has been sent.
    type IsComplete = bool;
    let batches = stream::unfold(Some((tenure, nodes, IsComplete::default())), async |watch| {
        let (mut tenure, mut nodes, is_complete) = watch?;
        tokio::select! {
            status = tenure.ended() => Some((vec![Err(status)], None)),
            changes = nodes.next(BATCH) => {
                let is_last_of_backlog = changes.is_complete && !is_complete;
                let events = pack(&changes, is_last_of_backlog).into_iter().map(Ok).collect();
                let is_complete = is_complete || is_last_of_backlog;
                Some((events, Some((tenure, nodes, is_complete))))
            }
        }
    });
    batches.flat_map(|events: Vec<_>| stream::iter(events)).boxed()
}

/// Puts changes into as few events as there must be. Flags the last one, if they are the end of what was there at the beginning.
fn pack(changes: &Changes, is_last_of_backlog: bool) -> Vec<WatchEvent> {
    let mut events = vec![WatchEvent::default()];
    let mut size = 0;
    for change in &changes.changes {
        let mut single = WatchEvent::default();
        add(&mut single, change);
        let added = single.encoded_len();
        if size > 0 && size + added > MAX_EVENT_SIZE {
            events.push(WatchEvent::default());
            size = 0;
        }
        size += added;
        let last = events.last_mut().expect("there is always one");
        last.nodes.append(&mut single.nodes);
        last.node_tombstones.append(&mut single.node_tombstones);
    }
    if is_last_of_backlog {
        let last = events.last_mut().expect("there is always one");
        last.set_progress(Progress::LastBacklogged);
    }
    events
}

fn add(event: &mut WatchEvent, change: &RecordChange) {
    match change {
        RecordChange::Present(record) => event.nodes.push(public(&record.value)),
        RecordChange::Deleted(id) => event.node_tombstones.push(tombstone(id)),
    }
}

fn tombstone(id: &NodeId) -> NodeTombstone {
    NodeTombstone { node_id: id.to_string() }
}

/// A node, as other nodes see it: without keys.
fn public(record: &NodeRecord) -> Node {
    Node {
        id: record.id.to_string(),
        roles: Some(record.roles.clone()),
        status: record.status.clone(),
        clusternet: record.clusternet.clone(),
        state: record.state.into(),
        labels: Some(record.labels.to_wire()),
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;
    use polis_proto::common::NodeRoles;
    use polis_proto::common::node_roles::ConsensusMember;

    use super::*;
    use crate::Versioned;

    fn record(certificate_size: usize) -> RecordChange {
        let member = ConsensusMember { ca_certificate: vec![7; certificate_size], ..ConsensusMember::default() };
        let record = NodeRecord {
            roles: NodeRoles { consensus_member: Some(member), ..NodeRoles::default() },
            cluster_unlock_key: Some(polis_secret::Secret32::new([0x5a; 32])),
            ..crate::common::record(&NodeKey::generate())
        };
        RecordChange::Present(Versioned { value: Arc::new(record), revision: 1 })
    }

    #[test]
    fn events_are_as_large_as_they_may_be_and_no_larger() {
        let size = 300 * 1024;
        let mut changes: Vec<_> = (0..20).map(|_| record(size)).collect();
        changes.push(RecordChange::Deleted(NodeId::of(&NodeKey::generate().public())));
        let events = pack(&Changes { changes: changes.clone(), is_complete: true }, true);
        assert_eq!(events.iter().map(|event| event.nodes.len()).collect::<Vec<_>>(), [6, 6, 6, 2]);
        assert_eq!(events.iter().map(|event| event.node_tombstones.len()).sum::<usize>(), 1);
        assert!(events.iter().all(|event| event.encoded_len() <= MAX_EVENT_SIZE));
        let flags: Vec<_> = events.iter().map(WatchEvent::progress).collect();
        assert_eq!(flags[..3], [Progress::Unspecified; 3]);
        assert_eq!(flags[3], Progress::LastBacklogged);
        let ids: Vec<_> = events.iter().flat_map(|event| &event.nodes).map(|node| node.id.clone()).collect();
        let expected: Vec<_> = changes[..20].iter().map(|change| change.node_id().to_string()).collect();
        assert_eq!(ids, expected);
    }

    #[test]
    fn an_empty_backlog_is_one_flagged_event() {
        let events = pack(&Changes { changes: Vec::new(), is_complete: true }, true);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].progress(), Progress::LastBacklogged);
        // A node that is too large for an event still gets one.
        let events = pack(&Changes { changes: vec![record(3 << 20), record(1)], is_complete: true }, false);
        assert_eq!(events.iter().map(|event| event.nodes.len()).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn others_see_no_keys() {
        let RecordChange::Present(found) = record(1) else { panic!("it is there") };
        let bytes = public(&found.value).encode_to_vec();
        for secret in [&[0x5a; 32][..], found.value.join_key.as_bytes(), found.value.public_key.as_bytes()] {
            assert!(bytes.windows(32).all(|part| part != secret));
        }
    }
}
