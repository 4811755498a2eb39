//! Rekey and Reseal: what operators ask about the keys of the node.

use std::time::Duration;

use polis_manager::{EtcdProvider, KeyOrderError, Manager};
use polis_proto::node_api::{RekeyResponse, ResealResponse};
use polis_storage::journal::SealKind;
use tokio::time::timeout;
use tonic::{Status, async_trait};

/// How long an order is waited for. Replacing a key takes about a second with encrypted files, and some with a disk; after this the
/// node goes on by itself.
const ORDER_TIMEOUT: Duration = Duration::from_secs(60);

/// Who carries orders about keys out.
#[async_trait]
pub(crate) trait Keys: Send + Sync + 'static {
    async fn rekey(&self) -> Result<(), KeyOrderError>;
    async fn reseal(&self) -> Result<SealKind, KeyOrderError>;
}

#[async_trait]
impl Keys for Manager<EtcdProvider> {
    async fn rekey(&self) -> Result<(), KeyOrderError> {
        Manager::rekey(self).await
    }

    async fn reseal(&self) -> Result<SealKind, KeyOrderError> {
        Manager::reseal(self).await
    }
}

/// Replaces the key of the data partition.
pub(super) async fn rekey(keys: &dyn Keys) -> Result<RekeyResponse, Status> {
    let outcome = timeout(ORDER_TIMEOUT, keys.rekey()).await;
    outcome.map_err(|_| late())?.map_err(|error| refusal(&error))?;
    Ok(RekeyResponse {})
}

/// Renews the seal.
pub(super) async fn reseal(keys: &dyn Keys) -> Result<ResealResponse, Status> {
    let outcome = timeout(ORDER_TIMEOUT, keys.reseal()).await;
    let seal = outcome.map_err(|_| late())?.map_err(|error| refusal(&error))?;
    Ok(ResealResponse { seal: seal.to_string() })
}

fn late() -> Status {
    Status::deadline_exceeded(format!(
        "it takes longer than {} seconds; the node goes on by itself, and its status tells how far it is",
        ORDER_TIMEOUT.as_secs()
    ))
}

fn refusal(error: &KeyOrderError) -> Status {
    let text = error.to_string();
    match error {
        KeyOrderError::NotEncrypted | KeyOrderError::NotSealed => Status::failed_precondition(text),
        KeyOrderError::NotBegun { .. } | KeyOrderError::Unfinished { .. } | KeyOrderError::Busy => {
            Status::unavailable(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    struct Fixed(Result<SealKind, KeyOrderError>);

    #[async_trait]
    impl Keys for Fixed {
        async fn rekey(&self) -> Result<(), KeyOrderError> {
            self.0.clone().map(|_| ())
        }

        async fn reseal(&self) -> Result<SealKind, KeyOrderError> {
            self.0.clone()
        }
    }

    #[tokio::test]
    async fn what_becomes_of_an_order_has_a_code() {
        let reason = || "the TPM does not answer".to_owned();
        let table = [
            (Ok(SealKind::Tpm), Code::Ok),
            (Err(KeyOrderError::NotEncrypted), Code::FailedPrecondition),
            (Err(KeyOrderError::NotSealed), Code::FailedPrecondition),
            (Err(KeyOrderError::NotBegun { reason: reason() }), Code::Unavailable),
            (Err(KeyOrderError::Unfinished { reason: reason() }), Code::Unavailable),
            (Err(KeyOrderError::Busy), Code::Unavailable),
        ];
        for (outcome, expected) in table {
            let keys = Fixed(outcome.clone());
            let codes = [
                rekey(&keys).await.map_or_else(|status| status.code(), |_| Code::Ok),
                reseal(&keys).await.map_or_else(|status| status.code(), |_| Code::Ok),
            ];
            assert_eq!(codes, [expected; 2], "{outcome:?}");
        }
    }
}
