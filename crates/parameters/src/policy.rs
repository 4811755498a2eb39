//! Policies of a cluster about TPMs and storage.

use polis_proto::common::cluster_configuration::{StorageSecurityPolicy, TpmMode as WireTpmMode};

/// Use of TPMs that a cluster asks of its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TpmMode {
    /// A node without a TPM is refused.
    Required,
    /// A TPM is used where there is one.
    BestEffort,
    /// TPMs are not used.
    Disabled,
}

/// Protection of data that a cluster asks of its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoragePolicy {
    /// Anything is accepted; nodes are advised to encrypt and authenticate.
    Permissive,
    /// Data must be encrypted.
    NeedsEncryption,
    /// Data must be encrypted and authenticated.
    NeedsEncryptionAndAuthentication,
    /// Data must be neither: for tests, and where the disks are protected by other means.
    NeedsInsecure,
}

/// A policy that is not set or not known.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// `tpm_mode` is not set.
    #[error("tpm_mode is not set; known are REQUIRED (1), BEST_EFFORT (2) and DISABLED (3)")]
    TpmModeMissing,
    /// `tpm_mode` has a value that this version does not know.
    #[error("tpm_mode has the unknown value {0}; known are REQUIRED (1), BEST_EFFORT (2) and DISABLED (3)")]
    TpmModeUnknown(i32),
    /// `storage_security_policy` is not set.
    #[error(
        "storage_security_policy is not set; known are PERMISSIVE (1), NEEDS_ENCRYPTION (2), \
         NEEDS_ENCRYPTION_AND_AUTHENTICATION (3) and NEEDS_INSECURE (4)"
    )]
    StoragePolicyMissing,
    /// `storage_security_policy` has a value that this version does not know.
    #[error(
        "storage_security_policy has the unknown value {0}; known are PERMISSIVE (1), NEEDS_ENCRYPTION (2), \
         NEEDS_ENCRYPTION_AND_AUTHENTICATION (3) and NEEDS_INSECURE (4)"
    )]
    StoragePolicyUnknown(i32),
}

impl TpmMode {
    /// Takes the value on the wire.
    ///
    /// # Errors
    ///
    /// When it is not set or not known: guessing could only make the cluster weaker than was asked for.
    pub fn from_wire(value: i32) -> Result<Self, PolicyError> {
        match WireTpmMode::try_from(value) {
            Ok(WireTpmMode::Invalid) => Err(PolicyError::TpmModeMissing),
            Ok(WireTpmMode::Required) => Ok(Self::Required),
            Ok(WireTpmMode::BestEffort) => Ok(Self::BestEffort),
            Ok(WireTpmMode::Disabled) => Ok(Self::Disabled),
            Err(_) => Err(PolicyError::TpmModeUnknown(value)),
        }
    }

    /// The value on the wire.
    #[must_use]
    pub const fn to_wire(self) -> WireTpmMode {
        match self {
            Self::Required => WireTpmMode::Required,
            Self::BestEffort => WireTpmMode::BestEffort,
            Self::Disabled => WireTpmMode::Disabled,
        }
    }
}

impl StoragePolicy {
    /// Takes the value on the wire.
    ///
    /// # Errors
    ///
    /// When it is not set or not known: guessing could only make the cluster weaker than was asked for.
    pub fn from_wire(value: i32) -> Result<Self, PolicyError> {
        match StorageSecurityPolicy::try_from(value) {
            Ok(StorageSecurityPolicy::Invalid) => Err(PolicyError::StoragePolicyMissing),
            Ok(StorageSecurityPolicy::Permissive) => Ok(Self::Permissive),
            Ok(StorageSecurityPolicy::NeedsEncryption) => Ok(Self::NeedsEncryption),
            Ok(StorageSecurityPolicy::NeedsEncryptionAndAuthentication) => Ok(Self::NeedsEncryptionAndAuthentication),
            Ok(StorageSecurityPolicy::NeedsInsecure) => Ok(Self::NeedsInsecure),
            Err(_) => Err(PolicyError::StoragePolicyUnknown(value)),
        }
    }

    /// The value on the wire.
    #[must_use]
    pub const fn to_wire(self) -> StorageSecurityPolicy {
        match self {
            Self::Permissive => StorageSecurityPolicy::Permissive,
            Self::NeedsEncryption => StorageSecurityPolicy::NeedsEncryption,
            Self::NeedsEncryptionAndAuthentication => StorageSecurityPolicy::NeedsEncryptionAndAuthentication,
            Self::NeedsInsecure => StorageSecurityPolicy::NeedsInsecure,
        }
    }
}
