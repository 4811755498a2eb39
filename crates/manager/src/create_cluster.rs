//! CreatingCluster: from an intent to a cluster of one, in steps that can each be repeated after a crash.
//!
//! | step | durable afterwards |
//! |---|---|
//! | intent | journal, phase Formattable: parameters and all keys of the node, those of its data among them |
//! | format | data partition with its marker, roles of the first node; then the journal, phase Formatted |
//! | peer credentials | one file, with the key of the peers' CA until the cluster holds it |
//! | consensus | etcd's data |
//! | birth | the cluster's state, one transaction |
//! | credentials | one file; then the peer credentials without the CA's key |
//! | enrolled | journal, phase Enrolled, without the node key, which the credentials now hold; then the same once more, over the older
//! generation that has it |

use polis_consensus::{PEER_PORT, PeerPki};
use polis_curator::{Birth, Cluster, PeerAuthority, create_cluster};
use polis_identity::{JoinKey, NodeKey, PeerAddress, ShareKey};
use polis_parameters::Bootstrap;
use polis_storage::Journal;
use polis_storage::journal::SealKind;
use polis_supervisor::Context;

use crate::bring_up::FIRST_ROLES;
use crate::consensus::{ConsensusProvider, MemberSettings, WithoutData};
use crate::enrolment::{enrolled, intent, node_key, report_labels};
use crate::manager::Inner;
use crate::sealing::{has_tpm, usage};
use crate::storage_choice::recommended_storage;
use crate::trouble::{Ended, until_cured};
use crate::unlock::with_keys;

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
        report_labels(context, &bootstrap.label_faults);
        self.wait_for_address(context).await?;
        let journal = match begun {
            Begun::Before { journal } => *journal,
            Begun::Now { parameters } => {
                self.choose_founders_seal(context, bootstrap.tpm_mode).await?;
                let security = recommended_storage(bootstrap.storage_policy);
                // A host that lacks what is asked for has made nothing yet.
                self.choose_data(context, security).await?;
                self.record_intent(context, with_keys(intent(parameters), security)).await?
            }
        };
        // The roles of a founder are known from the start, and a member without its roles could not come back.
        let journal = self.prepare_data(context, journal, FIRST_ROLES).await?;
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
        let member = self.start_member(context, settings).await?;
        context.unless_cancelled(self.consensus.ready(&member)).await?;
        let store = self.consensus.store(&member);

        let cluster = self.give_birth(context, bootstrap, &journal, &node_key, &peers, &*store).await?;
        self.store_credentials(context, &node_key, &cluster).await?;
        if peers.authority().is_some() {
            let peers = peers.without_authority_key();
            self.on_disk(context, move || peers.store(&credentials, "etcd/credentials/without-authority")).await?;
        }
        let journal = enrolled(&journal, &cluster)?;
        self.store_journal_twice(context, &journal, "journal/enrolled").await?;
        let node = self.identify(context, &journal, FIRST_ROLES).await?;
        self.run_as_member(context, node, &*store).await
    }

    async fn give_birth(
        &self,
        context: &Context,
        bootstrap: &Bootstrap,
        journal: &Journal,
        node_key: &NodeKey,
        peers: &PeerPki,
        store: &dyn polis_curator::ClusterStore,
    ) -> Result<Cluster, Ended> {
        let seal = self.journal.seal_kind().unwrap_or(SealKind::Plain);
        let available = has_tpm(&self.tpm_available(context).await);
        let member_url = format!("https://[{}]:{PEER_PORT}", PeerAddress::of(&node_key.public()));
        let authority_key = peers.authority().map(|authority| authority.key().pkcs8_der());
        let birth = Birth {
            node_key,
            join_key: &JoinKey::from_secret(journal.join_key.clone()),
            share_key: &ShareKey::from_secret(journal.share_key.clone()).public(),
            address: *self.settings.address.borrow(),
            owner: &bootstrap.owner,
            configuration: &bootstrap.configuration,
            labels: &bootstrap.labels,
            tpm_usage: usage(seal, available),
            cluster_unlock_key: journal.cluster_unlock_key.as_ref().map(|key| &key.current),
            recovery_key: bootstrap.recovery_key.as_ref().map(|key| key.as_bytes()),
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
}
