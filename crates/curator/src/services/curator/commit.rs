//! CommitNode: a machine that was approved becomes a member (windows W8 and W9 of `crash-windows.md`).
//!
//! Record, unlock key, certificate and the digest of what was committed are one transaction. A node that repeats the same commit
//! gets the same certificate; another commit of a node that is UP is refused.

use polis_consensus::Transaction;
use polis_identity::{Certificate, NodeId, PublicKey};
use polis_proto::common::{NodeState, NodeStorageSecurity};
use polis_proto::curator_api::{CommitNodeRequest, CommitNodeResponse};
use polis_proto::curator_state::NodeEnrolment;
use polis_secret::Secret32;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tonic::Status;
use zeroize::Zeroizing;

use super::register::{Modes, read_configuration};
use crate::services::core::Core;
use crate::services::failure::{Failure, repeat};
use crate::services::policy;
use crate::{LeaderState, NodeRecord, layout};

/// What is committed, checked.
struct Commit {
    storage: NodeStorageSecurity,
    /// Absent with insecure storage.
    unlock_key: Option<Secret32>,
}

/// Makes the machine whose node key is `key` a member.
pub(super) async fn commit(
    leader: &LeaderState,
    key: PublicKey,
    request: CommitNodeRequest,
) -> Result<CommitNodeResponse, Status> {
    let commit = Commit::read(request)?;
    let id = NodeId::of(&key);
    let (certificate, is_new) = repeat(|| try_commit(leader, &id, &key, &commit)).await?;
    if is_new {
        tracing::info!("{id} is a node of the cluster now");
    }
    let ca_certificate = leader.state().authority_certificate().await?.der().to_vec();
    Ok(CommitNodeResponse { ca_certificate, node_certificate: certificate.der().to_vec() })
}

/// One attempt. Also returns whether the node was none before.
async fn try_commit(
    leader: &LeaderState,
    id: &NodeId,
    key: &PublicKey,
    commit: &Commit,
) -> Result<(Certificate, bool), Failure> {
    let modes = Modes::of(&read_configuration(leader).await?)?;
    if !policy::accepts_storage(modes.storage, commit.storage) {
        return Err(Status::failed_precondition(format!(
            "the cluster's policy is {}, and the node has {}",
            modes.storage.to_wire().as_str_name(),
            commit.storage.as_str_name()
        ))
        .into());
    }
    let Some(found) = leader.node(id).await? else { return Err(Core::unknown_node(leader, id).await?.into()) };
    if found.value.public_key != *key {
        return Err(Status::failed_precondition(format!("{id} is the id of another key")).into());
    }
    let (enrolment_key, certificate_key) = (layout::enrolment(id), layout::node_certificate(id));
    let enrolment = leader.get_message::<NodeEnrolment>(&enrolment_key).await?;
    let committed = enrolment.as_ref().map_or(&[][..], |enrolment| &enrolment.value.commit_hash);
    match decide(found.value.state, committed, &commit.digest())? {
        Decision::Repeated => {
            let issued = leader.issue_node_certificate("curator/node/certificate", key, found.revision).await?;
            Ok((issued, false))
        }
        Decision::New => {
            let revision = found.revision;
            let record =
                NodeRecord { state: NodeState::Up, cluster_unlock_key: commit.unlock_key.clone(), ..found.value };
            let certificate = leader.authority().await?.issue_node(key);
            let transaction = match &enrolment {
                Some(known) => Transaction::new().if_modified_at(enrolment_key.as_str(), known.revision),
                None => Transaction::new().if_absent(enrolment_key.as_str()),
            };
            let enrolment = enrolment.map(|known| known.value).unwrap_or_default();
            let enrolment = NodeEnrolment { commit_hash: commit.digest().to_vec(), ..enrolment };
            let transaction = transaction
                .if_modified_at(layout::node(id), revision)
                .if_absent(certificate_key.as_str())
                .put(layout::node(id), record.encode())
                .put(enrolment_key, enrolment.encode_to_vec())
                .put(certificate_key, certificate.der());
            leader.transact("curator/node/commit", transaction).await?;
            Ok((certificate, true))
        }
    }
}

/// What a commit means for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// It becomes a member.
    New,
    /// It has become one by this very commit.
    Repeated,
}

fn decide(state: NodeState, committed: &[u8], digest: &[u8]) -> Result<Decision, Status> {
    match state {
        NodeState::Standby => Ok(Decision::New),
        NodeState::Up if committed == digest => Ok(Decision::Repeated),
        NodeState::Up => Err(Status::failed_precondition(
            "the node is a member already, and was committed with another unlock key or storage security; its data cannot be \
             those that are committed now",
        )),
        NodeState::New => Err(Status::permission_denied(
            "the node waits for approval: an operator approves it with `polis node approve`",
        )),
        NodeState::Decommissioned => {
            Err(Status::failed_precondition("the node was decommissioned, and does not come back"))
        }
        NodeState::Invalid => Err(Status::failed_precondition("the node is in no known state")),
    }
}

impl Commit {
    fn read(request: CommitNodeRequest) -> Result<Self, Status> {
        let unlock_key = Zeroizing::new(request.cluster_unlock_key);
        let storage = match NodeStorageSecurity::try_from(request.storage_security) {
            Ok(
                storage @ (NodeStorageSecurity::Insecure
                | NodeStorageSecurity::Encrypted
                | NodeStorageSecurity::AuthenticatedEncrypted),
            ) => storage,
            Ok(NodeStorageSecurity::Invalid) => {
                return Err(Status::invalid_argument("storage_security is not set"));
            }
            Err(_) => {
                let number = request.storage_security;
                return Err(Status::invalid_argument(format!("storage_security has the unknown value {number}")));
            }
        };
        let unlock_key = match (storage, unlock_key.len()) {
            (NodeStorageSecurity::Insecure, 0) => None,
            (NodeStorageSecurity::Insecure, _) => {
                return Err(Status::invalid_argument("cluster_unlock_key is set, and insecure storage has none"));
            }
            (_, length) => Some(Secret32::try_from(&unlock_key[..]).map_err(|_| {
                Status::invalid_argument(format!("cluster_unlock_key has {length} bytes, and a key has 32"))
            })?),
        };
        Ok(Self { storage, unlock_key })
    }

    /// What makes two commits of a node the same. It gives nothing away: the key has 256 random bits.
    fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new().chain_update(b"polis node commit v1\0");
        digest.update(i32::from(self.storage).to_be_bytes());
        if let Some(key) = &self.unlock_key {
            digest.update(key.expose());
        }
        digest.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn each_state_has_its_answer() {
        let (same, other) = (&[1; 32][..], &[2; 32][..]);
        for (state, committed, expected) in [
            (NodeState::Standby, &[][..], Ok(Decision::New)),
            (NodeState::Up, same, Ok(Decision::Repeated)),
            (NodeState::Up, other, Err(Code::FailedPrecondition)),
            // The first node of a cluster never commits.
            (NodeState::Up, &[], Err(Code::FailedPrecondition)),
            (NodeState::New, &[], Err(Code::PermissionDenied)),
            (NodeState::Decommissioned, same, Err(Code::FailedPrecondition)),
            (NodeState::Invalid, same, Err(Code::FailedPrecondition)),
        ] {
            let found = decide(state, committed, same).map_err(|status| status.code());
            assert_eq!(found, expected, "{state:?}, {committed:?}");
        }
    }

    #[test]
    fn what_is_committed_is_checked_and_told_apart() {
        let read = |security: i32, key: &[u8]| {
            Commit::read(CommitNodeRequest { cluster_unlock_key: key.to_vec(), storage_security: security })
        };
        let (insecure, encrypted, authenticated) = (1, 2, 3);
        for (security, key, taken) in [
            (insecure, 0, true),
            (insecure, 32, false),
            (encrypted, 32, true),
            (authenticated, 32, true),
            (encrypted, 0, false),
            (encrypted, 31, false),
            (authenticated, 33, false),
            (0, 32, false),
            (4, 32, false),
            (-1, 0, false),
        ] {
            let code = read(security, &vec![7; key]).err().map(|status| status.code());
            assert_eq!(code, (!taken).then_some(Code::InvalidArgument), "{security}, {key} bytes");
        }
        let digest = |security, key: &[u8]| read(security, key).map(|commit| commit.digest()).ok().unwrap();
        assert_eq!(digest(encrypted, &[7; 32]), digest(encrypted, &[7; 32]));
        assert_ne!(digest(encrypted, &[7; 32]), digest(authenticated, &[7; 32]));
        assert_ne!(digest(encrypted, &[7; 32]), digest(encrypted, &[8; 32]));
        assert_ne!(digest(insecure, &[]), digest(encrypted, &[0; 32]));
    }
}
