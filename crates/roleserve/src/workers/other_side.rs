//! On the node that leads: says so when a node that is silent follows another leader. Then the cluster has two sides, as a node that
//! was only cut off was made a cluster of its own (`polis cluster recover`), and nobody but an operator can say which one is to stay.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use polis_condition::Severity;
use polis_curator::{Curator, Leadership};
use polis_identity::NodeId;
use polis_proto::api::node::Health;
use polis_proto::curator_api::GetCurrentLeaderRequest;
use polis_proto::curator_api::curator_local_client::CuratorLocalClient;
use polis_rpc::{CURATOR_PORT, ClientIdentity, Connector, ExpectedServer, detail};
use polis_supervisor::{Context, RunnableResult};
use polis_unlock::Epoch;
use tokio::time::{Instant, sleep, timeout};

use super::judge::list_of;
use super::never;
use crate::identity::Identity;
use crate::shared::{Shared, changed};

/// Name of the condition that is raised on the leader of each side.
pub const CLUSTER_DIVIDED: &str = "cluster-divided";

/// Pause between two rounds. It is for people, who have minutes.
const INTERVAL: Duration = Duration::from_secs(5);

/// How long one node may take to answer all that it is asked.
const ANSWER_DEADLINE: Duration = Duration::from_secs(3);

/// Silent nodes that are asked in a round, and as many at a time: more than a cluster has members, which are those that would know of another side.
const ASKED: usize = 16;

/// The other side, as one of its nodes has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OtherSide {
    /// Who leads it.
    leader: NodeId,
    /// Where it is.
    address: SocketAddr,
    /// Epoch of its list, if it shows it.
    epoch: Option<Epoch>,
}

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let shown = ClientIdentity::node(&identity.key, &identity.certificate)?;
    context.healthy();
    let mut curator = shared.settings.control_plane.curator();
    let watch = async {
        loop {
            let present = curator.borrow_and_update().clone();
            let rounds = async {
                match &present {
                    Some(present) => rounds(&shared, &context, &identity, &shown, present).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed(&mut curator) => context.conditions().clear(CLUSTER_DIVIDED),
                () = rounds => {}
            }
        }
    };
    never(context.unless_cancelled(watch).await?)
}

/// Asks around as long as this node leads.
async fn rounds(shared: &Shared, context: &Context, identity: &Identity, shown: &ClientIdentity, curator: &Curator) {
    let mut leadership = curator.leadership();
    let mut first = 0;
    loop {
        let leads = leadership.borrow_and_update().leader().is_some();
        if !leads {
            context.conditions().clear(CLUSTER_DIVIDED);
            changed(&mut leadership).await;
            continue;
        }
        let silent = silent(curator, &identity.node_id());
        let found = look(identity, shown, &silent, first).await;
        first = first.wrapping_add(ASKED);
        let still_leads = matches!(&*leadership.borrow(), Leadership::Leader(_));
        match found.filter(|_| still_leads) {
            Some(other) => {
                let own = shared.members.borrow().as_ref().map(|list| list.list().epoch());
                let (text, hint) = describe(&identity.node_id(), own, &other);
                context.conditions().raise(CLUSTER_DIVIDED, Severity::Error, text, &hint);
            }
            None => context.conditions().clear(CLUSTER_DIVIDED),
        }
        tokio::select! {
            () = changed(&mut leadership) => {}
            () = sleep(INTERVAL) => {}
        }
    }
}

/// The nodes of the cluster from which nothing is heard, with their addresses.
fn silent(curator: &Curator, own: &NodeId) -> Vec<(NodeId, SocketAddr)> {
    let now = Instant::now();
    let nodes = curator.nodes().all();
    let silent = nodes.iter().map(|record| &record.value).filter(|node| {
        let health = curator.heartbeats().health(node.state, &node.id, now);
        node.id != *own && health == Health::HeartbeatTimeout
    });
    silent.filter_map(|node| Some((node.id, SocketAddr::new(node.address()?, CURATOR_PORT)))).collect()
}

/// Asks some of these, beginning with this one, whom they follow.
async fn look(
    identity: &Identity,
    shown: &ClientIdentity,
    silent: &[(NodeId, SocketAddr)],
    first: usize,
) -> Option<OtherSide> {
    let asked = silent.iter().copied().cycle().skip(first % silent.len().max(1)).take(silent.len().min(ASKED));
    let asked = asked.map(|(node, address)| ask(identity, shown, node, address)).collect::<Vec<_>>();
    let mut answers = stream::iter(asked).buffer_unordered(ASKED);
    while let Some(answer) = answers.next().await {
        if answer.is_some() {
            return answer;
        }
    }
    None
}

/// Whom a node follows, if that is another leader than this node. Who does not answer, or follows this one, says nothing; who holds
/// this node for deleted follows itself or somebody else.
async fn ask(identity: &Identity, shown: &ClientIdentity, node: NodeId, address: SocketAddr) -> Option<OtherSide> {
    let own = identity.node_id();
    let at = |node: NodeId| Connector::new(shown, ExpectedServer::Node(identity.authority.clone(), node));
    let answer = async {
        let channel = at(node).connect(address).await.ok()?;
        let asked = CuratorLocalClient::new(channel).get_current_leader(GetCurrentLeaderRequest {}).await;
        let mut answers = match asked {
            Ok(answers) => answers.into_inner(),
            // For a node of this cluster its leader does not exist any more.
            Err(status) => return detail::removed_node(&status).map(|_| (node, address)),
        };
        let answer = answers.message().await.ok()??;
        let leader: NodeId = answer.leader_node_id.parse().ok()?;
        let place = match answer.leader_host.parse() {
            Ok(host) => SocketAddr::new(host, CURATOR_PORT),
            Err(_) if leader == node => address,
            Err(_) => return None,
        };
        (leader != own).then_some((leader, place))
    };
    let (leader, address) = timeout(ANSWER_DEADLINE, answer).await.ok()??;
    let list = async {
        let channel = at(leader).connect(address).await.ok()?;
        list_of(&channel, &identity.authority).await.ok()?
    };
    let list = timeout(ANSWER_DEADLINE, list).await.ok().flatten();
    Some(OtherSide { leader, address, epoch: list.map(|list| list.list().epoch()) })
}

/// What is so, and what is to be done about it.
fn describe(own: &NodeId, epoch: Option<Epoch>, other: &OtherSide) -> (String, String) {
    let OtherSide { leader, address, epoch: other_epoch } = other;
    let address = address.ip();
    match (epoch, other_epoch) {
        (Some(epoch), Some(other_epoch)) if epoch.incarnation > other_epoch.incarnation => (
            format!(
                "this node was made a cluster of its own by `polis cluster recover` (incarnation {}), and the cluster that it was taken \
                 from lives: {leader} at {address} leads it (incarnation {}). The two share a name and nothing else: what is changed \
                 in one is not changed in the other, and their nodes do not follow each other's leader",
                epoch.incarnation, other_epoch.incarnation
            ),
            format!(
                "as a rule the other one is to stay. Save what exists only here, then let this one go: `polis node delete {own} \
                 --bypass-has-roles --bypass-not-decommissioned --endpoints {address}`; stop this node, `polis node reset` it, and \
                 register it there as a new one. If this one is to stay instead, stop the others; what is left of them joins this one \
                 when they have lost their quorum"
            ),
        ),
        (Some(epoch), Some(other_epoch)) if epoch.incarnation < other_epoch.incarnation => (
            format!(
                "{leader} at {address} was made a cluster of its own by `polis cluster recover` (incarnation {}) while this cluster \
                 (incarnation {}) lived. This one goes on without it: what is changed there is not changed here, and the nodes of the \
                 two do not follow each other's leader",
                other_epoch.incarnation, epoch.incarnation
            ),
            format!(
                "save what exists only there, then let it go: `polis node delete {leader} --bypass-has-roles \
                 --bypass-not-decommissioned`; stop that node, `polis node reset` it, and register it here as a new one"
            ),
        ),
        (_, _) => (
            format!(
                "a node of this cluster that is silent here follows another leader, {leader} at {address}, or holds this node for deleted: \
                 there are two clusters that have come from one, as after `polis cluster recover` on a node that was only cut off"
            ),
            "look at what that node says of itself: polis node status there, and polis cluster health with its address as --endpoints"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;

    use super::*;

    #[test]
    fn each_side_says_which_one_it_is() {
        let [own, leader] = [(); 2].map(|()| NodeId::of(&NodeKey::generate().public()));
        let epoch = |incarnation| Some(Epoch { incarnation, epoch: 3 });
        let cases = [
            (epoch(2), epoch(1), "this node was made a cluster of its own", format!("node delete {own}")),
            (epoch(1), epoch(2), "This one goes on without it", format!("node delete {leader}")),
            (epoch(1), epoch(1), "follows another leader", "cluster health".to_owned()),
            (epoch(1), None, "follows another leader", "cluster health".to_owned()),
        ];
        for (known, epoch, expected, next) in cases {
            let other = OtherSide { leader, address: ([10, 0, 0, 7], 7835).into(), epoch };
            let (text, hint) = describe(&own, known, &other);
            assert!(text.contains(expected) && text.contains("10.0.0.7"), "{text}");
            assert!(hint.contains(&next), "{hint}");
        }
    }
}
