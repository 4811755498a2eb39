//! A node that leads a cluster of its own making: as much of a curator as a machine that registers sees.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::stream::{self, BoxStream, StreamExt as _};
use polis_curator::Tombstone;
use polis_identity::{CertificateAuthority, NodeId, NodeKey, PublicKey};
use polis_proto::common::cluster_configuration::{StorageSecurityPolicy, TpmMode};
use polis_proto::common::{ClusterConfiguration, NodeStorageSecurity, NodeTpmUsage};
use polis_proto::curator_api::curator_local_server::{CuratorLocal, CuratorLocalServer};
use polis_proto::curator_api::curator_server::{Curator, CuratorServer};
use polis_proto::curator_api::{
    CommitNodeRequest, CommitNodeResponse, GetCaCertificateRequest, GetCaCertificateResponse,
    GetConsensusStatusRequest, GetConsensusStatusResponse, GetCurrentLeaderRequest, GetCurrentLeaderResponse,
    HeartbeatRequest, HeartbeatResponse, IssueCertificateRequest, IssueCertificateResponse, JoinNodeRequest,
    JoinNodeResponse, RegisterNodeRequest, RegisterNodeResponse, UpdateNodeClusterNetworkingRequest,
    UpdateNodeClusterNetworkingResponse, UpdateNodeStatusRequest, UpdateNodeStatusResponse, WatchEvent, WatchRequest,
};
use polis_proto::curator_state::SignedTombstone;
use polis_proto::enrolment::enrolment_server::{Enrolment, EnrolmentServer};
use polis_proto::enrolment::{
    CheckUnlockKeyRequest, CheckUnlockKeyResponse, GetMembersRequest, GetMembersResponse, GetTombstoneRequest,
    GetTombstoneResponse, Orders, ProposeOwnerRequest, ProposeOwnerResponse, ReportNodeRequest, ReportNodeResponse,
    StoreRecoveryBlobRequest, StoreRecoveryBlobResponse, StoreUnlockKeyRequest, StoreUnlockKeyResponse,
    WatchOrdersRequest,
};
use polis_proto::rpc_detail::RemovedNode;
use polis_rpc::{
    CURATOR_PORT, Caller, Limits, News, Peer, ServerIdentity, ServerSettings, Trust, detail, listen, serve,
};
use polis_supervisor::runnable;
use polis_supervisor::testing::Harness;
use prost::Message as _;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming, async_trait};

/// A server in this process.
pub(crate) struct Server {
    pub(crate) node: NodeId,
    pub(crate) address: IpAddr,
    leader: Leader,
    harness: Harness,
}

/// What the leader knows. Clones know the same.
#[derive(Clone)]
struct Leader(Arc<Mutex<Known>>);

struct Known {
    authority: CertificateAuthority,
    node: NodeId,
    address: IpAddr,
    registered: Option<(PublicKey, PublicKey)>,
    approved: bool,
    tombstone: Option<SignedTombstone>,
}

/// An address at which nobody listens on the curator's port. Each is given once in a process, and processes begin far apart.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(2_654_435_761);
    loop {
        let [_, high, middle, low] = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)).to_be_bytes();
        // 127.201 to 127.250: where nobody else looks for addresses.
        let address = SocketAddr::from((Ipv4Addr::new(127, 201 + high % 50, middle, low.max(1)), CURATOR_PORT));
        if std::net::TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

impl Server {
    /// Serves for the cluster with this CA, at an address of its own.
    pub(crate) fn start(authority: &CertificateAuthority) -> Self {
        Self::start_at(authority, free_address())
    }

    pub(crate) fn start_at(authority: &CertificateAuthority, address: SocketAddr) -> Self {
        let key = NodeKey::generate();
        let certificate = authority.issue_node(&key.public());
        let identity = ServerIdentity::new(&key, certificate, authority.certificate().clone()).unwrap();
        let node = NodeId::of(&key.public());
        let leader = Leader(Arc::new(Mutex::new(Known {
            authority: CertificateAuthority::from_parts(
                authority.key().clone(),
                authority.certificate().certificate().clone(),
            )
            .unwrap(),
            node,
            address: address.ip(),
            registered: None,
            approved: false,
            tombstone: None,
        })));
        let routes = Routes::new(CuratorServer::new(leader.clone()))
            .add_service(CuratorLocalServer::new(leader.clone()))
            .add_service(EnrolmentServer::new(leader.clone()));
        let trust = watch::Sender::new(Arc::new(Trust { news: News::UpToDate, ..Trust::default() }));
        let settings = ServerSettings { name: "test", identity, trust: trust.subscribe(), limits: Limits::default() };
        let parts = Mutex::new(Some((listen(address).unwrap(), settings, routes, trust)));
        let harness = Harness::start(runnable(move |context| {
            let parts = parts.lock().unwrap().take();
            async move {
                let (listener, settings, routes, _trust) = parts.ok_or("the server has died before")?;
                context.healthy();
                serve(context, listener, settings, routes).await
            }
        }));
        Self { node, address: address.ip(), leader, harness }
    }

    /// Approves whoever has registered.
    pub(crate) fn approve(&self) {
        self.leader.known().approved = true;
    }

    /// The keys of whoever has registered.
    pub(crate) fn registered(&self) -> Option<(PublicKey, PublicKey)> {
        self.leader.known().registered
    }

    /// Deletes the node with this key.
    pub(crate) fn delete(&self, public_key: &PublicKey) {
        let mut known = self.leader.known();
        let cluster_id = known.authority.certificate().cluster_id();
        let tombstone = Tombstone { cluster_id, public_key: *public_key, reason: "sold".into() };
        known.tombstone = Some(tombstone.sign(&known.authority).wire().clone());
    }

    pub(crate) async fn finish(self) {
        self.harness.finish().await;
    }
}

impl Leader {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap()
    }
}

fn ephemeral<T>(request: &Request<T>) -> Result<PublicKey, Status> {
    match Caller::of(request).peer {
        Peer::Ephemeral(key) => Ok(key),
        Peer::Anonymous | Peer::Node(_) | Peer::User(_) => Err(Status::unauthenticated("no certificate of a machine")),
    }
}

fn unimplemented<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not in this test"))
}

#[async_trait]
impl Curator for Leader {
    type WatchStream = BoxStream<'static, Result<WatchEvent, Status>>;
    type HeartbeatStream = BoxStream<'static, Result<HeartbeatResponse, Status>>;

    async fn register_node(
        &self,
        request: Request<RegisterNodeRequest>,
    ) -> Result<Response<RegisterNodeResponse>, Status> {
        let key = ephemeral(&request)?;
        let request = request.into_inner();
        if request.register_ticket != [&[0x0a, 32][..], &[1; 32]].concat() {
            return Err(Status::permission_denied("this is not the ticket"));
        }
        let join_key = PublicKey::try_from(&request.join_key[..]).unwrap();
        self.known().registered = Some((key, join_key));
        Ok(Response::new(RegisterNodeResponse {
            cluster_configuration: Some(ClusterConfiguration {
                storage_security_policy: StorageSecurityPolicy::NeedsInsecure.into(),
                tpm_mode: TpmMode::Disabled.into(),
                ..ClusterConfiguration::default()
            }),
            tpm_usage: NodeTpmUsage::NotPresent.into(),
            recommended_node_storage_security: NodeStorageSecurity::Insecure.into(),
        }))
    }

    async fn commit_node(&self, request: Request<CommitNodeRequest>) -> Result<Response<CommitNodeResponse>, Status> {
        let key = ephemeral(&request)?;
        let request = request.into_inner();
        assert_eq!(
            (request.cluster_unlock_key, request.storage_security),
            (Vec::new(), NodeStorageSecurity::Insecure.into())
        );
        let known = self.known();
        if let Some(tombstone) = &known.tombstone {
            let removed = RemovedNode { signed_tombstone: tombstone.encode_to_vec() };
            return Err(detail::with_removed_node(Status::not_found("no such node"), &removed));
        }
        if !known.approved {
            return Err(Status::permission_denied("not approved"));
        }
        Ok(Response::new(CommitNodeResponse {
            ca_certificate: known.authority.certificate().der().to_vec(),
            node_certificate: known.authority.issue_node(&key).der().to_vec(),
        }))
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        unimplemented()
    }

    async fn update_node_status(
        &self,
        _: Request<UpdateNodeStatusRequest>,
    ) -> Result<Response<UpdateNodeStatusResponse>, Status> {
        unimplemented()
    }

    async fn heartbeat(
        &self,
        _: Request<Streaming<HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        unimplemented()
    }

    async fn join_node(&self, _: Request<JoinNodeRequest>) -> Result<Response<JoinNodeResponse>, Status> {
        unimplemented()
    }

    async fn issue_certificate(
        &self,
        _: Request<IssueCertificateRequest>,
    ) -> Result<Response<IssueCertificateResponse>, Status> {
        unimplemented()
    }

    async fn update_node_cluster_networking(
        &self,
        _: Request<UpdateNodeClusterNetworkingRequest>,
    ) -> Result<Response<UpdateNodeClusterNetworkingResponse>, Status> {
        unimplemented()
    }

    async fn get_consensus_status(
        &self,
        _: Request<GetConsensusStatusRequest>,
    ) -> Result<Response<GetConsensusStatusResponse>, Status> {
        unimplemented()
    }
}

#[async_trait]
impl CuratorLocal for Leader {
    type GetCurrentLeaderStream = BoxStream<'static, Result<GetCurrentLeaderResponse, Status>>;

    async fn get_current_leader(
        &self,
        _: Request<GetCurrentLeaderRequest>,
    ) -> Result<Response<Self::GetCurrentLeaderStream>, Status> {
        let known = self.known();
        let answer = GetCurrentLeaderResponse {
            leader_node_id: known.node.to_string(),
            leader_host: known.address.to_string(),
            leader_port: CURATOR_PORT.into(),
            this_node_id: known.node.to_string(),
        };
        Ok(Response::new(stream::iter([Ok(answer)]).chain(stream::pending()).boxed()))
    }

    async fn get_ca_certificate(
        &self,
        _: Request<GetCaCertificateRequest>,
    ) -> Result<Response<GetCaCertificateResponse>, Status> {
        let identity_ca_certificate = self.known().authority.certificate().der().to_vec();
        Ok(Response::new(GetCaCertificateResponse { identity_ca_certificate }))
    }
}

#[async_trait]
impl Enrolment for Leader {
    type WatchOrdersStream = BoxStream<'static, Result<Orders, Status>>;

    async fn get_tombstone(&self, _: Request<GetTombstoneRequest>) -> Result<Response<GetTombstoneResponse>, Status> {
        Ok(Response::new(GetTombstoneResponse { tombstone: self.known().tombstone.clone() }))
    }

    async fn report_node(&self, _: Request<ReportNodeRequest>) -> Result<Response<ReportNodeResponse>, Status> {
        unimplemented()
    }

    async fn get_members(&self, _: Request<GetMembersRequest>) -> Result<Response<GetMembersResponse>, Status> {
        unimplemented()
    }

    async fn watch_orders(&self, _: Request<WatchOrdersRequest>) -> Result<Response<Self::WatchOrdersStream>, Status> {
        unimplemented()
    }

    async fn propose_owner(&self, _: Request<ProposeOwnerRequest>) -> Result<Response<ProposeOwnerResponse>, Status> {
        unimplemented()
    }

    async fn store_unlock_key(
        &self,
        _: Request<StoreUnlockKeyRequest>,
    ) -> Result<Response<StoreUnlockKeyResponse>, Status> {
        unimplemented()
    }

    async fn store_recovery_blob(
        &self,
        _: Request<StoreRecoveryBlobRequest>,
    ) -> Result<Response<StoreRecoveryBlobResponse>, Status> {
        unimplemented()
    }

    async fn replace_member(
        &self,
        _: Request<polis_proto::enrolment::ReplaceMemberRequest>,
    ) -> Result<Response<polis_proto::enrolment::ReplaceMemberResponse>, Status> {
        unimplemented()
    }

    async fn check_unlock_key(
        &self,
        _: Request<CheckUnlockKeyRequest>,
    ) -> Result<Response<CheckUnlockKeyResponse>, Status> {
        unimplemented()
    }
}
