//! Registering: from an intent to a member of a cluster that others run, in steps that can each be repeated after a crash.
//!
//! | step | durable afterwards |
//! |---|---|
//! | intent | journal, phase Formattable: parameters, CA, all keys of the node |
//! | register | in the cluster: a record of the node, for its key; then the journal: how it is sealed, how the data are to be
//! protected, and the keys for that |
//! | format | data partition with its marker, no roles; then the journal, phase Formatted |
//! | commit, once an operator has approved | in the cluster: the node is UP and has a certificate |
//! | directory | where nodes of the cluster are |
//! | credentials | one file |
//! | enrolled | journal, phase Enrolled, without the node key, which the credentials now hold, and without the ticket; then the same
//! once more, over the older generation that has them |
//!
//! The cluster knows the node by its key, so a call that is repeated after a crash or a lost answer is the same call (windows W7,
//! W8, W17, W21, W26). A start that finds the data formatted goes straight to the commit: the ticket may have been rotated since,
//! and is not needed any more.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use polis_condition::Severity;
use polis_curator::Cluster;
use polis_identity::{Certificate, JoinKey, NodeId, PublicKey, verify_certificate_authority, verify_node_in_cluster};
use polis_parameters::{KnownNode, Register};
use polis_roleserve::store_first_directory;
use polis_storage::journal::SealKind;
use polis_storage::{Journal, LocalRoles};
use polis_supervisor::{Context, with_causes};
use tokio::sync::watch;

use crate::bring_up::node;
use crate::cluster_access::{Applicant, ApplicantKey, Commitment, Membership, Registration};
use crate::consensus::ConsensusProvider;
use crate::decision::NewParameters;
use crate::enrolment::{enrolled, intent, node_key, report_labels};
use crate::manager::Inner;
use crate::pace::{Pace, Pauses};
use crate::petition::Petition;
use crate::sealing::has_tpm;
use crate::trouble::Ended;
use crate::unlock::with_keys;

/// Roles of a node that has just been let in: whatever it is to do, the cluster tells it.
const NO_ROLES: LocalRoles =
    LocalRoles { consensus_member: false, kubernetes_controller: false, kubernetes_worker: false };

/// Who has made the node a member, and where that is.
type Leader = (NodeId, IpAddr);

/// When the registration was begun.
pub(crate) enum RegistrationBegun {
    /// In this start, with these parameters (serialized).
    Now { parameters: Vec<u8> },
    /// In an earlier start, which left this journal; and what has been given since.
    Before { journal: Box<Journal>, new: NewParameters },
}

impl<C: ConsensusProvider> Inner<C> {
    /// Goes from the intent to Running.
    pub(crate) async fn register(
        &self,
        context: &Context,
        register: &Register,
        begun: RegistrationBegun,
    ) -> Result<(), Ended> {
        report_labels(context, &register.label_faults);
        self.wait_for_address(context).await?;
        let journal = match begun {
            RegistrationBegun::Now { parameters } => {
                // The better seal, until the cluster says what it wants.
                self.choose_applicants_seal(context).await?;
                let journal = with_authority(intent(parameters), register);
                self.record_intent(context, journal).await?
            }
            RegistrationBegun::Before { journal, new } => self.take(context, *journal, register, new).await?,
        };
        let node_key = node_key(&journal)?;
        let petition = Petition {
            link: self.settings.access.apply(
                context,
                Applicant {
                    key: ApplicantKey::Node(node_key.clone()),
                    node: node_key.public(),
                    authority: register.certificate_authority.clone(),
                    addresses: watch::Sender::new(register.addresses.clone()).subscribe(),
                },
            ),
            node: node_key.public(),
            authority: register.certificate_authority.clone(),
        };
        let registration = Registration {
            ticket: register.ticket.clone(),
            join_key: JoinKey::from_secret(journal.join_key.clone()).public(),
            have_local_tpm: self.journal.seal_kind() == Some(SealKind::Tpm)
                || has_tpm(&self.tpm_available(context).await),
            labels: register.labels.clone(),
        };

        let (journal, storage_security) = match journal.storage_security {
            Some(decided) => (journal, decided),
            None => {
                let admission = petition.register(context, &registration).await?;
                self.seal_as_wanted(context, admission.tpm_usage).await?;
                let decided = admission.recommended_storage;
                // Nothing is weaker than what the cluster recommends: a host that lacks it waits for it.
                self.choose_data(context, decided).await?;
                let journal = with_keys(journal, decided);
                self.store_journal(context, &journal, "journal/admitted").await?;
                (journal, decided)
            }
        };
        let journal = self.prepare_data(context, journal, NO_ROLES).await?;
        let cluster = match self.stored_membership(context, &journal).await? {
            Some(cluster) => cluster,
            None => {
                let cluster_unlock_key = journal.cluster_unlock_key.as_ref().map(|key| key.current.clone());
                let commitment = Commitment { cluster_unlock_key, storage_security };
                let (cluster, leader) = self.commit(context, &petition, register, &registration, &commitment).await?;
                // Whoever has the credentials knows where to ask.
                self.store_directory(context, register, leader, &petition.node).await?;
                self.store_credentials(context, &node_key, &cluster).await?;
                cluster
            }
        };
        // What was spoken as an applicant ends here.
        drop(petition);
        self.has_registered.store(true, Ordering::Relaxed);
        let journal = enrolled(&journal, &cluster)?;
        self.store_journal_twice(context, &journal, "journal/enrolled").await?;
        let node = self.identify(context, &journal, NO_ROLES).await?;
        self.run_as_guest(context, node).await
    }

    /// Goes on with an earlier intent, as the same node, with what has been given since.
    async fn take(
        &self,
        context: &Context,
        mut journal: Journal,
        register: &Register,
        new: NewParameters,
    ) -> Result<Journal, Ended> {
        match new {
            NewParameters::None => Ok(journal),
            NewParameters::Taken(parameters) => {
                journal.parameters = parameters;
                let journal = with_authority(journal, register);
                self.store_journal(context, &journal, "journal/parameters").await?;
                tracing::info!(
                    "the new parameters have taken the place of those that this node was first started with"
                );
                Ok(journal)
            }
            NewParameters::Ignored { reason } => {
                context.conditions().raise(
                    "parameters-ignored",
                    Severity::Warning,
                    format!("new parameters were found and left aside; those of the first start count: {reason}"),
                    "give parameters for the same cluster at the next start, or none",
                );
                Ok(journal)
            }
        }
    }

    /// The membership that an earlier start has stored without getting to write it down (windows W9 and W19).
    async fn stored_membership(&self, context: &Context, journal: &Journal) -> Result<Option<Cluster>, Ended> {
        let file = self.layout.data.node.credentials.clone();
        let path = file.full_path();
        let Some(credentials) = self.on_disk(context, move || file.load()).await? else {
            return Ok(None);
        };
        let node = node(journal, credentials, &path, NO_ROLES)?;
        Ok(Some(Cluster { authority: node.authority, node_certificate: node.certificate }))
    }

    /// Stores where nodes of the cluster are, as far as it is known from what the node was given and from who has let it in, so that
    /// it finds them again; and the node itself, without which there is no directory (window W11). One that is there already stays.
    async fn store_directory(
        &self,
        context: &Context,
        register: &Register,
        leader: Leader,
        own: &PublicKey,
    ) -> Result<(), Ended> {
        let own = (NodeId::of(own), *self.settings.address.borrow());
        let (disk, nodes) = (self.settings.disk.clone(), known_nodes(register, leader, own));
        self.on_disk(context, move || match store_first_directory(&disk, nodes.clone()) {
            // A damaged one is mended by whoever keeps it.
            Err(error) if error.disk_error().is_none() => Ok(()),
            outcome => outcome,
        })
        .await
    }

    /// Becomes a member, however long an operator takes to approve it. A cluster that has lost its record of the node gets it
    /// again.
    async fn commit(
        &self,
        context: &Context,
        petition: &Petition,
        register: &Register,
        registration: &Registration,
        commitment: &Commitment,
    ) -> Result<(Cluster, Leader), Ended> {
        let mut pauses = Pauses::default();
        loop {
            let read = |membership| read_membership(membership, register, &petition.node);
            if let Some(cluster) = petition.commit(context, commitment, read).await? {
                return Ok(cluster);
            }
            tracing::warn!("the cluster has no record of this node, and no tombstone either; it registers again");
            context.unless_cancelled(tokio::time::sleep(pauses.next(Pace::Soon, rand::random()))).await?;
            petition.register(context, registration).await?;
        }
    }
}

/// The journal of a node that asks the cluster of these parameters. What a later start goes on with, it finds in there.
fn with_authority(mut journal: Journal, register: &Register) -> Journal {
    journal.cluster_ca = Some(register.certificate_authority.der().to_vec());
    journal.cluster_id = Some(register.certificate_authority.cluster_id().to_string());
    journal
}

/// The nodes of the cluster that are known when a node has become a member, `own` among them, and where they are.
fn known_nodes(
    register: &Register,
    (leader, address): Leader,
    (own, own_address): (NodeId, Option<IpAddr>),
) -> BTreeMap<NodeId, Vec<IpAddr>> {
    let mut nodes: BTreeMap<NodeId, Vec<IpAddr>> = BTreeMap::new();
    for KnownNode { id, addresses } in &register.known {
        nodes.entry(*id).or_default().extend(addresses);
    }
    // What it was given may be older than what it knows of itself.
    nodes.insert(own, own_address.into_iter().collect());
    let at = nodes.entry(leader).or_default();
    at.retain(|known| *known != address);
    at.insert(0, address);
    nodes
}

/// Reads what makes the node a member, or says what is wrong with it.
fn read_membership(membership: Membership, register: &Register, node: &PublicKey) -> Result<(Cluster, Leader), String> {
    let Membership { authority, node_certificate, leader } = membership;
    let certificate = |what: &str, der| {
        Certificate::from_der(der).map_err(|error| format!("{what} cannot be read: {}", with_causes(&error)))
    };
    let authority = verify_certificate_authority(certificate("the certificate of its CA", authority)?)
        .map_err(|error| format!("the certificate of its CA is none: {}", with_causes(&error)))?;
    let expected = register.certificate_authority.cluster_id();
    if authority.cluster_id() != expected {
        return Err(format!("it names the CA of the cluster {}, and this is {expected}", authority.cluster_id()));
    }
    let node_certificate = certificate("the certificate of the node", node_certificate)?;
    let identity = verify_node_in_cluster(&node_certificate, &authority)
        .map_err(|error| format!("the certificate of the node is none: {}", with_causes(&error)))?;
    if identity.public_key != *node {
        return Err(format!("it has a certificate for {}, and this node is {}", identity.id, NodeId::of(node)));
    }
    Ok((Cluster { authority, node_certificate }, leader))
}

#[cfg(test)]
mod tests {
    use polis_identity::{CertificateAuthority, NodeKey};
    use polis_parameters::{ClusterParameters, Parameters};
    use polis_proto::api::NodeParameters;
    use polis_proto::api::node_parameters::{Cluster as WireCluster, ClusterRegister};
    use polis_proto::common::ClusterDirectory;
    use polis_proto::common::cluster_directory::Node;
    use polis_proto::common::cluster_directory::node::Address;
    use polis_secret::Secret32;
    use prost::Message as _;

    use super::*;

    fn register(authority: &CertificateAuthority) -> Register {
        let address = Address { host: "192.0.2.1".into() };
        let register = ClusterRegister {
            cluster_directory: Some(ClusterDirectory {
                nodes: vec![Node { id: String::new(), addresses: vec![address] }],
            }),
            register_ticket: [&[0x0a, 32][..], &[7; 32]].concat(),
            ca_certificate: authority.certificate().der().to_vec(),
            labels: None,
        };
        let parameters = NodeParameters { cluster: Some(WireCluster::ClusterRegister(register)), network_config: None };
        match Parameters::parse(&parameters.encode_to_vec()).unwrap().cluster {
            ClusterParameters::Register(register) => register,
            ClusterParameters::Bootstrap(_) => panic!("it is a bootstrap"),
        }
    }

    /// Who leads.
    fn leader() -> Leader {
        (NodeId::of(&NodeKey::from_secret(Secret32::new([9; 32])).public()), "192.0.2.9".parse().unwrap())
    }

    #[test]
    fn who_was_named_who_leads_and_the_node_itself_are_known() {
        let mut register = register(&CertificateAuthority::generate("a test"));
        let addresses =
            |addresses: &[&str]| addresses.iter().map(|address| address.parse().unwrap()).collect::<Vec<_>>();
        let (id, _) = leader();
        let own = NodeId::of(&NodeKey::generate().public());
        let itself = (own, Some("192.0.2.8".parse().unwrap()));
        let expect = BTreeMap::from([(id, addresses(&["192.0.2.9"])), (own, addresses(&["192.0.2.8"]))]);
        assert_eq!(known_nodes(&register, leader(), itself), expect);
        // It is there also when it has no address at the moment.
        assert_eq!(known_nodes(&register, leader(), (own, None)).get(&own), Some(&Vec::new()));

        let other = NodeId::of(&NodeKey::generate().public());
        let known = |id, given: &[&str]| KnownNode { id, addresses: addresses(given) };
        register.known =
            vec![known(other, &["192.0.2.1"]), known(id, &["192.0.2.2", "192.0.2.9"]), known(own, &["192.0.2.7"])];
        let expect = BTreeMap::from([
            (other, addresses(&["192.0.2.1"])),
            (id, addresses(&["192.0.2.9", "192.0.2.2"])),
            (own, addresses(&["192.0.2.8"])),
        ]);
        assert_eq!(known_nodes(&register, leader(), itself), expect);
    }

    #[test]
    fn only_what_makes_this_node_a_member_of_this_cluster_is_taken() {
        let (authority, other) = (CertificateAuthority::generate("one"), CertificateAuthority::generate("two"));
        let register = register(&authority);
        let (key, another_key) = (NodeKey::generate(), NodeKey::generate());
        let membership = |authority: &CertificateAuthority, key: &NodeKey| Membership {
            authority: authority.certificate().der().to_vec(),
            node_certificate: authority.issue_node(&key.public()).der().to_vec(),
            leader: leader(),
        };
        let mixed = Membership {
            node_certificate: other.issue_node(&key.public()).der().to_vec(),
            ..membership(&authority, &key)
        };
        let cut = Membership { node_certificate: vec![0x30], ..membership(&authority, &key) };
        let table = [
            (membership(&authority, &key), None),
            (membership(&other, &key), Some("names the CA of the cluster")),
            (membership(&authority, &another_key), Some("has a certificate for")),
            (mixed, Some("the certificate of the node is none")),
            (cut, Some("the certificate of the node cannot be read")),
        ];
        for (membership, refused) in table {
            match (read_membership(membership, &register, &key.public()), refused) {
                (Ok((cluster, by)), None) => {
                    assert_eq!((cluster.authority, by), (authority.certificate().clone(), leader()));
                }
                (Err(problem), Some(part)) => assert!(problem.contains(part), "{problem}"),
                (outcome, _) => panic!("{refused:?}: {outcome:?}"),
            }
        }
    }
}
