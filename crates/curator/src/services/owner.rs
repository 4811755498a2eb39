//! Whose the cluster is: the owner's certificate, and how another key takes the place of the present one.
//!
//! There is one user, the owner, and one key is the owner's. A change of it writes the key, revokes the certificate of the key
//! before and forgets all proposals, in one transaction.

use polis_consensus::Transaction;
use polis_identity::{Certificate, CertificateAuthority, NodeId, PublicKey};
use polis_proto::curator_private::InitialOwner;
use polis_proto::curator_state::OwnerProposal;
use prost::Message as _;
use tonic::Status;

use super::failure::{Failure, repeat};
use crate::{LeaderState, StateError, Versioned, layout};

/// Outcome of a node's word about a new owner.
pub(super) struct Proposed {
    /// Consensus members that have named the key.
    pub(super) proposals: usize,
    /// Whether it is the owner's by now.
    pub(super) replaced: bool,
}

/// The certificate of the owner, whose key this must be. Every call returns the same bytes.
///
/// # Errors
///
/// PERMISSION_DENIED when the key is not the owner's, FAILED_PRECONDITION when the cluster has no owner.
pub(super) async fn certificate(leader: &LeaderState, key: &PublicKey) -> Result<Certificate, Status> {
    repeat(|| try_certificate(leader, key)).await
}

async fn try_certificate(leader: &LeaderState, key: &PublicKey) -> Result<Certificate, Failure> {
    let (owner, revision) = present_owner(leader).await?;
    if owner != *key {
        return Err(Status::permission_denied("the key is not that of the cluster's owner").into());
    }
    if let Some(issued) = leader.issued_certificate(layout::OWNER).await? {
        return issued_to(key, issued.value).map_err(Failure::from);
    }
    let issued = issue(&leader.authority().await?, key);
    let transaction = Transaction::new()
        .if_modified_at(layout::initial_owner(), revision)
        .if_absent(layout::owner_certificate())
        .put(layout::owner_certificate(), issued.der());
    leader.transact("curator/owner/issue", transaction).await?;
    Ok(issued)
}

/// Gives the cluster to another key, whose certificate is returned. Repeating it changes nothing.
pub(super) async fn rotate(leader: &LeaderState, key: &PublicKey) -> Result<Certificate, Status> {
    repeat(|| try_rotate(leader, key)).await
}

async fn try_rotate(leader: &LeaderState, key: &PublicKey) -> Result<Certificate, Failure> {
    let (owner, revision) = present_owner(leader).await?;
    if owner == *key {
        return try_certificate(leader, key).await;
    }
    let issued = issue(&leader.authority().await?, key);
    let transaction = replacement(leader, key, revision).await?.put(layout::owner_certificate(), issued.der());
    leader.transact("curator/owner/rotate", transaction).await?;
    Ok(issued)
}

/// Takes the word of the consensus member `node` that the key is to be the owner's. Once `needed` of the `voters` have said so,
/// it is; its certificate is issued when it asks for it.
pub(super) async fn propose(
    leader: &LeaderState,
    node: &NodeId,
    key: &PublicKey,
    voters: &[NodeId],
    needed: usize,
) -> Result<Proposed, Status> {
    repeat(|| try_propose(leader, node, key, voters, needed)).await
}

async fn try_propose(
    leader: &LeaderState,
    node: &NodeId,
    key: &PublicKey,
    voters: &[NodeId],
    needed: usize,
) -> Result<Proposed, Failure> {
    let (owner, revision) = present_owner(leader).await?;
    if owner == *key {
        return Ok(Proposed { proposals: needed, replaced: true });
    }
    // The word is given before words are counted: of two who speak at the same moment, whoever counts last finds both.
    let proposal = OwnerProposal { public_key: key.as_bytes().to_vec() };
    let transaction = Transaction::new()
        .if_modified_at(layout::initial_owner(), revision)
        .put(layout::owner_proposal(node), proposal.encode_to_vec());
    leader.transact("curator/owner/propose", transaction).await?;
    let known: Vec<(String, Versioned<OwnerProposal>)> = leader.list_messages(&layout::owner_proposals()).await?;
    let agreeing = known.iter().filter_map(|(path, proposal)| {
        let proposer = layout::node_of(path.as_bytes(), &layout::owner_proposals())?;
        let agrees = voters.contains(&proposer) && proposal.value.public_key == key.as_bytes();
        agrees.then_some((path, proposal.revision))
    });
    let agreeing: Vec<_> = agreeing.collect();
    let proposals = agreeing.len();
    if proposals < needed {
        return Ok(Proposed { proposals, replaced: false });
    }
    let mut transaction = replacement(leader, key, revision).await?.delete(layout::owner_certificate());
    for (path, revision) in agreeing {
        transaction = transaction.if_modified_at(path.as_str(), revision);
    }
    leader.transact("curator/owner/replace", transaction).await?;
    Ok(Proposed { proposals, replaced: true })
}

/// Consensus members that must name the same key for it to become the owner's.
pub(super) const fn proposals_needed(voters: usize) -> usize {
    voters / 2 + 1
}

/// What any change of the owner consists of, but for the new certificate, which is written or deleted by the caller.
async fn replacement(leader: &LeaderState, key: &PublicKey, revision: i64) -> Result<Transaction, Failure> {
    let owner = InitialOwner { public_key: key.as_bytes().to_vec() };
    let transaction = Transaction::new()
        .if_modified_at(layout::initial_owner(), revision)
        .put(layout::initial_owner(), owner.encode_to_vec())
        .delete_all(layout::owner_proposals());
    let path = layout::owner_certificate();
    let Some(old) = leader.issued_certificate(layout::OWNER).await? else { return Ok(transaction.if_absent(path)) };
    let revocation = leader.revoke([old.value.serial_number().clone()]).await?;
    Ok(revocation.add_to(transaction.if_modified_at(path, old.revision)))
}

/// The owner's key, and the revision at which it was written.
async fn present_owner(leader: &LeaderState) -> Result<(PublicKey, i64), Failure> {
    let path = layout::initial_owner();
    let Some(owner) = leader.get_message::<InitialOwner>(&path).await? else {
        return Err(Status::failed_precondition("the cluster has no owner").into());
    };
    let key = PublicKey::try_from(&owner.value.public_key[..]).map_err(|source| StateError::damaged(path, source))?;
    Ok((key, owner.revision))
}

fn issue(authority: &CertificateAuthority, key: &PublicKey) -> Certificate {
    authority.issue_user(layout::OWNER, key).expect("the name is neither empty nor too long")
}

/// A certificate that is stored belongs to the owner's key: both change together.
fn issued_to(key: &PublicKey, certificate: Certificate) -> Result<Certificate, StateError> {
    if certificate.public_key() == Some(*key) {
        return Ok(certificate);
    }
    // Read between two changes of the owner.
    Err(StateError::Conflict)
}

#[cfg(test)]
mod tests {
    use polis_identity::{NodeKey, OwnerKey};
    use tonic::Code;

    use super::*;
    use crate::common::Etcd;

    #[test]
    fn a_quorum_of_the_voters_must_agree() {
        let needed: Vec<usize> = (1..=9).map(proposals_needed).collect();
        assert_eq!(needed, [1, 2, 2, 3, 3, 4, 4, 5, 5]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn voters_replace_the_owner_once_enough_of_them_name_the_same_key() {
        let (etcd, _cluster) = Etcd::start_cluster().await;
        let leader = etcd.lead().await;
        let voters: Vec<NodeId> = (0..3).map(|_| NodeId::of(&NodeKey::generate().public())).collect();
        let stranger = NodeId::of(&NodeKey::generate().public());
        let (new, other) = (OwnerKey::generate().public(), OwnerKey::generate().public());
        let old = certificate(&leader, &etcd.owner.public()).await.unwrap();
        let needed = proposals_needed(voters.len());
        let word = async |node: &NodeId, key: &PublicKey| {
            let proposed = propose(&leader, node, key, &voters, needed).await.unwrap();
            (proposed.proposals, proposed.replaced)
        };
        assert_eq!(word(&voters[0], &new).await, (1, false));
        assert_eq!(word(&voters[0], &new).await, (1, false), "one node is one word, however often it is given");
        assert_eq!(word(&voters[1], &other).await, (1, false), "another key is another matter");
        assert_eq!(word(&voters[1], &new).await, (2, true), "a node may change its mind");
        assert_eq!(present_owner(&leader).await.ok().unwrap().0, new);
        assert_eq!(certificate(&leader, &etcd.owner.public()).await.unwrap_err().code(), Code::PermissionDenied);
        assert_ne!(certificate(&leader, &new).await.unwrap(), old);
        let revoked = leader.revocations().await.unwrap().value;
        assert!(revoked.revoked().contains(old.serial_number()));
        // All words are forgotten, so that the next change needs a quorum of its own.
        assert_eq!(word(&voters[2], &other).await, (1, false));
        let another_set = [voters[0], voters[1], stranger];
        let proposed = propose(&leader, &voters[0], &other, &another_set, needed).await.unwrap();
        assert_eq!((proposed.proposals, proposed.replaced), (1, false), "the one who said so has no vote any more");
        assert_eq!(word(&voters[1], &other).await, (3, true));
        etcd.stop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn voters_who_speak_at_the_same_moment_are_both_counted() {
        let (etcd, _cluster) = Etcd::start_cluster().await;
        let leader = etcd.lead().await;
        let voters: Vec<NodeId> = (0..3).map(|_| NodeId::of(&NodeKey::generate().public())).collect();
        let needed = proposals_needed(voters.len());
        for round in 0..5 {
            let new = OwnerKey::generate().public();
            let word = |node| propose(&leader, node, &new, &voters, needed);
            let (one, other) = tokio::join!(word(&voters[0]), word(&voters[1]));
            assert!(one.unwrap().replaced || other.unwrap().replaced, "round {round}");
            assert_eq!(present_owner(&leader).await.ok().unwrap().0, new, "round {round}");
        }
        etcd.stop().await;
    }
}
