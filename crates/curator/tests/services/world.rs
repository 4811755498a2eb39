//! A cluster of one node whose curator leads, and those who call it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use polis_curator::{Curator, LeaderState, LeadershipTiming, Settings, SignedTombstone, layout};
use polis_identity::{AuthorityCertificate, Certificate, JoinKey, NodeId, NodeKey, OwnerKey};
use polis_proto::api::aaa_client::AaaClient;
use polis_proto::api::escrow_request::Parameters;
use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::{ApproveNodeRequest, EscrowRequest, GetNodesRequest, GetRegisterTicketRequest, Node};
use polis_proto::cluster::cluster_client::ClusterClient;
use polis_proto::common::cluster_configuration::{Kubernetes, StorageSecurityPolicy, TpmMode};
use polis_proto::common::{ClusterConfiguration, NodeStatus};
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::curator_local_client::CuratorLocalClient;
use polis_proto::curator_api::{CommitNodeRequest, CommitNodeResponse, RegisterNodeRequest, RegisterNodeResponse};
use polis_proto::curator_api::{HeartbeatRequest, UpdateNodeStatusRequest};
use polis_proto::curator_state;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_rpc::{CURATOR_PORT, ClientIdentity, Connector, ExpectedServer, ServerIdentity, detail};
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, Runnable as _};
use prost::Message as _;
use tokio::sync::{OnceCell, watch};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::common::Etcd;

/// A cluster of one node whose curator leads.
pub(crate) struct World {
    pub(crate) etcd: Etcd,
    pub(crate) curator: Curator,
    pub(crate) authority: AuthorityCertificate,
    pub(crate) address: IpAddr,
    founder: ServerIdentity,
    owner: OnceCell<Channel>,
    // Dropping the sender would end what follows it.
    _address: watch::Sender<Option<IpAddr>>,
    harness: Harness,
}

/// A machine, and what it has become.
pub(crate) struct Machine {
    pub(crate) key: NodeKey,
    pub(crate) join_key: JoinKey,
    pub(crate) certificate: Option<Certificate>,
}

impl World {
    /// Starts one whose nodes may do as they like.
    pub(crate) async fn start() -> Self {
        Self::start_with(TpmMode::BestEffort, StorageSecurityPolicy::Permissive).await
    }

    pub(crate) async fn start_with(tpm_mode: TpmMode, policy: StorageSecurityPolicy) -> Self {
        let etcd = Etcd::start().await;
        let cluster = etcd.give_birth().await;
        let configuration = ClusterConfiguration {
            cluster_domain: "cluster.internal".into(),
            tpm_mode: tpm_mode.into(),
            storage_security_policy: policy.into(),
            kubernetes: Some(Kubernetes::default()),
        };
        etcd.root().put("test", layout::cluster_configuration(), configuration.encode_to_vec()).await.unwrap();
        let founder = ServerIdentity::new(&etcd.node_key, cluster.node_certificate, cluster.authority.clone()).unwrap();
        let address = etcd.address.borrow().unwrap();
        let addresses = watch::Sender::new(Some(address));
        let curator = Curator::new(Settings {
            consensus: etcd.consensus.clone(),
            identity: founder.clone(),
            address: addresses.subscribe(),
            // A claim that a test makes for another node is to stay.
            timing: LeadershipTiming { silence: Duration::from_secs(3600), ..LeadershipTiming::default() },
        });
        let run = curator.clone();
        let harness = Harness::start(move |context: Context| {
            let run = run.clone();
            async move {
                context.run("curator", move |context: Context| run.run(context))?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        });
        let authority = cluster.authority;
        let owner = OnceCell::new();
        let world = Self { etcd, curator, authority, address, founder, owner, _address: addresses, harness };
        world.leader().await;
        world.within("it serves", world.serves()).await;
        world
    }

    async fn serves(&self) {
        let connector = Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Cluster(self.authority.clone()));
        while connector.connect(SocketAddr::new(self.address, CURATOR_PORT)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.curator.nodes().listed().await;
    }

    /// The state in the hands of this node, once it leads.
    pub(crate) async fn leader(&self) -> LeaderState {
        let mut leadership = self.curator.leadership();
        let leads = self.within("it leads", leadership.wait_for(|known| known.leader().is_some())).await;
        leads.unwrap().leader().unwrap().clone()
    }

    #[track_caller]
    pub(crate) fn within<T>(&self, what: &str, future: impl Future<Output = T>) -> impl Future<Output = T> {
        self.etcd.within(what, future)
    }

    pub(crate) async fn finish(self) {
        self.harness.finish().await;
        self.etcd.stop().await;
    }

    /// A connection of one who shows this.
    pub(crate) fn channel(&self, identity: &ClientIdentity) -> Channel {
        let connector = Connector::new(identity, ExpectedServer::Cluster(self.authority.clone()));
        connector.channel(SocketAddr::new(self.address, CURATOR_PORT))
    }

    pub(crate) fn anonymous(&self) -> Channel {
        self.channel(&ClientIdentity::anonymous())
    }

    /// A connection of the founder, which is a node.
    pub(crate) fn founder(&self) -> Channel {
        self.channel(&self.founder.client_identity())
    }

    /// A connection of the owner, always the same.
    pub(crate) async fn owner(&self) -> Channel {
        self.owner.get_or_init(async || self.user(&self.etcd.owner).await.unwrap()).await.clone()
    }

    /// A connection of the user with this key, once it has got its certificate.
    pub(crate) async fn user(&self, key: &OwnerKey) -> Result<Channel, Status> {
        let certificate = self.escrow(key).await?;
        Ok(self.channel(&ClientIdentity::user(key, &certificate).unwrap()))
    }

    /// The owner's certificate for this key.
    pub(crate) async fn escrow(&self, key: &OwnerKey) -> Result<Certificate, Status> {
        let mut aaa = AaaClient::new(self.channel(&ClientIdentity::ephemeral(key)));
        let public_key = key.public().as_bytes().to_vec();
        let parameters = Parameters { requested_identity_name: "owner".into(), public_key };
        let first = EscrowRequest { parameters: Some(parameters), proofs: None };
        let mut answers = aaa.escrow(futures::stream::iter([first])).await?.into_inner();
        let answer = answers.message().await?.expect("an answer comes before the end");
        Ok(Certificate::from_der(answer.emitted_certificate).unwrap())
    }

    pub(crate) async fn management(&self) -> ManagementClient<Channel> {
        ManagementClient::new(self.owner().await)
    }

    pub(crate) async fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.owner().await)
    }

    pub(crate) fn local(&self) -> CuratorLocalClient<Channel> {
        CuratorLocalClient::new(self.anonymous())
    }

    pub(crate) async fn ticket(&self) -> Vec<u8> {
        self.management().await.get_register_ticket(GetRegisterTicketRequest {}).await.unwrap().into_inner().ticket
    }

    /// What an operator sees of a node.
    pub(crate) async fn node(&self, id: &NodeId) -> Node {
        let filter = format!("node.id == {:?}", id.to_string());
        let mut found = self.nodes(&filter).await.unwrap();
        assert_eq!(found.len(), 1, "{id}");
        found.remove(0)
    }

    pub(crate) async fn nodes(&self, filter: &str) -> Result<Vec<Node>, Status> {
        let request = GetNodesRequest { filter: filter.into() };
        let mut answers = self.management().await.get_nodes(request).await?.into_inner();
        let mut nodes = Vec::new();
        while let Some(node) = answers.message().await? {
            nodes.push(node);
        }
        Ok(nodes)
    }

    /// Registers a machine with the present ticket.
    pub(crate) async fn register(&self, machine: &Machine) -> Result<RegisterNodeResponse, Status> {
        let ticket = self.ticket().await;
        self.register_with(machine, &ticket).await
    }

    pub(crate) async fn register_with(&self, machine: &Machine, ticket: &[u8]) -> Result<RegisterNodeResponse, Status> {
        let mut curator = CuratorClient::new(self.channel(&ClientIdentity::ephemeral(&machine.key)));
        let answer = curator.register_node(machine.registration(ticket)).await?;
        Ok(answer.into_inner())
    }

    pub(crate) async fn approve(&self, machine: &Machine) -> Result<(), Status> {
        let pubkey = machine.key.public().as_bytes().to_vec();
        self.management().await.approve_node(ApproveNodeRequest { pubkey }).await.map(|_| ())
    }

    /// Commits a machine with this storage security and unlock key.
    pub(crate) async fn commit(
        &self,
        machine: &Machine,
        storage_security: i32,
        unlock_key: &[u8],
    ) -> Result<CommitNodeResponse, Status> {
        let mut curator = CuratorClient::new(self.channel(&ClientIdentity::ephemeral(&machine.key)));
        let cluster_unlock_key = unlock_key.to_vec();
        Ok(curator.commit_node(CommitNodeRequest { cluster_unlock_key, storage_security }).await?.into_inner())
    }

    /// A machine that has become a node.
    pub(crate) async fn enrol(&self) -> Machine {
        let mut machine = Machine::new();
        self.register(&machine).await.unwrap();
        self.approve(&machine).await.unwrap();
        let committed = self.commit(&machine, INSECURE, &[]).await.unwrap();
        machine.certificate = Some(Certificate::from_der(committed.node_certificate).unwrap());
        machine
    }

    /// A node that has told where it is, and that it is alive.
    pub(crate) async fn healthy(&self) -> Machine {
        let machine = self.enrol().await;
        self.tell_status(&machine, "127.9.9.9").await.unwrap();
        self.beat(&machine).await.unwrap();
        machine
    }

    pub(crate) async fn tell_status(&self, machine: &Machine, address: &str) -> Result<(), Status> {
        let status = NodeStatus { external_address: address.into(), ..NodeStatus::default() };
        let request = UpdateNodeStatusRequest { node_id: machine.id().to_string(), status: Some(status) };
        self.curator_of(machine).update_node_status(request).await.map(|_| ())
    }

    /// Sends one heartbeat and waits for the answer.
    pub(crate) async fn beat(&self, machine: &Machine) -> Result<(), Status> {
        let beats = futures::stream::iter([HeartbeatRequest {}]);
        let mut answers = self.curator_of(machine).heartbeat(beats).await?.into_inner();
        assert!(answers.message().await?.is_some(), "each message gets an answer");
        assert!(answers.message().await?.is_none(), "and nothing else");
        Ok(())
    }

    pub(crate) fn channel_of(&self, machine: &Machine) -> Channel {
        let certificate = machine.certificate.as_ref().expect("it is a node");
        self.channel(&ClientIdentity::node(&machine.key, certificate).unwrap())
    }

    pub(crate) fn curator_of(&self, machine: &Machine) -> CuratorClient<Channel> {
        CuratorClient::new(self.channel_of(machine))
    }

    pub(crate) fn enrolment_of(&self, machine: &Machine) -> EnrolmentClient<Channel> {
        EnrolmentClient::new(self.channel_of(machine))
    }

    /// Checks that a status carries the proof that the node was deleted.
    #[track_caller]
    pub(crate) fn assert_tombstone(&self, status: &Status, machine: &Machine) {
        let removed = detail::removed_node(status).unwrap_or_else(|| panic!("no proof: {status:?}"));
        let wire = curator_state::SignedTombstone::decode(&removed.signed_tombstone[..]).unwrap();
        let tombstone = SignedTombstone::verify(wire, &self.authority).unwrap();
        assert_eq!(tombstone.tombstone().node_id(), machine.id());
    }
}

/// `NODE_STORAGE_SECURITY_INSECURE`.
pub(crate) const INSECURE: i32 = 1;

/// `NODE_STORAGE_SECURITY_AUTHENTICATED_ENCRYPTED`.
pub(crate) const AUTHENTICATED: i32 = 3;

impl Machine {
    pub(crate) fn new() -> Self {
        Self { key: NodeKey::generate(), join_key: JoinKey::generate(), certificate: None }
    }

    pub(crate) fn id(&self) -> NodeId {
        NodeId::of(&self.key.public())
    }

    pub(crate) fn registration(&self, ticket: &[u8]) -> RegisterNodeRequest {
        RegisterNodeRequest {
            register_ticket: ticket.to_vec(),
            join_key: self.join_key.public().as_bytes().to_vec(),
            have_local_tpm: false,
            labels: None,
        }
    }
}

/// Asks again for as long as the answer is that it should be asked again, as every client does.
pub(crate) async fn settled<T>(world: &World, ask: impl AsyncFn() -> Result<T, Status>) -> Result<T, Status> {
    let answer = async {
        loop {
            match ask().await {
                Err(status) if status.code() == Code::Unavailable => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                answer => break answer,
            }
        }
    };
    world.within("an answer that stays", answer).await
}

/// The code with which something failed.
#[track_caller]
pub(crate) fn code<T>(result: Result<T, Status>) -> Code {
    match result {
        Ok(_) => Code::Ok,
        Err(status) => status.code(),
    }
}
