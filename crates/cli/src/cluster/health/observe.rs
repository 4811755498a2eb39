//! Asking everybody at once.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::{join, join_all};
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use polis_control::Status;
use polis_identity::NodeId;
use polis_proto::curator_api::GetCurrentLeaderRequest;
use polis_proto::curator_api::curator_local_client::CuratorLocalClient;
use polis_proto::node_api::GetStatusRequest;
use polis_proto::node_api::node_client::NodeClient;
use polis_rpc::{NODE_MANAGEMENT_PORT, describe, is_transport_failure};

use super::observations::{ClusterObservation, EndpointAnswer, EndpointObservation, NodeObservation, Observations};
use crate::duration;
use crate::fleet::{self, NodeDocument};
use crate::operator::{Operator, at};

/// Longest time that one answer may take. A node that takes longer has a problem that is worth a line.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Nodes that are asked at the same time; each takes a connection with its handshake.
const NODES_AT_ONCE: usize = 64;

/// Asks the endpoints, the leader and every node that is known, as far as they can be asked independently at the same time.
pub(super) async fn observe(operator: &Operator) -> Observations {
    let (endpoints, cluster) = join(endpoints(operator), cluster(operator)).await;
    let nodes = nodes(operator, &endpoints, &cluster).await;
    Observations { at: Timestamp::now(), endpoints, cluster, nodes }
}

async fn endpoints(operator: &Operator) -> Vec<EndpointObservation> {
    join_all(operator.endpoints().iter().map(|address| async {
        EndpointObservation { address: *address, answer: within(ANSWER_TIMEOUT, endpoint(operator, *address)).await }
    }))
    .await
}

async fn endpoint(operator: &Operator, address: SocketAddr) -> Result<EndpointAnswer, String> {
    let mut client = CuratorLocalClient::new(operator.endpoint_channel(address));
    let first = async {
        let mut answers = client.get_current_leader(GetCurrentLeaderRequest {}).await?.into_inner();
        answers.message().await
    };
    let some = |text: String| (!text.is_empty()).then_some(text);
    match first.await {
        Ok(Some(answer)) => Ok(EndpointAnswer {
            node_id: some(answer.this_node_id),
            leader: some(answer.leader_node_id).ok_or_else(|| "it names none".to_owned()),
        }),
        Ok(None) => Ok(EndpointAnswer { node_id: None, leader: Err("it names none".into()) }),
        // It answered, and is of this cluster; that it knows no leader is another matter.
        Err(status) if !is_transport_failure(&status) => {
            Ok(EndpointAnswer { node_id: None, leader: Err(describe(&status)) })
        }
        Err(status) => Err(describe(&status)),
    }
}

async fn cluster(operator: &Operator) -> ClusterObservation {
    let nodes = async { fleet::get_nodes(operator, "").await.map_err(|error| error.cause()) };
    let status = async { crate::cluster::get_status(operator).await.map_err(|error| error.cause()) };
    let (nodes, status) = join(nodes, status).await;
    ClusterObservation { nodes, status }
}

/// Asks the nodes that the leader lists, and those at the endpoints that it does not list: when nobody leads, these are all.
async fn nodes(
    operator: &Operator,
    endpoints: &[EndpointObservation],
    cluster: &ClusterObservation,
) -> Vec<NodeObservation> {
    let listed = cluster.nodes.iter().flatten().filter(|node| node.is_up());
    let mut targets: BTreeMap<IpAddr, Option<String>> =
        listed.filter_map(|node| Some((address_of(node)?, Some(node.node_id.clone())))).collect();
    for endpoint in endpoints {
        // One that cannot be reached has its line already.
        if let Ok(answer) = &endpoint.answer {
            targets.entry(endpoint.address.ip()).or_insert_with(|| answer.node_id.clone());
        }
    }
    let asked = stream::iter(targets).map(|(address, node_id)| async move {
        let status = within(ANSWER_TIMEOUT, node(operator, node_id.as_deref(), address)).await;
        let told = status.as_ref().ok().and_then(|status| status.node_id.clone());
        NodeObservation { node_id: node_id.or(told).unwrap_or_else(|| format!("the node at {address}")), status }
    });
    let mut nodes: Vec<NodeObservation> = asked.buffer_unordered(NODES_AT_ONCE).collect().await;
    nodes.sort_by(|one, other| one.node_id.cmp(&other.node_id));
    nodes
}

fn address_of(node: &NodeDocument) -> Option<IpAddr> {
    node.address.as_ref()?.parse().ok()
}

/// What the node there says of itself; it must be this node if its id is known, and one of the cluster in any case.
async fn node(operator: &Operator, node_id: Option<&str>, address: IpAddr) -> Result<Status, String> {
    let address = SocketAddr::new(address, NODE_MANAGEMENT_PORT);
    let channel = match node_id {
        Some(node_id) => {
            let id: NodeId = node_id.parse().map_err(|error| format!("{node_id} is no node id: {error}"))?;
            operator.node_channel(id, address)
        }
        None => operator.endpoint_channel(address),
    };
    let answer = NodeClient::new(channel).get_status(GetStatusRequest {}).await;
    let answer = answer.map_err(|status| at(address, &describe(&status)))?.into_inner();
    serde_json::from_str(&answer.status_json).map_err(|error| {
        format!("it runs version {} and answers in a form that this version does not read: {error}", answer.version)
    })
}

async fn within<T>(timeout: Duration, answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = || Err(format!("no answer within {}", duration::show(timeout)));
    tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| late())
}
