//! The unlock file as the message `polis.storage.v1.UnlockFile.Content`.

use std::collections::BTreeSet;

use polis_identity::{ClusterId, NodeId};
use polis_proto::storage::unlock_file;

use super::{HeldShare, InvalidUnlockFile, Split, UnlockFile};
use crate::{Epoch, KeyCheckValue, Scheme, ShareHash, VOTERS_LIMIT};

/// Longest ciphertext of a share in bytes, so that a request with it stays below the limit of a frame.
const CIPHERTEXT_LIMIT: usize = 512;

pub(super) fn content(file: &UnlockFile) -> unlock_file::Content {
    unlock_file::Content {
        cluster_id: file.cluster.to_string(),
        owner_node_id: file.owner.to_string(),
        current: Some(split_message(&file.current)),
        pending: file.pending.as_ref().map(split_message),
    }
}

fn split_message(split: &Split) -> unlock_file::Split {
    let holders = split.holders.iter().map(|held| unlock_file::Holder {
        node_id: held.holder.to_string(),
        x: held.x.into(),
        ciphertext: held.ciphertext.clone(),
        share_hash: held.hash.as_bytes().to_vec(),
    });
    unlock_file::Split {
        incarnation: split.epoch.incarnation,
        epoch: split.epoch.epoch,
        shares_needed: split.scheme.shares_needed().into(),
        holders: holders.collect(),
        key_check_value: split.check_value.as_bytes().to_vec(),
    }
}

pub(super) fn file(
    content: unlock_file::Content,
    cluster: ClusterId,
    owner: NodeId,
) -> Result<UnlockFile, InvalidUnlockFile> {
    let unlock_file::Content { cluster_id, owner_node_id, current, pending } = content;
    if owner_node_id != owner.to_string() {
        return Err(InvalidUnlockFile::OtherOwner { found: owner_node_id, expected: owner });
    }
    if cluster_id != cluster.to_string() {
        return Err(InvalidUnlockFile::OtherCluster { found: cluster_id, expected: cluster });
    }
    let current = current.ok_or(InvalidUnlockFile::Field { field: "current", problem: "it is missing" })?;
    Ok(UnlockFile {
        cluster,
        owner,
        current: split(current, &owner)?,
        pending: pending.map(|pending| split(pending, &owner)).transpose()?,
    })
}

fn split(message: unlock_file::Split, owner: &NodeId) -> Result<Split, InvalidUnlockFile> {
    let wrong = |field, problem| InvalidUnlockFile::Field { field, problem };
    let unlock_file::Split { incarnation, epoch, shares_needed, holders, key_check_value } = message;
    let needed = u8::try_from(shares_needed).map_err(|_| wrong("shares_needed", "it is too large"))?;
    let scheme = Scheme::with_shares(needed);
    let holders = holders.into_iter().map(holder).collect::<Result<Vec<_>, _>>()?;
    if holders.len() >= VOTERS_LIMIT {
        return Err(wrong("holders", "there are too many"));
    }
    if usize::from(needed) > holders.len() {
        return Err(wrong("shares_needed", "there are fewer holders"));
    }
    if !holders.is_sorted_by(|one, next| one.x < next.x) {
        return Err(wrong("holders", "they are not in order of x, each once"));
    }
    let nodes: BTreeSet<_> = holders.iter().map(|held| held.holder).collect();
    if nodes.len() < holders.len() || nodes.contains(owner) {
        return Err(wrong("holders", "a node is there twice, or is the owner"));
    }
    let check_value = key_check_value.try_into().map_err(|_| wrong("key_check_value", "it has not 32 bytes"))?;
    Ok(Split { epoch: Epoch { incarnation, epoch }, scheme, holders, check_value: KeyCheckValue::new(check_value) })
}

fn holder(message: unlock_file::Holder) -> Result<HeldShare, InvalidUnlockFile> {
    let wrong = |field, problem| InvalidUnlockFile::Field { field, problem };
    let unlock_file::Holder { node_id, x, ciphertext, share_hash } = message;
    let x = u8::try_from(x).ok().filter(|x| *x > 0).ok_or(wrong("holders.x", "it is not from 1 to 255"))?;
    if ciphertext.is_empty() || ciphertext.len() > CIPHERTEXT_LIMIT {
        return Err(wrong("holders.ciphertext", "its length is impossible"));
    }
    let hash = share_hash.try_into().map_err(|_| wrong("holders.share_hash", "it has not 32 bytes"))?;
    let holder = node_id.parse().map_err(|_| wrong("holders.node_id", "it is not a node id"))?;
    Ok(HeldShare { holder, x, ciphertext, hash: ShareHash::new(hash) })
}
