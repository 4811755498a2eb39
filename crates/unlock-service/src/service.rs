//! The calls of the unlock port.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use polis_identity::PublicKey;
use polis_proto::unlock::unlock_server::Unlock;
use polis_proto::unlock::{
    GetLockRequest, GetLockResponse, RecoverRequest, RecoverResponse, UnlockRequest as Message, UnlockResponse,
};
use polis_rpc::Caller;
use polis_secret::Secret32;
use polis_supervisor::{Context, with_causes};
use polis_unlock::{ClusterWord, Counts, Decision, Holder, Hpke, Rate, Reason, Refusal, UnlockReply, UnlockRequest};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use crate::limits::CLUSTER_WORD_DEADLINE;
use crate::lock;
use crate::rates::Rates;
use crate::server::{HolderSettings, UnlockServer};
use crate::{Lock, RecoverError, RecoveryAnswer};

/// Answers the calls.
pub(crate) struct Service {
    context: Context,
    server: UnlockServer,
    rates: Mutex<Rates>,
    /// Held by the recovery that is under way.
    recovering: Arc<tokio::sync::Mutex<()>>,
}

impl Service {
    pub(crate) fn new(context: Context, server: UnlockServer) -> Self {
        Self { context, server, rates: Mutex::default(), recovering: Arc::default() }
    }

    /// Does something that is not to be dropped half done, even when the caller goes away.
    async fn to_its_end<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, Status> {
        let (done, result) = oneshot::channel();
        self.context.spawn(async move {
            // Nobody waits for it any more when the caller has gone.
            let _ = done.send(work.await);
            Ok(())
        });
        result.await.map_err(|_| Status::unavailable("the server is stopping"))
    }

    /// Answers a member, or one who may become one by the list that it shows. What the answer rests on is durable before.
    async fn answer(
        &self,
        holder: &HolderSettings,
        caller: &Caller,
        key: PublicKey,
        request: &UnlockRequest,
    ) -> Result<UnlockReply, Status> {
        let known = holder.members.known();
        let is_member = known.has_key(&key);
        let rate = self.rates.lock().unwrap_or_else(PoisonError::into_inner).take(&known, key, Instant::now());
        // Only for a member that has not asked too often is the cluster troubled.
        let word = match rate {
            Rate::Within if is_member => {
                let word = timeout(CLUSTER_WORD_DEADLINE, holder.keys.word(request.owner)).await;
                word.unwrap_or(ClusterWord::Unavailable)
            }
            Rate::Within | Rate::Exceeded { .. } => ClusterWord::Unavailable,
        };
        let Decision { persist, answer } = Holder {
            id: holder.id,
            authority: &holder.authority,
            share_key: &holder.share_key,
            sealing: &Hpke,
            list: known.list.as_ref(),
            highest: known.highest,
            floors: &known.floors,
            counts: self.counts(),
        }
        .answer(&key, request, word, rate);
        if let Some(list) = persist {
            let epoch = list.list().epoch();
            let members = holder.members.clone();
            let taken_over = self.to_its_end(async move { members.take_over(list).await }).await?;
            taken_over.map_err(|error| {
                tracing::error!(error = with_causes(&error), "a newer member list could not be stored");
                Status::unavailable(with_causes(&error))
            })?;
            tracing::info!(%epoch, from = %request.owner, "a newer member list was shown, and is taken over");
        }
        if is_member || holder.members.known().has_key(&key) {
            holder.contacts.note(key, caller.address.ip());
        }
        Ok(answer)
    }

    fn counts(&self) -> Option<Counts> {
        match &*self.server.lock.borrow() {
            Lock::Locked => self.server.status.borrow().progress.counts,
            Lock::Open | Lock::Sealed { .. } => None,
        }
    }
}

fn refused(reason: Reason, detail: impl Into<String>) -> UnlockReply {
    UnlockReply::Refused(Refusal { reason, detail: detail.into(), counts: None })
}

/// Tells of each key and share that leaves the node.
fn tell(caller: &Caller, request: &UnlockRequest, answer: &UnlockReply) {
    let given = match answer {
        UnlockReply::Full(_) => "its key",
        UnlockReply::Share(_) => "its share",
        UnlockReply::NewerMembers(_) | UnlockReply::OlderMembers(_) => return,
        UnlockReply::Refused(refusal) => {
            tracing::debug!(%caller, reason = %refusal.reason, detail = refusal.detail, "an unlock request was refused");
            return;
        }
    };
    tracing::info!(member = %request.owner, address = %caller.address, "a member was given {given}");
}

#[tonic::async_trait]
impl Unlock for Service {
    async fn unlock(&self, request: Request<Message>) -> Result<Response<UnlockResponse>, Status> {
        let caller = Caller::of(&request).clone();
        let Some(holder) = &self.server.holder else {
            let detail = "it cannot unseal its own record, and waits for its recovery key";
            return Ok(Response::new(refused(Reason::NothingToGive, detail).into()));
        };
        let answer = match (caller.peer.public_key(), UnlockRequest::try_from(request.into_inner())) {
            (None, _) => refused(Reason::UnknownKey, "no certificate was shown"),
            (Some(_), Err(invalid)) => refused(Reason::Malformed, invalid.to_string()),
            (Some(key), Ok(request)) => {
                let answer = self.answer(holder, &caller, key, &request).await?;
                tell(&caller, &request, &answer);
                answer
            }
        };
        Ok(Response::new(answer.into()))
    }

    async fn get_lock(&self, _: Request<GetLockRequest>) -> Result<Response<GetLockResponse>, Status> {
        let lock = self.server.lock.borrow().clone();
        let offer = match &lock {
            Lock::Open => None,
            Lock::Locked | Lock::Sealed { .. } => Some(self.server.recovery.offer().await),
        };
        let status = self.server.status.borrow().clone();
        Ok(Response::new(lock::response(&lock, &status, &self.server.oneself, offer)))
    }

    async fn recover(&self, request: Request<RecoverRequest>) -> Result<Response<RecoverResponse>, Status> {
        let caller = Caller::of(&request).clone();
        let RecoverRequest { content_key, blob_sha256 } = request.into_inner();
        let wrong = |what| Status::invalid_argument(format!("{what} has to have 32 bytes"));
        let answer = RecoveryAnswer {
            content_key: Secret32::try_from(&content_key[..]).map_err(|_| wrong("content_key"))?,
            blob_sha256: blob_sha256.try_into().map_err(|_| wrong("blob_sha256"))?,
        };
        let Ok(recovering) = Arc::clone(&self.recovering).try_lock_owned() else {
            return Err(Status::resource_exhausted(
                "a recovery is under way; ask for the state of the node in a moment",
            ));
        };
        let recovery = Arc::clone(&self.server.recovery);
        let recover = async move {
            let outcome = recovery.recover(answer).await;
            let result = outcome.as_ref().map_or_else(|error| with_causes(error), String::clone);
            tracing::warn!(%caller, result, "somebody has tried to open this node with a recovery key");
            drop(recovering);
            outcome
        };
        let done = self.to_its_end(recover).await?.map_err(|error| {
            let message = with_causes(&error);
            match error {
                RecoverError::NothingOffered(_) => Status::failed_precondition(message),
                RecoverError::OtherBlob => Status::aborted(message),
                RecoverError::WrongKey(_) => Status::permission_denied(message),
                RecoverError::Failed(_) => Status::internal(message),
            }
        })?;
        Ok(Response::new(RecoverResponse { done }))
    }
}
