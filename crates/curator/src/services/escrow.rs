//! AAA: how the owner comes by a certificate (metropolis.md, G.4).

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use polis_proto::api::aaa_server::Aaa;
use polis_proto::api::escrow_request::Parameters;
use polis_proto::api::escrow_response::{ProofRequest, proof_request::Kind};
use polis_proto::api::{EscrowRequest, EscrowResponse};
use polis_rpc::{AuditObject, Caller, Peer};
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};

use super::core::{Core, parse_key};
use super::owner;
use super::text::shown;
use crate::layout;

/// How long the first message may take. A client that opens the call has it at hand.
const FIRST_MESSAGE_DEADLINE: Duration = Duration::from_secs(10);

/// AAA.
pub(super) struct AaaService(pub(super) Arc<Core>);

#[tonic::async_trait]
impl Aaa for AaaService {
    type EscrowStream = BoxStream<'static, Result<EscrowResponse, Status>>;

    async fn escrow(&self, request: Request<Streaming<EscrowRequest>>) -> Result<Response<Self::EscrowStream>, Status> {
        let leader = self.0.leader()?;
        let (peer, object) = (Caller::of(&request).peer.clone(), AuditObject::of(&request));
        let mut messages = request.into_inner();
        let first = timeout(FIRST_MESSAGE_DEADLINE, messages.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no message with parameters has come"))??;
        let parameters = first.and_then(|message| message.parameters);
        let parameters = parameters.ok_or_else(|| Status::invalid_argument("the first message has no parameters"))?;
        let key = match check(&peer, &parameters)? {
            Checked::Key(key) => key,
            Checked::NeedsCertificate => {
                let needed = vec![ProofRequest { kind: Kind::RefreshCertificate.into() }];
                let wanted = EscrowResponse { needed, fulfilled: Vec::new(), emitted_certificate: Vec::new() };
                let refusal = Status::unauthenticated(
                    "connect with a client certificate that is signed by the key itself, to show that it is at hand",
                );
                return Ok(Response::new(stream::iter([Ok(wanted), Err(refusal)]).boxed()));
            }
        };
        object.set(format_args!("owner key {key}"));
        let certificate = owner::certificate(&leader, &key).await?;
        let fulfilled = vec![ProofRequest { kind: Kind::RefreshCertificate.into() }];
        let answer = EscrowResponse { needed: Vec::new(), fulfilled, emitted_certificate: certificate.der().to_vec() };
        Ok(Response::new(stream::iter([Ok(answer)]).boxed()))
    }
}

/// What a first message comes down to.
#[derive(Debug, PartialEq, Eq)]
enum Checked {
    /// It asks for a certificate of this key, which is at hand.
    Key(polis_identity::PublicKey),
    /// That the key is at hand is still to be shown.
    NeedsCertificate,
}

/// Checks the first message of a caller, as far as that goes without the state of the cluster.
fn check(peer: &Peer, parameters: &Parameters) -> Result<Checked, Status> {
    let shown_key = match peer {
        Peer::Node(_) | Peer::User(_) => {
            return Err(Status::invalid_argument(format!("the caller is {peer} already, and needs no certificate")));
        }
        Peer::Ephemeral(key) => Some(*key),
        Peer::Anonymous => None,
    };
    let name = &parameters.requested_identity_name;
    if name != layout::OWNER {
        return Err(Status::unimplemented(format!(
            "there is no user {:?}; the one that there is has the name {:?}",
            shown(name),
            layout::OWNER
        )));
    }
    let key = parse_key("public_key", &parameters.public_key)?;
    match shown_key {
        None => Ok(Checked::NeedsCertificate),
        Some(shown_key) if shown_key == key => Ok(Checked::Key(key)),
        Some(_) => Err(Status::unimplemented(
            "the certificate of this connection is of another key than the one that is to be certified",
        )),
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::{NodeId, NodeIdentity, NodeKey, UserIdentity};
    use tonic::Code;

    use super::*;

    #[test]
    fn what_a_first_message_comes_down_to() {
        let (key, other) = (NodeKey::generate().public(), NodeKey::generate().public());
        let node = Peer::Node(NodeIdentity { id: NodeId::of(&key), public_key: key });
        let user = Peer::User(UserIdentity { name: "owner".into(), public_key: key });
        let bytes = key.as_bytes().to_vec();
        for (peer, name, public_key, expected) in [
            (Peer::Ephemeral(key), "owner", bytes.clone(), Ok(Checked::Key(key))),
            (Peer::Anonymous, "owner", bytes.clone(), Ok(Checked::NeedsCertificate)),
            (Peer::Ephemeral(other), "owner", bytes.clone(), Err(Code::Unimplemented)),
            (Peer::Ephemeral(key), "admin", bytes.clone(), Err(Code::Unimplemented)),
            (Peer::Ephemeral(key), "", bytes.clone(), Err(Code::Unimplemented)),
            (Peer::Ephemeral(key), "owner", bytes[1..].to_vec(), Err(Code::InvalidArgument)),
            (Peer::Ephemeral(key), "owner", vec![0; 32], Err(Code::InvalidArgument)),
            (Peer::Anonymous, "owner", Vec::new(), Err(Code::InvalidArgument)),
            (node, "owner", bytes.clone(), Err(Code::InvalidArgument)),
            (user, "owner", bytes, Err(Code::InvalidArgument)),
        ] {
            let case = format!("{peer}, {name:?}, {} bytes", public_key.len());
            let parameters = Parameters { requested_identity_name: name.into(), public_key };
            let found = check(&peer, &parameters).map_err(|status| status.code());
            assert_eq!(found, expected, "{case}");
        }
    }
}
