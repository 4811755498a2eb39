//! A node as the cluster describes it, in the form that is shown.

use std::collections::BTreeMap;

use polis_identity::{NodeId, PublicKey};
use polis_proto::api::{Node, node::Health};
use polis_proto::common::{NodeRoles, NodeState, NodeTpmUsage};
use polis_proto::version::spec::{Version, version::git_information::BuildTreeState};
use serde::Serialize;

use crate::arguments::Role;
use crate::wire;

/// One node. Keys are part of the command contract: add, do not change.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct NodeDocument {
    pub(crate) node_id: String,
    /// Ed25519 public key, in hex.
    pub(crate) public_key: String,
    /// `NEW`, `STANDBY`, `UP` or `DECOMMISSIONED`.
    pub(crate) state: String,
    /// Where it was last seen; absent before its first report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<String>,
    /// `HEALTHY`, `HEARTBEAT_TIMEOUT` or `UNKNOWN`.
    pub(crate) health: String,
    /// Seconds since the leader last heard of it; absent when it never has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_since_heartbeat: Option<f64>,
    pub(crate) roles: Vec<&'static str>,
    /// `NOT_PRESENT`, `PRESENT_BUT_UNUSED`, `PRESENT_AND_USED`; absent when it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tpm_usage: Option<String>,
    /// Version of its software; absent before its first report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// Id of its last boot, in hex; absent before its first report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) boot_id: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
}

impl From<Node> for NodeDocument {
    fn from(node: Node) -> Self {
        let status = node.status.unwrap_or_default();
        let time_since_heartbeat = node.time_since_heartbeat.map(|age| wire::seconds(&age));
        // A node of Metropolis before it had ids sends its key only.
        let node_id = match PublicKey::try_from(&node.pubkey[..]) {
            Ok(key) if node.id.is_empty() => NodeId::of(&key).to_string(),
            Ok(_) | Err(_) => node.id,
        };
        Self {
            node_id,
            public_key: hex::encode(&node.pubkey),
            state: wire::name::<NodeState>(node.state, NodeState::as_str_name, "NODE_STATE_"),
            address: some(status.external_address),
            health: wire::name::<Health>(node.health, Health::as_str_name, "HEALTH_"),
            time_since_heartbeat,
            roles: node.roles.as_ref().map(roles).unwrap_or_default(),
            tpm_usage: (node.tpm_usage != 0)
                .then(|| wire::name::<NodeTpmUsage>(node.tpm_usage, NodeTpmUsage::as_str_name, "NODE_TPM_USAGE_")),
            version: status.version.as_ref().and_then(version_text),
            boot_id: some(hex::encode(status.boot_id)),
            labels: node.labels.unwrap_or_default().pairs.into_iter().map(|pair| (pair.key, pair.value)).collect(),
        }
    }
}

impl NodeDocument {
    pub(crate) fn has_role(&self, role: Role) -> bool {
        self.roles.contains(&role.name())
    }

    /// Whether it is an ordinary node of the cluster.
    pub(crate) fn is_up(&self) -> bool {
        self.state == "UP"
    }

    /// Whether the leader hears of it.
    pub(crate) fn is_healthy(&self) -> bool {
        self.health == "HEALTHY"
    }
}

/// The roles by their names, in the order of the contract.
fn roles(roles: &NodeRoles) -> Vec<&'static str> {
    let held = [
        (roles.consensus_member.is_some(), Role::ConsensusMember),
        (roles.kubernetes_controller.is_some(), Role::KubernetesController),
        (roles.kubernetes_worker.is_some(), Role::KubernetesWorker),
    ];
    held.into_iter().filter(|(held, _)| *held).map(|(_, role)| role.name()).collect()
}

/// `1.2.3` for a release; `1.2.3-dev4.g0011223` with a `.dirty` at the end for what was built between releases.
fn version_text(version: &Version) -> Option<String> {
    let release = version.release.as_ref()?;
    let mut text = format!("{}.{}.{}", release.major, release.minor, release.patch);
    if let Some(git) = &version.git_information {
        if git.commits_since_release > 0 {
            text.push_str(&format!("-dev{}", git.commits_since_release));
            if !git.commit_hash.is_empty() {
                text.push_str(&format!(".g{}", git.commit_hash.chars().take(8).collect::<String>()));
            }
        }
        if git.build_tree_state == i32::from(BuildTreeState::Dirty) {
            text.push_str(".dirty");
        }
    }
    Some(text)
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use polis_proto::version::spec::version::{GitInformation, Release};

    use super::*;

    #[test]
    fn versions_of_releases_and_between() {
        let release = Some(Release { major: 1, minor: 2, patch: 3 });
        let git = |commits_since_release, state: BuildTreeState| GitInformation {
            commit_hash: "00112233445566778899".into(),
            commits_since_release,
            build_tree_state: state.into(),
        };
        let check = |git_information, expect: &str| {
            let version = Version { release, git_information };
            assert_eq!(version_text(&version).as_deref(), Some(expect));
        };
        check(None, "1.2.3");
        check(Some(git(0, BuildTreeState::Clean)), "1.2.3");
        check(Some(git(4, BuildTreeState::Clean)), "1.2.3-dev4.g00112233");
        check(Some(git(4, BuildTreeState::Dirty)), "1.2.3-dev4.g00112233.dirty");
        assert_eq!(version_text(&Version::default()), None);
    }

    #[test]
    fn the_json_keys_are_those_of_the_contract() {
        let node = Node {
            id: "metropolis-00".into(),
            pubkey: vec![0xab; 2],
            state: NodeState::Up.into(),
            health: Health::HeartbeatTimeout.into(),
            time_since_heartbeat: Some(prost_types::Duration { seconds: 12, nanos: 500_000_000 }),
            ..Node::default()
        };
        assert_eq!(
            serde_json::to_value(NodeDocument::from(node)).unwrap(),
            serde_json::json!({
                "node_id": "metropolis-00",
                "public_key": "abab",
                "state": "UP",
                "health": "HEARTBEAT_TIMEOUT",
                "time_since_heartbeat": 12.5,
                "roles": [],
                "labels": {},
            })
        );
    }

    #[test]
    fn values_of_a_later_version_are_shown_as_numbers() {
        let node = NodeDocument::from(Node { state: 77, health: 9, ..Node::default() });
        assert_eq!((&*node.state, &*node.health), ("77", "9"));
    }
}
