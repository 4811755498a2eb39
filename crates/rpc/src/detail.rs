//! Details of gRPC statuses: what a client needs to do better at its next try (`polis/rpc/v1/detail.proto`).
//!
//! They travel in the standard form, a `google.rpc.Status` in `grpc-status-details-bin`, each as an `Any` with its type's name.
//! Clients that do not know them lose nothing but convenience.

use bytes::Bytes;
use polis_proto::google_rpc;
use polis_proto::rpc_detail::{LeaderHint, MarginRefusal, RemovedNode};
use prost::Message;
use prost_types::Any;
use tonic::Status;

/// What precedes the name of a type in an `Any`.
const TYPE_PREFIX: &str = "type.googleapis.com/";

const LEADER_HINT: &str = "polis.rpc.v1.LeaderHint";
const REMOVED_NODE: &str = "polis.rpc.v1.RemovedNode";
const MARGIN_REFUSAL: &str = "polis.rpc.v1.MarginRefusal";

/// Most details of one status that are looked at. Ours have one or two; the others come from the network.
const MAX_DETAILS: usize = 16;

/// The status, naming the node that leads.
#[must_use]
pub fn with_leader(status: Status, hint: &LeaderHint) -> Status {
    with(status, LEADER_HINT, hint)
}

/// The node that leads, if the status names one.
#[must_use]
pub fn leader(status: &Status) -> Option<LeaderHint> {
    find(status, LEADER_HINT)
}

/// The status, with the proof that the caller was deleted.
#[must_use]
pub fn with_removed_node(status: Status, removed: &RemovedNode) -> Status {
    with(status, REMOVED_NODE, removed)
}

/// The proof that the caller was deleted, if the status has one. Whether it is one is to be checked.
#[must_use]
pub fn removed_node(status: &Status) -> Option<RemovedNode> {
    find(status, REMOVED_NODE)
}

/// The status, with the numbers for which a change of members was refused.
#[must_use]
pub fn with_margin(status: Status, margin: &MarginRefusal) -> Status {
    with(status, MARGIN_REFUSAL, margin)
}

/// The numbers for which a change of members was refused, if the status has them.
#[must_use]
pub fn margin(status: &Status) -> Option<MarginRefusal> {
    find(status, MARGIN_REFUSAL)
}

/// The same status with one detail more. Details and metadata that it carries stay.
fn with(status: Status, name: &str, detail: &impl Message) -> Status {
    let mut whole = google_rpc::Status::decode(status.details()).unwrap_or_default();
    whole.code = status.code().into();
    status.message().clone_into(&mut whole.message);
    whole.details.push(Any { type_url: format!("{TYPE_PREFIX}{name}"), value: detail.encode_to_vec() });
    let details = Bytes::from(whole.encode_to_vec());
    let metadata = status.metadata().clone();
    Status::with_details_and_metadata(status.code(), status.message(), details, metadata)
}

fn find<M: Message + Default>(status: &Status, name: &str) -> Option<M> {
    let whole = google_rpc::Status::decode(status.details()).ok()?;
    let mut details = whole.details.iter().take(MAX_DETAILS);
    let detail = details.find(|detail| detail.type_url.rsplit('/').next() == Some(name))?;
    M::decode(&detail.value[..]).ok()
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn details_are_found_again_beside_each_other() {
        let hint = LeaderHint { node_id: "metropolis-1".into(), host: "10.0.0.1".into(), port: 7835 };
        let margin_refusal = MarginRefusal {
            voters_after: 3,
            quorum_after: 2,
            reachable_after: 1,
            unreachable: vec!["a".into(), "b".into()],
        };
        let status = with_margin(with_leader(Status::unavailable("another node leads"), &hint), &margin_refusal);
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.message(), "another node leads");
        assert_eq!(leader(&status), Some(hint));
        assert_eq!(margin(&status), Some(margin_refusal));
        assert_eq!(removed_node(&status), None);
    }

    #[test]
    fn what_a_status_carried_stays() {
        let mut status = Status::unauthenticated("gone");
        status.metadata_mut().insert("x-reason", "gone".parse().unwrap());
        let status = with_removed_node(status, &RemovedNode { signed_tombstone: vec![1, 2, 3] });
        assert_eq!(status.metadata().get("x-reason").unwrap(), "gone");
        assert_eq!(removed_node(&status).unwrap().signed_tombstone, [1, 2, 3]);
    }

    #[test]
    fn damaged_details_are_none() {
        for details in [&b""[..], b"\xff\xff", b"\x1a\x05\x0a\x03abc"] {
            let status = Status::with_details(Code::Unavailable, "", Bytes::copy_from_slice(details));
            assert_eq!(leader(&status), None, "{details:?}");
        }
    }
}
