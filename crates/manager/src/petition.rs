//! [`Petition`]: what a node asks of a cluster that others run, repeated until there is an answer that counts.

use std::sync::Arc;

use polis_identity::{AuthorityCertificate, NodeId, PublicKey};
use polis_roleserve::Removal;
use polis_secret::Secret32;
use polis_supervisor::{Context, with_causes};
use tokio::time::sleep;

use crate::cluster_access::{Admission, ApplicantLink, CallFailure, Commitment, Membership, Registration};
use crate::failure::Failure;
use crate::pace::{Pace, Pauses};
use crate::trouble::{Ended, Trouble, until_cured};
use crate::verdict::{Call, Parties, Verdict, verdict};

/// A node and the cluster that it asks.
pub(crate) struct Petition {
    pub(crate) link: Arc<dyn ApplicantLink>,
    /// Key of the node.
    pub(crate) node: PublicKey,
    /// CA of the cluster.
    pub(crate) authority: AuthorityCertificate,
}

/// What a failed call comes to, once it is known whether the node was deleted.
enum Judgement {
    Trouble(Trouble),
    /// The cluster has neither a record nor a tombstone of the node.
    Unknown,
}

impl Petition {
    /// Asks for admission until it is granted.
    pub(crate) async fn register(&self, context: &Context, request: &Registration) -> Result<Admission, Ended> {
        let call = || async {
            polis_fault::point("register/call", "before");
            let outcome = self.link.register(request.clone()).await;
            polis_fault::point("register/call", "after");
            outcome
        };
        let mut pauses = Pauses::default();
        loop {
            if let Some(admission) = self.ask(context, Call::Register, call).await? {
                return Ok(admission);
            }
            // A cluster that does not know the node is no answer to this: it is how it gets to know it.
            context.unless_cancelled(sleep(pauses.next(Pace::Refused, rand::random()))).await?;
        }
    }

    /// Asks to become a member until the node is one. Nothing comes back when the cluster has no record of the node, and no
    /// tombstone either.
    ///
    /// `read` reads what makes the node a member, or says what is wrong with that.
    pub(crate) async fn commit<T>(
        &self,
        context: &Context,
        commitment: &Commitment,
        read: impl Fn(Membership) -> Result<T, String>,
    ) -> Result<Option<T>, Ended> {
        let call = || async {
            polis_fault::point("commit/call", "before");
            let outcome = self.link.commit(commitment.clone()).await;
            polis_fault::point("commit/call", "after");
            read(outcome?).map_err(|problem| CallFailure::Unusable { endpoint: None, problem })
        };
        self.ask(context, Call::Commit, call).await
    }

    /// Asks for the cluster's half of the key of the data partition until it is given. `sealed` is whether the node has read its journal
    /// with a TPM.
    pub(crate) async fn join(&self, context: &Context, sealed: bool) -> Result<Secret32, Ended> {
        let call = || async {
            polis_fault::point("join/call", "before");
            let outcome = self.link.join(sealed).await;
            polis_fault::point("join/call", "after");
            outcome
        };
        loop {
            if let Some(key) = self.ask(context, Call::Join, call).await? {
                return Ok(key);
            }
        }
    }

    /// Repeats a call until there is an answer that counts. Nothing comes back when the cluster does not know the node.
    async fn ask<T, F>(&self, context: &Context, call: Call, make: impl Fn() -> F) -> Result<Option<T>, Ended>
    where
        F: Future<Output = Result<T, CallFailure>>,
    {
        until_cured(context, || async {
            match make().await {
                Ok(answer) => Ok(Some(answer)),
                Err(failure) => match self.judge(call, failure).await {
                    Judgement::Unknown => Ok(None),
                    Judgement::Trouble(trouble) => Err(trouble),
                },
            }
        })
        .await
    }

    async fn judge(&self, call: Call, failure: CallFailure) -> Judgement {
        let (proof, otherwise) = match verdict(call, self.parties(), &failure) {
            Verdict::Repeat(curable) => return Judgement::Trouble(Trouble::Curable(curable)),
            Verdict::PerhapsDeleted { proof: Some(proof), otherwise } => (Some(proof), otherwise),
            Verdict::PerhapsDeleted { proof: None, otherwise } => match self.ask_for_tombstone().await {
                Ok(proof) => (proof, otherwise),
                Err(trouble) => return Judgement::Trouble(trouble),
            },
        };
        match proof.map(|proof| Removal::proven_by(&proof, &self.authority, &self.node)) {
            Some(Ok(removal)) => {
                return Judgement::Trouble(Trouble::Final(Failure::Removed { reason: removal.to_string() }));
            }
            Some(Err(no_proof)) => tracing::warn!(
                reason = with_causes(&no_proof),
                "what is shown as the tombstone of this node is none; it is not believed"
            ),
            None => {}
        }
        otherwise.map_or(Judgement::Unknown, |curable| Judgement::Trouble(Trouble::Curable(curable)))
    }

    /// Asks whether the node was deleted. Also a refusal may come with the proof that it was.
    async fn ask_for_tombstone(&self) -> Result<Option<Vec<u8>>, Trouble> {
        match self.link.tombstone(NodeId::of(&self.node)).await {
            Ok(found) => Ok(found),
            Err(failure) => match verdict(Call::Tombstone, self.parties(), &failure) {
                Verdict::Repeat(curable) => Err(Trouble::Curable(curable)),
                Verdict::PerhapsDeleted { proof, .. } => Ok(proof),
            },
        }
    }

    fn parties(&self) -> Parties {
        Parties { node: NodeId::of(&self.node), cluster: self.authority.cluster_id() }
    }
}
