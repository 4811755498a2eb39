//! How the journal is sealed: chosen once, by what the machine has and by what is asked of it (metropolis.md, G.8).
//!
//! A TPM that is there and cannot be used now is never taken for none: keys that were stored in the clear stay so, and the cluster
//! would be told that there is no TPM. Only [`SealTrouble::NoDevice`] means that there is none.

use polis_parameters::TpmMode;
use polis_proto::common::NodeTpmUsage;
use polis_storage::journal::{SealError, SealKind, SealTrouble};
use polis_supervisor::Context;

use crate::consensus::ConsensusProvider;
use crate::manager::Inner;
use crate::trouble::{Ended, Trouble};

/// Whether the machine has a TPM, be it one that cannot be used now.
pub(crate) fn has_tpm(available: &Result<(), SealError>) -> bool {
    !matches!(available, Err(SealError { trouble: SealTrouble::NoDevice, .. }))
}

/// The seal of a node that makes a cluster with this use of TPMs, on a machine whose TPM is `available` or not.
///
/// # Errors
///
/// When a TPM is required, or there and to be used, and cannot be used now.
pub(crate) fn founders_seal(mode: TpmMode, available: Result<(), SealError>) -> Result<SealKind, SealError> {
    match (mode, available) {
        (TpmMode::Required | TpmMode::BestEffort, Ok(())) => Ok(SealKind::Tpm),
        (TpmMode::Required, Err(error)) => Err(error),
        (TpmMode::BestEffort, Err(error)) => {
            if error.trouble == SealTrouble::NoDevice {
                Ok(SealKind::Plain)
            } else {
                Err(error)
            }
        }
        (TpmMode::Disabled, Ok(()) | Err(_)) => Ok(SealKind::Plain),
    }
}

/// The seal of a machine that asks for admission, before the cluster has said what it wants: the better one. Where this host is not
/// set up for its TPM, the cluster decides whether that is waited for: it may be one that uses none.
///
/// # Errors
///
/// When the TPM is there and does not answer now.
pub(crate) fn applicants_seal(available: Result<(), SealError>) -> Result<SealKind, SealError> {
    let Err(error) = available else { return Ok(SealKind::Tpm) };
    match error.trouble {
        SealTrouble::NoDevice | SealTrouble::HelperMissing | SealTrouble::NotPermitted => Ok(SealKind::Plain),
        SealTrouble::NotAnswering | SealTrouble::OtherDevice | SealTrouble::OtherBootState | SealTrouble::Damaged => {
            Err(error)
        }
    }
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

    /// Decides how the first journal is sealed, of a node that asks for admission. A TPM that does not answer is waited for.
    pub(crate) async fn choose_applicants_seal(&self, context: &Context) -> Result<(), Ended> {
        let (store, seals) = (self.journal.clone(), self.settings.seals.clone());
        self.on_disk(context, move || {
            store.choose_seal(applicants_seal(seals.tpm_available())?);
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
    use super::*;

    fn fails(trouble: SealTrouble) -> Result<(), SealError> {
        Err(SealError::new(trouble, "it cannot be used"))
    }

    fn absent() -> Result<(), SealError> {
        fails(SealTrouble::NoDevice)
    }

    #[test]
    fn a_founder_seals_as_its_parameters_say_and_never_weaker() {
        let table = [
            (TpmMode::Required, Ok(()), Some(SealKind::Tpm)),
            (TpmMode::Required, absent(), None),
            (TpmMode::BestEffort, Ok(()), Some(SealKind::Tpm)),
            (TpmMode::BestEffort, absent(), Some(SealKind::Plain)),
            (TpmMode::BestEffort, fails(SealTrouble::NotAnswering), None),
            (TpmMode::BestEffort, fails(SealTrouble::HelperMissing), None),
            (TpmMode::BestEffort, fails(SealTrouble::NotPermitted), None),
            (TpmMode::Disabled, Ok(()), Some(SealKind::Plain)),
            (TpmMode::Disabled, absent(), Some(SealKind::Plain)),
            (TpmMode::Disabled, fails(SealTrouble::NotAnswering), Some(SealKind::Plain)),
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
    }

    #[test]
    fn an_applicant_takes_no_tpm_for_none_that_is_there() {
        let table = [
            (Ok(()), Some(SealKind::Tpm), true),
            (absent(), Some(SealKind::Plain), false),
            (fails(SealTrouble::NotAnswering), None, true),
            (fails(SealTrouble::HelperMissing), Some(SealKind::Plain), true),
            (fails(SealTrouble::NotPermitted), Some(SealKind::Plain), true),
        ];
        for (available, seal, is_there) in table {
            assert_eq!(has_tpm(&available), is_there, "{available:?}");
            assert_eq!(applicants_seal(available).ok(), seal);
        }
    }
}
