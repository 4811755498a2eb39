//! UpdateNodeStatus: a node tells how it is.

use std::net::IpAddr;
use std::time::SystemTime;

use polis_consensus::Transaction;
use polis_identity::NodeId;
use polis_proto::common::NodeStatus;
use polis_proto::curator_api::{UpdateNodeStatusRequest, UpdateNodeStatusResponse};
use prost::Message as _;
use tonic::Status;

use crate::services::core::Core;
use crate::services::failure::{Failure, repeat};
use crate::services::text::shown;
use crate::{LeaderState, NodeRecord, layout};

/// Largest status, in bytes. An address, a version and the id of a boot are a tenth of it.
const MAX_STATUS_SIZE: usize = 2048;

/// Replaces the status of the calling node.
pub(super) async fn update(
    leader: &LeaderState,
    caller: &NodeId,
    request: UpdateNodeStatusRequest,
) -> Result<UpdateNodeStatusResponse, Status> {
    if request.node_id != caller.to_string() {
        let other = shown(&request.node_id);
        return Err(Status::permission_denied(format!("{caller} may tell its own status only, not that of {other:?}")));
    }
    let mut status = check(request.status)?;
    // The leader's own clock is at least the same for all nodes.
    status.timestamp = Some(SystemTime::now().into());
    repeat(|| try_update(leader, caller, &status)).await?;
    Ok(UpdateNodeStatusResponse {})
}

async fn try_update(leader: &LeaderState, id: &NodeId, status: &NodeStatus) -> Result<(), Failure> {
    let Some(found) = leader.node(id).await? else { return Err(Core::unknown_node(leader, id).await?.into()) };
    let record = NodeRecord { status: Some(status.clone()), ..found.value };
    let key = layout::node(id);
    let transaction = Transaction::new().if_modified_at(key.as_str(), found.revision).put(key, record.encode());
    leader.transact("curator/node/status", transaction).await?;
    Ok(())
}

fn check(status: Option<NodeStatus>) -> Result<NodeStatus, Status> {
    let status = status.ok_or_else(|| Status::invalid_argument("status is not set"))?;
    if status.encoded_len() > MAX_STATUS_SIZE {
        return Err(Status::invalid_argument(format!("status has more than {MAX_STATUS_SIZE} bytes")));
    }
    let address = &status.external_address;
    if address.parse::<IpAddr>().is_err() {
        let address = shown(address);
        return Err(Status::invalid_argument(format!("external_address is {address:?}, which is no IP address")));
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_status_has_an_address_and_is_small() {
        let status = |address: &str, boot_id: usize| {
            Some(NodeStatus { external_address: address.into(), boot_id: vec![1; boot_id], ..NodeStatus::default() })
        };
        for (given, expected) in [
            (status("192.0.2.1", 16), None),
            (status("2001:db8::1", 0), None),
            (status("", 0), Some(Code::InvalidArgument)),
            (status("192.0.2.1:7835", 0), Some(Code::InvalidArgument)),
            (status("host.example", 0), Some(Code::InvalidArgument)),
            (status("192.0.2.1", MAX_STATUS_SIZE), Some(Code::InvalidArgument)),
            (None, Some(Code::InvalidArgument)),
        ] {
            assert_eq!(check(given.clone()).err().map(|status| status.code()), expected, "{given:?}");
        }
    }
}
