//! What a request that changes something is about, for its line in the log: which node, and what of it. Never a ticket, a key that is
//! secret, or a value that somebody has chosen.

use polis_identity::NodeId;
use polis_proto::api::{
    ApproveNodeRequest, ConfigureClusterRequest, DecommissionNodeRequest, DeleteNodeRequest, GetRegisterTicketRequest,
    UpdateNodeLabelsRequest, UpdateNodeRolesRequest,
};
use polis_proto::cluster::{
    ConfirmTwoRequest, GetRecoveryBlobRequest, RotateOwnerRequest, RotateRegisterTicketRequest, SetRecoveryKeyRequest,
};
use polis_proto::enrolment::ProposeOwnerRequest;
use polis_rpc::AuditObject;
use tonic::Request;

use super::core::{parse_id, parse_key};
use super::management::{Target, target};

/// Says in the log what this request is about.
pub(super) fn tell<T: About>(request: &Request<T>) {
    AuditObject::of(request).set(request.get_ref().about());
}

/// A request that changes something.
pub(super) trait About {
    /// What it is about.
    fn about(&self) -> String;
}

impl About for ApproveNodeRequest {
    fn about(&self) -> String {
        node(Some(Target::PublicKey(self.pubkey.clone())))
    }
}

impl About for UpdateNodeRolesRequest {
    fn about(&self) -> String {
        let roles = [
            ("ConsensusMember", self.consensus_member),
            ("KubernetesController", self.kubernetes_controller),
            ("KubernetesWorker", self.kubernetes_worker),
        ];
        let changes = roles.into_iter().filter_map(|(role, wanted)| wanted.map(|wanted| change(wanted, role)));
        format!("{}: roles{}", node(self.node.clone().map(Into::into)), changes.collect::<String>())
    }
}

impl About for UpdateNodeLabelsRequest {
    fn about(&self) -> String {
        let set = self.upsert.iter().map(|pair| change(true, &pair.key));
        let taken = self.delete.iter().map(|key| change(false, key));
        format!("{}: labels{}", node(self.node.clone().map(Into::into)), set.chain(taken).collect::<String>())
    }
}

impl About for DecommissionNodeRequest {
    fn about(&self) -> String {
        node(self.node.clone().map(Into::into))
    }
}

impl About for DeleteNodeRequest {
    fn about(&self) -> String {
        let mut text = node(self.node.clone().map(Into::into));
        if self.safety_bypass_has_roles.is_some() {
            text.push_str(", with its roles");
        }
        if self.safety_bypass_not_decommissioned.is_some() {
            text.push_str(", without decommissioning");
        }
        text
    }
}

impl About for ConfigureClusterRequest {
    fn about(&self) -> String {
        let paths = self.update_mask.as_ref().map(|mask| &mask.paths[..]).unwrap_or_default();
        if paths.is_empty() { "configuration".to_owned() } else { format!("configuration: {}", paths.join(" ")) }
    }
}

impl About for GetRegisterTicketRequest {
    fn about(&self) -> String {
        "register ticket, read".to_owned()
    }
}

impl About for RotateRegisterTicketRequest {
    fn about(&self) -> String {
        "register ticket, rotated".to_owned()
    }
}

impl About for RotateOwnerRequest {
    fn about(&self) -> String {
        owner(&self.public_key)
    }
}

impl About for ProposeOwnerRequest {
    fn about(&self) -> String {
        owner(&self.public_key)
    }
}

impl About for ConfirmTwoRequest {
    fn about(&self) -> String {
        let what = if self.withdraw { "not confirmed any more" } else { "confirmed" };
        format!("cluster of two, {what}")
    }
}

impl About for SetRecoveryKeyRequest {
    fn about(&self) -> String {
        "recovery key, set".to_owned()
    }
}

impl About for GetRecoveryBlobRequest {
    fn about(&self) -> String {
        let id = parse_id("node_id", &self.node_id).ok();
        format!("{}: recovery blob, read", id.map_or_else(no_node, of_node))
    }
}

/// That a role or a label is set or taken away.
fn change(is_set: bool, name: &str) -> String {
    format!(" {}{name}", if is_set { '+' } else { '-' })
}

fn owner(public_key: &[u8]) -> String {
    match parse_key("public_key", public_key) {
        Ok(key) => format!("owner key {key}"),
        Err(_) => "an owner key that is none".to_owned(),
    }
}

fn node(node: Option<Target>) -> String {
    target(node).map_or_else(|_| no_node(), of_node)
}

fn of_node(id: NodeId) -> String {
    format!("node {id}")
}

/// Stands for a node that the request does not name, or not by what can be one. What it says instead is in the answer.
fn no_node() -> String {
    "no node".to_owned()
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;
    use polis_proto::api::delete_node_request::{Node as DeleteTarget, SafetyBypassHasRoles};
    use polis_proto::api::update_node_labels_request::{Node as LabelsNode, Pair};
    use polis_proto::api::update_node_roles_request::Node as RolesNode;

    use super::*;

    #[test]
    fn it_names_the_node_and_what_of_it() {
        let key = NodeKey::generate().public();
        let (id, bytes) = (NodeId::of(&key), key.as_bytes().to_vec());
        let labels = UpdateNodeLabelsRequest {
            node: Some(LabelsNode::Id(id.to_string())),
            upsert: vec![Pair { key: "site".into(), value: "of no interest".into() }],
            delete: vec!["old".into()],
        };
        let roles = UpdateNodeRolesRequest {
            node: Some(RolesNode::Pubkey(bytes.clone())),
            consensus_member: Some(true),
            kubernetes_worker: Some(false),
            ..UpdateNodeRolesRequest::default()
        };
        let delete = DeleteNodeRequest {
            node: Some(DeleteTarget::Id(id.to_string())),
            safety_bypass_has_roles: Some(SafetyBypassHasRoles {}),
            ..DeleteNodeRequest::default()
        };
        for (found, expected) in [
            (ApproveNodeRequest { pubkey: bytes.clone() }.about(), format!("node {id}")),
            (ApproveNodeRequest { pubkey: vec![1] }.about(), "no node".to_owned()),
            (labels.about(), format!("node {id}: labels +site -old")),
            (roles.about(), format!("node {id}: roles +ConsensusMember -KubernetesWorker")),
            (DecommissionNodeRequest { node: None }.about(), "no node".to_owned()),
            (delete.about(), format!("node {id}, with its roles")),
            (RotateOwnerRequest { public_key: bytes, proof: vec![] }.about(), format!("owner key {key}")),
            (GetRecoveryBlobRequest { node_id: "x".into() }.about(), "no node: recovery blob, read".to_owned()),
        ] {
            assert_eq!(found, expected);
        }
    }
}
