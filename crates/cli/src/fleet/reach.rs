//! Finding the node that a command is about.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use polis_control::Status as NodeStatus;
use polis_identity::NodeId;
use polis_proto::node_api::GetStatusRequest;
use polis_proto::node_api::node_client::NodeClient;
use polis_rpc::NODE_MANAGEMENT_PORT;
use tokio::time::timeout;
use tonic::{Response, Status};

use super::select::Chosen;
use super::{NodeDocument, list, select};
use crate::duration;
use crate::failure::Failure;
use crate::operator::{Operator, node_failure};
use crate::view::Progress;

/// How long a leader is looked for before the nodes at the endpoints are asked themselves: an election takes one or two seconds.
const LEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time that a node may take to say who it is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Nodes that are to be changed. Those that were named by a part of their id are shown first. `not_done` is what has not happened
/// to them when they cannot be looked up, such as `was not deleted`.
///
/// # Errors
///
/// When the cluster does not answer, or one of them is not there or not clear.
pub(super) async fn to_change(
    operator: &Operator,
    ids: &[String],
    not_done: &str,
) -> Result<Vec<NodeDocument>, Failure> {
    let nodes = list::get(operator, "").await.map_err(|error| error.of(format!("{} {not_done}", ids.join(", "))))?;
    let chosen = select::choose_all(&nodes, ids)?;
    chosen.iter().for_each(show_if_abbreviated);
    Ok(chosen.into_iter().map(|chosen| chosen.node.clone()).collect())
}

/// The one node that is to be changed.
///
/// # Errors
///
/// As [`to_change`].
pub(super) async fn one_to_change(operator: &Operator, id: &str, not_done: &str) -> Result<NodeDocument, Failure> {
    let mut nodes = to_change(operator, &[id.to_owned()], not_done).await?;
    nodes.pop().ok_or_else(|| Failure::failed(format!("there is no node {id}")))
}

/// A node and where it can be asked itself.
#[derive(Clone, Debug)]
pub(super) struct Reachable {
    pub(super) id: NodeId,
    pub(super) address: SocketAddr,
}

impl Reachable {
    /// Waits for the answer to a call that this node was asked, `longest` at most. `what` is what has not happened without it, such as
    /// `n was not told to restart`.
    ///
    /// # Errors
    ///
    /// When the node refuses, or does not answer in time. Then it may still do what it was asked.
    pub(super) async fn answer<T>(
        &self,
        operator: &Operator,
        what: &str,
        longest: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        match timeout(longest, call).await {
            Ok(answer) => {
                let answer = answer.map_err(|status| node_failure(what, &self.id, self.address, &status));
                answer.map(Response::into_inner)
            }
            Err(_) => Err(self.silent(operator, what, longest)),
        }
    }

    fn silent(&self, operator: &Operator, what: &str, longest: Duration) -> Failure {
        Failure::failed(what)
            .because_of(format!("{} did not answer within {}", self.address, duration::show(longest)))
            .quorum("not known from this: other nodes were not asked")
            .hint(format!(
                "it may have heard it all the same; before you repeat it, see how the node is: polis cluster health{}",
                operator.options()
            ))
    }
}

/// Where the node can be asked itself, on `port`. Without a leader, those at the endpoints are asked who they are: what a node
/// says of itself matters most when the cluster does not answer.
///
/// # Errors
///
/// When the node is not there or not clear, or it is not known where it is.
pub(super) async fn to_ask(operator: &Operator, id: &str, port: u16) -> Result<Reachable, Failure> {
    let listed = timeout(LEADER_TIMEOUT, list::get(operator, "")).await;
    let failure = match listed {
        Ok(Ok(nodes)) => return of_list(&nodes, id, port),
        Ok(Err(failure)) if failure.code().is_some() => return Err(failure.into()),
        Ok(Err(failure)) => Some(failure),
        Err(_) => None,
    };
    let nodes = at_endpoints(operator).await;
    if nodes.is_empty() {
        return match failure {
            Some(failure) => Err(failure.into()),
            // Nobody there knows better, so a leader is waited for to the end.
            None => of_list(&list::get(operator, "").await?, id, port),
        };
    }
    let documents: Vec<NodeDocument> = nodes
        .iter()
        .map(|(id, address)| NodeDocument {
            node_id: id.to_string(),
            address: Some(address.to_string()),
            ..NodeDocument::default()
        })
        .collect();
    let chosen = select::choose(&documents, id).map_err(|error| {
        error.because_of(
            "no leader answers, so only the nodes at the endpoints are known; name its address with --endpoints",
        )
    })?;
    Progress::start().line("no leader answers; the node was found among the endpoints");
    of_listed(chosen.node, port)
}

/// Nodes that answer at the endpoints, with what they say they are.
async fn at_endpoints(operator: &Operator) -> Vec<(NodeId, IpAddr)> {
    let found = join_all(operator.endpoints().iter().map(|endpoint| async {
        let address = endpoint.ip();
        let channel = operator.endpoint_channel(SocketAddr::new(address, NODE_MANAGEMENT_PORT));
        let mut client = NodeClient::new(channel);
        let answer = timeout(ANSWER_TIMEOUT, client.get_status(GetStatusRequest {})).await.ok()?.ok()?;
        let status: NodeStatus = serde_json::from_str(&answer.into_inner().status_json).ok()?;
        Some((status.node_id?.parse().ok()?, address))
    }))
    .await;
    found.into_iter().flatten().collect()
}

/// The node among those that the leader lists.
fn of_list(nodes: &[NodeDocument], id: &str, port: u16) -> Result<Reachable, Failure> {
    let chosen = select::choose(nodes, id)?;
    show_if_abbreviated(&chosen);
    of_listed(chosen.node, port)
}

/// Where a node that the leader lists can be asked itself.
///
/// # Errors
///
/// When it is not known where it is.
pub(super) fn of_listed(node: &NodeDocument, port: u16) -> Result<Reachable, Failure> {
    let id = node
        .node_id
        .parse()
        .map_err(|error| Failure::failed(format!("{:?} is no node id", node.node_id)).because(&error))?;
    let address: Option<IpAddr> = node.address.as_ref().and_then(|address| address.parse().ok());
    let address = address.ok_or_else(|| {
        let failure = Failure::failed(format!("it is not known where {} is", node.node_id));
        let failure = match &node.address {
            Some(text) => failure.because_of(format!("it reported the address {text:?}, which is no IP address")),
            None => failure.because_of(format!("it is {} and has not reported an address", node.state)),
        };
        failure.hint("look at the machine: polis node status --root DIR there")
    })?;
    Ok(Reachable { id, address: SocketAddr::new(address, port) })
}

/// A node that was named by a part of its id is shown before something is done with it.
fn show_if_abbreviated(chosen: &Chosen<'_>) {
    if chosen.abbreviated {
        let node = chosen.node;
        let address = node.address.as_ref().map(|address| format!(" at {address}")).unwrap_or_default();
        let roles = if node.roles.is_empty() { "no roles".to_owned() } else { node.roles.join(",") };
        Progress::start().line(&format!("node {}{address}, {}, {roles}", node.node_id, node.state));
    }
}
