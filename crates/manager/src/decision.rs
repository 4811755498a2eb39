//! What a node does when it starts: decided from the journal and the parameters alone.

use polis_parameters::{Bootstrap, ClusterParameters, Parameters, StoragePolicy, TpmMode};
use polis_storage::Journal;
use polis_storage::journal::Phase;

use crate::failure::Failure;
use crate::parameter_source::{GivenParameters, ParametersOrigin};

/// What to do after a start.
#[derive(Debug)]
pub enum Decision {
    /// There is no journal, and the parameters say to make a cluster. The bytes become part of the intent.
    Bootstrap(Box<Bootstrap>, Vec<u8>),
    /// An earlier start made the intent to make a cluster durable: go on with it, whatever the parameters say now.
    ResumeBootstrap(Box<Bootstrap>),
    /// The node is a member: come back.
    Join,
}

/// Decides what to do with what the disk holds.
///
/// The journal decides alone once there is one: parameters that are still present are not even parsed (window S1).
///
/// # Errors
///
/// When the node can do nothing useful: the reason why it fails.
pub fn decide(
    journal: Option<&Journal>,
    parameters: impl FnOnce() -> Result<GivenParameters, Failure>,
) -> Result<Decision, Failure> {
    let Some(journal) = journal else {
        let GivenParameters { origin, bytes } = parameters()?;
        return Ok(Decision::Bootstrap(Box::new(accept(&bytes, origin)?), bytes));
    };
    match journal.phase() {
        Phase::Formattable | Phase::Formatted => {
            let bootstrap = accept(&journal.parameters, ParametersOrigin::Journal)?;
            Ok(Decision::ResumeBootstrap(Box::new(bootstrap)))
        }
        Phase::Enrolled => Ok(Decision::Join),
        Phase::Removed { reason } => Err(Failure::Removed { reason: reason.clone() }),
    }
}

/// Takes parameters that this build can follow to the letter, and refuses by name what it could only weaken.
fn accept(bytes: &[u8], origin: ParametersOrigin) -> Result<Bootstrap, Failure> {
    let parameters = match Parameters::parse(bytes) {
        Ok(parameters) => parameters,
        Err(source) => return Err(Failure::Parameters { origin, source }),
    };
    let bootstrap = match parameters.cluster {
        ClusterParameters::Bootstrap(bootstrap) => bootstrap,
        ClusterParameters::Register(_) => {
            return Err(Failure::NotOnThisBuild {
                origin,
                wanted: "registering with an existing cluster (cluster_register)",
                instead: "make a cluster of this node: `polis parameters bootstrap`",
            });
        }
    };
    match bootstrap.storage_policy {
        StoragePolicy::NeedsInsecure => {}
        StoragePolicy::Permissive
        | StoragePolicy::NeedsEncryption
        | StoragePolicy::NeedsEncryptionAndAuthentication => {
            return Err(Failure::NotOnThisBuild {
                origin,
                wanted: "encrypted storage, which the cluster's configuration asks for (it is also what an absent \
                         configuration means)",
                instead: "for a trial, `polis parameters bootstrap --storage-security insecure --tpm-mode disabled`",
            });
        }
    }
    match bootstrap.tpm_mode {
        TpmMode::Disabled | TpmMode::BestEffort => {}
        TpmMode::Required => {
            return Err(Failure::NotOnThisBuild {
                origin,
                wanted: "the use of a TPM, which the cluster's configuration requires",
                instead: "for a trial, `polis parameters bootstrap --storage-security insecure --tpm-mode disabled`",
            });
        }
    }
    if parameters.has_network_configuration {
        tracing::warn!(
            "the parameters carry a static network configuration; the network of this host is its own business, and it is \
             left as it is"
        );
    }
    Ok(bootstrap)
}
