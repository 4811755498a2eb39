//! Nodes that are there only for the leader: each with a record, keys and a certificate of its own, one connection, over which it
//! shows that it is alive and watches itself. What a real one does beside that is not the leader's business.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use polis_identity::{Certificate, JoinKey, NodeId, NodeKey};
use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::{ApproveNodeRequest, GetRegisterTicketRequest};
use polis_proto::common::NodeStorageSecurity;
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::watch_request::{Kind, NodeInCluster};
use polis_proto::curator_api::{CommitNodeRequest, HeartbeatRequest, RegisterNodeRequest, WatchRequest};
use polis_rpc::{ClientIdentity, Connector, ExpectedServer};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{interval_at, sleep};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::BenchError;
use crate::owner::curator;
use crate::polis_cluster::PolisCluster;

/// How often a node shows that it is alive (metropolis.md G.4), as real ones do.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Nodes that enrol or connect at the same time.
const AT_ONCE: usize = 16;

/// Pause after the leader has said that there are too many calls at the moment.
const PAUSE: Duration = Duration::from_millis(200);

/// States of nodes that wait to be looked at: more than all nodes have at once.
const EVENTS: usize = 16_384;

/// A node with a record of its own.
pub(crate) struct Simulated {
    pub(crate) id: NodeId,
    key: NodeKey,
    certificate: Certificate,
}

/// What a node has just heard of itself.
pub(crate) struct Event {
    pub(crate) node: usize,
    pub(crate) at: Instant,
    pub(crate) is_worker: bool,
}

/// Nodes that are connected to the leader until this is dropped.
pub(crate) struct Connected {
    tasks: JoinSet<Status>,
    pub(crate) events: mpsc::Receiver<Event>,
}

/// Enrols this many nodes through the leader of the cluster, as real ones enrol: they register, are approved and commit.
pub(crate) async fn enrol(
    cluster: &PolisCluster<'_>,
    leader: usize,
    count: usize,
) -> Result<Vec<Simulated>, BenchError> {
    let mut management = ManagementClient::new(cluster.channel(leader));
    let ticket = management.get_register_ticket(GetRegisterTicketRequest {}).await?.into_inner().ticket;
    let address = curator(cluster.ip(leader));
    let enrolled = stream::iter(0..count).map(|_| enrol_one(cluster, management.clone(), address, &ticket));
    enrolled.buffer_unordered(AT_ONCE).try_collect().await
}

async fn enrol_one(
    cluster: &PolisCluster<'_>,
    mut management: ManagementClient<Channel>,
    address: SocketAddr,
    ticket: &[u8],
) -> Result<Simulated, BenchError> {
    let (key, join_key) = (NodeKey::generate(), JoinKey::generate());
    let expected = ExpectedServer::Cluster(cluster.owner.authority.clone());
    let stranger = CuratorClient::new(Connector::new(&ClientIdentity::ephemeral(&key), expected).channel(address));
    let register = RegisterNodeRequest {
        register_ticket: ticket.to_vec(),
        join_key: join_key.public().as_bytes().to_vec(),
        have_local_tpm: false,
        labels: None,
    };
    patiently(async || stranger.clone().register_node(register.clone()).await).await?;
    management.approve_node(ApproveNodeRequest { pubkey: key.public().as_bytes().to_vec() }).await?;
    let storage_security = NodeStorageSecurity::Insecure.into();
    let commit = async || {
        let request = CommitNodeRequest { cluster_unlock_key: Vec::new(), storage_security };
        stranger.clone().commit_node(request).await
    };
    let certificate = Certificate::from_der(patiently(commit).await?.node_certificate)?;
    Ok(Simulated { id: NodeId::of(&key.public()), key, certificate })
}

/// Makes a call again for as long as the answer is that there are too many.
async fn patiently<T>(call: impl AsyncFn() -> Result<Response<T>, Status>) -> Result<T, Status> {
    loop {
        match call().await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) if status.code() == Code::ResourceExhausted => sleep(PAUSE).await,
            Err(status) => return Err(status),
        }
    }
}

impl Connected {
    /// Connects all nodes to the leader. Their heartbeats are spread evenly.
    pub(crate) async fn new(
        cluster: &PolisCluster<'_>,
        leader: usize,
        nodes: &[Simulated],
    ) -> Result<Self, BenchError> {
        let (sender, events) = mpsc::channel(EVENTS);
        let (authority, address) = (&cluster.owner.authority, curator(cluster.ip(leader)));
        let expected = ExpectedServer::Node(authority.clone(), cluster.id(leader).parse()?);
        let connect = |node: &Simulated| {
            let identity = ClientIdentity::node(&node.key, &node.certificate);
            let expected = expected.clone();
            async move { Ok::<_, BenchError>(Connector::new(&identity?, expected).connect(address).await?) }
        };
        let connected = stream::iter(nodes).map(connect).buffered(AT_ONCE);
        let channels: Vec<Channel> = connected.try_collect().await?;
        let mut tasks = JoinSet::new();
        for (number, (node, channel)) in nodes.iter().zip(channels).enumerate() {
            let delay = HEARTBEAT_INTERVAL.mul_f64(number as f64 / nodes.len() as f64);
            let heartbeats = show_life(CuratorClient::new(channel.clone()), delay);
            let watch = watch(CuratorClient::new(channel), number, node.id, sender.clone());
            tasks.spawn(async move {
                tokio::select! {
                    status = heartbeats => status,
                    status = watch => status,
                }
            });
        }
        Ok(Self { tasks, events })
    }

    /// Makes sure that all nodes are still connected.
    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(ended) => Err(format!("a node has lost its connection to the leader: {}", ended?).into()),
        }
    }
}

/// Sends heartbeats until that fails, and tells why.
async fn show_life(mut client: CuratorClient<Channel>, delay: Duration) -> Status {
    let answers = match client.heartbeat(heartbeats(delay)).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => return status,
    };
    let ended = answers.filter_map(async |answer| answer.err()).boxed().next().await;
    ended.unwrap_or_else(|| Status::unavailable("the leader has ended the heartbeats"))
}

fn heartbeats(delay: Duration) -> impl Stream<Item = HeartbeatRequest> + Send + 'static {
    let ticks = interval_at(tokio::time::Instant::now() + delay, HEARTBEAT_INTERVAL);
    stream::unfold(ticks, async |mut ticks| {
        ticks.tick().await;
        Some((HeartbeatRequest {}, ticks))
    })
}

/// Passes on what the node hears of itself until that fails, and tells why.
async fn watch(mut client: CuratorClient<Channel>, node: usize, id: NodeId, events: mpsc::Sender<Event>) -> Status {
    let request = WatchRequest { kind: Some(Kind::NodeInCluster(NodeInCluster { node_id: id.to_string() })) };
    let mut answers = match client.watch(request).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => return status,
    };
    loop {
        match answers.message().await {
            Ok(Some(event)) => {
                let at = Instant::now();
                for record in event.nodes {
                    let is_worker = record.roles.is_some_and(|roles| roles.kubernetes_worker.is_some());
                    if events.send(Event { node, at, is_worker }).await.is_err() {
                        return Status::cancelled("nobody wants to hear of it");
                    }
                }
            }
            Ok(None) => return Status::unavailable("the leader has ended the watch"),
            Err(status) => return status,
        }
    }
}
