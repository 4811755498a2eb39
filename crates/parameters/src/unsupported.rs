//! What a cluster may ask of its nodes and no node of this build does.

use std::fmt;

use crate::{Bootstrap, StoragePolicy, TpmMode};

/// Something that a bootstrap asks for and this build cannot do. A node refuses it by name, as anything that it could do
/// instead would be weaker than what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// Data that are encrypted, or as well protected as the machine can.
    EncryptedStorage,
    /// Keys that are sealed by a TPM.
    TpmUse,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::EncryptedStorage => "encrypted storage",
            Self::TpmUse => "the use of a TPM",
        })
    }
}

impl Bootstrap {
    /// What this asks for and no node of this build does; none when a node takes it.
    #[must_use]
    pub fn unsupported(&self) -> Vec<Unsupported> {
        let storage = match self.storage_policy {
            // A permissive cluster lets a node protect its data as well as it can, which is no leave not to.
            StoragePolicy::Permissive
            | StoragePolicy::NeedsEncryption
            | StoragePolicy::NeedsEncryptionAndAuthentication => Some(Unsupported::EncryptedStorage),
            StoragePolicy::NeedsInsecure => None,
        };
        let tpm = match self.tpm_mode {
            TpmMode::Required => Some(Unsupported::TpmUse),
            TpmMode::BestEffort | TpmMode::Disabled => None,
        };
        storage.into_iter().chain(tpm).collect()
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::OwnerKey;
    use polis_proto::api::node_parameters::ClusterBootstrap;
    use polis_proto::common::ClusterConfiguration;

    use super::*;

    #[test]
    fn only_plain_data_without_a_needed_tpm_are_taken() {
        use Unsupported::{EncryptedStorage, TpmUse};
        let table: [(StoragePolicy, &[Unsupported]); 4] = [
            (StoragePolicy::Permissive, &[EncryptedStorage]),
            (StoragePolicy::NeedsEncryption, &[EncryptedStorage]),
            (StoragePolicy::NeedsEncryptionAndAuthentication, &[EncryptedStorage]),
            (StoragePolicy::NeedsInsecure, &[]),
        ];
        for (storage, expected) in table {
            for (tpm, needed) in [(TpmMode::Required, true), (TpmMode::BestEffort, false), (TpmMode::Disabled, false)] {
                let configuration = ClusterConfiguration {
                    tpm_mode: tpm.to_wire().into(),
                    storage_security_policy: storage.to_wire().into(),
                    ..ClusterConfiguration::default()
                };
                let message = ClusterBootstrap {
                    owner_public_key: OwnerKey::generate().public().as_bytes().to_vec(),
                    initial_cluster_configuration: Some(configuration),
                    labels: None,
                };
                let expected = [expected, if needed { &[TpmUse] } else { &[] }].concat();
                assert_eq!(Bootstrap::try_from(message).unwrap().unsupported(), expected, "{storage:?} {tpm:?}");
            }
        }
    }
}
