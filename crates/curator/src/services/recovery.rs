//! The recovery key, what members have sealed to it, and the word that two members are to stay two, which needs one
//! (`cold-start.md`, "Recovery key" and "Threshold").
//!
//! The cluster knows the public half only, and opens nothing with it. Each member seals its keys to it and hands in what comes out,
//! so that whoever has the private half needs nothing of that member but its disk.

use std::collections::BTreeSet;

use polis_consensus::{KeyValue, Transaction};
use polis_identity::NodeId;
use polis_proto::cluster::GetRecoveryBlobResponse;
use polis_proto::curator_state::{RecoveryBlob, RecoveryKey, TwoConfirmed};
use polis_proto::enrolment::{StoreRecoveryBlobRequest, StoreRecoveryBlobResponse};
use polis_recovery::{BLOB_LIMIT, RecoveryPublicKey};
use prost::Message as _;
use tonic::Status;

use super::core::Core;
use super::failure::{Failure, repeat};
use crate::{LeaderState, layout};

/// Length of an X25519 public key, in bytes.
const KEY_LENGTH: usize = 32;

/// Sets the public half of the recovery key. Returns whether there was another one before.
pub(super) async fn set_key(leader: &LeaderState, caller: &str, public_key: &[u8]) -> Result<bool, Status> {
    if RecoveryPublicKey::new(check_key("public_key", public_key)?).is_none() {
        return Err(Status::invalid_argument(
            "public_key is a point of small order: nobody has the private half of it, and what is sealed to it could be opened by \
             anybody",
        ));
    }
    let replaced = repeat(|| try_set_key(leader, public_key)).await?;
    match replaced {
        Some(true) => tracing::warn!("the cluster has another recovery key; asked for by {caller}"),
        Some(false) => tracing::info!("the cluster has a recovery key; asked for by {caller}"),
        None => {}
    }
    Ok(replaced.unwrap_or_default())
}

/// One attempt: whether there was another one before; `None` when it was this one.
async fn try_set_key(leader: &LeaderState, public_key: &[u8]) -> Result<Option<bool>, Failure> {
    let key = layout::recovery_key();
    let known = leader.get_message::<RecoveryKey>(&key).await?;
    let transaction = match &known {
        Some(known) if known.value.public_key == public_key => return Ok(None),
        Some(known) => Transaction::new().if_modified_at(key.as_str(), known.revision),
        None => Transaction::new().if_absent(key.as_str()),
    };
    let value = RecoveryKey { public_key: public_key.to_vec() };
    leader.transact("curator/recovery/key", transaction.put(key, value.encode_to_vec())).await?;
    Ok(Some(known.is_some()))
}

/// The public half of the recovery key; empty while none is set.
pub(super) async fn key(leader: &LeaderState) -> Result<Vec<u8>, Status> {
    let found = leader.get_message::<RecoveryKey>(&layout::recovery_key()).await?;
    Ok(found.map(|found| found.value.public_key).unwrap_or_default())
}

/// Those of these nodes that have handed in what they have sealed to the present recovery key.
pub(super) async fn with_blob(
    leader: &LeaderState,
    nodes: &[NodeId],
    recovery_public_key: &[u8],
) -> Result<BTreeSet<NodeId>, Status> {
    if recovery_public_key.is_empty() {
        return Ok(BTreeSet::new());
    }
    let reads = nodes.iter().fold(Transaction::new(), |reads, node| reads.get(layout::recovery_blob(node)));
    let found = leader.read(reads).await?.found;
    let is_sealed_to_it = |pairs: &[KeyValue]| {
        let blob = pairs.first().and_then(|pair| RecoveryBlob::decode(&pair.value[..]).ok());
        blob.is_some_and(|blob| blob.recovery_public_key == recovery_public_key)
    };
    let with_blob = nodes.iter().zip(&found).filter(|(_, pairs)| is_sealed_to_it(pairs));
    Ok(with_blob.map(|(node, _)| *node).collect())
}

/// Keeps what the calling node has sealed to the recovery key.
pub(super) async fn store_blob(
    leader: &LeaderState,
    id: &NodeId,
    request: StoreRecoveryBlobRequest,
) -> Result<StoreRecoveryBlobResponse, Status> {
    let StoreRecoveryBlobRequest { recovery_public_key, blob } = request;
    check_key("recovery_public_key", &recovery_public_key)?;
    if blob.is_empty() || blob.len() > BLOB_LIMIT {
        return Err(Status::invalid_argument(format!(
            "blob has {} bytes, and one has at least 1 and at most {BLOB_LIMIT}",
            blob.len()
        )));
    }
    let blob = RecoveryBlob { recovery_public_key, blob };
    repeat(|| try_store_blob(leader, id, &blob)).await?;
    Ok(StoreRecoveryBlobResponse {})
}

async fn try_store_blob(leader: &LeaderState, id: &NodeId, blob: &RecoveryBlob) -> Result<(), Failure> {
    let Some(node) = leader.node(id).await? else { return Err(Core::unknown_node(leader, id).await?.into()) };
    let present = leader.get_message::<RecoveryKey>(&layout::recovery_key()).await?;
    // What is sealed to a key that was replaced must not take the place of what is sealed to the new one.
    let Some(present) = present.filter(|present| present.value.public_key == blob.recovery_public_key) else {
        return Err(Status::failed_precondition(
            "recovery_public_key is not the recovery key of the cluster; look at the orders, and seal it again",
        )
        .into());
    };
    let known = leader.get_message::<RecoveryBlob>(&layout::recovery_blob(id)).await?;
    // A node hands in what it has whenever it has found a leader.
    if known.is_some_and(|known| known.value == *blob) {
        return Ok(());
    }
    let transaction = Transaction::new()
        .if_modified_at(layout::node(id), node.revision)
        .if_modified_at(layout::recovery_key(), present.revision)
        .put(layout::recovery_blob(id), blob.encode_to_vec());
    leader.transact("curator/recovery/blob", transaction).await?;
    Ok(())
}

/// What a member has sealed to the recovery key.
pub(super) async fn blob(leader: &LeaderState, id: &NodeId) -> Result<GetRecoveryBlobResponse, Status> {
    if leader.node(id).await?.is_none() {
        return Err(Core::unknown_node(leader, id).await?);
    }
    let found = leader.get_message::<RecoveryBlob>(&layout::recovery_blob(id)).await?;
    let RecoveryBlob { recovery_public_key, blob } = found.map(|found| found.value).unwrap_or_default();
    Ok(GetRecoveryBlobResponse { recovery_public_key, blob })
}

/// Notes that two members are to stay two, or takes that back. Idempotent.
pub(super) async fn confirm_two(leader: &LeaderState, caller: &str, withdraw: bool) -> Result<(), Status> {
    if repeat(|| try_confirm_two(leader, caller, withdraw)).await? {
        let what = if withdraw {
            "may keep copies of their keys again"
        } else {
            "are to stay two, and keep no copies of their keys"
        };
        tracing::warn!("two members of the cluster {what}; asked for by {caller}");
    }
    Ok(())
}

/// One attempt. Returns whether anything was changed.
async fn try_confirm_two(leader: &LeaderState, caller: &str, withdraw: bool) -> Result<bool, Failure> {
    let key = layout::two_confirmed();
    let known = leader.get_message::<TwoConfirmed>(&key).await?;
    let transaction = match (&known, withdraw) {
        (None, true) | (Some(_), false) => return Ok(false),
        (Some(known), true) => Transaction::new().if_modified_at(key.as_str(), known.revision).delete(key),
        (None, false) => {
            let recovery = layout::recovery_key();
            let Some(found) = leader.get(&recovery).await? else {
                return Err(Status::failed_precondition(
                    "the cluster has no recovery key, and without one the loss of one of two members would be the loss of all \
                     data; set one first: polis cluster recovery-key set FILE",
                )
                .into());
            };
            Transaction::new()
                .if_absent(key.as_str())
                .if_modified_at(recovery, found.revision)
                .put(key, TwoConfirmed { confirmed_by: caller.to_owned() }.encode_to_vec())
        }
    };
    leader.transact("curator/recovery/two", transaction).await?;
    Ok(true)
}

fn check_key(field: &str, bytes: &[u8]) -> Result<[u8; KEY_LENGTH], Status> {
    bytes.try_into().map_err(|_| {
        Status::invalid_argument(format!(
            "{field} has {} bytes, and an X25519 public key has {KEY_LENGTH}",
            bytes.len()
        ))
    })
}
