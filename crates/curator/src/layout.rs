//! Where the state of a cluster lies in etcd (metropolis.md, G.1).
//!
//! Keys are whole, with the prefix of their namespace, since the birth of a cluster writes to several namespaces in one
//! transaction.

use polis_identity::{NodeId, PublicKey};

/// Prefix of the curator's own namespace.
pub const CURATOR: &str = "namespaced:curator/";

/// Prefix of the peers' public key infrastructure, kept apart from the cluster's own.
const PEERS: &str = "namespaced:etcd-pki/";

/// Prefix of what Polis keeps that Metropolis has no place for.
pub const POLIS: &str = "namespaced:polis/";

/// First key of every cluster: whoever created it has created all the others with it.
#[must_use]
pub fn cluster_authority_key() -> String {
    format!("{CURATOR}/cluster-pki/keys/cluster-ca-privkey.bin")
}

/// Certificate of the cluster's CA, DER.
#[must_use]
pub fn cluster_authority_certificate() -> String {
    format!("{CURATOR}/cluster-pki/issued/cluster-ca-cert.der")
}

/// Revocation list of the cluster's CA, DER.
#[must_use]
pub fn cluster_revocation_list() -> String {
    format!("{CURATOR}/cluster-pki/cluster-ca-crl.der")
}

/// Private key of an authority or of a service, PKCS#8 DER, for example of `kubernetes-ca`.
#[must_use]
pub fn private_key(name: &str) -> String {
    format!("{CURATOR}/cluster-pki/keys/{name}-privkey.bin")
}

/// Certificate that was issued under this name, DER, for example that of the user `owner`.
#[must_use]
pub fn issued_certificate(name: &str) -> String {
    format!("{CURATOR}/cluster-pki/issued/{name}-cert.der")
}

/// Certificate of a node, DER.
#[must_use]
pub fn node_certificate(node: &NodeId) -> String {
    issued_certificate(&format!("node-{node}"))
}

/// Certificate of the owner, DER.
#[must_use]
pub fn owner_certificate() -> String {
    issued_certificate(OWNER)
}

/// Name of the one user that there is (metropolis.md, G.4).
pub const OWNER: &str = "owner";

/// Beginning of the keys of all records of nodes.
#[must_use]
pub fn nodes() -> String {
    format!("{CURATOR}/nodes/")
}

/// Record of a node, `Node` of the private schema.
#[must_use]
pub fn node(node: &NodeId) -> String {
    format!("{CURATOR}/nodes/{node}")
}

/// Beginning of the keys of the leadership.
#[must_use]
pub fn leadership() -> String {
    format!("{CURATOR}/leader/")
}

/// Who leads the cluster, `polis.curator.v1.Leader`. Every change of the cluster's state is conditioned on the revision at
/// which it was written.
#[must_use]
pub fn leader() -> String {
    format!("{CURATOR}/leader/current")
}

/// Sign of life of the leader, `polis.curator.v1.LeaderAlive`.
#[must_use]
pub fn leader_alive() -> String {
    format!("{CURATOR}/leader/alive")
}

/// The secret with which machines ask for admission, `RegisterTicket` of the private schema.
#[must_use]
pub fn register_ticket() -> String {
    format!("{CURATOR}/global/register_ticket")
}

/// Present if the ticket with this digest is one of this cluster that was rotated away.
#[must_use]
pub fn retired_ticket(digest: &[u8; 32]) -> String {
    format!("{}retired_tickets/{}", polis(), hex::encode(digest))
}

/// From a join key to the id of its node.
#[must_use]
pub fn join_key(key: &PublicKey) -> String {
    format!("{CURATOR}/join_keys/{key}")
}

/// Who may take ownership, `InitialOwner` of the private schema.
#[must_use]
pub fn initial_owner() -> String {
    format!("{CURATOR}/global/initial_owner")
}

/// Configuration of the cluster, `ClusterConfiguration`.
#[must_use]
pub fn cluster_configuration() -> String {
    format!("{CURATOR}/cluster/configuration")
}

/// Private key of the peers' CA.
#[must_use]
pub fn peer_authority_key() -> String {
    format!("{PEERS}/pki/keys/etcd-ca-privkey.bin")
}

/// Certificate of the peers' CA, DER.
#[must_use]
pub fn peer_authority_certificate() -> String {
    format!("{PEERS}/pki/issued/etcd-ca-cert.der")
}

/// Revocation list of the peers' CA, DER.
#[must_use]
pub fn peer_revocation_list() -> String {
    format!("{PEERS}/pki/etcd-ca-crl.der")
}

/// Peer certificate of a node's consensus member, DER.
#[must_use]
pub fn peer_certificate(node: &NodeId) -> String {
    format!("{PEERS}/pki/issued/{node}-cert.der")
}

/// Beginning of all keys of Polis.
#[must_use]
pub fn polis() -> String {
    format!("{POLIS}/")
}

/// Beginning of the keys of what Polis keeps of each node.
#[must_use]
pub fn polis_nodes() -> String {
    format!("{POLIS}/nodes/")
}

/// What the wire contract has no place for in the record of a node, `polis.curator.v1.NodeEnrolment`.
#[must_use]
pub fn enrolment(node: &NodeId) -> String {
    format!("{POLIS}/nodes/{node}/enrolment")
}

/// Beginning of the keys of all tombstones.
#[must_use]
pub fn tombstones() -> String {
    format!("{POLIS}/tombstones/")
}

/// Proof that a node was deleted, `polis.curator.v1.SignedTombstone`.
#[must_use]
pub fn tombstone(node: &NodeId) -> String {
    format!("{POLIS}/tombstones/{node}")
}

/// Beginning of the keys of what is known and done about the consensus members.
#[must_use]
pub fn membership() -> String {
    format!("{POLIS}/membership/")
}

/// The present epoch with its members, `polis.curator.v1.SignedMemberList`.
#[must_use]
pub fn epoch() -> String {
    format!("{POLIS}/membership/epoch")
}

/// The change of members that is under way, `polis.curator.v1.MembershipIntent`; absent when there is none.
#[must_use]
pub fn membership_intent() -> String {
    polis_consensus::CHANGE_UNDER_WAY_KEY.to_owned()
}

/// Beginning of the keys of the nodes that wait to become consensus members.
#[must_use]
pub fn membership_queue() -> String {
    format!("{POLIS}/membership/queue/")
}

/// A node that waits to become a consensus member, `polis.curator.v1.QueuedJoin`.
#[must_use]
pub fn queued_join(node: &NodeId) -> String {
    format!("{POLIS}/membership/queue/{node}")
}

/// Present while an operator has confirmed that two members are to stay two, `polis.curator.v1.TwoConfirmed`.
#[must_use]
pub fn two_confirmed() -> String {
    format!("{POLIS}/membership/two_confirmed")
}

/// Beginning of the keys of the removals that are not finished.
#[must_use]
pub fn unfinished_removals() -> String {
    format!("{POLIS}/membership/removed/")
}

/// The removal of a member that others could still help, `polis.curator.v1.UnfinishedRemoval`.
#[must_use]
pub fn unfinished_removal(node: &NodeId) -> String {
    format!("{POLIS}/membership/removed/{node}")
}

/// Public half of the recovery key, `polis.curator.v1.RecoveryKey`; absent while none is set.
#[must_use]
pub fn recovery_key() -> String {
    format!("{POLIS}/recovery/public_key")
}

/// What a node has sealed to the recovery key, `polis.curator.v1.RecoveryBlob`.
#[must_use]
pub fn recovery_blob(node: &NodeId) -> String {
    format!("{POLIS}/nodes/{node}/recovery_blob")
}

/// Beginning of the keys of all words about a new owner.
#[must_use]
pub fn owner_proposals() -> String {
    format!("{POLIS}/owner_proposals/")
}

/// A node's word that the owner is to be replaced, `polis.curator.v1.OwnerProposal`.
#[must_use]
pub fn owner_proposal(node: &NodeId) -> String {
    format!("{POLIS}/owner_proposals/{node}")
}

/// When a node's last start was acknowledged by its own consensus member, as text (RFC 3339).
#[must_use]
pub fn last_start(node: &NodeId) -> String {
    format!("{POLIS}/nodes/{node}/last_start")
}

/// The node that a key ends with, for the keys of records, tombstones, the queue and proposals: what follows `beginning`,
/// when that is a node id and nothing else.
#[must_use]
pub fn node_of(key: &[u8], beginning: &str) -> Option<NodeId> {
    str::from_utf8(key.strip_prefix(beginning.as_bytes())?).ok()?.parse().ok()
}

/// The node whose [`enrolment`] lies under this key.
#[must_use]
pub fn node_of_enrolment(key: &str) -> Option<NodeId> {
    key.strip_prefix(&polis_nodes())?.strip_suffix("/enrolment")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;

    use super::*;

    #[test]
    fn a_key_leads_back_to_its_node() {
        let id = NodeId::of(&NodeKey::generate().public());
        let cases = [
            (node(&id), nodes(), Some(id)),
            (tombstone(&id), tombstones(), Some(id)),
            (queued_join(&id), membership_queue(), Some(id)),
            (owner_proposal(&id), owner_proposals(), Some(id)),
            (unfinished_removal(&id), unfinished_removals(), Some(id)),
            (node(&id), tombstones(), None),
            (format!("{}x", node(&id)), nodes(), None),
            (nodes(), nodes(), None),
            (enrolment(&id), polis_nodes(), None),
        ];
        for (key, beginning, expected) in cases {
            assert_eq!(node_of(key.as_bytes(), &beginning), expected, "{key}");
        }
        assert_eq!(node_of_enrolment(&enrolment(&id)), Some(id));
        assert_eq!(node_of_enrolment(&last_start(&id)), None);
        assert_eq!(node_of_enrolment(&recovery_blob(&id)), None);
    }

    #[test]
    fn keys_lie_where_metropolis_has_them() {
        let id = NodeId::of(&NodeKey::generate().public());
        assert_eq!(node_certificate(&id), format!("namespaced:curator//cluster-pki/issued/node-{id}-cert.der"));
        assert_eq!(owner_certificate(), "namespaced:curator//cluster-pki/issued/owner-cert.der");
        assert_eq!(private_key("cluster-ca"), cluster_authority_key());
        assert_eq!(issued_certificate("cluster-ca"), cluster_authority_certificate());
        assert_eq!(register_ticket(), "namespaced:curator//global/register_ticket");
        assert_eq!(leader(), "namespaced:curator//leader/current");
        assert!(membership_intent().starts_with(&membership()));
    }
}
