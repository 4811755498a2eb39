//! Gives the state of a cluster a node that it has never had, as its only consensus member (`polis cluster recover --snapshot` on a
//! machine without a node).
//!
//! As in `alone`: nobody but this process reaches the data, and what is left when it is cut off is thrown away.

use polis_consensus::{Namespaced, Transaction};
use polis_identity::{
    AuthorityCertificate, Certificate, JoinKey, NodeId, NodeKey, PublicKey, RevocationList, SharePublicKey,
};
use polis_parameters::{Labels, StoragePolicy, TpmMode};
use polis_proto::common::node_roles::{ConsensusMember, KubernetesController, consensus_member::Peer};
use polis_proto::common::{ClusterConfiguration, NodeRoles, NodeState, NodeTpmUsage};
use polis_proto::curator_state::NodeEnrolment;
use polis_secret::Secret32;
use prost::Message as _;

use crate::{
    ClaimError, Cluster, LeaveAloneError, LeftAlone, NodeRecord, Seen, State, StateError, claim, layout, leave_alone,
};

/// What the cluster asks of its nodes, as the state says.
///
/// # Errors
///
/// When etcd does not answer, or the configuration is damaged or missing.
pub async fn wanted_of_nodes(root: Namespaced) -> Result<(TpmMode, StoragePolicy), StateError> {
    let key = layout::cluster_configuration();
    let found = State::new(root).get_message::<ClusterConfiguration>(&key).await?;
    let found = found.ok_or_else(|| StateError::damaged(&*key, "it is missing"))?.value;
    let damaged = |source| StateError::damaged(&*key, source);
    let tpm_mode = TpmMode::from_wire(found.tpm_mode).map_err(damaged)?;
    Ok((tpm_mode, StoragePolicy::from_wire(found.storage_security_policy).map_err(damaged)?))
}

/// A node that the cluster has never had.
pub struct Newcomer<'a> {
    /// Its key.
    pub node_key: &'a NodeKey,
    /// Key with which it joins again.
    pub join_key: &'a JoinKey,
    /// Key to which shares of others' unlock keys are encrypted.
    pub share_key: &'a SharePublicKey,
    /// Its use of a TPM.
    pub tpm_usage: NodeTpmUsage,
    /// The cluster's half of the key of its data partition; absent with insecure storage.
    pub cluster_unlock_key: Option<&'a Secret32>,
    /// Peer URL of its consensus member.
    pub member_url: &'a str,
}

/// What the new node must keep.
#[derive(Clone, Debug)]
pub struct Adopted {
    /// The cluster, and the node's certificate in it.
    pub cluster: Cluster,
    /// The peers' authority.
    pub peer_authority: AuthorityCertificate,
    /// What that has revoked: the certificates of the members that were.
    pub peer_revocations: RevocationList,
    /// The certificate of the node's consensus member.
    pub peer_certificate: Certificate,
    /// What has become of the other members.
    pub left: LeftAlone,
}

/// The node was not made one of the cluster.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The leadership could not be claimed.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The state was not read or changed.
    #[error(transparent)]
    State(#[from] StateError),
    /// The other members could not be taken out of it.
    #[error(transparent)]
    Others(#[from] LeaveAloneError),
}

/// Makes this node one of the cluster, with its certificates and the roles of a first node, and its only consensus member. The other
/// nodes stay what they are, but that none of them is a member any more.
///
/// # Errors
///
/// When the data cannot be read or changed.
pub async fn adopt(root: Namespaced, newcomer: &Newcomer<'_>) -> Result<Adopted, AdoptError> {
    let key = newcomer.node_key.public();
    let id = NodeId::of(&key);
    let state = State::new(root.clone());
    let present = state.get(&layout::leader()).await?;
    let seen = Seen { claim: present.map_or(0, |claim| claim.revision), alive: None };
    let (leader, _) = claim(&state, &id, 0, seen).await?;

    let peer_certificate = leader.issue_peer_certificate("recover/adopt/peer", &key).await?;
    let peer_authority = leader.peer_authority_certificate().await?;
    let member = ConsensusMember {
        ca_certificate: peer_authority.der().to_vec(),
        peer_certificate: peer_certificate.der().to_vec(),
        initial_crl: leader.peer_revocations().await?.value.der().to_vec(),
        peers: vec![Peer { name: id.to_string(), url: newcomer.member_url.to_owned() }],
    };
    let record = record(newcomer, &key, member);
    let enrolment = NodeEnrolment { share_key: newcomer.share_key.as_bytes().to_vec(), ..NodeEnrolment::default() };
    let join_key = layout::join_key(&record.join_key);
    let transaction = Transaction::new()
        .if_absent(layout::node(&id))
        .if_absent(join_key.as_str())
        .put(layout::node(&id), record.encode())
        .put(layout::enrolment(&id), enrolment.encode_to_vec())
        .put(join_key, id.to_string());
    let revision = leader.transact("recover/adopt/record", transaction).await?.revision;
    let node_certificate = leader.issue_node_certificate("recover/adopt/node", &key, revision).await?;

    let authority = state.authority_certificate().await?;
    let left = leave_alone(root, &id, &authority.cluster_id().to_string(), None).await?;
    // The claim above is no more the newest, and what was read of the list is older than the revocations of the others.
    let present = state.get(&layout::leader()).await?;
    let seen = Seen { claim: present.map_or(0, |claim| claim.revision), alive: None };
    let (leader, _) = claim(&state, &id, 0, seen).await?;
    let peer_revocations = leader.peer_revocations().await?.value;
    Ok(Adopted {
        cluster: Cluster { authority, node_certificate },
        peer_authority,
        peer_revocations,
        peer_certificate,
        left,
    })
}

/// Its record: UP from the start, with the roles of a first node.
fn record(newcomer: &Newcomer<'_>, key: &PublicKey, member: ConsensusMember) -> NodeRecord {
    NodeRecord {
        id: NodeId::of(key),
        public_key: *key,
        state: NodeState::Up,
        roles: NodeRoles {
            kubernetes_worker: None,
            consensus_member: Some(member),
            kubernetes_controller: Some(KubernetesController {}),
        },
        status: None,
        join_key: newcomer.join_key.public(),
        cluster_unlock_key: newcomer.cluster_unlock_key.cloned(),
        clusternet: None,
        tpm_usage: newcomer.tpm_usage,
        labels: Labels::default(),
    }
}
