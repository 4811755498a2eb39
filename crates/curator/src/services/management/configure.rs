//! ConfigureCluster.

use polis_consensus::Transaction;
use polis_proto::api::{ConfigureClusterRequest, ConfigureClusterResponse};
use polis_proto::common::ClusterConfiguration;
use prost::Message as _;
use tonic::Status;

use crate::services::configuration::{ConfigureError, merge};
use crate::services::failure::{Failure, repeat};
use crate::{LeaderState, StateError, layout};

/// Changes the cluster's configuration.
pub(super) async fn configure(
    leader: &LeaderState,
    request: ConfigureClusterRequest,
) -> Result<ConfigureClusterResponse, Status> {
    let resulting = repeat(|| try_configure(leader, &request)).await?;
    Ok(ConfigureClusterResponse { resulting_config: Some(resulting) })
}

async fn try_configure(
    leader: &LeaderState,
    request: &ConfigureClusterRequest,
) -> Result<ClusterConfiguration, Failure> {
    let key = layout::cluster_configuration();
    let Some(present) = leader.get_message::<ClusterConfiguration>(&key).await? else {
        return Err(StateError::damaged(key, "it is missing").into());
    };
    let mask = request.update_mask.as_ref().map(|mask| &mask.paths[..]);
    let merged = merge(&present.value, request.base_config.as_ref(), request.new_config.as_ref(), mask);
    let merged = merged.map_err(refused)?;
    if merged != present.value {
        let transaction = Transaction::new().if_modified_at(key.as_str(), present.revision);
        leader.transact("curator/configuration", transaction.put(key, merged.encode_to_vec())).await?;
    }
    Ok(merged)
}

fn refused(error: ConfigureError) -> Status {
    if error.is_precondition() {
        Status::failed_precondition(error.to_string())
    } else {
        Status::invalid_argument(error.to_string())
    }
}
