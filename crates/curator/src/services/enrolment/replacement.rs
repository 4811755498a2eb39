//! ReplaceMember: the member of a node cannot read its data, and the others go on without it.

use polis_identity::NodeId;
use polis_proto::enrolment::{ReplaceMemberRequest, ReplaceMemberResponse};
use tonic::Status;

use crate::LeaderState;
use crate::services::core::Core;
use crate::services::refusal::removal_refused;

/// Longest reason that is taken, in bytes: a few lines of etcd.
const MAX_REASON: usize = 1024;

/// Asks for the replacement of the calling node's member.
pub(super) async fn replace(
    core: &Core,
    leader: &LeaderState,
    id: &NodeId,
    request: &ReplaceMemberRequest,
) -> Result<ReplaceMemberResponse, Status> {
    let length = request.reason.len();
    if length > MAX_REASON {
        return Err(Status::invalid_argument(format!("reason has {length} bytes, and may have {MAX_REASON}")));
    }
    core.members.request_replacement(leader, id, &request.reason).await.map_err(removal_refused)?;
    Ok(ReplaceMemberResponse {})
}
