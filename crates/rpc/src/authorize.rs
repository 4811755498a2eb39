//! Who may call what: one decision, from the schema's option, the certificate, and what the cluster thinks of it now.

use polis_identity::SerialNumber;
use polis_proto::authorization::{Authorization, Method};
use polis_proto::ext::Permission;
use polis_proto::rpc_detail::RemovedNode;
use tonic::Status;

use crate::detail;
use crate::tls::Judgement;
use crate::{News, Peer, Trust};

/// What a node may do (metropolis.md G.4).
const PERMISSIONS_OF_NODES: &[Permission] = &[Permission::ReadClusterStatus, Permission::UpdateNodeSelf];

/// The user who may do everything. There is no other user who may do anything (metropolis.md G.4).
const OWNER: &str = "owner";

/// Permissions that change nothing and give nothing away that would let one change something.
const READING: &[Permission] = &[Permission::ReadClusterStatus, Permission::ReadNodeLogs];

/// Calls of those who have no certificate yet that change something, by service and name.
const MUTATING_WITHOUT_PERMISSION: &[&str] = &[
    "/metropolis.node.core.curator.proto.api.Curator/RegisterNode",
    "/metropolis.node.core.curator.proto.api.Curator/CommitNode",
    "/metropolis.node.core.curator.proto.api.Curator/JoinNode",
    "/metropolis.proto.api.AAA/Escrow",
];

/// Whether a call of this method is to be found in the log.
pub(crate) fn is_mutating(method: &Method) -> bool {
    match method.authorization {
        Authorization::Need(permissions) => permissions.iter().any(|permission| !READING.contains(permission)),
        Authorization::AllowUnauthenticated => MUTATING_WITHOUT_PERMISSION.contains(&method.path),
    }
}

/// The method with this path.
///
/// # Errors
///
/// UNIMPLEMENTED if no schema has it, which is also how a client of a newer version learns that this node is older. Whether a service
/// with this path is served does not matter: what the table does not have is not called.
pub(crate) fn method(path: &str) -> Result<&'static Method, Status> {
    polis_proto::authorization::of(path).ok_or_else(|| {
        let version = polis_version::text();
        Status::unimplemented(format!(
            "this node runs Polis {version}, which has no such method; is the caller of another version?"
        ))
    })
}

/// Whether the cluster still stands by the certificate, and whose it is then.
///
/// # Errors
///
/// UNAUTHENTICATED with the reason if the certificate was never believed, is revoked, or its node was removed; for a removed node with
/// the proof as detail.
pub(crate) fn stands<'judgement>(judgement: &'judgement Judgement, trust: &Trust) -> Result<&'judgement Peer, Status> {
    let (peer, serial_number) = match judgement {
        Judgement::Believed { peer, serial_number } => (peer, serial_number.as_ref()),
        Judgement::NotBelieved(reason) => {
            return Err(Status::unauthenticated(format!("the client certificate is refused: {reason}")));
        }
    };
    if let Some((id, signed_tombstone)) = peer.node().and_then(|id| trust.removed_nodes.get_key_value(&id)) {
        let removed = RemovedNode { signed_tombstone: signed_tombstone.clone() };
        let status = Status::unauthenticated(format!("the node {id} was removed from the cluster"));
        return Err(detail::with_removed_node(status, &removed));
    }
    let is_revoked = |serial_number: &SerialNumber| {
        trust.revocations.as_ref().is_some_and(|revocations| revocations.revoked().contains(serial_number))
    };
    if serial_number.is_some_and(is_revoked) {
        return Err(Status::unauthenticated(format!("the certificate of the {peer} is revoked")));
    }
    Ok(peer)
}

/// Whether this peer may call this method now.
///
/// # Errors
///
/// See [`stands`] and [`may_be_answered`]; UNAUTHENTICATED for a stranger, PERMISSION_DENIED for one whom the cluster knows, UNAVAILABLE
/// for a node while nobody knows whether the cluster still stands by it.
pub(crate) fn authorize(method: &Method, judgement: &Judgement, trust: &Trust) -> Result<(), Status> {
    let peer = stands(judgement, trust)?;
    let needed = match method.authorization {
        Authorization::AllowUnauthenticated => return Ok(()),
        Authorization::Need(needed) => needed,
    };
    let held = match peer {
        Peer::Anonymous => {
            return Err(Status::unauthenticated("this call needs a certificate of this cluster, and none was shown"));
        }
        Peer::Ephemeral(_) => {
            return Err(Status::unauthenticated(
                "this call needs a certificate of this cluster, and the one that was shown is made by its holder",
            ));
        }
        Peer::Node(_) => PERMISSIONS_OF_NODES,
        Peer::User(user) if user.name == OWNER => return Ok(()),
        Peer::User(_) => &[],
    };
    let missing: Vec<_> = needed.iter().filter(|needed| !held.contains(needed)).map(Permission::as_str_name).collect();
    if !missing.is_empty() || needed.is_empty() {
        return Err(Status::permission_denied(format!("the {peer} does not have {}", missing.join(", "))));
    }
    if trust.news == News::CutOff && needed.iter().any(|needed| *needed != Permission::ReadClusterStatus) {
        return Err(Status::unavailable(
            "this node has no contact with the leader of the cluster, so it does not know whether the caller still belongs to it",
        ));
    }
    may_be_answered(peer, trust)
}

/// Whether this node knows enough to answer this peer anything that is for the cluster only. Users are answered in any case: it is
/// they who can help a node that is cut off.
///
/// # Errors
///
/// UNAVAILABLE for a node while it is not known whom the cluster has let go before it had contact.
pub(crate) fn may_be_answered(peer: &Peer, trust: &Trust) -> Result<(), Status> {
    match (peer, trust.news) {
        (Peer::Node(_), News::CatchingUp) => Err(Status::unavailable(
            "this node has just got contact with the leader of the cluster, and is yet to hear whether the caller still belongs to it; \
             ask again",
        )),
        (Peer::Node(_), News::CutOff | News::UpToDate) | (Peer::Anonymous | Peer::Ephemeral(_) | Peer::User(_), _) => {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use polis_proto::authorization::METHODS;

    use super::*;

    #[test]
    fn the_methods_that_are_named_here_exist() {
        for path in MUTATING_WITHOUT_PERMISSION {
            assert_eq!(method(path).unwrap().authorization, Authorization::AllowUnauthenticated, "{path}");
        }
    }

    #[test]
    fn calls_that_only_look_are_not_told() {
        let quiet: Vec<_> = METHODS.iter().filter(|method| !is_mutating(method)).map(|method| method.name).collect();
        for name in ["Watch", "GetNodes", "GetClusterInfo", "Logs", "GetCurrentLeader", "GetCACertificate"] {
            assert!(quiet.contains(&name), "{name}");
        }
        for name in ["ApproveNode", "DeleteNode", "UpdateNodeRoles", "GetRegisterTicket", "CommitNode", "Reboot"] {
            assert!(!quiet.contains(&name), "{name}");
        }
    }
}
