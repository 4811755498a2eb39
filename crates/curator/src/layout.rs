//! Where the state of a cluster lies in etcd (metropolis.md, G.1).
//!
//! Keys are whole, with the prefix of their namespace, since the birth of a cluster writes to several namespaces in one
//! transaction.

use polis_identity::{NodeId, PublicKey};

/// Prefix of the curator's own namespace.
const CURATOR: &str = "namespaced:curator/";

/// Prefix of the peers' public key infrastructure, kept apart from the cluster's own.
const PEERS: &str = "namespaced:etcd-pki/";

/// Prefix of what Polis keeps that Metropolis has no place for.
const POLIS: &str = "namespaced:polis/";

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

/// Certificate of a node, DER.
#[must_use]
pub fn node_certificate(node: &NodeId) -> String {
    format!("{CURATOR}/cluster-pki/issued/node-{node}-cert.der")
}

/// Record of a node, `Node` of the private schema.
#[must_use]
pub fn node(node: &NodeId) -> String {
    format!("{CURATOR}/nodes/{node}")
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

/// When a node's last start was acknowledged by its own consensus member, as text (RFC 3339).
#[must_use]
pub fn last_start(node: &NodeId) -> String {
    format!("{POLIS}/nodes/{node}/last_start")
}
