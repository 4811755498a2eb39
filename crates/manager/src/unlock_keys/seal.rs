//! The seal of the journal while the node runs: whether it would open at the next start, and its renewal.

use polis_condition::Severity;
use polis_storage::JournalError;
use polis_storage::journal::{SealKind, SealTrouble};
use polis_supervisor::{Context, with_causes};

use super::orders::KeyOrderError;
use crate::consensus::ConsensusProvider;
use crate::manager::Inner;
use crate::trouble::{Curable, Trouble, of_seal};

/// Name of the condition that the journal would not open at the next start.
const SEAL_WOULD_NOT_OPEN: &str = "seal-would-not-open";

impl<C: ConsensusProvider> Inner<C> {
    /// Looks whether the journal would open at the next start of the machine, and says so if not.
    pub(super) async fn check_seal(&self, context: &Context) {
        let store = self.journal.clone();
        let checked = context.blocking(move || store.check()).await;
        match checked {
            Err(JournalError::Unseal { source, .. }) => {
                let (cause, hint) = match of_seal(&source) {
                    Trouble::Curable(Curable { message, hint, .. }) => (message, hint),
                    Trouble::Final(failure) => (with_causes(&failure), String::new()),
                };
                let remedy = match source.trouble {
                    SealTrouble::OtherBootState => {
                        "if the present state is the right one, renew the seal while the node runs: `polis node reseal`"
                            .to_owned()
                    }
                    SealTrouble::NoDevice
                    | SealTrouble::NotAnswering
                    | SealTrouble::OtherDevice
                    | SealTrouble::Damaged
                    | SealTrouble::HelperMissing => hint,
                };
                context.conditions().raise(
                    SEAL_WOULD_NOT_OPEN,
                    Severity::Error,
                    format!("the keys of this node would not open at its next start: {cause}"),
                    remedy,
                );
            }
            // What else is wrong with the files shows where they are used.
            Ok(()) | Err(_) => context.conditions().clear(SEAL_WOULD_NOT_OPEN),
        }
    }

    /// Renews the seal.
    pub(super) async fn reseal(&self, context: &Context) -> Result<SealKind, KeyOrderError> {
        let kind = self.journal.seal_kind().unwrap_or(SealKind::Plain);
        if kind == SealKind::Plain {
            return Err(KeyOrderError::NotSealed);
        }
        let (store, gate) = (self.journal.clone(), self.gate.clone());
        match context.blocking(move || gate.pass(|| store.reseal("journal/reseal"))).await {
            None => return Err(KeyOrderError::Busy),
            Some(Err(error)) => return Err(KeyOrderError::NotBegun { reason: with_causes(&error) }),
            Some(Ok(())) => {}
        }
        tracing::info!(seal = %kind, "the seal of this node's keys was renewed");
        self.check_seal(context).await;
        Ok(kind)
    }
}
