//! What the nodes of the cluster in this process answer.

use std::sync::{Arc, MutexGuard};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use polis_identity::PublicKey;
use polis_proto::api;
use polis_proto::api::aaa_server::Aaa;
use polis_proto::api::management_server::Management;
use polis_proto::api::node_management_server::NodeManagement;
use polis_proto::cluster::cluster_server::Cluster;
use polis_proto::cluster::{self, GetStatusResponse};
use polis_proto::common::{self, cluster_directory};
use polis_proto::curator_api::curator_local_server::CuratorLocal;
use polis_proto::curator_api::{
    GetCaCertificateRequest, GetCaCertificateResponse, GetCurrentLeaderRequest, GetCurrentLeaderResponse,
};
use polis_proto::logtree::{LogEntry, log_entry};
use polis_proto::node_api::node_server::Node as NodeService;
use polis_proto::node_api::{
    GetStatusRequest, GetStatusResponse as NodeStatusResponse, RekeyRequest, RekeyResponse, ResealRequest,
    ResealResponse, SaveSnapshotRequest, SaveSnapshotResponse,
};
use polis_proto::rpc_detail::LeaderHint;
use polis_rpc::{CURATOR_PORT, Caller, Peer, detail};
use tonic::{Request, Response, Status, async_trait};

use super::{Fault, Shared, State, node_status, ticket};

/// One node: it leads, or it names who does.
#[derive(Clone)]
pub(super) struct FakeNode {
    pub(super) index: usize,
    pub(super) shared: Arc<Shared>,
}

impl FakeNode {
    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    fn hint(&self) -> Option<LeaderHint> {
        let leader = self.state().leader?;
        let (node, address) = &self.shared.nodes[leader];
        Some(LeaderHint { node_id: node.id.to_string(), host: address.to_string(), port: CURATOR_PORT.into() })
    }

    /// Answers as the leader, unless this node is none or something is to go wrong.
    fn lead<T>(
        &self,
        method: &'static str,
        answer: impl FnOnce(&mut State) -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let hint = self.hint();
        let mut state = self.state();
        match (state.leader, hint) {
            (Some(leader), _) if leader == self.index => {}
            (_, Some(hint)) => return Err(detail::with_leader(Status::unavailable("another node leads"), &hint)),
            (_, None) => return Err(Status::unavailable("no node is known to lead")),
        }
        if state.faults.front().is_some_and(|(of, _)| *of == method) {
            match state.faults.pop_front() {
                Some((_, Fault::Refuse(status))) => return Err(status),
                Some((_, Fault::DoAnd(status))) => {
                    answer(&mut state)?;
                    return Err(status);
                }
                None => {}
            }
        }
        answer(&mut state).map(Response::new)
    }
}

#[async_trait]
impl CuratorLocal for FakeNode {
    type GetCurrentLeaderStream = BoxStream<'static, Result<GetCurrentLeaderResponse, Status>>;

    async fn get_current_leader(
        &self,
        _: Request<GetCurrentLeaderRequest>,
    ) -> Result<Response<Self::GetCurrentLeaderStream>, Status> {
        let hint = self.hint().ok_or_else(|| Status::unavailable("no node is known to lead"))?;
        let answer = GetCurrentLeaderResponse {
            leader_node_id: hint.node_id,
            leader_host: hint.host,
            leader_port: hint.port,
            this_node_id: self.shared.nodes[self.index].0.id.to_string(),
        };
        Ok(Response::new(stream::iter([Ok(answer)]).chain(stream::pending()).boxed()))
    }

    async fn get_ca_certificate(
        &self,
        _: Request<GetCaCertificateRequest>,
    ) -> Result<Response<GetCaCertificateResponse>, Status> {
        let identity_ca_certificate = self.shared.cluster.authority.certificate().der().to_vec();
        Ok(Response::new(GetCaCertificateResponse { identity_ca_certificate }))
    }
}

#[async_trait]
impl Aaa for FakeNode {
    type EscrowStream = BoxStream<'static, Result<api::EscrowResponse, Status>>;

    async fn escrow(
        &self,
        request: Request<tonic::Streaming<api::EscrowRequest>>,
    ) -> Result<Response<Self::EscrowStream>, Status> {
        let shown = match &Caller::of(&request).peer {
            Peer::Ephemeral(key) => *key,
            Peer::Anonymous | Peer::Node(_) | Peer::User(_) => return Err(Status::unauthenticated("show your key")),
        };
        let first = request.into_inner().message().await?.and_then(|message| message.parameters).unwrap_or_default();
        self.lead("escrow", |state| {
            if first.requested_identity_name != "owner" || first.public_key != shown.as_bytes() {
                return Err(Status::unimplemented("only the owner"));
            }
            if shown != state.owner {
                return Err(Status::permission_denied("this is not the owner's key"));
            }
            let certificate = self.shared.cluster.authority.issue_user("owner", &shown).unwrap();
            let answer = api::EscrowResponse { emitted_certificate: certificate.der().to_vec(), ..Default::default() };
            Ok(stream::iter([Ok(answer)]).boxed())
        })
    }
}

#[async_trait]
impl Cluster for FakeNode {
    async fn get_status(&self, _: Request<cluster::GetStatusRequest>) -> Result<Response<GetStatusResponse>, Status> {
        self.lead("get_status", |state| Ok(state.status.clone()))
    }

    async fn rotate_register_ticket(
        &self,
        _: Request<cluster::RotateRegisterTicketRequest>,
    ) -> Result<Response<cluster::RotateRegisterTicketResponse>, Status> {
        self.lead("rotate_register_ticket", |state| {
            state.ticket = ticket(0x5b);
            state.changes.push("ticket".into());
            Ok(cluster::RotateRegisterTicketResponse { ticket: state.ticket.clone() })
        })
    }

    async fn rotate_owner(
        &self,
        request: Request<cluster::RotateOwnerRequest>,
    ) -> Result<Response<cluster::RotateOwnerResponse>, Status> {
        let request = request.into_inner();
        self.lead("rotate_owner", |state| {
            let key = PublicKey::try_from(&request.public_key[..]).map_err(|_| Status::invalid_argument("no key"))?;
            let message = [b"polis owner rotation v1\0".as_slice(), state.status.cluster_id.as_bytes()].concat();
            let proof = request.proof[..].try_into().map_err(|_| Status::invalid_argument("no proof"))?;
            key.verify(&message, proof).map_err(|_| Status::permission_denied("the new key did not sign"))?;
            state.owner = key;
            state.changes.push(format!("owner {key}"));
            let certificate = self.shared.cluster.authority.issue_user("owner", &key).unwrap();
            Ok(cluster::RotateOwnerResponse { certificate: certificate.der().to_vec() })
        })
    }

    async fn confirm_two(
        &self,
        request: Request<cluster::ConfirmTwoRequest>,
    ) -> Result<Response<cluster::ConfirmTwoResponse>, Status> {
        let withdraw = request.into_inner().withdraw;
        self.lead("confirm_two", |state| {
            if state.status.recovery_public_key.is_empty() && !withdraw {
                return Err(Status::failed_precondition("the cluster has no recovery key"));
            }
            state.changes.push(format!("confirm two: {}", !withdraw));
            Ok(cluster::ConfirmTwoResponse {})
        })
    }

    async fn set_recovery_key(
        &self,
        request: Request<cluster::SetRecoveryKeyRequest>,
    ) -> Result<Response<cluster::SetRecoveryKeyResponse>, Status> {
        let key = request.into_inner().public_key;
        self.lead("set_recovery_key", |state| {
            let replaced = !state.status.recovery_public_key.is_empty();
            state.changes.push("recovery key".into());
            state.status.recovery_public_key = key;
            Ok(cluster::SetRecoveryKeyResponse { replaced })
        })
    }

    async fn get_recovery_blob(
        &self,
        _: Request<cluster::GetRecoveryBlobRequest>,
    ) -> Result<Response<cluster::GetRecoveryBlobResponse>, Status> {
        self.lead("get_recovery_blob", |_| Ok(cluster::GetRecoveryBlobResponse::default()))
    }
}

#[async_trait]
impl Management for FakeNode {
    type GetNodesStream = BoxStream<'static, Result<api::Node, Status>>;

    async fn get_register_ticket(
        &self,
        _: Request<api::GetRegisterTicketRequest>,
    ) -> Result<Response<api::GetRegisterTicketResponse>, Status> {
        self.lead("get_register_ticket", |state| Ok(api::GetRegisterTicketResponse { ticket: state.ticket.clone() }))
    }

    async fn get_cluster_info(
        &self,
        _: Request<api::GetClusterInfoRequest>,
    ) -> Result<Response<api::GetClusterInfoResponse>, Status> {
        self.lead("get_cluster_info", |state| {
            let nodes = self.shared.nodes.iter().map(|(node, address)| cluster_directory::Node {
                id: node.id.to_string(),
                addresses: vec![cluster_directory::node::Address { host: address.to_string() }],
            });
            Ok(api::GetClusterInfoResponse {
                cluster_directory: Some(common::ClusterDirectory { nodes: nodes.collect() }),
                ca_certificate: self.shared.cluster.authority.certificate().der().to_vec(),
                cluster_configuration: Some(state.configuration.clone()),
            })
        })
    }

    async fn get_nodes(
        &self,
        request: Request<api::GetNodesRequest>,
    ) -> Result<Response<Self::GetNodesStream>, Status> {
        self.lead("get_nodes", |state| match &*request.get_ref().filter {
            "" => Ok(stream::iter(state.nodes.clone().into_iter().map(Ok)).boxed()),
            "none" => Ok(stream::empty().boxed()),
            other => Err(Status::invalid_argument(format!("{other:?} is no CEL expression"))),
        })
    }

    async fn approve_node(
        &self,
        request: Request<api::ApproveNodeRequest>,
    ) -> Result<Response<api::ApproveNodeResponse>, Status> {
        let key = request.into_inner().pubkey;
        self.lead("approve_node", |state| {
            let found = state.nodes.iter_mut().find(|node| node.pubkey == key);
            let node = found.ok_or_else(|| Status::not_found("there is no such node"))?;
            node.state = common::NodeState::Standby.into();
            let change = format!("approve {}", node.id);
            state.changes.push(change);
            Ok(api::ApproveNodeResponse {})
        })
    }

    async fn update_node_roles(
        &self,
        request: Request<api::UpdateNodeRolesRequest>,
    ) -> Result<Response<api::UpdateNodeRolesResponse>, Status> {
        let request = request.into_inner();
        let Some(api::update_node_roles_request::Node::Id(id)) = request.node else {
            return Err(Status::invalid_argument("no node"));
        };
        self.lead("update_node_roles", |state| {
            let node = state.find(&id)?;
            let roles = node.roles.get_or_insert_default();
            if let Some(member) = request.consensus_member {
                roles.consensus_member = member.then(Default::default);
            }
            if let Some(worker) = request.kubernetes_worker {
                roles.kubernetes_worker = worker.then(Default::default);
            }
            state.changes.push(format!("roles {id}"));
            Ok(api::UpdateNodeRolesResponse {})
        })
    }

    async fn decommission_node(
        &self,
        request: Request<api::DecommissionNodeRequest>,
    ) -> Result<Response<api::DecommissionNodeResponse>, Status> {
        let Some(api::decommission_node_request::Node::Id(id)) = request.into_inner().node else {
            return Err(Status::invalid_argument("no node"));
        };
        self.lead("decommission_node", |state| {
            state.find(&id)?.state = common::NodeState::Decommissioned.into();
            state.changes.push(format!("decommission {id}"));
            Ok(api::DecommissionNodeResponse {})
        })
    }

    async fn delete_node(
        &self,
        request: Request<api::DeleteNodeRequest>,
    ) -> Result<Response<api::DeleteNodeResponse>, Status> {
        let request = request.into_inner();
        let Some(api::delete_node_request::Node::Id(id)) = request.node else {
            return Err(Status::invalid_argument("no node"));
        };
        self.lead("delete_node", |state| {
            let node = state.find(&id)?;
            let has_roles = node.roles.as_ref().is_some_and(|roles| roles.consensus_member.is_some());
            if has_roles && request.safety_bypass_has_roles.is_none() {
                return Err(Status::failed_precondition("the node still has roles"));
            }
            let is_up = node.state == i32::from(common::NodeState::Up);
            if is_up && request.safety_bypass_not_decommissioned.is_none() {
                return Err(Status::failed_precondition("the node is not decommissioned"));
            }
            state.nodes.retain(|node| node.id != id);
            state.changes.push(format!("delete {id}"));
            Ok(api::DeleteNodeResponse {})
        })
    }

    async fn update_node_labels(
        &self,
        request: Request<api::UpdateNodeLabelsRequest>,
    ) -> Result<Response<api::UpdateNodeLabelsResponse>, Status> {
        let request = request.into_inner();
        let Some(api::update_node_labels_request::Node::Id(id)) = request.node else {
            return Err(Status::invalid_argument("no node"));
        };
        self.lead("update_node_labels", |state| {
            let labels = state.find(&id)?.labels.get_or_insert_default();
            labels.pairs.retain(|pair| !request.delete.contains(&pair.key));
            for pair in request.upsert {
                labels.pairs.retain(|known| known.key != pair.key);
                labels.pairs.push(common::node_labels::Pair { key: pair.key, value: pair.value });
            }
            state.changes.push(format!("labels {id}"));
            Ok(api::UpdateNodeLabelsResponse {})
        })
    }

    async fn configure_cluster(
        &self,
        request: Request<api::ConfigureClusterRequest>,
    ) -> Result<Response<api::ConfigureClusterResponse>, Status> {
        let request = request.into_inner();
        self.lead("configure_cluster", |state| {
            if request.base_config.as_ref().is_some_and(|base| base.kubernetes.is_none()) {
                return Err(Status::invalid_argument("base_config has no kubernetes"));
            }
            if request.base_config.is_some_and(|base| base != state.configuration) {
                return Err(Status::failed_precondition("the configuration was changed meanwhile"));
            }
            state.configuration = request.new_config.unwrap_or_default();
            state.changes.push("configuration".into());
            Ok(api::ConfigureClusterResponse { resulting_config: Some(state.configuration.clone()) })
        })
    }
}

#[async_trait]
impl NodeManagement for FakeNode {
    type LogsStream = BoxStream<'static, Result<api::LogsResponse, Status>>;

    async fn logs(&self, request: Request<api::LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        let raw = log_entry::Raw { data: "a line with \u{1b}[2J in it".into(), original_length: 0 };
        let entry = LogEntry { dn: request.into_inner().dn, kind: Some(log_entry::Kind::Raw(raw)) };
        let answer = api::LogsResponse { backlog_entries: vec![entry], stream_entries: vec![] };
        Ok(Response::new(stream::once(futures::future::ready(Ok(answer))).boxed()))
    }

    async fn update_node(
        &self,
        request: Request<api::UpdateNodeRequest>,
    ) -> Result<Response<api::UpdateNodeResponse>, Status> {
        let mut state = self.state();
        let digest: polis_update::Digest = request.into_inner().os_image.unwrap_or_default().digest.parse().unwrap();
        let daemon = || Status::failed_precondition("this node runs as a daemon");
        let boot = state.boots[self.index].as_mut().ok_or_else(daemon)?;
        boot.next = digest.0.to_vec();
        state.changes.push(format!("update {}", self.index));
        Ok(Response::new(api::UpdateNodeResponse {}))
    }

    async fn reboot(&self, request: Request<api::RebootRequest>) -> Result<Response<api::RebootResponse>, Status> {
        let api::RebootRequest { r#type: kind, next_boot } = request.into_inner();
        let next = if next_boot == 0 { String::new() } else { format!(" {next_boot}") };
        let is_silent = {
            let mut state = self.state();
            state.changes.push(format!("reboot {} {kind}{next}", self.index));
            if let Some(boot) = &mut state.boots[self.index] {
                if !boot.hangs {
                    boot.running = boot.next.clone();
                }
                // It is back at once, which the next look sees.
                let status = state.nodes[self.index].status.get_or_insert_default();
                status.boot_id.push(1);
            }
            state.restarts_silently
        };
        if is_silent {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(api::RebootResponse {}))
    }
}

#[async_trait]
impl NodeService for FakeNode {
    async fn get_status(&self, _: Request<GetStatusRequest>) -> Result<Response<NodeStatusResponse>, Status> {
        let status = node_status(&self.shared.nodes[self.index].0.id.to_string());
        let status_json = serde_json::to_string(&status).unwrap();
        let image = |sha256: &[u8]| polis_proto::node_api::BootImage {
            slot: "b".into(),
            version: "2".into(),
            sha256: sha256.to_vec(),
            good: true,
        };
        let boot = self.state().boots[self.index].as_ref().map(|boot| polis_proto::node_api::BootStatus {
            running: Some(image(&boot.running)),
            next: Some(image(&boot.next)),
        });
        Ok(Response::new(NodeStatusResponse { status_json, version: "0.1.0".into(), boot }))
    }

    async fn rekey(&self, _: Request<RekeyRequest>) -> Result<Response<RekeyResponse>, Status> {
        Err(Status::unimplemented("no"))
    }

    async fn reseal(&self, _: Request<ResealRequest>) -> Result<Response<ResealResponse>, Status> {
        Err(Status::unimplemented("no"))
    }

    type SaveSnapshotStream = BoxStream<'static, Result<SaveSnapshotResponse, Status>>;

    async fn save_snapshot(
        &self,
        _: Request<SaveSnapshotRequest>,
    ) -> Result<Response<Self::SaveSnapshotStream>, Status> {
        let messages = self.state().snapshot.clone();
        if messages.is_empty() {
            return Err(Status::failed_precondition("the cluster has no recovery key"));
        }
        Ok(Response::new(stream::iter(messages.into_iter().map(Ok)).boxed()))
    }
}
