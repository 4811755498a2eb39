//! How the journal is sealed: chosen once, by what the machine has and by what is asked of it (metropolis.md, G.8).

use polis_parameters::TpmMode;
use polis_proto::common::NodeTpmUsage;
use polis_storage::journal::{SealError, SealKind};
use polis_supervisor::Context;

use crate::consensus::ConsensusProvider;
use crate::manager::Inner;
use crate::trouble::{Ended, Trouble};

/// The seal of a node that makes a cluster with this use of TPMs, on a machine whose TPM is `available` or not.
///
/// # Errors
///
/// When a TPM is required and cannot be used.
pub(crate) fn founders_seal(mode: TpmMode, available: Result<(), SealError>) -> Result<SealKind, SealError> {
    match (mode, available) {
        (TpmMode::Required | TpmMode::BestEffort, Ok(())) => Ok(SealKind::Tpm),
        (TpmMode::Required, Err(error)) => Err(error),
        (TpmMode::BestEffort, Err(_)) | (TpmMode::Disabled, Ok(()) | Err(_)) => Ok(SealKind::Plain),
    }
}

/// The seal of a machine that asks for admission, before the cluster has said what it wants: the better one.
pub(crate) fn applicants_seal(available: &Result<(), SealError>) -> SealKind {
    if available.is_ok() { SealKind::Tpm } else { SealKind::Plain }
}

/// The seal that a cluster wants. Nothing is taken to be unused that the cluster does not call so.
pub(crate) const fn wanted_seal(usage: NodeTpmUsage, present: SealKind) -> SealKind {
    match usage {
        NodeTpmUsage::PresentAndUsed => SealKind::Tpm,
        NodeTpmUsage::PresentButUnused | NodeTpmUsage::NotPresent => SealKind::Plain,
        NodeTpmUsage::Invalid => present,
    }
}

/// What a founder tells its cluster of its TPM.
pub(crate) const fn usage(seal: SealKind, available: bool) -> NodeTpmUsage {
    match (seal, available) {
        (SealKind::Tpm, _) => NodeTpmUsage::PresentAndUsed,
        (SealKind::Plain, true) => NodeTpmUsage::PresentButUnused,
        (SealKind::Plain, false) => NodeTpmUsage::NotPresent,
    }
}

impl<C: ConsensusProvider> Inner<C> {
    /// Whether the TPM can be used now. May take the time that a TPM takes to answer.
    pub(crate) async fn tpm_available(&self, context: &Context) -> Result<(), SealError> {
        let seals = self.settings.seals.clone();
        context.blocking(move || seals.tpm_available()).await
    }

    /// Decides how the first journal is sealed, of a node that makes a cluster. A TPM that is required is waited for.
    pub(crate) async fn choose_founders_seal(&self, context: &Context, mode: TpmMode) -> Result<(), Ended> {
        let (store, seals) = (self.journal.clone(), self.settings.seals.clone());
        self.on_disk(context, move || {
            store.choose_seal(founders_seal(mode, seals.tpm_available())?);
            Ok::<_, SealError>(())
        })
        .await
    }

    /// Seals the journal as the cluster wants it, in both generations.
    pub(crate) async fn seal_as_wanted(&self, context: &Context, usage: NodeTpmUsage) -> Result<(), Ended> {
        let store = self.journal.clone();
        let changed = self
            .on_disk(context, move || {
                let present = store.seal_kind().unwrap_or(SealKind::Plain);
                let wanted = wanted_seal(usage, present);
                if wanted == present {
                    return Ok(None);
                }
                store.change_seal(wanted, "journal/seal").map_err(Trouble::from)?;
                Ok::<_, Trouble>(Some(wanted))
            })
            .await?;
        if let Some(kind) = changed {
            tracing::info!(seal = %kind, "the journal is sealed as the cluster wants it");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use polis_storage::journal::SealTrouble;

    use super::*;

    fn absent() -> Result<(), SealError> {
        Err(SealError::new(SealTrouble::NoDevice, "there is none"))
    }

    #[test]
    fn a_founder_seals_as_its_parameters_say_and_never_weaker() {
        let table = [
            (TpmMode::Required, Ok(()), Some(SealKind::Tpm)),
            (TpmMode::Required, absent(), None),
            (TpmMode::BestEffort, Ok(()), Some(SealKind::Tpm)),
            (TpmMode::BestEffort, absent(), Some(SealKind::Plain)),
            (TpmMode::Disabled, Ok(()), Some(SealKind::Plain)),
            (TpmMode::Disabled, absent(), Some(SealKind::Plain)),
        ];
        for (mode, available, expected) in table {
            let has_one = available.is_ok();
            assert_eq!(founders_seal(mode, available).ok(), expected, "{mode:?}, {has_one}");
        }
    }

    #[test]
    fn a_seal_becomes_plain_only_when_the_cluster_says_unused() {
        for present in [SealKind::Plain, SealKind::Tpm] {
            assert_eq!(wanted_seal(NodeTpmUsage::PresentAndUsed, present), SealKind::Tpm);
            assert_eq!(wanted_seal(NodeTpmUsage::PresentButUnused, present), SealKind::Plain);
            assert_eq!(wanted_seal(NodeTpmUsage::NotPresent, present), SealKind::Plain);
            assert_eq!(wanted_seal(NodeTpmUsage::Invalid, present), present);
        }
    }

    #[test]
    fn what_a_founder_tells_is_how_it_seals() {
        assert_eq!(usage(SealKind::Tpm, false), NodeTpmUsage::PresentAndUsed);
        assert_eq!(usage(SealKind::Plain, true), NodeTpmUsage::PresentButUnused);
        assert_eq!(usage(SealKind::Plain, false), NodeTpmUsage::NotPresent);
        assert_eq!(applicants_seal(&Ok(())), SealKind::Tpm);
        assert_eq!(applicants_seal(&absent()), SealKind::Plain);
    }
}
