//! CreatingCluster: from an intent to a cluster of one, in steps that can each be repeated after a crash.
//!
//! | step | durable afterwards |
//! |---|---|
//! | intent | journal, phase Formattable: parameters and all keys of the node |
//! | format | data partition with its marker, roles of the first node; then the journal, phase Formatted |
//! | peer credentials | one file, with the key of the peers' CA until the cluster holds it |
//! | consensus | etcd's data |
//! | birth | the cluster's state, one transaction |
//! | credentials | one file; then the peer credentials without the CA's key |
//! | enrolled | journal, phase Enrolled, without the node key, which the credentials now hold |

use polis_condition::Severity;
use polis_consensus::{PEER_PORT, PeerPki};
use polis_curator::{Birth, Cluster, PeerAuthority, create_cluster};
use polis_identity::{JoinKey, NodeId, NodeKey, PeerAddress, ShareKey};
use polis_parameters::Bootstrap;
use polis_proto::common::NodeTpmUsage;
use polis_storage::journal::{Intent, Phase, StorageSecurity};
use polis_storage::{Journal, NodeCredentials};
use polis_supervisor::Context;

use crate::bring_up::{FIRST_ROLES, NO_KEYS, internal};
use crate::consensus::{ConsensusProvider, MemberSettings, WithoutData};
use crate::failure::Failure;
use crate::manager::Inner;
use crate::trouble::{Ended, Trouble, until_cured};

/// When the making of the cluster was begun.
pub(crate) enum Begun {
    /// In this start, with these parameters (serialized).
    Now { parameters: Vec<u8> },
    /// In an earlier start, which left this journal.
    Before { journal: Box<Journal> },
}

impl<C: ConsensusProvider> Inner<C> {
    /// Goes from the intent to Running.
    pub(crate) async fn create_cluster(
        &self,
        context: &Context,
        bootstrap: &Bootstrap,
        begun: Begun,
    ) -> Result<(), Ended> {
        report_labels(context, bootstrap);
        self.wait_for_address(context).await?;
        let journal = match begun {
            Begun::Before { journal } => *journal,
            Begun::Now { parameters } => self.record_intent(context, parameters).await?,
        };
        let journal = self.prepare_data(context, journal).await?;
        let node_key = node_key(&journal)?;

        let credentials = self.layout.data.etcd.credentials.clone();
        let peers = self
            .on_disk(context, {
                let (credentials, node_key) = (credentials.clone(), node_key.clone());
                move || PeerPki::load_or_found(&credentials, &node_key)
            })
            .await?;
        // The key of the peers' CA is given up only after the cluster was seen in the member's data.
        let without_data = if peers.authority().is_some() { WithoutData::Found } else { WithoutData::Refuse };
        let settings = MemberSettings { credentials: peers.clone(), public_key: node_key.public(), without_data };
        let store = self.start_member(context, settings).await?;

        let join_key = JoinKey::from_secret(journal.join_key.clone());
        let cluster = self.give_birth(context, bootstrap, &node_key, &join_key, &peers, &*store).await?;
        self.store_credentials(context, &node_key, &cluster).await?;
        if peers.authority().is_some() {
            let peers = peers.without_authority_key();
            self.on_disk(context, move || peers.store(&credentials, "etcd/credentials/without-authority")).await?;
        }
        let journal = enrolled(&journal, &cluster)?;
        self.store_journal(context, &journal, "journal/enrolled").await?;
        self.finish(context, &journal, FIRST_ROLES, &*store).await
    }

    /// Makes the keys of the node and writes down what it is about to become.
    async fn record_intent(&self, context: &Context, parameters: Vec<u8>) -> Result<Journal, Ended> {
        let node_key = NodeKey::generate();
        let journal = Journal::new(Intent {
            parameters,
            node_public_key: *node_key.public().as_bytes(),
            node_key: node_key.secret().clone(),
            join_key: JoinKey::generate().secret().clone(),
            share_key: ShareKey::generate().secret().clone(),
            storage_security: Some(StorageSecurity::Insecure),
        });
        self.store_journal(context, &journal, "journal/intent").await?;
        tracing::info!(node = %NodeId::of(&node_key.public()), "this node's identity is durable");
        Ok(journal)
    }

    /// Formats the data partition if the journal allows it, and opens it.
    async fn prepare_data(&self, context: &Context, journal: Journal) -> Result<Journal, Ended> {
        let owner = NodeId::of(&node_key(&journal)?.public()).to_string();
        let journal = match journal.phase() {
            Phase::Formattable => {
                until_cured(context, || async {
                    let permit = journal.permit_format().map_err(|error| Trouble::Final(internal(error)))?;
                    Ok(self.settings.data.format(permit, &owner, NO_KEYS, &self.data_progress).await?)
                })
                .await?;
                self.open_data(context, &owner).await?;
                // The roles of a founder are known from the start, and a member without its roles could not come back.
                let file = self.layout.data.node.roles.clone();
                if self.on_disk(context, move || file.load()).await?.is_none() {
                    self.store_roles(context, FIRST_ROLES, "roles/first").await?;
                }
                let journal = journal.advance(Phase::Formatted).map_err(internal)?;
                self.store_journal(context, &journal, "journal/formatted").await?;
                journal
            }
            Phase::Formatted | Phase::Enrolled | Phase::Removed { .. } => {
                self.open_data(context, &owner).await?;
                journal
            }
        };
        Ok(journal)
    }

    async fn give_birth(
        &self,
        context: &Context,
        bootstrap: &Bootstrap,
        node_key: &NodeKey,
        join_key: &JoinKey,
        peers: &PeerPki,
        store: &dyn polis_curator::ClusterStore,
    ) -> Result<Cluster, Ended> {
        let tpm_usage =
            if self.settings.tpm_present { NodeTpmUsage::PresentButUnused } else { NodeTpmUsage::NotPresent };
        let member_url = format!("https://[{}]:{PEER_PORT}", PeerAddress::of(&node_key.public()));
        let authority_key = peers.authority().map(|authority| authority.key().pkcs8_der());
        let birth = Birth {
            node_key,
            join_key,
            owner: &bootstrap.owner,
            configuration: &bootstrap.configuration,
            labels: &bootstrap.labels,
            tpm_usage,
            peers: PeerAuthority {
                key: authority_key.as_ref().map(|key| &key[..]),
                certificate: peers.authority_certificate().der(),
                revocation_list: peers.revocations().der(),
                member_certificate: peers.certificate().der(),
                member_url: &member_url,
            },
        };
        let cluster = until_cured(context, || async { Ok(create_cluster(store, "birth", &birth).await?) }).await?;
        tracing::info!(cluster = %cluster.authority.cluster_id(), "the cluster exists");
        Ok(cluster)
    }

    /// Stores the node's identity in its cluster, unless it is stored already.
    async fn store_credentials(&self, context: &Context, node_key: &NodeKey, cluster: &Cluster) -> Result<(), Ended> {
        let wanted = NodeCredentials {
            node_key: node_key.secret().clone(),
            node_certificate: cluster.node_certificate.der().to_vec(),
            ca_certificate: cluster.authority.der().to_vec(),
        };
        let file = self.layout.data.node.credentials.clone();
        let load = file.clone();
        let found = self.on_disk(context, move || load.load()).await?;
        if found.is_none_or(|found| found != wanted) {
            self.on_disk(context, move || file.store(&wanted, "node/credentials")).await?;
        }
        Ok(())
    }
}

/// The journal of a node that is a member: the CA is known, and the node key has its place in the credentials.
fn enrolled(journal: &Journal, cluster: &Cluster) -> Result<Journal, Failure> {
    let mut journal = journal.advance(Phase::Enrolled).map_err(internal)?;
    journal.node_key = None;
    journal.cluster_ca = Some(cluster.authority.der().to_vec());
    journal.cluster_id = Some(cluster.authority.cluster_id().to_string());
    Ok(journal)
}

/// The node key that the journal keeps until the credentials do.
fn node_key(journal: &Journal) -> Result<NodeKey, Failure> {
    let key = journal.node_key.clone().map(NodeKey::from_secret);
    key.filter(|key| *key.public().as_bytes() == journal.node_public_key).ok_or_else(|| Failure::Disk {
        what: "the enrolment journal cannot be used",
        source: "it does not hold the key of the node that it names".into(),
    })
}

fn report_labels(context: &Context, bootstrap: &Bootstrap) {
    if bootstrap.label_faults.is_empty() {
        return;
    }
    let faults: Vec<String> = bootstrap.label_faults.iter().map(ToString::to_string).collect();
    context.conditions().raise(
        "labels-left-out",
        Severity::Warning,
        format!("labels in the parameters were left out: {}", faults.join("; ")),
        "the node enrols without them; give it the right ones later with `polis node set label`",
    );
}
