//! That messages look on the wire as the contract says: numbers of fields, and names in an Any.

use polis_proto::api::{EscrowRequest, LogsRequest, UpdateNodeRolesRequest, logs_request, update_node_roles_request};
use polis_proto::common::log_filter::{Filter, LeveledWithMinimumSeverity};
use polis_proto::common::{LogFilter, NodeState, NodeStorageSecurity};
use polis_proto::curator_api::watch_event::{NodeTombstone, Progress};
use polis_proto::curator_api::{CommitNodeRequest, Node, WatchEvent};
use polis_proto::curator_private::RegisterTicket;
use polis_proto::google_rpc::Status;
use polis_proto::logtree::LeveledLogSeverity;
use polis_proto::node_private::SealedConfiguration;
use polis_proto::rpc_detail::LeaderHint;
use prost::{Message, Name};
use prost_types::Any;

/// That a message is these bytes, and that they are the message. Not `assert_eq`, since some messages have no Debug.
#[track_caller]
fn is<M: Message + Default + PartialEq>(message: M, bytes: &[u8]) {
    assert_eq!(message.encode_to_vec(), bytes);
    assert!(M::decode(bytes).unwrap() == message);
}

#[test]
fn register_ticket() {
    is(RegisterTicket { opaque: vec![7; 2] }, &[0x0a, 2, 7, 7]);
}

#[test]
fn commit_node_request() {
    let message = CommitNodeRequest {
        cluster_unlock_key: vec![1],
        storage_security: NodeStorageSecurity::AuthenticatedEncrypted.into(),
    };
    is(message, &[0x0a, 1, 1, 0x10, 3]);
}

#[test]
fn sealed_configuration() {
    let message = SealedConfiguration {
        node_unlock_key: vec![1],
        join_key: vec![2],
        cluster_ca: vec![3],
        storage_security: NodeStorageSecurity::Insecure.into(),
    };
    is(message, &[0x0a, 1, 1, 0x12, 1, 2, 0x1a, 1, 3, 0x20, 1]);
}

#[test]
fn watch_event() {
    let message = WatchEvent {
        nodes: vec![Node { id: "a".to_owned(), state: NodeState::Up.into(), ..Node::default() }],
        progress: Progress::LastBacklogged.into(),
        node_tombstones: vec![NodeTombstone { node_id: "b".to_owned() }],
    };
    is(message, &[0x0a, 5, 0x0a, 1, b'a', 0x28, 3, 0x10, 1, 0x1a, 3, 0x0a, 1, b'b']);
}

#[test]
fn update_node_roles_request() {
    let message = UpdateNodeRolesRequest {
        node: Some(update_node_roles_request::Node::Id("a".to_owned())),
        kubernetes_worker: None,
        kubernetes_controller: Some(true),
        consensus_member: Some(false),
    };
    // A decision to take a role is sent, one to leave it is not. The member of the oneof comes first.
    is(message, &[0x22, 1, b'a', 0x18, 0, 0x28, 1]);
}

#[test]
fn logs_request() {
    let minimum = LeveledWithMinimumSeverity { minimum: LeveledLogSeverity::Error.into() };
    let message = LogsRequest {
        dn: "a".to_owned(),
        filters: vec![LogFilter { filter: Some(Filter::LeveledWithMinimumSeverity(minimum)) }],
        backlog_mode: logs_request::BacklogMode::Count.into(),
        backlog_count: 5,
        stream_mode: logs_request::StreamMode::Unbuffered.into(),
    };
    is(message, &[0x0a, 1, b'a', 0x12, 4, 0x2a, 2, 0x08, 3, 0x18, 3, 0x20, 5, 0x28, 2]);
}

#[test]
fn escrow_request() {
    let message = EscrowRequest { parameters: Some(Default::default()), proofs: None };
    is(message, &[0x0a, 0]);
}

#[test]
fn a_detail_is_found_in_a_status_by_its_name() {
    let hint = LeaderHint { node_id: "a".to_owned(), host: String::new(), port: 7835 };
    assert_eq!(LeaderHint::type_url(), "type.googleapis.com/polis.rpc.v1.LeaderHint");
    let status = Status { code: 14, message: String::new(), details: vec![Any::from_msg(&hint).unwrap()] };
    let status = Status::decode(status.encode_to_vec().as_slice()).unwrap();
    assert_eq!(status.details[0].to_msg::<LeaderHint>().unwrap(), hint);
}
