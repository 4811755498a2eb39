//! [`Restoration`]: a new node that is made for the state of a cluster that exists already (`polis cluster recover --snapshot` on a machine
//! without a node).
//!
//! It becomes what a founder becomes, by the same steps, but that its cluster is not born: whoever works on it puts the state into the open data
//! partition, and gives it the node. No node runs meanwhile.
//!
//! | step | durable afterwards |
//! |---|---|
//! | [`Restoration::record`] | journal, phase Formattable: the keys of the node and of its data; that it is a restoration |
//! | [`Restoration::open`] | data partition with its marker, roles of the first node; the partition is open |
//! | (the state is made, in the partition) | |
//! | [`Restoration::keep_identity`] | the node's credentials and those of its member; the list of members |
//! | (the state takes its place) | etcd's data |
//! | [`Restoration::finish`] | journal, phase Enrolled, in both generations |
//!
//! Until that last step no start does anything with it but say so ([`Failure::RestorationCutOff`]), and nobody has heard of this node: what an
//! attempt has left is thrown away, and the next one is another node.

use std::sync::Arc;

use polis_consensus::{PeerPki, PeerPkiError, peer_url};
use polis_curator::{Adopted, Newcomer};
use polis_identity::{JoinKey, NodeId, NodeKey, PeerAddress, ShareKey, SharePublicKey};
use polis_parameters::TpmMode;
use polis_proto::api::NodeParameters;
use polis_proto::osbase::net::proto::Net;
use polis_storage::data::{DataError, ProgressSender};
use polis_storage::journal::{FormatForbidden, Intent, Phase, SealError, SealKind, Seals, StorageSecurity};
use polis_storage::{
    DataBackends, DataPartition, DataUnavailable, DiskError, Journal, JournalError, JournalStore, Layout,
    NodeCredentials, SignedMembers, StoreError, TwoGenerationsError,
};
use prost::Message as _;

use crate::bring_up::FIRST_ROLES;
use crate::enrolment::{enrolled, first_keys};
use crate::failure::Failure;
use crate::sealing::{applicants_seal, founders_seal, has_tpm, usage};
use crate::unlock::with_keys;

/// A new node for the state of a cluster. Has no `Debug`: it holds keys.
pub struct Restoration {
    layout: Layout,
    store: JournalStore,
    seals: Seals,
    journal: Journal,
    node_key: NodeKey,
    join_key: JoinKey,
    share_key: SharePublicKey,
    member_url: String,
    partition: Arc<dyn DataPartition>,
}

/// The node was not made.
#[derive(Debug, thiserror::Error)]
pub enum RestorationError {
    /// This machine cannot keep such data.
    #[error(transparent)]
    Unavailable(#[from] DataUnavailable),
    /// The data partition.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The journal was not written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file was not written.
    #[error(transparent)]
    File(#[from] StoreError),
    /// A file of two generations was not written.
    #[error(transparent)]
    Generations(#[from] TwoGenerationsError),
    /// The credentials of the member were not written.
    #[error(transparent)]
    Peers(#[from] PeerPkiError),
    /// The cluster asks for a TPM.
    #[error("the cluster asks every node for a TPM (tpm_mode REQUIRED), and that of this machine cannot be used")]
    Tpm(#[from] SealError),
    /// The program was about to do what it must never do.
    #[error(transparent)]
    Internal(#[from] Failure),
    /// It may not be formatted.
    #[error(transparent)]
    Format(#[from] FormatForbidden),
}

/// What stands in the journal for the parameters of a node that was told nothing: they name no cluster, so that no build of any version makes
/// one of them.
fn parameters() -> Vec<u8> {
    NodeParameters { cluster: None, network_config: Some(Net::default()) }.encode_to_vec()
}

/// Whether this is the journal of a node that was made for a restored state.
#[must_use]
pub fn is_restoration(journal: &Journal) -> bool {
    journal.parameters == parameters()
}

impl Restoration {
    /// Writes down who the node is, on a root that has none. Blocks.
    ///
    /// # Errors
    ///
    /// When this machine lacks what such data need, or the disk fails.
    pub fn record(
        layout: Layout,
        backends: &dyn DataBackends,
        seals: Seals,
        node_key: NodeKey,
        security: StorageSecurity,
    ) -> Result<Self, RestorationError> {
        let partition = backends.choose(security)?;
        let (join_key, share_key) = (JoinKey::generate(), ShareKey::generate());
        let intent = Intent {
            parameters: parameters(),
            node_public_key: *node_key.public().as_bytes(),
            node_key: node_key.secret().clone(),
            join_key: join_key.secret().clone(),
            share_key: share_key.secret().clone(),
            storage_security: None,
        };
        let journal = with_keys(Journal::new(intent), security);
        layout.prepare_lasting()?;
        let store = layout.journal_store(seals.clone());
        // What the cluster wants it says once its state is open; nothing weaker is done until then.
        store.choose_seal(applicants_seal(seals.tpm_available())?);
        store.store(&journal, "restore/intent")?;
        let member_url = peer_url(PeerAddress::of(&node_key.public()).ip());
        let share_key = share_key.public();
        Ok(Self { layout, store, seals, journal, node_key, join_key, share_key, member_url, partition })
    }

    /// Formats the data partition, and opens it.
    ///
    /// # Errors
    ///
    /// When that does not work.
    pub async fn open(&mut self) -> Result<(), RestorationError> {
        let owner = NodeId::of(&self.node_key.public()).to_string();
        let (keys, progress) = (first_keys(&self.journal)?, ProgressSender::default());
        self.partition.prepare(&progress).await?;
        self.partition.format(self.journal.permit_format()?, &owner, keys.as_ref(), &progress).await?;
        self.partition.open(&owner, keys.as_ref(), &progress).await?;
        Ok(())
    }

    /// What the cluster's state is to know of the node.
    #[must_use]
    pub fn newcomer(&self) -> Newcomer<'_> {
        let seal = self.store.seal_kind().unwrap_or(SealKind::Plain);
        Newcomer {
            node_key: &self.node_key,
            join_key: &self.join_key,
            share_key: &self.share_key,
            tpm_usage: usage(seal, has_tpm(&self.seals.tpm_available())),
            cluster_unlock_key: self.journal.cluster_unlock_key.as_ref().map(|key| &key.current),
            member_url: &self.member_url,
        }
    }

    /// Seals the journal as the cluster wants it. Blocks.
    ///
    /// # Errors
    ///
    /// When a TPM is required that cannot be used, or the disk fails.
    pub fn seal_as_wanted(&self, mode: TpmMode) -> Result<(), RestorationError> {
        let wanted = founders_seal(mode, self.seals.tpm_available())?;
        if self.store.seal_kind() != Some(wanted) {
            self.store.change_seal(wanted, "restore/seal")?;
        }
        Ok(())
    }

    /// Stores what the cluster has given the node. Blocks.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn keep_identity(&self, adopted: &Adopted) -> Result<(), RestorationError> {
        let data = &self.layout.data;
        data.node.roles.store(&FIRST_ROLES, "restore/roles")?;
        let credentials = NodeCredentials {
            node_key: self.node_key.secret().clone(),
            node_certificate: adopted.cluster.node_certificate.der().to_vec(),
            ca_certificate: adopted.cluster.authority.der().to_vec(),
        };
        data.node.credentials.store(&credentials, "restore/credentials")?;
        let Adopted { peer_authority, peer_revocations, peer_certificate, .. } = adopted.clone();
        PeerPki::issued(peer_authority, peer_revocations, peer_certificate, &self.node_key)
            .store(&data.etcd.credentials, "restore/peer-credentials")?;
        let list = SignedMembers { signed_list: adopted.left.signed_list.clone() };
        self.layout.esp.polis.signed_members.store(&list, "restore/members")?;
        Ok(())
    }

    /// The node is one of its cluster, once its state has its place. Blocks.
    ///
    /// # Errors
    ///
    /// When the disk fails. If the first of the two generations is written, a start finishes it.
    pub fn finish(&self, adopted: &Adopted) -> Result<(), RestorationError> {
        let formatted = self.journal.advance(Phase::Formatted).map_err(crate::bring_up::internal)?;
        self.store.store_both(&enrolled(&formatted, &adopted.cluster)?, "restore/enrolled")?;
        Ok(())
    }

    /// Closes the data partition.
    ///
    /// # Errors
    ///
    /// When it stays open; the next who opens it clears that.
    pub async fn close(&self) -> Result<(), DataError> {
        self.partition.close().await
    }
}
