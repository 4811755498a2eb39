//! What the cluster knows of a node.

use std::fmt;
use std::net::IpAddr;

use polis_identity::{InvalidPublicKeyError, NodeId, PublicKey, SharePublicKey};
use polis_parameters::Labels;
use polis_proto::common::{NodeClusterNetworking, NodeRoles, NodeState, NodeStatus, NodeTpmUsage};
use polis_proto::curator_private::Node;
use polis_proto::curator_state::NodeEnrolment;
use polis_secret::Secret32;
use polis_unlock::{MemberEntry, Standing};
use prost::Message as _;

use super::{StateError, Versioned};

/// What the cluster knows of a node: the checked form of `Node` of the private schema (metropolis.md, G.1).
#[derive(Clone, PartialEq)]
pub struct NodeRecord {
    /// Name of the node, which follows from its key.
    pub id: NodeId,
    /// Its key.
    pub public_key: PublicKey,
    /// How far its enrolment is; never `Invalid`.
    pub state: NodeState,
    /// What it does for the cluster.
    pub roles: NodeRoles,
    /// What it last reported of itself; absent until its first report.
    pub status: Option<NodeStatus>,
    /// Key with which it joins again.
    pub join_key: PublicKey,
    /// The cluster's half of the key of its data partition; absent with insecure storage and before its commit.
    pub cluster_unlock_key: Option<Secret32>,
    /// Its place in the cluster's network; absent until reported.
    pub clusternet: Option<NodeClusterNetworking>,
    /// How it uses its TPM; never `Invalid`.
    pub tpm_usage: NodeTpmUsage,
    /// Its labels.
    pub labels: Labels,
}

/// Why a message is no record of a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeRecordError {
    /// A key of the node is none.
    #[error("its {field} is not a public key")]
    Key {
        /// Name of the field.
        field: &'static str,
        /// Why it is not.
        #[source]
        source: InvalidPublicKeyError,
    },
    /// The id is not that of the key.
    #[error("its id is {found:?}, but the id that follows from its key is {expected}")]
    Id {
        /// What the message says.
        found: String,
        /// What its key says.
        expected: NodeId,
    },
    /// It lies under the key of another node.
    #[error("it is the record of {found}")]
    OtherNode {
        /// The node whose record it is.
        found: NodeId,
    },
    /// A field has a value that this version does not know.
    #[error("its {field} has the value {found}, which is unknown to this version of Polis")]
    UnknownValue {
        /// Name of the field.
        field: &'static str,
        /// Number that was found.
        found: i32,
    },
    /// The cluster unlock key has another length.
    #[error("its cluster unlock key has {found} bytes instead of 32")]
    UnlockKey {
        /// Length that was found, in bytes.
        found: usize,
    },
    /// A label is malformed.
    #[error("its {fault}")]
    Label {
        /// The label and what is wrong with it.
        fault: polis_parameters::LabelFault,
    },
}

impl NodeRecord {
    /// Whether it runs a consensus member, or is to.
    #[must_use]
    pub const fn is_consensus_member(&self) -> bool {
        self.roles.consensus_member.is_some()
    }

    /// Where it was last seen, as it reported it; `None` before its first report.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.status.as_ref()?.external_address.parse().ok()
    }

    /// Its entry in a member list.
    #[must_use]
    pub fn member_entry(&self, enrolment: &NodeEnrolment) -> MemberEntry {
        MemberEntry {
            node_id: self.id,
            public_key: self.public_key,
            join_key: self.join_key,
            // The curator takes share keys of the right length only, and another is of no use.
            share_key: <[u8; 32]>::try_from(&enrolment.share_key[..]).ok().map(SharePublicKey::new),
            addresses: self.address().into_iter().collect(),
            standing: Standing::Stays,
        }
    }

    /// Checks a message.
    ///
    /// # Errors
    ///
    /// When a part of it is not as it must be. Nothing is repaired silently.
    pub fn from_wire(message: Node) -> Result<Self, NodeRecordError> {
        let key =
            |field, bytes: &[u8]| PublicKey::try_from(bytes).map_err(|source| NodeRecordError::Key { field, source });
        let public_key = key("public key", &message.public_key)?;
        let id = NodeId::of(&public_key);
        if message.id != id.to_string() {
            return Err(NodeRecordError::Id { found: message.id, expected: id });
        }
        let unknown = |field, found| NodeRecordError::UnknownValue { field, found };
        let state = match NodeState::try_from(message.fsm_state) {
            Ok(state @ (NodeState::New | NodeState::Standby | NodeState::Up | NodeState::Decommissioned)) => state,
            Ok(NodeState::Invalid) | Err(_) => return Err(unknown("state", message.fsm_state)),
        };
        let tpm_usage = match NodeTpmUsage::try_from(message.tpm_usage) {
            Ok(usage @ (NodeTpmUsage::NotPresent | NodeTpmUsage::PresentButUnused | NodeTpmUsage::PresentAndUsed)) => {
                usage
            }
            Ok(NodeTpmUsage::Invalid) | Err(_) => return Err(unknown("TPM usage", message.tpm_usage)),
        };
        let cluster_unlock_key = match &message.cluster_unlock_key[..] {
            [] => None,
            bytes => Some(Secret32::try_from(bytes).map_err(|_| NodeRecordError::UnlockKey { found: bytes.len() })?),
        };
        let (labels, faults) = Labels::from_wire(message.labels.unwrap_or_default());
        if let Some(fault) = faults.into_iter().next() {
            return Err(NodeRecordError::Label { fault });
        }
        Ok(Self {
            id,
            public_key,
            state,
            roles: message.roles.unwrap_or_default(),
            status: message.status,
            join_key: key("join key", &message.join_key)?,
            cluster_unlock_key,
            clusternet: message.clusternet,
            tpm_usage,
            labels,
        })
    }

    /// The message, as it is stored. It holds a secret.
    #[must_use]
    pub fn to_wire(&self) -> Node {
        Node {
            id: self.id.to_string(),
            public_key: self.public_key.as_bytes().to_vec(),
            cluster_unlock_key: self.cluster_unlock_key.as_ref().map(|key| key.expose().to_vec()).unwrap_or_default(),
            fsm_state: self.state.into(),
            roles: Some(self.roles.clone()),
            status: self.status.clone(),
            join_key: self.join_key.as_bytes().to_vec(),
            clusternet: self.clusternet.clone(),
            tpm_usage: self.tpm_usage.into(),
            labels: Some(self.labels.to_wire()),
        }
    }

    /// The value to store. It holds a secret.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.to_wire().encode_to_vec()
    }
}

impl fmt::Debug for NodeRecord {
    /// Everything but the unlock key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NodeRecord")
            .field("id", &self.id)
            .field("state", &self.state)
            .field("roles", &self.roles)
            .field("status", &self.status)
            .field("join_key", &self.join_key)
            .field("has_cluster_unlock_key", &self.cluster_unlock_key.is_some())
            .field("clusternet", &self.clusternet)
            .field("tpm_usage", &self.tpm_usage)
            .field("labels", &self.labels)
            .finish_non_exhaustive()
    }
}

/// Reads the record that lies under the key of the node `id`.
pub(super) fn decode(
    id: &NodeId,
    key: &str,
    found: Versioned<impl AsRef<[u8]>>,
) -> Result<Versioned<NodeRecord>, StateError> {
    let found = found.decode::<Node>(key)?;
    let record = NodeRecord::from_wire(found.value).map_err(|source| StateError::damaged(key, source))?;
    if record.id == *id {
        Ok(Versioned { value: record, revision: found.revision })
    } else {
        Err(StateError::damaged(key, NodeRecordError::OtherNode { found: record.id }))
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::{JoinKey, NodeKey};
    use polis_proto::common::NodeLabels;
    use polis_proto::common::node_cluster_networking::Prefix as Network;
    use polis_proto::common::node_labels::Pair;
    use polis_proto::common::node_roles::{ConsensusMember, KubernetesController, KubernetesWorker};
    use polis_proto::common::node_status::RunningCurator;
    use proptest::prelude::*;

    use super::*;

    fn key(seed: u8) -> NodeKey {
        NodeKey::from_secret(Secret32::new([seed; 32]))
    }

    fn any_roles() -> impl Strategy<Value = NodeRoles> {
        let member = prop::collection::vec(any::<u8>(), 0..40)
            .prop_map(|bytes| ConsensusMember { ca_certificate: bytes, ..ConsensusMember::default() });
        (prop::option::of(member), any::<bool>(), any::<bool>()).prop_map(|(consensus_member, controller, worker)| {
            NodeRoles {
                consensus_member,
                kubernetes_controller: controller.then_some(KubernetesController {}),
                kubernetes_worker: worker.then_some(KubernetesWorker {}),
            }
        })
    }

    fn any_status() -> impl Strategy<Value = Option<NodeStatus>> {
        let status = ("[0-9.:]{0,12}", prop::option::of(0..65_536)).prop_map(|(external_address, port)| NodeStatus {
            external_address,
            running_curator: port.map(|port| RunningCurator { port }),
            ..NodeStatus::default()
        });
        prop::option::of(status)
    }

    fn any_labels() -> impl Strategy<Value = Labels> {
        prop::collection::btree_map("[a-z]([a-z0-9.-]{0,8}[a-z])?", "[a-z0-9]{0,8}", 0..5).prop_map(|pairs| {
            let pairs = pairs.into_iter().map(|(key, value)| Pair { key, value }).collect();
            let (labels, faults) = Labels::from_wire(NodeLabels { pairs });
            assert_eq!(faults, []);
            labels
        })
    }

    fn any_record() -> impl Strategy<Value = NodeRecord> {
        let states = [NodeState::New, NodeState::Standby, NodeState::Up, NodeState::Decommissioned];
        let usages = [NodeTpmUsage::NotPresent, NodeTpmUsage::PresentButUnused, NodeTpmUsage::PresentAndUsed];
        let networking = prop::option::of("[a-z]{0,10}").prop_map(|key| {
            key.map(|wireguard_pubkey| NodeClusterNetworking {
                wireguard_pubkey,
                prefixes: vec![Network { cidr: "10.192.0.0/24".into() }],
            })
        });
        let enums = (prop::sample::select(states.to_vec()), prop::sample::select(usages.to_vec()));
        let secret = prop::option::of(any::<[u8; 32]>());
        (any::<u8>(), enums, any_roles(), any_status(), secret, networking, any_labels()).prop_map(
            |(seed, (state, tpm_usage), roles, status, secret, clusternet, labels)| NodeRecord {
                id: NodeId::of(&key(seed).public()),
                public_key: key(seed).public(),
                state,
                roles,
                status,
                join_key: JoinKey::from_secret(Secret32::new([seed ^ 0xff; 32])).public(),
                cluster_unlock_key: secret.map(Secret32::new),
                clusternet,
                tpm_usage,
                labels,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_stored_is_read_again(record in any_record()) {
            let bytes = record.encode();
            let read = NodeRecord::from_wire(Node::decode(&bytes[..]).unwrap()).unwrap();
            prop_assert_eq!(read, record);
        }

        #[test]
        fn an_unlock_key_is_never_printed(record in any_record(), secret in any::<[u8; 32]>()) {
            let record = NodeRecord { cluster_unlock_key: Some(Secret32::new(secret)), ..record };
            let shown = format!("{record:?} {record:#?}");
            let numbers: Vec<String> = secret.iter().map(u8::to_string).collect();
            prop_assert!(!shown.contains(&numbers.join(", ")));
            prop_assert!(!shown.contains(&hex::encode(secret)));
        }
    }

    #[test]
    fn what_is_not_as_it_must_be_is_refused_by_name() {
        let whole = || crate::common::record(&key(1)).to_wire();
        let pair = |key: &str| Pair { key: key.into(), value: String::new() };
        let cases = [
            (Node { public_key: vec![1; 31], ..whole() }, "its public key is not a public key"),
            (Node { public_key: vec![0; 32], ..whole() }, "its public key is not a public key"),
            (Node { join_key: vec![], ..whole() }, "its join key is not a public key"),
            (Node { id: "metropolis-0".into(), ..whole() }, "its id is \"metropolis-0\""),
            (Node { fsm_state: 0, ..whole() }, "its state has the value 0"),
            (Node { fsm_state: 5, ..whole() }, "its state has the value 5"),
            (Node { tpm_usage: 0, ..whole() }, "its TPM usage has the value 0"),
            (Node { tpm_usage: -1, ..whole() }, "its TPM usage has the value -1"),
            (Node { cluster_unlock_key: vec![7; 31], ..whole() }, "its cluster unlock key has 31 bytes"),
            (Node { labels: Some(NodeLabels { pairs: vec![pair("a"), pair("-")] }), ..whole() }, "its label -="),
        ];
        for (message, expected) in cases {
            let error = NodeRecord::from_wire(message).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error:?} instead of {expected:?}");
        }
    }
}
