//! What has happened in the state of a cluster, change by change, as its etcd has it: who led at each of them, and when each label was
//! written.

use std::collections::HashMap;
use std::path::Path;

use polis_proto::curator_private::Node;
use polis_proto::curator_state::Leader;
use prost::Message as _;

use crate::store::{Change, Store};

/// Where the claims of the leadership are.
const LEADER: &str = "namespaced:curator//leader/current";

/// Beginning of the keys of the records of nodes.
const NODES: &str = "namespaced:curator//nodes/";

/// A claim of the leadership that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Revision of the store that it was written at.
    pub revision: u64,
    /// Id of the node that leads from there on.
    pub node_id: String,
    /// Term of raft in which it was claimed.
    pub raft_term: u64,
}

/// The history of a cluster.
#[derive(Clone, Debug)]
pub struct History {
    claims: Vec<Claim>,
    /// Revision at which a label, by node id and key, was given a value first.
    labels: HashMap<(String, String, String), u64>,
}

impl History {
    /// As the etcd of the running member with this root tells it. The cluster is to be younger than an hour: what is older is forgotten.
    ///
    /// # Panics
    ///
    /// When etcd does not tell, or a record makes no sense.
    #[must_use]
    pub fn of_member(root: &Path) -> Self {
        Self::of(Store::of_node(root).changes())
    }

    fn of(changes: Vec<Change>) -> Self {
        let mut history = Self { claims: Vec::new(), labels: HashMap::new() };
        for Change { revision, key, value } in changes {
            if key == LEADER {
                let Leader { node_id, raft_term } = Leader::decode(&value[..]).expect("a claim makes sense");
                history.claims.push(Claim { revision, node_id, raft_term });
            } else if let Some(id) = key.strip_prefix(NODES) {
                // A record that was deleted has no value.
                let node = Node::decode(&value[..]).expect("a record makes sense");
                for label in node.labels.unwrap_or_default().pairs {
                    history.labels.entry((id.to_owned(), label.key, label.value)).or_insert(revision);
                }
            }
        }
        history
    }

    /// The claims, in their order.
    #[must_use]
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Revision at which a label of a node was first given this value, if it ever was.
    #[must_use]
    pub fn written(&self, node: &str, key: &str, value: &str) -> Option<u64> {
        self.labels.get(&(node.to_owned(), key.to_owned(), value.to_owned())).copied()
    }

    /// The claim that was in force when this revision came to be.
    #[must_use]
    pub fn leader_at(&self, revision: u64) -> Option<&Claim> {
        self.claims.iter().rev().find(|claim| claim.revision < revision)
    }
}

#[cfg(test)]
mod tests {
    use polis_proto::common::NodeLabels;
    use polis_proto::common::node_labels::Pair;

    use super::*;

    #[test]
    fn a_write_is_put_down_to_whoever_led_then() {
        let claim = |revision, id: &str, raft_term| {
            let value = Leader { node_id: id.to_owned(), raft_term }.encode_to_vec();
            Change { revision, key: LEADER.to_owned(), value }
        };
        let label = |revision, text: &str| {
            let pairs = vec![Pair { key: "key".to_owned(), value: text.to_owned() }];
            let node = Node { labels: Some(NodeLabels { pairs }), ..Node::default() };
            Change { revision, key: format!("{NODES}n"), value: node.encode_to_vec() }
        };
        let deleted = Change { revision: 8, key: format!("{NODES}n"), value: Vec::new() };
        let changes = vec![claim(2, "a", 1), label(3, "1"), claim(4, "b", 3), label(6, "1"), label(7, "2"), deleted];
        let history = History::of(changes);
        let leader = |value| {
            let revision = history.written("n", "key", value)?;
            Some((revision, &*history.leader_at(revision)?.node_id))
        };
        assert_eq!((leader("1"), leader("2"), leader("3")), (Some((3, "a")), Some((7, "b")), None));
        assert_eq!(history.leader_at(2), None);
        assert_eq!(history.claims().iter().map(|claim| claim.raft_term).collect::<Vec<_>>(), [1, 3]);
    }
}
