//! The register ticket: made at the first use, rotated, and asked for by those who register.
//!
//! A ticket that was rotated away is remembered by its digest, so that who comes with it can be told that it is old and not
//! that it is wrong.

use polis_consensus::Transaction;
use polis_parameters::RegisterTicket;
use polis_proto::curator_private;
use polis_secret::Secret32;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tonic::Status;
use zeroize::{Zeroize as _, Zeroizing};

use super::failure::{Failure, repeat};
use crate::{LeaderState, StateError, layout};

/// Digests of tickets that were rotated away lie here. They are not secret: a ticket has 256 random bits.
fn retired(ticket: &RegisterTicket) -> String {
    let digest = Sha256::new().chain_update(b"polis retired ticket v1\0").chain_update(&*ticket.to_bytes()).finalize();
    layout::retired_ticket(&digest.into())
}

/// The ticket; it is made if there is none.
pub(super) async fn get(leader: &LeaderState) -> Result<RegisterTicket, Status> {
    repeat(|| try_get(leader)).await
}

async fn try_get(leader: &LeaderState) -> Result<RegisterTicket, Failure> {
    if let Some((ticket, _)) = read(leader).await? {
        return Ok(ticket);
    }
    let ticket = random();
    let key = layout::register_ticket();
    let transaction = Transaction::new().if_absent(key.as_str()).put(key, ticket.to_bytes().as_slice());
    leader.transact("curator/ticket/create", transaction).await?;
    Ok(ticket)
}

/// Makes another ticket. The present one is refused from then on.
pub(super) async fn rotate(leader: &LeaderState) -> Result<RegisterTicket, Status> {
    repeat(|| try_rotate(leader)).await
}

async fn try_rotate(leader: &LeaderState) -> Result<RegisterTicket, Failure> {
    let ticket = random();
    let key = layout::register_ticket();
    let transaction = match read(leader).await? {
        Some((old, revision)) => {
            Transaction::new().if_modified_at(key.as_str(), revision).put(retired(&old), Vec::new())
        }
        None => Transaction::new().if_absent(key.as_str()),
    };
    leader.transact("curator/ticket/rotate", transaction.put(key, ticket.to_bytes().as_slice())).await?;
    Ok(ticket)
}

fn random() -> RegisterTicket {
    let mut message = curator_private::RegisterTicket { opaque: Secret32::random().expose().to_vec() };
    let bytes = Zeroizing::new(message.encode_to_vec());
    message.opaque.zeroize();
    RegisterTicket::from_bytes(&bytes).expect("it is made as tickets are")
}

/// Checks the ticket of one who registers.
///
/// # Errors
///
/// PERMISSION_DENIED, and why.
pub(super) async fn check(leader: &LeaderState, given: &[u8]) -> Result<(), Failure> {
    let denied = |message: String| Err(Status::permission_denied(message).into());
    if given.is_empty() {
        return denied("there is no register ticket; take one from the cluster and put it into the parameters".into());
    }
    let given = match RegisterTicket::from_bytes(given) {
        Ok(given) => given,
        Err(error) => return denied(format!("the register ticket is not usable: {error}")),
    };
    // Tickets are secrets and compared as such, in constant time.
    match read(leader).await? {
        Some((ticket, _)) if ticket == given => return Ok(()),
        Some(_) | None => {}
    }
    if leader.get(&retired(&given)).await?.is_some() {
        return denied(
            "the register ticket is an old one of this cluster: it was rotated; take the present one".into(),
        );
    }
    denied("the register ticket is not that of this cluster; take it anew from this cluster".into())
}

async fn read(leader: &LeaderState) -> Result<Option<(RegisterTicket, i64)>, StateError> {
    let key = layout::register_ticket();
    let Some(found) = leader.get(&key).await? else { return Ok(None) };
    let bytes = Zeroizing::new(found.value);
    let ticket = RegisterTicket::from_bytes(&bytes).map_err(|source| StateError::damaged(key, source))?;
    Ok(Some((ticket, found.revision)))
}
