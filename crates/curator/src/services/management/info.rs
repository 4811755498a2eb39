//! GetClusterInfo: what a machine must be told to find the cluster.

use std::sync::Arc;

use polis_proto::api::GetClusterInfoResponse;
use polis_proto::common::cluster_directory::{Node, node::Address};
use polis_proto::common::{ClusterDirectory, NodeState};
use polis_supervisor::with_causes;
use tonic::Status;

use crate::services::core::Core;
use crate::services::curator::read_configuration;
use crate::{LeaderState, NodeRecord, Versioned};

/// Most nodes of the directory (metropolis.md, G.4): it is written into parameters, and enough of them are reachable.
const MAX_DIRECTORY: usize = 15;

/// The directory, the CA and the configuration.
pub(super) async fn info(core: &Core, leader: &LeaderState) -> Result<GetClusterInfoResponse, Status> {
    let nodes = leader.nodes().await?;
    let configuration = read_configuration(leader).await;
    if let Err(error) = &configuration {
        // As Metropolis has it: who only wants to find the cluster is not kept from it.
        tracing::warn!("the cluster's configuration cannot be told: {}", with_causes(error));
    }
    Ok(GetClusterInfoResponse {
        cluster_directory: Some(directory(&nodes)),
        ca_certificate: core.identity.authority().der().to_vec(),
        cluster_configuration: configuration.ok(),
    })
}

/// Nodes that are up and have an address, consensus members first, since only they know who leads.
fn directory(nodes: &[Versioned<Arc<NodeRecord>>]) -> ClusterDirectory {
    let up = nodes.iter().map(|node| &node.value).filter(|node| node.state == NodeState::Up);
    let mut reachable: Vec<_> = up.filter_map(|node| Some((node, node.address()?))).collect();
    reachable.sort_by_key(|(node, _)| (!node.is_consensus_member(), node.id));
    reachable.truncate(MAX_DIRECTORY);
    let nodes = reachable.into_iter().map(|(node, address)| Node {
        id: node.id.to_string(),
        addresses: vec![Address { host: address.to_string() }],
    });
    ClusterDirectory { nodes: nodes.collect() }
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;
    use polis_proto::common::node_roles::ConsensusMember;
    use polis_proto::common::{NodeRoles, NodeStatus};

    use super::*;

    fn node(state: NodeState, address: Option<&str>, is_member: bool) -> Versioned<Arc<NodeRecord>> {
        let consensus_member = is_member.then(ConsensusMember::default);
        let record = NodeRecord {
            state,
            roles: NodeRoles { consensus_member, ..NodeRoles::default() },
            status: address.map(|address| NodeStatus { external_address: address.into(), ..NodeStatus::default() }),
            ..crate::common::record(&NodeKey::generate())
        };
        Versioned { value: Arc::new(record), revision: 1 }
    }

    #[test]
    fn the_directory_has_the_nodes_that_help_and_not_too_many() {
        let nodes = [
            node(NodeState::Up, Some("192.0.2.1"), false),
            node(NodeState::Up, Some("192.0.2.2"), true),
            node(NodeState::Up, None, true),
            node(NodeState::Standby, Some("192.0.2.3"), false),
            node(NodeState::Decommissioned, Some("192.0.2.4"), false),
        ];
        let hosts = |directory: &ClusterDirectory| -> Vec<String> {
            let nodes = directory.nodes.iter();
            nodes.flat_map(|node| node.addresses.iter().map(|address| address.host.clone())).collect()
        };
        let found = directory(&nodes);
        assert_eq!(hosts(&found), ["192.0.2.2", "192.0.2.1"]);
        assert_eq!(found.nodes[0].id, nodes[1].value.id.to_string());
        let mut many: Vec<_> = (0..20).map(|n| node(NodeState::Up, Some(&format!("192.0.2.{n}")), false)).collect();
        many.push(node(NodeState::Up, Some("192.0.2.99"), true));
        let found = hosts(&directory(&many));
        assert_eq!((found.len(), &*found[0]), (MAX_DIRECTORY, "192.0.2.99"));
    }
}
