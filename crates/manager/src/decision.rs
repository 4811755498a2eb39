//! What a node does when it starts: decided from the journal and the parameters alone.

use std::fmt;

use polis_identity::ClusterId;
use polis_parameters::{Bootstrap, ClusterParameters, Parameters, Register};
use polis_storage::Journal;
use polis_storage::journal::Phase;
use polis_supervisor::with_causes;

use crate::failure::Failure;
use crate::parameter_source::{GivenParameters, ParametersOrigin};
use crate::restoration::is_restoration;

/// What to do after a start.
pub enum Decision {
    /// There is no journal, and the parameters say to make a cluster. Their bytes become part of the intent.
    Bootstrap(Box<Bootstrap>, Vec<u8>),
    /// An earlier start made the intent to make a cluster durable, in this journal: go on with it, whatever the parameters
    /// say now.
    ResumeBootstrap(Box<Bootstrap>, Box<Journal>),
    /// There is no journal, and the parameters say to ask a cluster for admission. Their bytes become part of the intent.
    Register(Box<Register>, Vec<u8>),
    /// An earlier start made the intent to ask for admission durable, in this journal: go on with it, as the same node.
    ResumeRegister(Box<Register>, Box<Journal>, NewParameters),
    /// The node is a member, as this journal says: come back.
    Join(Box<Journal>),
}

/// What becomes of parameters that are there while a node is on its way into a cluster already.
pub enum NewParameters {
    /// There are none, or those that the journal holds.
    None,
    /// These, serialized, take the place of those in the journal: where to ask, and with which ticket.
    Taken(Vec<u8>),
    /// They are not for this node.
    Ignored {
        /// Which ones, and why.
        reason: String,
    },
}

/// Only what is decided: what goes with it may hold secrets.
impl fmt::Debug for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Bootstrap(..) => "Bootstrap",
            Self::ResumeBootstrap(..) => "ResumeBootstrap",
            Self::Register(..) => "Register",
            Self::ResumeRegister(.., NewParameters::None) => "ResumeRegister",
            Self::ResumeRegister(.., NewParameters::Taken(_)) => "ResumeRegister with new parameters",
            Self::ResumeRegister(.., NewParameters::Ignored { .. }) => "ResumeRegister without the new parameters",
            Self::Join(_) => "Join",
        })
    }
}

/// Decides what to do with what the disk holds.
///
/// The journal decides alone once there is one: parameters that are still present are not even parsed (window S1). The one
/// exception is a node that is still asking for admission, as what it was told may have been wrong or may have become old: where
/// to ask, and with which ticket, it may be told anew. Who it is stays the same.
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
        return Ok(match accept(&bytes, origin)? {
            Accepted::Bootstrap(bootstrap) => Decision::Bootstrap(bootstrap, bytes),
            Accepted::Register(register) => Decision::Register(register, bytes),
        });
    };
    match journal.phase() {
        Phase::Formattable | Phase::Formatted => resume(journal, parameters),
        Phase::Enrolled => Ok(Decision::Join(Box::new(journal))),
        Phase::Removed { reason } => Err(Failure::Removed { reason: reason.clone() }),
    }
}

/// Decides what to do with an intent that was not carried out.
fn resume(
    journal: Journal,
    parameters: impl FnOnce() -> Result<GivenParameters, Failure>,
) -> Result<Decision, Failure> {
    if is_restoration(&journal) {
        return Err(Failure::RestorationCutOff);
    }
    match accept(&journal.parameters, ParametersOrigin::Journal)? {
        // A founder learns its CA together with being a member.
        Accepted::Bootstrap(_) if journal.cluster_ca.is_some() => Err(Failure::Disk {
            what: "the enrolment journal cannot be used",
            source:
                "it holds the CA of a cluster and says to make another cluster, and a node has one cluster in its life"
                    .into(),
        }),
        Accepted::Bootstrap(bootstrap) => Ok(Decision::ResumeBootstrap(bootstrap, Box::new(journal))),
        Accepted::Register(register) => {
            let (register, new) = match parameters() {
                Ok(given) => renew(register, &journal, given),
                Err(Failure::NoParameters { .. }) => (register, NewParameters::None),
                // Whatever is in that file, the node has what it needs to go on.
                Err(failure) => (register, NewParameters::Ignored { reason: with_causes(&failure) }),
            };
            Ok(Decision::ResumeRegister(register, Box::new(journal), new))
        }
    }
}

/// Chooses between the parameters of the journal and those that are given now.
fn renew(old: Box<Register>, journal: &Journal, given: GivenParameters) -> (Box<Register>, NewParameters) {
    let GivenParameters { origin, bytes } = given;
    if bytes == journal.parameters {
        return (old, NewParameters::None);
    }
    let cluster = |register: &Register| -> ClusterId { register.certificate_authority.cluster_id() };
    let reason = match accept(&bytes, origin.clone()) {
        // A cluster that has answered knows this node, and the node is on its way to it.
        Ok(Accepted::Register(new)) if journal.storage_security.is_some() && cluster(&new) != cluster(&old) => format!(
            "the parameters {origin} are for the cluster {}, and this node is on its way into the cluster {}; a node for another \
             cluster needs a root of its own",
            cluster(&new),
            cluster(&old)
        ),
        Ok(Accepted::Register(new)) => return (new, NewParameters::Taken(bytes)),
        Ok(Accepted::Bootstrap(_)) => format!(
            "the parameters {origin} make a cluster, and this node is on its way into the cluster {}; a node that makes one needs a \
             root of its own",
            cluster(&old)
        ),
        Err(failure) => with_causes(&failure),
    };
    (old, NewParameters::Ignored { reason })
}

/// Parameters that can be followed.
enum Accepted {
    Bootstrap(Box<Bootstrap>),
    Register(Box<Register>),
}

/// Takes parameters, or says what is wrong with them. Whether the host has what they ask for is seen when it is chosen.
fn accept(bytes: &[u8], origin: ParametersOrigin) -> Result<Accepted, Failure> {
    let parameters = match Parameters::parse(bytes) {
        Ok(parameters) => parameters,
        Err(source) => return Err(Failure::Parameters { origin, source }),
    };
    let accepted = match parameters.cluster {
        ClusterParameters::Bootstrap(bootstrap) => Accepted::Bootstrap(Box::new(bootstrap)),
        // What the cluster asks of its nodes it tells when it is asked.
        ClusterParameters::Register(register) => Accepted::Register(Box::new(register)),
    };
    if parameters.has_network_configuration {
        tracing::warn!(
            "the parameters carry a static network configuration; the network of this host is its own business, and it is \
             left as it is"
        );
    }
    Ok(accepted)
}

#[cfg(test)]
mod tests {
    use polis_identity::{CertificateAuthority, OwnerKey};
    use polis_parameters::OwnParameters;
    use polis_proto::api::NodeParameters;
    use polis_proto::api::node_parameters::{Cluster, ClusterBootstrap, ClusterRegister};
    use polis_proto::common::cluster_configuration::{StorageSecurityPolicy as Storage, TpmMode as Tpm};
    use polis_proto::common::cluster_directory::Node;
    use polis_proto::common::cluster_directory::node::Address;
    use polis_proto::common::{ClusterConfiguration, ClusterDirectory};
    use polis_recovery::RecoveryPublicKey;
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

    fn register(authority: &CertificateAuthority, host: &str) -> Vec<u8> {
        let address = Address { host: host.into() };
        let register = ClusterRegister {
            cluster_directory: Some(ClusterDirectory {
                nodes: vec![Node { id: String::new(), addresses: vec![address] }],
            }),
            register_ticket: [&[0x0a, 32][..], &[7; 32]].concat(),
            ca_certificate: authority.certificate().der().to_vec(),
            labels: None,
        };
        NodeParameters { cluster: Some(Cluster::ClusterRegister(register)), network_config: None }.encode_to_vec()
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
        for configuration in [
            None,
            Some((Tpm::Required, Storage::NeedsEncryptionAndAuthentication)),
            Some((Tpm::BestEffort, Storage::Permissive)),
            Some((Tpm::Disabled, Storage::NeedsInsecure)),
        ] {
            let decision = decide(None, given(bootstrap(configuration)));
            assert!(matches!(decision, Ok(Decision::Bootstrap(..))), "{configuration:?}: {decision:?}");
        }
        let refused = decide(None, given(b"\xff".to_vec()));
        assert!(matches!(refused, Err(Failure::Parameters { .. })), "{refused:?}");
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

    #[test]
    fn a_recovery_key_is_part_of_the_intent() {
        let recovery_key = RecoveryPublicKey::new([9; 32]).unwrap();
        let insecure = bootstrap(Some((Tpm::Disabled, Storage::NeedsInsecure)));
        let both = [insecure, OwnParameters { recovery_key }.to_bytes()].concat();
        let Ok(Decision::Bootstrap(bootstrap, intent)) = decide(None, given(both.clone())) else {
            panic!("the parameters make a cluster")
        };
        assert_eq!((bootstrap.recovery_key, &intent), (Some(recovery_key), &both));
        // Whatever has become of the file meanwhile.
        let decision = decide(Some(journal(&[], intent)), || panic!("the parameters were read"));
        let Ok(Decision::ResumeBootstrap(bootstrap, _)) = decision else { panic!("{decision:?}") };
        assert_eq!(bootstrap.recovery_key, Some(recovery_key));
    }

    #[test]
    fn without_a_journal_a_node_may_be_told_to_register() {
        let authority = CertificateAuthority::generate("a test");
        let bytes = register(&authority, "192.0.2.1");
        match decide(None, given(bytes.clone())) {
            Ok(Decision::Register(register, intent)) => {
                assert_eq!(register.certificate_authority, *authority.certificate());
                assert_eq!(intent, bytes);
            }
            outcome => panic!("{outcome:?}"),
        }
    }

    #[test]
    fn who_holds_the_ca_of_a_cluster_makes_no_other() {
        let insecure = bootstrap(Some((Tpm::Disabled, Storage::NeedsInsecure)));
        for phases in [&[][..], &[Phase::Formatted]] {
            let mut journal = journal(phases, insecure.clone());
            journal.cluster_ca = Some(CertificateAuthority::generate("a test").certificate().der().to_vec());
            let outcome = decide(Some(journal), || panic!("the parameters were read"));
            assert!(matches!(outcome, Err(Failure::Disk { .. })), "{outcome:?}");
        }
    }

    /// What becomes of a registration that was begun, and of the parameters that are given now.
    fn resumed(
        begun: Vec<u8>,
        phases: &[Phase],
        answered: bool,
        given: impl FnOnce() -> Result<GivenParameters, Failure>,
    ) -> (Box<Register>, Result<Option<Vec<u8>>, String>) {
        let mut journal = journal(phases, begun);
        journal.storage_security = answered.then_some(StorageSecurity::Insecure);
        match decide(Some(journal), given) {
            Ok(Decision::ResumeRegister(register, _, new)) => (
                register,
                match new {
                    NewParameters::None => Ok(None),
                    NewParameters::Taken(bytes) => Ok(Some(bytes)),
                    NewParameters::Ignored { reason } => Err(reason),
                },
            ),
            outcome => panic!("{outcome:?}"),
        }
    }

    #[test]
    fn a_node_that_registers_may_be_told_anew_where_to_ask() {
        let (authority, other) = (CertificateAuthority::generate("one"), CertificateAuthority::generate("two"));
        let begun = || register(&authority, "192.0.2.1");
        let stages = [(&[][..], false), (&[], true), (&[Phase::Formatted], true)];
        for (phases, answered) in stages {
            let nothing = || Err(Failure::NoParameters { firmware: "a".into(), esp: "b".into() });
            assert_eq!(resumed(begun(), phases, answered, nothing).1, Ok(None));
            assert_eq!(resumed(begun(), phases, answered, given(begun())).1, Ok(None));

            let new = register(&authority, "192.0.2.99");
            let (register_now, outcome) = resumed(begun(), phases, answered, given(new.clone()));
            assert_eq!(outcome, Ok(Some(new)));
            assert_eq!(register_now.addresses, ["192.0.2.99".parse::<std::net::IpAddr>().unwrap()]);

            // Another cluster may be meant as long as none has answered.
            let new = register(&other, "192.0.2.99");
            let (register_now, outcome) = resumed(begun(), phases, answered, given(new.clone()));
            let ids = [authority.certificate().cluster_id(), other.certificate().cluster_id()];
            if answered {
                let reason = outcome.unwrap_err();
                assert!(ids.iter().all(|id| reason.contains(&id.to_string())), "{reason}");
                assert_eq!(register_now.certificate_authority.cluster_id(), ids[0]);
            } else {
                assert_eq!(outcome, Ok(Some(new)));
                assert_eq!(register_now.certificate_authority.cluster_id(), ids[1]);
            }
        }
    }

    #[test]
    fn bad_new_parameters_stop_nobody_who_registers() {
        let authority = CertificateAuthority::generate("one");
        let unreadable = || {
            Err(Failure::ParametersUnreadable { path: "given.pb".into(), source: std::io::Error::other("it is gone") })
        };
        let insecure = bootstrap(Some((Tpm::Disabled, Storage::NeedsInsecure)));
        let begun = || register(&authority, "192.0.2.1");
        let outcomes = [
            resumed(begun(), &[], false, given(b"\xff".to_vec())),
            resumed(begun(), &[], false, given(insecure)),
            resumed(begun(), &[], false, unreadable),
        ];
        for (register_now, outcome) in outcomes {
            let reason = outcome.unwrap_err();
            assert!(reason.contains("given.pb"), "{reason}");
            assert_eq!(register_now.addresses, ["192.0.2.1".parse::<std::net::IpAddr>().unwrap()]);
        }
    }
}
