//! A cluster of three nodes, made and run as an operator would.

use std::fs;
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::node::Health;
use polis_proto::api::update_node_roles_request::Node as Target;
use polis_proto::api::{
    ApproveNodeRequest, GetClusterInfoRequest, GetNodesRequest, GetRegisterTicketRequest, Node as NodeEntry,
    NodeParameters, UpdateNodeRolesRequest, node_parameters,
};
use polis_proto::cluster::cluster_client::ClusterClient;
use polis_proto::cluster::{GetStatusRequest, GetStatusResponse};
use polis_proto::common::cluster_directory::{Node as DirectoryNode, node::Address};
use polis_proto::common::{ClusterDirectory, NodeState};
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::curator_local_client::CuratorLocalClient;
use polis_proto::curator_api::get_consensus_status_response::etcd_member::Status as MemberStatus;
use polis_proto::curator_api::{GetConsensusStatusRequest, GetCurrentLeaderRequest};
use polis_rpc::{describe, is_transport_failure};
use polis_testkit::{node_data, processes};
use prost::Message as _;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::BenchError;
use crate::child::PATIENCE;
use crate::contestant::{ALL, Contestant, MEMBERS};
use crate::owner::{self, Owner};
use crate::place::Place;
use crate::polis_node::{Node, NodePlace};
use crate::poll;

/// Entries of raft by which a member may be behind and still be one that keeps up.
const LAG: u64 = 10;

/// Three nodes.
pub(crate) struct PolisCluster<'a> {
    /// Before their places, which are removed after they have ended.
    nodes: Vec<Option<Node>>,
    places: Vec<NodePlace<'a>>,
    ids: Vec<String>,
    channels: Vec<Channel>,
    pub(crate) owner: Owner,
    /// Whether their data are encrypted.
    is_encrypted: bool,
}

impl<'a> PolisCluster<'a> {
    /// Three nodes of which the first is the only consensus member. The leader has heard of all.
    pub(crate) async fn with_one_member(place: &'a Place) -> Result<Self, BenchError> {
        let places = ALL.map(|_| NodePlace::new(place)).collect::<Result<_, _>>()?;
        Self::founded(place, places, false).await
    }

    /// The same at these places. The first is told how data are kept.
    async fn founded(place: &'a Place, places: Vec<NodePlace<'a>>, is_encrypted: bool) -> Result<Self, BenchError> {
        let mut founder = places[0].launch().await?;
        let id = founder.running().await?;
        let owner = Owner::take(place, places[0].ip()).await?;
        let channels = places.iter().map(|place| owner.channel(place.ip())).collect();
        let mut cluster = Self { places, nodes: vec![Some(founder)], ids: vec![id], channels, owner, is_encrypted };
        let parameters = cluster.register_parameters().await?;
        let mut newcomers = Vec::new();
        for place in &mut cluster.places[1..] {
            place.parameters = place.directory().join("register.pb");
            fs::write(&place.parameters, &parameters)?;
            newcomers.push(place.launch().await?);
        }
        cluster.approve(newcomers.len()).await?;
        for mut newcomer in newcomers {
            cluster.ids.push(newcomer.running().await?);
            cluster.nodes.push(Some(newcomer));
        }
        cluster
            .wait("heard of by the leader", async |cluster| {
                let nodes = cluster.list().await?;
                Ok(nodes.iter().all(|node| node.health() == Health::Healthy).then_some(()))
            })
            .await?;
        Ok(cluster)
    }

    /// Three nodes, all of them consensus members.
    pub(crate) async fn with_three_members(place: &'a Place) -> Result<Self, BenchError> {
        let cluster = Self::with_one_member(place).await?;
        cluster.make_members().await?;
        cluster.whole().await?;
        Ok(cluster)
    }

    /// The same on encrypted data, as these parameters for a new cluster say.
    pub(crate) async fn encrypted(place: &'a Place, parameters: &Path) -> Result<Self, BenchError> {
        let places = ALL.map(|_| NodePlace::new(place)).collect::<Result<_, _>>()?;
        Self::encrypted_at(place, places, parameters).await
    }

    /// The same at these places.
    pub(crate) async fn encrypted_at(
        place: &'a Place,
        mut places: Vec<NodePlace<'a>>,
        parameters: &Path,
    ) -> Result<Self, BenchError> {
        parameters.clone_into(&mut places[0].parameters);
        let cluster = Self::founded(place, places, true).await?;
        cluster.make_members().await?;
        cluster.whole().await?;
        Ok(cluster)
    }

    /// Gives two nodes the role of a consensus member and waits until a client that knows only the second of them has found the
    /// leader over it, all three vote, and the leader has answered a write. Returns how long that took.
    pub(crate) async fn make_members(&self) -> Result<Duration, BenchError> {
        let begin = Instant::now();
        for id in &self.ids[1..] {
            let request = UpdateNodeRolesRequest {
                node: Some(Target::Id(id.clone())),
                consensus_member: Some(true),
                kubernetes_worker: None,
                kubernetes_controller: None,
            };
            self.ask("the role", async |channel| {
                ManagementClient::new(channel).update_node_roles(request.clone()).await
            })
            .await?;
        }
        let through = async {
            while self.write_through(MEMBERS - 1).await.is_none() {
                sleep(poll::INTERVAL).await;
            }
            begin.elapsed()
        };
        let time = timeout(PATIENCE, through).await;
        time.map_err(|_| format!("no write through the third member within {PATIENCE:?}").into())
    }

    /// Finds the leader over this node, and writes there once all vote. One try; `None` if something of that did not succeed.
    async fn write_through(&self, number: usize) -> Option<()> {
        let mut local = CuratorLocalClient::new(self.channel(number));
        let mut answers = local.get_current_leader(GetCurrentLeaderRequest {}).await.ok()?.into_inner();
        let host = answers.message().await.ok()??.leader_host;
        let leader = self.places.iter().position(|place| place.ip().to_string() == host)?;
        let mut curator = CuratorClient::new(self.channel(leader));
        let members = curator.get_consensus_status(GetConsensusStatusRequest {}).await.ok()?.into_inner().etcd_member;
        let voters = members.iter().filter(|member| member.status() == MemberStatus::Full).count();
        if voters < MEMBERS {
            return None;
        }
        owner::write(self.channel(leader), self.ids[0].clone()).await.then_some(())
    }

    /// What the leader says of the cluster.
    pub(crate) async fn status(&self) -> Result<GetStatusResponse, BenchError> {
        self.ask("the status", async |channel| ClusterClient::new(channel).get_status(GetStatusRequest {}).await).await
    }

    /// Process id of the node with this number.
    pub(crate) fn process(&self, number: usize) -> Result<u32, BenchError> {
        Ok(self.nodes[number].as_ref().ok_or("the node does not run")?.id())
    }

    /// Root of the node with this number.
    pub(crate) fn root(&self, number: usize) -> PathBuf {
        self.places[number].root()
    }

    /// Waits until the node with this number runs.
    pub(crate) async fn running(&mut self, number: usize) -> Result<(), BenchError> {
        self.nodes[number].as_mut().ok_or("the node does not run")?.running().await.map(drop)
    }

    /// Kills a node and waits until nothing of it is left, also what holds its data. Returns when it was started, and its log.
    pub(crate) async fn take_down(&mut self, number: usize) -> Result<(Timestamp, String), BenchError> {
        let node = self.nodes[number].take().ok_or("the node does not run")?;
        node.send_kill();
        let ended = (node.began(), node.ended().await?);
        processes::wait_until_gone(self.places[number].directory())?;
        Ok(ended)
    }

    /// Whether the members open each other's data, and would be opened by the recovery key if there is one.
    fn keys_are_settled(&self, status: &GetStatusResponse) -> bool {
        let has_blobs =
            status.recovery_public_key.is_empty() || status.members.iter().all(|member| member.recovery_blob);
        let nobody_is_behind = status.cold_start.as_ref().is_some_and(|cold_start| cold_start.behind.is_empty());
        // One with a copy of its key asks nobody.
        has_blobs
            && nobody_is_behind
            && ALL.into_iter().all(|number| node_data::unlock_keys(&self.root(number)).is_empty())
    }

    /// Name of the node with this number.
    pub(crate) fn id(&self, number: usize) -> &str {
        &self.ids[number]
    }

    /// The owner's channel to the node with this number.
    pub(crate) fn channel(&self, number: usize) -> Channel {
        self.channels[number].clone()
    }

    /// Where the node with this number is.
    pub(crate) fn ip(&self, number: usize) -> IpAddr {
        self.places[number].ip()
    }

    /// What a machine is told that asks this cluster for admission.
    async fn register_parameters(&self) -> Result<Vec<u8>, BenchError> {
        let information = self.ask("the cluster's CA", async |channel| {
            ManagementClient::new(channel).get_cluster_info(GetClusterInfoRequest {}).await
        });
        let ca_certificate = information.await?.ca_certificate;
        let ticket = self.ask("the ticket", async |channel| {
            ManagementClient::new(channel).get_register_ticket(GetRegisterTicketRequest {}).await
        });
        let register_ticket = ticket.await?.ticket;
        let addresses = vec![Address { host: self.ip(0).to_string() }];
        let nodes = vec![DirectoryNode { id: self.ids[0].clone(), addresses }];
        let register = node_parameters::ClusterRegister {
            cluster_directory: Some(ClusterDirectory { nodes }),
            register_ticket,
            ca_certificate,
            labels: None,
        };
        let cluster = Some(node_parameters::Cluster::ClusterRegister(register));
        Ok(NodeParameters { cluster, network_config: None }.encode_to_vec())
    }

    /// Approves this many machines that ask for admission.
    async fn approve(&self, count: usize) -> Result<(), BenchError> {
        let new = self.wait("asked for admission", async |cluster| {
            let new: Vec<_> = cluster.list().await?.into_iter().filter(|node| node.state() == NodeState::New).collect();
            Ok((new.len() == count).then_some(new))
        });
        for node in new.await? {
            self.ask("the approval", async |channel| {
                ManagementClient::new(channel).approve_node(ApproveNodeRequest { pubkey: node.pubkey.clone() }).await
            })
            .await?;
        }
        Ok(())
    }

    /// All nodes, as the leader lists them.
    async fn list(&self) -> Result<Vec<NodeEntry>, BenchError> {
        let stream = self.ask("the nodes", async |channel| {
            ManagementClient::new(channel).get_nodes(GetNodesRequest::default()).await
        });
        let (mut stream, mut nodes) = (stream.await?, Vec::new());
        while let Some(node) = stream.message().await? {
            nodes.push(node);
        }
        Ok(nodes)
    }

    /// Looks until there is what is looked for.
    async fn wait<T>(
        &self,
        what: &str,
        look: impl AsyncFn(&Self) -> Result<Option<T>, BenchError>,
    ) -> Result<T, BenchError> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(found) = look(self).await? {
                return Ok(found);
            }
            sleep(poll::INTERVAL).await;
        }
        Err(format!("the nodes were not {what} within {PATIENCE:?}").into())
    }

    /// Asks one node after the other until one answers: all but the leader refuse.
    async fn ask<T>(
        &self,
        what: &str,
        call: impl AsyncFn(Channel) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, BenchError> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = None;
        while Instant::now() < deadline {
            for channel in &self.channels {
                match call(channel.clone()).await {
                    Ok(answer) => return Ok(answer.into_inner()),
                    Err(status) if status.code() == Code::Unavailable || is_transport_failure(&status) => {
                        last = Some(status);
                    }
                    Err(status) => return Err(format!("{what}: {}", describe(&status)).into()),
                }
            }
            sleep(poll::INTERVAL).await;
        }
        let last = last.as_ref().map(describe).unwrap_or_default();
        Err(format!("{what}: no leader answered within {PATIENCE:?}: {last}").into())
    }
}

impl Contestant for PolisCluster<'_> {
    /// Waits until all nodes are members that vote and keep up, one of them leads raft and the cluster, and their keys are in order.
    async fn whole(&self) -> Result<usize, BenchError> {
        self.wait("whole", async |cluster| {
            let status = cluster.status().await?;
            let is_whole = status.members.len() == MEMBERS
                && status.change.is_none()
                && (!cluster.is_encrypted || cluster.keys_are_settled(&status))
                && status.members.iter().all(|member| {
                    let leads = member.node_id == status.leader_node_id;
                    !member.learner
                        && member.reachable
                        && member.lag.is_some_and(|lag| lag <= LAG)
                        && member.leads_raft == leads
                });
            Ok(cluster.ids.iter().position(|id| *id == status.leader_node_id).filter(|_| is_whole))
        })
        .await
    }

    async fn write(&self) -> Result<Instant, BenchError> {
        poll::until_success("Management write", MEMBERS, |number| {
            owner::write(self.channels[number].clone(), self.ids[0].clone())
        })
        .await
    }

    async fn launch(&mut self, members: Range<usize>) -> Result<(), BenchError> {
        for number in members {
            self.nodes[number] = Some(self.places[number].launch().await?);
        }
        Ok(())
    }

    fn send_kill(&self, members: Range<usize>) {
        self.nodes[members].iter().flatten().for_each(Node::send_kill);
    }

    fn send_terminate(&self) -> Result<(), BenchError> {
        self.nodes.iter().flatten().try_for_each(Node::send_terminate)
    }

    async fn ended(&mut self, members: Range<usize>) -> Result<Instant, BenchError> {
        for node in &mut self.nodes[members.clone()] {
            if let Some(node) = node.take() {
                node.ended().await?;
            }
        }
        let mut gone = Instant::now();
        for place in &self.places[members] {
            // To look takes milliseconds, which count only where something is left.
            if !processes::in_directory(place.directory()).is_empty() {
                processes::wait_until_gone(place.directory())?;
                gone = Instant::now();
            }
        }
        Ok(gone)
    }
}
