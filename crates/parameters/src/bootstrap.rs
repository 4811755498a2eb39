//! Parameters of a node that makes a cluster.

use polis_identity::PublicKey;
use polis_proto::api::node_parameters::ClusterBootstrap;
use polis_proto::common::ClusterConfiguration;
use polis_recovery::RecoveryPublicKey;

use crate::{ClusterDomain, DomainError, LabelFault, Labels, PolicyError, StoragePolicy, TpmMode};

/// What a new cluster is to be.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    /// Public key of the first owner.
    pub owner: PublicKey,
    /// Use of TPMs that the cluster asks of its nodes.
    pub tpm_mode: TpmMode,
    /// Protection of data that the cluster asks of its nodes.
    pub storage_policy: StoragePolicy,
    /// Domain of the cluster.
    pub domain: ClusterDomain,
    /// Configuration as it goes into the cluster's state.
    pub configuration: ClusterConfiguration,
    /// Good labels of this node.
    pub labels: Labels,
    /// Labels that were left out, and why.
    pub label_faults: Vec<LabelFault>,
    /// Public half of the recovery key; absent if the cluster is to have none for now. `ClusterBootstrap` has no field for it.
    pub recovery_key: Option<RecoveryPublicKey>,
}

/// What is wrong with `cluster_bootstrap`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// `owner_public_key` is not set.
    #[error(
        "owner_public_key is missing; without an owner nobody could ever manage the cluster. Give one: `polis owner create` makes it"
    )]
    OwnerKeyMissing,
    /// `owner_public_key` is not 32 bytes long.
    #[error("owner_public_key has {0} bytes; an Ed25519 public key has 32")]
    OwnerKeyLength(usize),
    /// `owner_public_key` is not a point on the curve.
    #[error("owner_public_key is not an Ed25519 public key, so no private key can belong to it")]
    OwnerKeyInvalid,
    /// A policy is not set or not known.
    #[error("initial_cluster_configuration is not usable")]
    Policy(#[from] PolicyError),
    /// The domain is bad.
    #[error("initial_cluster_configuration.cluster_domain is not usable")]
    Domain(#[from] DomainError),
}

/// Length of an Ed25519 public key, in bytes (RFC 8032, 5.1.5).
const PUBLIC_KEY_LENGTH: usize = 32;

impl Bootstrap {
    pub(crate) fn from_wire(
        message: ClusterBootstrap,
        recovery_key: Option<RecoveryPublicKey>,
    ) -> Result<Self, BootstrapError> {
        let owner = parse_owner(&message.owner_public_key)?;
        // An absent configuration means the strictest one (metropolis.md, F.4, step B1).
        let (tpm_mode, storage_policy, domain, kubernetes) = match message.initial_cluster_configuration {
            None => {
                (TpmMode::Required, StoragePolicy::NeedsEncryptionAndAuthentication, ClusterDomain::default(), None)
            }
            Some(given) => (
                TpmMode::from_wire(given.tpm_mode)?,
                StoragePolicy::from_wire(given.storage_security_policy)?,
                given.cluster_domain.parse()?,
                given.kubernetes,
            ),
        };
        let configuration = ClusterConfiguration {
            cluster_domain: domain.to_string(),
            tpm_mode: tpm_mode.to_wire().into(),
            storage_security_policy: storage_policy.to_wire().into(),
            kubernetes,
        };
        let (labels, label_faults) = Labels::from_wire(message.labels.unwrap_or_default());
        Ok(Self { owner, tpm_mode, storage_policy, domain, configuration, labels, label_faults, recovery_key })
    }
}

fn parse_owner(bytes: &[u8]) -> Result<PublicKey, BootstrapError> {
    match bytes.len() {
        0 => Err(BootstrapError::OwnerKeyMissing),
        PUBLIC_KEY_LENGTH => PublicKey::try_from(bytes).map_err(|_| BootstrapError::OwnerKeyInvalid),
        length => Err(BootstrapError::OwnerKeyLength(length)),
    }
}
