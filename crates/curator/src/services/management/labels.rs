//! UpdateNodeLabels.

use polis_consensus::Transaction;
use polis_identity::NodeId;
use polis_proto::api::{UpdateNodeLabelsRequest, UpdateNodeLabelsResponse};
use tonic::Status;

use super::target::target;
use crate::services::core::Core;
use crate::services::failure::{Failure, repeat};
use crate::services::labels::{LabelChange, LabelChangeError};
use crate::{LeaderState, NodeRecord, layout};

/// Sets labels of a node and takes labels from it.
pub(super) async fn update(
    leader: &LeaderState,
    request: UpdateNodeLabelsRequest,
) -> Result<UpdateNodeLabelsResponse, Status> {
    let id = target(request.node.map(Into::into))?;
    let upsert = request.upsert.iter().map(|pair| (&*pair.key, &*pair.value));
    let change = LabelChange::new(upsert, request.delete.iter().map(String::as_str)).map_err(refused)?;
    repeat(|| try_update(leader, &id, &change)).await?;
    Ok(UpdateNodeLabelsResponse {})
}

async fn try_update(leader: &LeaderState, id: &NodeId, change: &LabelChange) -> Result<(), Failure> {
    let Some(found) = leader.node(id).await? else { return Err(Core::unknown_node(leader, id).await?.into()) };
    let labels = change.apply(&found.value.labels).map_err(refused)?;
    if labels == found.value.labels {
        return Ok(());
    }
    let record = NodeRecord { labels, ..found.value };
    let key = layout::node(id);
    let transaction = Transaction::new().if_modified_at(key.as_str(), found.revision).put(key, record.encode());
    leader.transact("curator/node/labels", transaction).await?;
    Ok(())
}

fn refused(error: LabelChangeError) -> Status {
    let message = error.to_string();
    match error {
        LabelChangeError::TooMany => Status::out_of_range(message),
        LabelChangeError::Upsert { .. } | LabelChangeError::Delete { .. } | LabelChangeError::Both { .. } => {
            Status::invalid_argument(message)
        }
    }
}
