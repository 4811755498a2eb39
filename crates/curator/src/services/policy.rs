//! What the cluster's configuration asks of a node's TPM and storage, as tables (metropolis.md, G.4 and G.8).

use polis_parameters::{StoragePolicy, TpmMode};
use polis_proto::common::{NodeStorageSecurity, NodeTpmUsage};

/// Why a machine may not register, or a node not join, for its TPM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TpmError {
    /// The cluster requires a TPM and the machine has none.
    #[error("the cluster requires a TPM (tpm_mode REQUIRED) and this machine has none")]
    Absent,
    /// The cluster requires a TPM, and the node's configuration was not sealed with it.
    #[error(
        "the cluster requires a TPM (tpm_mode REQUIRED), and the node has not read its configuration from one: it may have \
         been copied to another machine"
    )]
    NotSealed,
    /// The cluster does not use TPMs, and the node's configuration is sealed.
    #[error("the cluster uses no TPMs (tpm_mode DISABLED), but the node has sealed its configuration with one")]
    Sealed,
    /// The node registered with a TPM and joins without one, or the other way round.
    #[error(
        "the node registered {} and joins {}: this is not the machine that registered, or its configuration was replaced",
        if *registered { "with a TPM that it uses" } else { "without using a TPM" },
        if *registered { "without having read its configuration from it" } else { "with a sealed configuration" }
    )]
    Changed { registered: bool },
}

/// How a machine that registers is to use its TPM.
///
/// # Errors
///
/// [`TpmError::Absent`].
pub(super) fn tpm_usage(mode: TpmMode, present: bool) -> Result<NodeTpmUsage, TpmError> {
    match (mode, present) {
        (TpmMode::Required | TpmMode::BestEffort, true) => Ok(NodeTpmUsage::PresentAndUsed),
        (TpmMode::Required, false) => Err(TpmError::Absent),
        (TpmMode::BestEffort | TpmMode::Disabled, false) => Ok(NodeTpmUsage::NotPresent),
        (TpmMode::Disabled, true) => Ok(NodeTpmUsage::PresentButUnused),
    }
}

/// Whether a node with this recorded use of a TPM may join with a configuration that was `sealed` with one, or not.
///
/// # Errors
///
/// What is wrong.
pub(super) fn check_join(mode: TpmMode, usage: NodeTpmUsage, sealed: bool) -> Result<(), TpmError> {
    match (mode, sealed) {
        (TpmMode::Required, false) => return Err(TpmError::NotSealed),
        (TpmMode::Disabled, true) => return Err(TpmError::Sealed),
        (TpmMode::Required, true) | (TpmMode::Disabled, false) | (TpmMode::BestEffort, true | false) => {}
    }
    let registered = match usage {
        NodeTpmUsage::PresentAndUsed => true,
        NodeTpmUsage::Invalid | NodeTpmUsage::NotPresent | NodeTpmUsage::PresentButUnused => false,
    };
    if registered == sealed { Ok(()) } else { Err(TpmError::Changed { registered }) }
}

/// How a node had best protect its data.
pub(super) const fn recommended_storage(policy: StoragePolicy) -> NodeStorageSecurity {
    match policy {
        StoragePolicy::Permissive | StoragePolicy::NeedsEncryptionAndAuthentication => {
            NodeStorageSecurity::AuthenticatedEncrypted
        }
        StoragePolicy::NeedsEncryption => NodeStorageSecurity::Encrypted,
        StoragePolicy::NeedsInsecure => NodeStorageSecurity::Insecure,
    }
}

/// Whether a node that protects its data like this may become a member.
pub(super) const fn accepts_storage(policy: StoragePolicy, security: NodeStorageSecurity) -> bool {
    match (policy, security) {
        (_, NodeStorageSecurity::Invalid) => false,
        (
            StoragePolicy::Permissive,
            NodeStorageSecurity::Insecure
            | NodeStorageSecurity::Encrypted
            | NodeStorageSecurity::AuthenticatedEncrypted,
        )
        | (
            StoragePolicy::NeedsEncryption,
            NodeStorageSecurity::Encrypted | NodeStorageSecurity::AuthenticatedEncrypted,
        )
        | (StoragePolicy::NeedsEncryptionAndAuthentication, NodeStorageSecurity::AuthenticatedEncrypted)
        | (StoragePolicy::NeedsInsecure, NodeStorageSecurity::Insecure) => true,
        (StoragePolicy::NeedsEncryption, NodeStorageSecurity::Insecure)
        | (
            StoragePolicy::NeedsEncryptionAndAuthentication,
            NodeStorageSecurity::Insecure | NodeStorageSecurity::Encrypted,
        )
        | (
            StoragePolicy::NeedsInsecure,
            NodeStorageSecurity::Encrypted | NodeStorageSecurity::AuthenticatedEncrypted,
        ) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_ways_to_register() {
        for (mode, present, expect) in [
            (TpmMode::Required, true, Ok(NodeTpmUsage::PresentAndUsed)),
            (TpmMode::Required, false, Err(TpmError::Absent)),
            (TpmMode::BestEffort, true, Ok(NodeTpmUsage::PresentAndUsed)),
            (TpmMode::BestEffort, false, Ok(NodeTpmUsage::NotPresent)),
            (TpmMode::Disabled, true, Ok(NodeTpmUsage::PresentButUnused)),
            (TpmMode::Disabled, false, Ok(NodeTpmUsage::NotPresent)),
        ] {
            assert_eq!(tpm_usage(mode, present), expect, "{mode:?}, {present}");
        }
    }

    #[test]
    fn a_node_joins_as_it_registered() {
        use NodeTpmUsage::{Invalid, NotPresent, PresentAndUsed, PresentButUnused};
        use TpmError::{Changed, NotSealed, Sealed};
        let expect = |mode, usage, sealed| match (mode, usage, sealed) {
            (TpmMode::Required, _, false) => Err(NotSealed),
            (TpmMode::Disabled, _, true) => Err(Sealed),
            (_, PresentAndUsed, false) => Err(Changed { registered: true }),
            (_, Invalid | NotPresent | PresentButUnused, true) => Err(Changed { registered: false }),
            (_, PresentAndUsed, true) | (_, Invalid | NotPresent | PresentButUnused, false) => Ok(()),
        };
        for mode in [TpmMode::Required, TpmMode::BestEffort, TpmMode::Disabled] {
            for usage in [NotPresent, PresentButUnused, PresentAndUsed, Invalid] {
                for sealed in [true, false] {
                    assert_eq!(
                        check_join(mode, usage, sealed),
                        expect(mode, usage, sealed),
                        "{mode:?}, {usage:?}, {sealed}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_recommended_is_accepted() {
        use NodeStorageSecurity::{AuthenticatedEncrypted, Encrypted, Insecure, Invalid};
        for (policy, accepted) in [
            (StoragePolicy::Permissive, &[Insecure, Encrypted, AuthenticatedEncrypted][..]),
            (StoragePolicy::NeedsEncryption, &[Encrypted, AuthenticatedEncrypted]),
            (StoragePolicy::NeedsEncryptionAndAuthentication, &[AuthenticatedEncrypted]),
            (StoragePolicy::NeedsInsecure, &[Insecure]),
        ] {
            for security in [Invalid, Insecure, Encrypted, AuthenticatedEncrypted] {
                let expect = accepted.contains(&security);
                assert_eq!(accepts_storage(policy, security), expect, "{policy:?}, {security:?}");
            }
            assert!(accepts_storage(policy, recommended_storage(policy)), "{policy:?}");
        }
    }
}
