//! What a node does when it starts: decided from the journal and the parameters alone.

use std::fmt;

use polis_parameters::{Bootstrap, ClusterParameters, Parameters, Unsupported};
use polis_storage::Journal;
use polis_storage::journal::Phase;

use crate::failure::Failure;
use crate::parameter_source::{GivenParameters, ParametersOrigin};

/// What to do after a start.
pub enum Decision {
    /// There is no journal, and the parameters say to make a cluster. Their bytes become part of the intent.
    Bootstrap(Box<Bootstrap>, Vec<u8>),
    /// An earlier start made the intent to make a cluster durable, in this journal: go on with it, whatever the parameters
    /// say now.
    ResumeBootstrap(Box<Bootstrap>, Box<Journal>),
    /// The node is a member, as this journal says: come back.
    Join(Box<Journal>),
}

/// Only what is decided: what goes with it may hold secrets.
impl fmt::Debug for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Bootstrap(..) => "Bootstrap",
            Self::ResumeBootstrap(..) => "ResumeBootstrap",
            Self::Join(_) => "Join",
        })
    }
}

/// Decides what to do with what the disk holds.
///
/// The journal decides alone once there is one: parameters that are still present are not even parsed (window S1).
///
/// # Errors
///
/// When the node can do nothing useful: the reason why it fails.
pub fn decide(
    journal: Option<Journal>,
    parameters: impl FnOnce() -> Result<GivenParameters, Failure>,
) -> Result<Decision, Failure> {
    let Some(journal) = journal else {
        let GivenParameters { origin, bytes } = parameters()?;
        return Ok(Decision::Bootstrap(Box::new(accept(&bytes, origin)?), bytes));
    };
    match journal.phase() {
        Phase::Formattable | Phase::Formatted => {
            let bootstrap = accept(&journal.parameters, ParametersOrigin::Journal)?;
            Ok(Decision::ResumeBootstrap(Box::new(bootstrap), Box::new(journal)))
        }
        Phase::Enrolled => Ok(Decision::Join(Box::new(journal))),
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
    if let Some(unsupported) = bootstrap.unsupported().first() {
        let wanted = match unsupported {
            Unsupported::EncryptedStorage => {
                "encrypted storage, which the cluster's configuration asks for (it is also what an absent configuration means)"
            }
            Unsupported::TpmUse => "the use of a TPM, which the cluster's configuration requires",
        };
        return Err(Failure::NotOnThisBuild {
            origin,
            wanted,
            instead: "for a trial, `polis parameters bootstrap --storage-security insecure --tpm-mode disabled`",
        });
    }
    if parameters.has_network_configuration {
        tracing::warn!(
            "the parameters carry a static network configuration; the network of this host is its own business, and it is \
             left as it is"
        );
    }
    Ok(bootstrap)
}

#[cfg(test)]
mod tests {
    use polis_identity::OwnerKey;
    use polis_proto::api::NodeParameters;
    use polis_proto::api::node_parameters::{Cluster, ClusterBootstrap};
    use polis_proto::common::ClusterConfiguration;
    use polis_proto::common::cluster_configuration::{StorageSecurityPolicy as Storage, TpmMode as Tpm};
    use polis_secret::Secret32;
    use polis_storage::journal::{Intent, StorageSecurity};
    use prost::Message as _;

    use super::*;

    fn bootstrap(configuration: Option<(Tpm, Storage)>) -> Vec<u8> {
        let configuration = configuration.map(|(tpm_mode, storage)| ClusterConfiguration {
            tpm_mode: tpm_mode.into(),
            storage_security_policy: storage.into(),
            ..Default::default()
        });
        let bootstrap = ClusterBootstrap {
            owner_public_key: OwnerKey::generate().public().as_bytes().to_vec(),
            initial_cluster_configuration: configuration,
            labels: None,
        };
        NodeParameters { cluster: Some(Cluster::ClusterBootstrap(bootstrap)), network_config: None }.encode_to_vec()
    }

    fn journal(phases: &[Phase], parameters: Vec<u8>) -> Journal {
        let journal = Journal::new(Intent {
            parameters,
            node_key: Secret32::random(),
            node_public_key: [1; 32],
            join_key: Secret32::random(),
            share_key: Secret32::random(),
            storage_security: Some(StorageSecurity::Insecure),
        });
        phases.iter().fold(journal, |journal, phase| journal.advance(phase.clone()).unwrap())
    }

    fn given(bytes: Vec<u8>) -> impl FnOnce() -> Result<GivenParameters, Failure> {
        || Ok(GivenParameters { bytes, origin: ParametersOrigin::File("given.pb".into()) })
    }

    #[test]
    fn without_a_journal_the_parameters_decide() {
        let table = [
            (Some((Tpm::Disabled, Storage::NeedsInsecure)), None),
            (Some((Tpm::BestEffort, Storage::NeedsInsecure)), None),
            (Some((Tpm::Required, Storage::NeedsInsecure)), Some("use of a TPM")),
            (Some((Tpm::Disabled, Storage::Permissive)), Some("encrypted storage")),
            (Some((Tpm::Disabled, Storage::NeedsEncryption)), Some("encrypted storage")),
            (Some((Tpm::Disabled, Storage::NeedsEncryptionAndAuthentication)), Some("encrypted storage")),
            (None, Some("encrypted storage")),
        ];
        for (configuration, refused) in table {
            match (decide(None, given(bootstrap(configuration))), refused) {
                (Ok(Decision::Bootstrap(..)), None) => {}
                (Err(failure @ Failure::NotOnThisBuild { .. }), Some(wanted)) => {
                    let text = failure.to_string();
                    assert!(text.contains(wanted) && text.contains("not on this build"), "{text}");
                }
                (outcome, _) => panic!("{configuration:?}: {outcome:?}"),
            }
        }
    }

    #[test]
    fn with_a_journal_the_parameters_are_not_even_read() {
        let insecure = bootstrap(Some((Tpm::Disabled, Storage::NeedsInsecure)));
        let unread = || panic!("the parameters were read");
        for phases in [&[][..], &[Phase::Formatted]] {
            let decision = decide(Some(journal(phases, insecure.clone())), unread);
            assert!(matches!(decision, Ok(Decision::ResumeBootstrap(..))), "{decision:?}");
        }
        let enrolled = [Phase::Formatted, Phase::Enrolled];
        let decision = decide(Some(journal(&enrolled, insecure.clone())), unread);
        assert!(matches!(decision, Ok(Decision::Join(_))), "{decision:?}");

        let removed = Phase::Removed { reason: "it was sold".into() };
        for before in [&[][..], &[Phase::Formatted], &enrolled] {
            let phases: Vec<Phase> = before.iter().cloned().chain([removed.clone()]).collect();
            let outcome = decide(Some(journal(&phases, insecure.clone())), unread);
            assert!(matches!(&outcome, Err(Failure::Removed { reason }) if reason == "it was sold"), "{outcome:?}");
        }
    }
}
