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
    /// Looks whether the journal would open at the next start of the machine, and says so if not, or if that cannot be told. Returns
    /// whether all is well.
    ///
    /// The TPM opens it for the boot state of this start. What changes that state only at the next one, such as another setting of the
    /// firmware, cannot be seen.
    pub(super) async fn check_seal(&self, context: &Context) -> bool {
        let store = self.journal.clone();
        let checked = context.blocking(move || store.check()).await;
        match checked {
            Ok(()) => {
                context.conditions().clear(SEAL_WOULD_NOT_OPEN);
                true
            }
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
                    | SealTrouble::HelperMissing
                    | SealTrouble::NotPermitted => hint,
                };
                context.conditions().raise(
                    SEAL_WOULD_NOT_OPEN,
                    Severity::Error,
                    format!("the keys of this node would not open at its next start: {cause}"),
                    remedy,
                );
                false
            }
            // Whatever is wrong with the files, the next start needs them.
            Err(error) => {
                context.conditions().raise(
                    SEAL_WOULD_NOT_OPEN,
                    Severity::Error,
                    format!(
                        "it cannot be told whether the keys of this node would open at its next start: {}",
                        with_causes(&error)
                    ),
                    "see to the disk with the enrolment journal before the machine starts again; it is looked at again by itself",
                );
                false
            }
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
