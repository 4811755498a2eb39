//! What a node that makes a cluster asks of its host, and whether the host has it (metropolis.md, G.8).

use polis_parameters::StoragePolicy;
use polis_storage::DataBackends;
use polis_storage::journal::{SealError, SealTrouble, Seals, StorageSecurity};

use crate::decision::Decision;
use crate::failure::Failure;
use crate::parameter_source::ParameterSource;
use crate::sealing::founders_seal;

/// How the data of a founder are protected under this policy of its cluster. What a host cannot do is refused: a permissive policy is
/// a leave for others to protect their data less, and no reason for the first to do so unasked.
#[must_use]
pub const fn recommended_storage(policy: StoragePolicy) -> StorageSecurity {
    match policy {
        StoragePolicy::Permissive | StoragePolicy::NeedsEncryptionAndAuthentication => {
            StorageSecurity::AuthenticatedEncrypted
        }
        StoragePolicy::NeedsEncryption => StorageSecurity::Encrypted,
        StoragePolicy::NeedsInsecure => StorageSecurity::Insecure,
    }
}

/// How the data of a node that has not begun will be protected; absent where its cluster has yet to say so.
pub(crate) const fn founders_storage(decision: &Decision) -> Option<StorageSecurity> {
    match decision {
        Decision::Bootstrap(bootstrap, _) => Some(recommended_storage(bootstrap.storage_policy)),
        Decision::Register(..) | Decision::ResumeBootstrap(..) | Decision::ResumeRegister(..) | Decision::Join(_) => {
            None
        }
    }
}

/// Whether this host has what is asked for by what was decided, of a node that has not begun. One that has begun waits for what it
/// lacks instead.
///
/// # Errors
///
/// What is missing, and what installs it.
pub fn can_begin(
    decision: &Decision,
    parameters: &ParameterSource,
    seals: &Seals,
    backends: &dyn DataBackends,
) -> Result<(), Failure> {
    let origin = || parameters.present().map(std::path::Path::to_owned).unwrap_or_default();
    match decision {
        Decision::Bootstrap(bootstrap, _) => {
            match founders_seal(bootstrap.tpm_mode, seals.tpm_available()) {
                // It may be busy for a moment, which a node that starts waits for.
                Ok(_) | Err(SealError { trouble: SealTrouble::NotAnswering, .. }) => {}
                Err(source) => return Err(Failure::TpmUnavailable { parameters: origin(), source }),
            }
            let security = recommended_storage(bootstrap.storage_policy);
            let chosen = backends.choose(security).map(|_| ());
            chosen.map_err(|source| Failure::StorageUnavailable { parameters: origin(), source })
        }
        // What the cluster wants it says when it is asked; the others have begun.
        Decision::Register(..) | Decision::ResumeBootstrap(..) | Decision::ResumeRegister(..) | Decision::Join(_) => {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_followed_to_the_letter() {
        for (policy, expected) in [
            (StoragePolicy::Permissive, StorageSecurity::AuthenticatedEncrypted),
            (StoragePolicy::NeedsEncryptionAndAuthentication, StorageSecurity::AuthenticatedEncrypted),
            (StoragePolicy::NeedsEncryption, StorageSecurity::Encrypted),
            (StoragePolicy::NeedsInsecure, StorageSecurity::Insecure),
        ] {
            assert_eq!(recommended_storage(policy), expected);
        }
    }
}
