//! The one transaction that creates a cluster.

use std::net::IpAddr;

use polis_identity::{
    AuthorityCertificate, CLUSTER_AUTHORITY_NAME, Certificate, CertificateAuthority, FIRST_REVOCATION_LIST, JoinKey,
    NodeId, NodeKey, PublicKey, RevocationList, SharePublicKey, verify_certificate_authority, verify_node_in_cluster,
};
use polis_parameters::Labels;
use polis_proto::common::node_roles::{ConsensusMember, KubernetesController, consensus_member::Peer};
use polis_proto::common::{ClusterConfiguration, NodeRoles, NodeState, NodeStatus, NodeTpmUsage};
use polis_proto::curator_private::{InitialOwner, Node};
use polis_proto::curator_state::{NodeEnrolment, RecoveryKey};
use polis_secret::Secret32;
use polis_supervisor::BoxError;
use polis_unlock::{Epoch, MemberEntry, MemberList, SignedMemberList, Standing};
use prost::Message as _;

use crate::layout;
use crate::store::{ClusterStore, Creation, Entry, StoreError};

/// What a new cluster is made of.
pub struct Birth<'a> {
    /// Key of the first node.
    pub node_key: &'a NodeKey,
    /// Key with which it joins again.
    pub join_key: &'a JoinKey,
    /// Key to which shares of others' unlock keys are encrypted.
    pub share_key: &'a SharePublicKey,
    /// Where it is, when that is known.
    pub address: Option<IpAddr>,
    /// Public key of the first owner.
    pub owner: &'a PublicKey,
    /// Configuration of the cluster.
    pub configuration: &'a ClusterConfiguration,
    /// Labels of the first node.
    pub labels: &'a Labels,
    /// Its use of a TPM.
    pub tpm_usage: NodeTpmUsage,
    /// The cluster's half of the key of its data partition; absent with insecure storage, which has no unlock keys
    /// (metropolis.md, C.5).
    pub cluster_unlock_key: Option<&'a Secret32>,
    /// Public half of the recovery key, X25519; absent if the cluster is to have none for now.
    pub recovery_key: Option<&'a [u8; 32]>,
    /// The peers' CA, which the first member made for itself.
    pub peers: PeerAuthority<'a>,
}

/// What the cluster is to know of its peers' CA.
pub struct PeerAuthority<'a> {
    /// Private key, PKCS#8 DER; absent once an earlier start has seen the cluster hold it.
    pub key: Option<&'a [u8]>,
    /// Certificate, DER.
    pub certificate: &'a [u8],
    /// Revocation list, DER.
    pub revocation_list: &'a [u8],
    /// Certificate of the first member, DER.
    pub member_certificate: &'a [u8],
    /// Peer URL of the first member.
    pub member_url: &'a str,
}

/// What the first node must keep of its new cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Certificate of its CA, from whose key the cluster's id follows.
    pub authority: AuthorityCertificate,
    /// Certificate of the node.
    pub node_certificate: Certificate,
}

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
pub enum BirthError {
    /// The store gave no answer; repeat.
    #[error("creating the cluster was not acknowledged; it is repeated")]
    Store(#[from] StoreError),
    /// The store already holds a cluster, and this node is not its first.
    #[error(
        "the store holds a cluster of which {node} is not the first node: the data directory belongs to another node; \
         nothing was changed"
    )]
    AnotherCluster {
        /// This node.
        node: NodeId,
    },
    /// This node has seen its cluster in the store, and now it is not there.
    #[error(
        "the store does not hold the cluster that {node} has created in it: its data were lost or replaced; nothing was \
         changed. Put the right data directory back"
    )]
    Lost {
        /// This node.
        node: NodeId,
    },
    /// A part of the cluster that the store holds cannot be used.
    #[error("the cluster in the store is damaged: {key}")]
    Damaged {
        /// Key of the damaged part.
        key: String,
        /// What is wrong with it.
        #[source]
        source: BoxError,
    },
}

/// Creates the cluster, or finds it when an earlier call of this node did. Safe to repeat after any error or crash.
///
/// # Errors
///
/// When the store gives no answer, or holds what this node did not make.
pub async fn create_cluster(
    store: &dyn ClusterStore,
    site: &'static str,
    birth: &Birth<'_>,
) -> Result<Cluster, BirthError> {
    let node_key = birth.node_key.public();
    let node_id = NodeId::of(&node_key);
    let Some(peer_authority_key) = birth.peers.key else {
        // The key is given up only after the transaction was acknowledged.
        return match find_cluster(store, &node_key).await {
            Err(BirthError::AnotherCluster { node }) => Err(BirthError::Lost { node }),
            found => found,
        };
    };
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let node_certificate = authority.issue_node(&node_key);
    let revocation_list = authority.certificate_revocation_list(FIRST_REVOCATION_LIST, &[]);
    match store
        .create(site, entries(birth, &node_id, peer_authority_key, &authority, &node_certificate, &revocation_list))
        .await?
    {
        Creation::Created => Ok(Cluster { authority: authority.certificate().clone(), node_certificate }),
        // Made before, by a call whose reply was lost or whose caller died: the authority made above was never seen.
        Creation::Exists => find_cluster(store, &node_key).await,
    }
}

fn entries(
    birth: &Birth<'_>,
    node_id: &NodeId,
    peer_authority_key: &[u8],
    authority: &CertificateAuthority,
    node_certificate: &Certificate,
    revocation_list: &RevocationList,
) -> Vec<Entry> {
    let entry = |key: String, value: &[u8]| Entry { key, value: value.to_vec() };
    let owner = InitialOwner { public_key: birth.owner.as_bytes().to_vec() };
    let enrolment = NodeEnrolment { share_key: birth.share_key.as_bytes().to_vec(), ..NodeEnrolment::default() };
    let recovery_key = birth.recovery_key.map(|key| RecoveryKey { public_key: key.to_vec() }.encode_to_vec());
    let mut entries = vec![
        entry(layout::cluster_authority_key(), &authority.key().pkcs8_der()),
        entry(layout::cluster_authority_certificate(), authority.certificate().der()),
        entry(layout::cluster_revocation_list(), revocation_list.der()),
        entry(layout::node_certificate(node_id), node_certificate.der()),
        entry(layout::node(node_id), &node_record(birth, node_id).encode_to_vec()),
        entry(layout::enrolment(node_id), &enrolment.encode_to_vec()),
        entry(layout::epoch(), &first_members(birth, node_id, authority).encode()),
        entry(layout::join_key(&birth.join_key.public()), node_id.to_string().as_bytes()),
        entry(layout::initial_owner(), &owner.encode_to_vec()),
        entry(layout::cluster_configuration(), &birth.configuration.encode_to_vec()),
        entry(layout::peer_authority_key(), peer_authority_key),
        entry(layout::peer_authority_certificate(), birth.peers.certificate),
        entry(layout::peer_revocation_list(), birth.peers.revocation_list),
        entry(layout::peer_certificate(node_id), birth.peers.member_certificate),
    ];
    entries.extend(recovery_key.map(|value| Entry { key: layout::recovery_key(), value }));
    entries
}

/// The first member list: the founder alone.
fn first_members(birth: &Birth<'_>, node_id: &NodeId, authority: &CertificateAuthority) -> SignedMemberList {
    let founder = MemberEntry {
        node_id: *node_id,
        public_key: birth.node_key.public(),
        join_key: birth.join_key.public(),
        share_key: Some(*birth.share_key),
        addresses: birth.address.into_iter().collect(),
        standing: Standing::Stays,
    };
    MemberList::new(authority.certificate().cluster_id(), Epoch::FIRST, vec![founder]).sign(authority)
}

/// The first node's record: a member from the start, with the roles of Metropolis' first node (metropolis.md, G.6).
fn node_record(birth: &Birth<'_>, node_id: &NodeId) -> Node {
    let peers = &birth.peers;
    let consensus_member = ConsensusMember {
        ca_certificate: peers.certificate.to_vec(),
        peer_certificate: peers.member_certificate.to_vec(),
        initial_crl: peers.revocation_list.to_vec(),
        peers: vec![Peer { name: node_id.to_string(), url: peers.member_url.into() }],
    };
    Node {
        id: node_id.to_string(),
        public_key: birth.node_key.public().as_bytes().to_vec(),
        cluster_unlock_key: birth.cluster_unlock_key.map(|key| key.expose().to_vec()).unwrap_or_default(),
        fsm_state: NodeState::Up.into(),
        roles: Some(NodeRoles {
            kubernetes_worker: None,
            consensus_member: Some(consensus_member),
            kubernetes_controller: Some(KubernetesController {}),
        }),
        // Who asks for the cluster's directory right after the birth is told where its node is.
        status: birth
            .address
            .map(|address| NodeStatus { external_address: address.to_string(), ..NodeStatus::default() }),
        join_key: birth.join_key.public().as_bytes().to_vec(),
        clusternet: None,
        tpm_usage: birth.tpm_usage.into(),
        labels: Some(birth.labels.to_wire()),
    }
}

/// Reads what an earlier transaction of this node made, and checks that it is this node's.
async fn find_cluster(store: &dyn ClusterStore, node_key: &PublicKey) -> Result<Cluster, BirthError> {
    let node = NodeId::of(node_key);
    let record = store.get(&layout::node(&node)).await?.ok_or(BirthError::AnotherCluster { node })?;
    let record = Node::decode(&record[..]).map_err(|source| damaged(layout::node(&node), source))?;
    if record.public_key != node_key.as_bytes() {
        return Err(BirthError::AnotherCluster { node });
    }
    let authority = read_certificate(store, layout::cluster_authority_certificate()).await?;
    let authority = verify_certificate_authority(authority)
        .map_err(|source| damaged(layout::cluster_authority_certificate(), source))?;
    let node_certificate = read_certificate(store, layout::node_certificate(&node)).await?;
    let identity = verify_node_in_cluster(&node_certificate, &authority)
        .map_err(|source| damaged(layout::node_certificate(&node), source))?;
    if identity.public_key != *node_key {
        return Err(BirthError::AnotherCluster { node });
    }
    Ok(Cluster { authority, node_certificate })
}

async fn read_certificate(store: &dyn ClusterStore, key: String) -> Result<Certificate, BirthError> {
    let Some(bytes) = store.get(&key).await? else {
        return Err(damaged(key, "it is missing, although it is created together with the node's record"));
    };
    Certificate::from_der(bytes).map_err(|source| damaged(key, source))
}

fn damaged(key: String, source: impl Into<BoxError>) -> BirthError {
    BirthError::Damaged { key, source: source.into() }
}
