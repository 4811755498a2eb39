//! GetTombstone: whether a node was deleted. Also a node that does not lead tells it, as far as it knows.

use polis_identity::NodeId;
use polis_proto::curator_state::SignedTombstone;
use polis_proto::enrolment::{GetTombstoneRequest, GetTombstoneResponse};
use prost::Message as _;
use tonic::Status;

use crate::services::core::{Core, parse_id};
use crate::{StateError, layout};

/// The tombstone of a node, if there is one.
pub(super) async fn tombstone(core: &Core, request: &GetTombstoneRequest) -> Result<GetTombstoneResponse, Status> {
    let id = parse_id("node_id", &request.node_id)?;
    let known = core.nodes.view(&id).tombstone.map(|tombstone| tombstone.to_vec());
    let found = match (known, core.leader()) {
        (Some(known), _) => Some(known),
        // The leader may have deleted it just now.
        (None, Ok(leader)) => leader.get(&layout::tombstone(&id)).await?.map(|found| found.value),
        (None, Err(_)) => None,
    };
    let tombstone = found.map(|bytes| decode(&id, &bytes)).transpose()?;
    Ok(GetTombstoneResponse { tombstone })
}

fn decode(id: &NodeId, bytes: &[u8]) -> Result<SignedTombstone, StateError> {
    SignedTombstone::decode(bytes).map_err(|source| StateError::damaged(layout::tombstone(id), source))
}
