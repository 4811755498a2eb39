//! This node's word that the owner of its cluster is to be replaced, given by its root user.

use std::time::Duration;

use polis_control::{OwnerProposed, Refusal};
use polis_identity::PublicKey;
use polis_proto::enrolment::ProposeOwnerRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_roleserve::RoleServe;
use polis_rpc::CallPolicy;
use polis_supervisor::with_causes;

/// How long it is tried. Whoever asks sits at a terminal.
const POLICY: CallPolicy = CallPolicy::within(Duration::from_secs(15)).each_within(Duration::from_secs(5));

/// Proposes `public_key`, in hexadecimal digits, to the leader.
///
/// # Errors
///
/// When it is no key, or the cluster does not take the proposal.
pub(crate) async fn propose(role_serve: &RoleServe, public_key: &str) -> Result<OwnerProposed, Refusal> {
    let key: PublicKey =
        public_key.parse().map_err(|error| Refusal::new(format!("{public_key:?} is not a public key: {error}")))?;
    let cluster = role_serve.cluster().ok_or_else(|| {
        Refusal::new("this node does not belong to a cluster yet, so it has no say in whose that is")
            .hint("propose it on the consensus members of the cluster")
    })?;
    let request = ProposeOwnerRequest { public_key: key.as_bytes().to_vec() };
    let proposed = cluster.call(POLICY, |channel| {
        let request = request.clone();
        async move { EnrolmentClient::new(channel).propose_owner(request).await }
    });
    match proposed.await {
        Ok(answer) => {
            let answer = answer.into_inner();
            tracing::warn!(key = %key, "this node has proposed another owner of the cluster");
            Ok(OwnerProposed { proposals: answer.proposals, needed: answer.needed, replaced: answer.replaced })
        }
        Err(error) => Err(Refusal::new(format!("the cluster did not take the proposal: {}", with_causes(&error)))
            .hint("it takes a quorum of the consensus members, on each of which this is to be run; `polis node status` shows whether there is a leader")),
    }
}
