//! A leader whose answers a test decides, behind the real server with real TLS.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::{Stream, StreamExt as _, stream};
use polis_identity::NodeId;
use polis_proto::common::NodeStatus;
use polis_proto::curator_api::curator_local_server::{CuratorLocal, CuratorLocalServer};
use polis_proto::curator_api::curator_server::{Curator, CuratorServer};
use polis_proto::curator_api::watch_event::{NodeTombstone, Progress};
use polis_proto::curator_api::watch_request::Kind;
use polis_proto::curator_api::{self as api, Node, WatchEvent, WatchRequest};
use polis_proto::curator_state::SignedTombstone;
use polis_proto::enrolment::enrolment_server::{Enrolment, EnrolmentServer};
use polis_proto::enrolment::{self, GetMembersResponse, Orders, ReportNodeRequest};
use polis_rpc::testing::{TestNode, TestServer};
use polis_rpc::{CURATOR_PORT, Limits, listen};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use crate::node::PATIENCE;

/// What the leader says and has heard. Clones are the same.
#[derive(Clone)]
pub(crate) struct Script(Arc<Inner>);

struct Inner {
    id: NodeId,
    /// All nodes, in the order of their ids.
    nodes: watch::Sender<Vec<Node>>,
    orders: watch::Sender<Orders>,
    members: watch::Sender<GetMembersResponse>,
    tombstones: watch::Sender<Vec<(String, SignedTombstone)>>,
    /// What all calls but those about the leader and tombstones are refused with.
    refusal: watch::Sender<Option<Status>>,
    /// Counts up to end all streams.
    epoch: watch::Sender<u64>,
    statuses: watch::Sender<Vec<api::UpdateNodeStatusRequest>>,
    reports: watch::Sender<Vec<ReportNodeRequest>>,
    /// Reasons for which the node has asked that its consensus member is replaced.
    replacements: watch::Sender<Vec<String>>,
    heartbeats: watch::Sender<u32>,
    answers_heartbeats: AtomicBool,
    answers_replacements: AtomicBool,
}

/// A leader that serves.
pub(crate) struct Leader {
    pub(crate) node: TestNode,
    pub(crate) ip: IpAddr,
    pub(crate) script: Script,
    server: TestServer,
}

impl Leader {
    pub(crate) fn start(node: TestNode, ip: IpAddr) -> Self {
        let script = Script::new(node.id);
        let status = Some(NodeStatus { external_address: ip.to_string(), ..NodeStatus::default() });
        script.set_node(Node { id: node.id.to_string(), status, ..Node::default() });
        Self::go_on(node, ip, script)
    }

    /// Serves with what was said and heard before.
    pub(crate) fn go_on(node: TestNode, ip: IpAddr, script: Script) -> Self {
        let routes = Routes::new(CuratorServer::new(script.clone()))
            .add_service(CuratorLocalServer::new(script.clone()))
            .add_service(EnrolmentServer::new(script.clone()));
        let listener = listen(SocketAddr::new(ip, CURATOR_PORT)).unwrap();
        let server = TestServer::start_at(listener, &node.identity, Limits::default(), routes);
        Self { node, ip, script, server }
    }

    /// It is gone, and so is its connection with everybody.
    pub(crate) async fn stop(self) -> Script {
        self.server.finish().await;
        self.script
    }
}

impl Script {
    pub(crate) fn new(id: NodeId) -> Self {
        Self(Arc::new(Inner {
            id,
            nodes: watch::Sender::default(),
            orders: watch::Sender::default(),
            members: watch::Sender::default(),
            tombstones: watch::Sender::default(),
            refusal: watch::Sender::default(),
            epoch: watch::Sender::default(),
            statuses: watch::Sender::default(),
            reports: watch::Sender::default(),
            replacements: watch::Sender::default(),
            heartbeats: watch::Sender::default(),
            answers_heartbeats: AtomicBool::new(true),
            answers_replacements: AtomicBool::new(true),
        }))
    }

    pub(crate) fn set_node(&self, node: Node) {
        self.0.nodes.send_modify(|nodes| {
            nodes.retain(|known| known.id != node.id);
            nodes.push(node);
            nodes.sort_by(|first, second| first.id.cmp(&second.id));
        });
    }

    pub(crate) fn remove_node(&self, id: &str) {
        self.0.nodes.send_modify(|nodes| nodes.retain(|node| node.id != id));
    }

    pub(crate) fn set_orders(&self, orders: Orders) {
        self.0.orders.send_replace(orders);
    }

    pub(crate) fn set_members(&self, members: GetMembersResponse) {
        self.0.members.send_replace(members);
    }

    pub(crate) fn bury(&self, id: &str, tombstone: SignedTombstone) {
        self.0.tombstones.send_modify(|tombstones| tombstones.push((id.to_owned(), tombstone)));
    }

    /// Refuses what comes from now on, and ends all streams.
    pub(crate) fn refuse(&self, refusal: Option<Status>) {
        self.0.refusal.send_replace(refusal);
        self.end_streams();
    }

    pub(crate) fn end_streams(&self) {
        self.0.epoch.send_modify(|epoch| *epoch += 1);
    }

    pub(crate) fn answer_heartbeats(&self, answer: bool) {
        self.0.answers_heartbeats.store(answer, Ordering::Relaxed);
    }

    pub(crate) fn statuses(&self) -> Vec<api::UpdateNodeStatusRequest> {
        self.0.statuses.borrow().clone()
    }

    pub(crate) fn reports(&self) -> Vec<ReportNodeRequest> {
        self.0.reports.borrow().clone()
    }

    pub(crate) async fn wait_statuses(&self, wanted: impl FnMut(&Vec<api::UpdateNodeStatusRequest>) -> bool) {
        wait("statuses", &self.0.statuses, wanted).await;
    }

    pub(crate) async fn wait_reports(&self, wanted: impl FnMut(&Vec<ReportNodeRequest>) -> bool) {
        wait("reports", &self.0.reports, wanted).await;
    }

    pub(crate) fn replacements(&self) -> Vec<String> {
        self.0.replacements.borrow().clone()
    }

    /// Whether who asks for a replacement is answered; what is asked counts all the same.
    pub(crate) fn answer_replacements(&self, answer: bool) {
        self.0.answers_replacements.store(answer, Ordering::Relaxed);
    }

    pub(crate) async fn wait_replacements(&self, wanted: impl FnMut(&Vec<String>) -> bool) {
        wait("replacements", &self.0.replacements, wanted).await;
    }

    pub(crate) async fn wait_heartbeats(&self, count: u32) {
        wait("heartbeats", &self.0.heartbeats, |heard| *heard >= count).await;
    }

    pub(crate) fn heartbeats(&self) -> u32 {
        *self.0.heartbeats.borrow()
    }

    fn check(&self) -> Result<(), Status> {
        self.0.refusal.borrow().clone().map_or(Ok(()), Err)
    }

    /// The stream, until all are ended.
    fn bounded<T: Send + 'static>(
        &self,
        inner: impl Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> BoxStream<T> {
        let mut epoch = self.0.epoch.subscribe();
        let end = async move {
            let _ = epoch.changed().await;
        };
        let script = self.clone();
        let last = stream::once(async move {
            Err(script.check().err().unwrap_or_else(|| Status::unavailable("the streams are ended")))
        });
        Box::pin(inner.take_until(Box::pin(end)).chain(last))
    }
}

async fn wait<T: std::fmt::Debug + Send + Sync>(what: &str, value: &watch::Sender<T>, wanted: impl FnMut(&T) -> bool) {
    if timeout(PATIENCE, value.subscribe().wait_for(wanted)).await.is_err() {
        panic!("the {what} were not as expected within {PATIENCE:?}: {:?}", *value.borrow());
    }
}

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The value now, and again whenever it changes.
fn follow<T: Clone + Send + Sync + 'static>(sender: &watch::Sender<T>) -> impl Stream<Item = T> + Send + use<T> {
    let mut receiver = sender.subscribe();
    receiver.mark_changed();
    stream::unfold(receiver, |mut receiver| async move {
        receiver.changed().await.ok()?;
        let value = receiver.borrow_and_update().clone();
        Some((value, receiver))
    })
}

#[tonic::async_trait]
impl Curator for Script {
    type WatchStream = BoxStream<WatchEvent>;
    type HeartbeatStream = BoxStream<api::HeartbeatResponse>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.check()?;
        let events: BoxStream<WatchEvent> = match request.into_inner().kind {
            Some(Kind::NodeInCluster(wanted)) => {
                let mut was_there = false;
                Box::pin(follow(&self.0.nodes).filter_map(move |nodes| {
                    let node = nodes.into_iter().find(|node| node.id == wanted.node_id);
                    let mut event = WatchEvent::default();
                    match node {
                        Some(node) => event.nodes.push(node),
                        None if was_there => {
                            event.node_tombstones.push(NodeTombstone { node_id: wanted.node_id.clone() });
                        }
                        None => return futures::future::ready(None),
                    }
                    was_there = !event.nodes.is_empty();
                    futures::future::ready(Some(Ok(event)))
                }))
            }
            Some(Kind::NodesInCluster(_)) => {
                let mut known: Option<Vec<Node>> = None;
                Box::pin(follow(&self.0.nodes).map(move |nodes| {
                    let mut event = WatchEvent { nodes: nodes.clone(), ..WatchEvent::default() };
                    match known.take() {
                        None => event.progress = Progress::LastBacklogged.into(),
                        Some(known) => {
                            let gone = known.iter().filter(|node| !nodes.iter().any(|other| other.id == node.id));
                            event.node_tombstones =
                                gone.map(|node| NodeTombstone { node_id: node.id.clone() }).collect();
                        }
                    }
                    known = Some(nodes);
                    Ok(event)
                }))
            }
            None => return Err(Status::invalid_argument("no kind")),
        };
        Ok(Response::new(self.bounded(events)))
    }

    async fn update_node_status(
        &self,
        request: Request<api::UpdateNodeStatusRequest>,
    ) -> Result<Response<api::UpdateNodeStatusResponse>, Status> {
        self.check()?;
        self.0.statuses.send_modify(|statuses| statuses.push(request.into_inner()));
        Ok(Response::new(api::UpdateNodeStatusResponse {}))
    }

    async fn heartbeat(
        &self,
        request: Request<Streaming<api::HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        self.check()?;
        let script = self.clone();
        let answers = request.into_inner().filter_map(move |heartbeat| {
            let answer = heartbeat.map(|_| {
                script.0.heartbeats.send_modify(|count| *count += 1);
                script.0.answers_heartbeats.load(Ordering::Relaxed).then_some(api::HeartbeatResponse {})
            });
            futures::future::ready(answer.transpose())
        });
        Ok(Response::new(self.bounded(answers)))
    }

    async fn register_node(
        &self,
        _: Request<api::RegisterNodeRequest>,
    ) -> Result<Response<api::RegisterNodeResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn commit_node(
        &self,
        _: Request<api::CommitNodeRequest>,
    ) -> Result<Response<api::CommitNodeResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn join_node(&self, _: Request<api::JoinNodeRequest>) -> Result<Response<api::JoinNodeResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn issue_certificate(
        &self,
        _: Request<api::IssueCertificateRequest>,
    ) -> Result<Response<api::IssueCertificateResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn update_node_cluster_networking(
        &self,
        _: Request<api::UpdateNodeClusterNetworkingRequest>,
    ) -> Result<Response<api::UpdateNodeClusterNetworkingResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_consensus_status(
        &self,
        _: Request<api::GetConsensusStatusRequest>,
    ) -> Result<Response<api::GetConsensusStatusResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[tonic::async_trait]
impl CuratorLocal for Script {
    type GetCurrentLeaderStream = BoxStream<api::GetCurrentLeaderResponse>;

    async fn get_current_leader(
        &self,
        _: Request<api::GetCurrentLeaderRequest>,
    ) -> Result<Response<Self::GetCurrentLeaderStream>, Status> {
        let own = self.0.id.to_string();
        let answer = api::GetCurrentLeaderResponse {
            leader_node_id: own.clone(),
            leader_host: String::new(),
            leader_port: CURATOR_PORT.into(),
            this_node_id: own,
        };
        Ok(Response::new(Box::pin(stream::once(async { Ok(answer) }).chain(stream::pending()))))
    }

    async fn get_ca_certificate(
        &self,
        _: Request<api::GetCaCertificateRequest>,
    ) -> Result<Response<api::GetCaCertificateResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[tonic::async_trait]
impl Enrolment for Script {
    type WatchOrdersStream = BoxStream<Orders>;

    async fn report_node(
        &self,
        request: Request<ReportNodeRequest>,
    ) -> Result<Response<enrolment::ReportNodeResponse>, Status> {
        self.check()?;
        self.0.reports.send_modify(|reports| reports.push(request.into_inner()));
        Ok(Response::new(enrolment::ReportNodeResponse {}))
    }

    async fn get_members(
        &self,
        _: Request<enrolment::GetMembersRequest>,
    ) -> Result<Response<GetMembersResponse>, Status> {
        self.check()?;
        Ok(Response::new(self.0.members.borrow().clone()))
    }

    async fn watch_orders(
        &self,
        _: Request<enrolment::WatchOrdersRequest>,
    ) -> Result<Response<Self::WatchOrdersStream>, Status> {
        self.check()?;
        Ok(Response::new(self.bounded(follow(&self.0.orders).map(Ok))))
    }

    async fn get_tombstone(
        &self,
        request: Request<enrolment::GetTombstoneRequest>,
    ) -> Result<Response<enrolment::GetTombstoneResponse>, Status> {
        let wanted = request.into_inner().node_id;
        let tombstones = self.0.tombstones.borrow();
        let tombstone = tombstones.iter().find(|(id, _)| *id == wanted).map(|(_, tombstone)| tombstone.clone());
        Ok(Response::new(enrolment::GetTombstoneResponse { tombstone }))
    }

    async fn propose_owner(
        &self,
        _: Request<enrolment::ProposeOwnerRequest>,
    ) -> Result<Response<enrolment::ProposeOwnerResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn store_unlock_key(
        &self,
        _: Request<enrolment::StoreUnlockKeyRequest>,
    ) -> Result<Response<enrolment::StoreUnlockKeyResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn store_recovery_blob(
        &self,
        _: Request<enrolment::StoreRecoveryBlobRequest>,
    ) -> Result<Response<enrolment::StoreRecoveryBlobResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn replace_member(
        &self,
        request: Request<enrolment::ReplaceMemberRequest>,
    ) -> Result<Response<enrolment::ReplaceMemberResponse>, Status> {
        self.check()?;
        self.0.replacements.send_modify(|reasons| reasons.push(request.into_inner().reason));
        if !self.0.answers_replacements.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(enrolment::ReplaceMemberResponse {}))
    }

    async fn check_unlock_key(
        &self,
        _: Request<enrolment::CheckUnlockKeyRequest>,
    ) -> Result<Response<enrolment::CheckUnlockKeyResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}
