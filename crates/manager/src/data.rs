//! The data partition of the node: which backend it has, how it is opened, and what happens when it is lost.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use polis_condition::Severity;
use polis_identity::{AuthorityCertificate, Certificate, JoinKey, NodeId, PublicKey, verify_certificate_authority};
use polis_roleserve::{Announce, LockedNode, addresses_on_disk, announce_while_locked};
use polis_secret::Secret32;
use polis_storage::data::{DataError, UnlockKeys};
use polis_storage::journal::{SealKind, StorageSecurity};
use polis_storage::{DataPartition, Journal};
use polis_supervisor::{Context, with_causes};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::bring_up::node_id;
use crate::cluster_access::{Applicant, ApplicantKey};
use crate::consensus::ConsensusProvider;
use crate::failure::Failure;
use crate::manager::Inner;
use crate::pace::{Pace, Pauses};
use crate::petition::Petition;
use crate::trouble::{Ended, Trouble, until_cured};
use crate::unlock::{KeysAtStart, keys_at_start};

/// What to do about data that are not protected.
const STORAGE_INSECURE_HINT: &str =
    "this is what the parameters ask for, and good enough for a trial: keep nothing here that others must not read";

/// What to do about what a backend does not protect from.
const STORAGE_LIMITS_HINT: &str = "nothing needs to be done if that is enough for this node; else give it a device of its own (--data-device), which shows less to \
     whoever has the disk in his hands, and whose data no power cut makes unreadable";

/// Name of the condition that the data partition was lost under the running node.
const DATA_LOST: &str = "data-partition-lost";

/// Name of the condition that no key that the node has opens its data.
const DATA_KEYS_WRONG: &str = "data-keys-wrong";

/// An open data partition, and what has opened it. Has no `Debug`: it holds keys.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) partition: Arc<dyn DataPartition>,
    /// Absent where there are none.
    pub(crate) keys: Option<UnlockKeys>,
}

impl<C: ConsensusProvider> Inner<C> {
    /// The backend for this protection. One that this host lacks is waited for.
    pub(crate) async fn choose_data(
        &self,
        context: &Context,
        security: StorageSecurity,
    ) -> Result<Arc<dyn DataPartition>, Ended> {
        let partition = until_cured(context, || async { Ok(self.settings.backends.choose(security)?) }).await?;
        self.publisher.choose(partition.describe());
        Ok(partition)
    }

    /// Opens the data partition, however long that takes.
    pub(crate) async fn open_data(&self, context: &Context, journal: &Journal) -> Result<(), Ended> {
        let security = journal.storage_security.unwrap_or(StorageSecurity::Insecure);
        let partition = self.choose_data(context, security).await?;
        let owner = node_id(journal)?.to_string();
        let keys = match keys_at_start(journal)? {
            KeysAtStart::NotNeeded => {
                until_cured(context, || async { Ok(partition.open(&owner, None, &self.data_progress).await?) }).await?;
                None
            }
            KeysAtStart::Own { node, cluster } => {
                Some(self.open_with_keys(context, journal, &*partition, &owner, &node, &cluster).await?)
            }
            KeysAtStart::FromCluster { node } => {
                Some(self.open_with_keys(context, journal, &*partition, &owner, &node, &[]).await?)
            }
        };
        context.conditions().clear(DATA_LOST);
        if let Some(warning) = partition.describe().warning {
            match security {
                StorageSecurity::Insecure => {
                    context.conditions().raise("storage-insecure", Severity::Warning, warning, STORAGE_INSECURE_HINT);
                }
                // More cannot be expected of what is only to be encrypted; where it is to be authenticated too, something is missing.
                StorageSecurity::Encrypted => {
                    context.conditions().raise("storage-limits", Severity::Info, warning, STORAGE_LIMITS_HINT);
                }
                StorageSecurity::AuthenticatedEncrypted => {
                    context.conditions().raise("storage-limits", Severity::Warning, warning, STORAGE_LIMITS_HINT);
                }
            }
        }
        self.opened.send_replace(Some(Opened { partition, keys }));
        Ok(())
    }

    /// Opens the data partition with the first of the `own` keys that does. When none does, or there is none, the cluster is asked
    /// for the one that it keeps.
    async fn open_with_keys(
        &self,
        context: &Context,
        journal: &Journal,
        partition: &dyn DataPartition,
        owner: &str,
        node: &Secret32,
        own: &[Secret32],
    ) -> Result<UnlockKeys, Ended> {
        let mut pauses = Pauses::default();
        let mut candidates = own.to_vec();
        loop {
            if candidates.is_empty() {
                candidates.push(self.key_of_cluster(context, journal).await?);
            }
            for cluster in candidates {
                let keys = UnlockKeys { node: node.clone(), cluster };
                let opened = until_cured(context, || async {
                    match partition.open(owner, Some(&keys), &self.data_progress).await {
                        Ok(()) => Ok(true),
                        Err(DataError::WrongKeys { .. }) => Ok(false),
                        Err(error) => Err(Trouble::from(error)),
                    }
                });
                if opened.await? {
                    context.conditions().clear(DATA_KEYS_WRONG);
                    return Ok(keys);
                }
            }
            context.conditions().raise(
                DATA_KEYS_WRONG,
                Severity::Error,
                "no key that this node has or was given opens its data partition; nothing was changed",
                "if directories or disks were swapped or brought back from a backup, put those together that belong together; the \
                 node goes on trying, with its own keys and with the one that the cluster keeps",
            );
            context.unless_cancelled(sleep(pauses.next(Pace::Soon, rand::random()))).await?;
            candidates = own.to_vec();
            // A founder that has not got as far has nobody to ask.
            if journal.cluster_ca.is_some() && !own.is_empty() {
                candidates.push(self.key_of_cluster(context, journal).await?);
            }
        }
    }

    /// The cluster's half of the key, from a running cluster, however long it takes until there is one.
    async fn key_of_cluster(&self, context: &Context, journal: &Journal) -> Result<Secret32, Ended> {
        let (node, authority) = membership(journal)?;
        let (disk, own) = (self.settings.disk.clone(), NodeId::of(&node));
        let kept = context
            .blocking({
                let authority = authority.clone();
                move || addresses_on_disk(&disk, &authority, &own)
            })
            .await;
        let mut told = self.settings.peers.clone();
        let heard = watch::Sender::<BTreeMap<NodeId, IpAddr>>::default();
        let mut said = heard.subscribe();
        let addresses = watch::Sender::new(all_addresses(&told.borrow_and_update(), &said.borrow_and_update(), &kept));
        let locked = LockedNode {
            node,
            join_key: JoinKey::from_secret(journal.join_key.clone()),
            authority: authority.clone(),
            disk: self.settings.disk.clone(),
            address: self.settings.address.clone(),
            announce: Announce::WhereOthersAre,
            heard,
        };
        let link = self.settings.access.apply(
            context,
            Applicant {
                key: ApplicantKey::Join(JoinKey::from_secret(journal.join_key.clone())),
                node,
                authority: authority.clone(),
                addresses: addresses.subscribe(),
            },
        );
        let petition = Petition { link, node, authority };
        let sealed = self.journal.seal_kind() == Some(SealKind::Tpm);
        let follow = async {
            loop {
                let changed = tokio::select! {
                    changed = told.changed() => changed,
                    changed = said.changed() => changed,
                };
                if changed.is_err() {
                    // The node is being stopped, or does not listen any more.
                    std::future::pending::<()>().await;
                }
                addresses.send_replace(all_addresses(&told.borrow_and_update(), &said.borrow_and_update(), &kept));
            }
        };
        let listen = async {
            if let Err(error) = announce_while_locked(context, locked).await {
                tracing::warn!(error = with_causes(&*error), "members of the cluster are not listened to on the link");
            }
            std::future::pending().await
        };
        tokio::select! {
            key = petition.join(context, sealed) => key,
            () = follow => std::future::pending().await,
            never = listen => never,
        }
    }

    /// Waits until the open data partition is lost, and returns why.
    pub(crate) async fn data_lost(&self) -> String {
        let mut opened = self.opened.subscribe();
        // This very value holds the sender.
        let partition = match opened.wait_for(Option::is_some).await {
            Ok(opened) => opened.as_ref().map(|opened| opened.partition.clone()),
            Err(_) => None,
        };
        match partition {
            Some(partition) => partition.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Makes the node ready to open its lost data partition again: consensus stops first, and nothing of it is left.
    pub(crate) async fn give_up_data(&self, context: &Context, reason: &str) -> Result<(), Ended> {
        tracing::error!(reason, "the data partition was lost; consensus stops, and the partition is opened again");
        context.conditions().raise(
            DATA_LOST,
            Severity::Error,
            format!("the data partition was lost under the running node: {reason}"),
            "nothing is lost that was acknowledged; the node stops its consensus member, opens the partition again and goes on",
        );
        context.unless_cancelled(self.consensus.suspend()).await?;
        // What is being written ends, one way or the other.
        let gate = self.gate.clone();
        context.blocking(move || gate.pass(|| ())).await;
        let lost = self.opened.send_replace(None);
        if let Some(Opened { partition, .. }) = lost {
            until_cured(context, || async {
                partition.close().await?;
                partition.prepare(&self.data_progress).await?;
                Ok(())
            })
            .await?;
        }
        self.consensus.resume();
        Ok(())
    }
}

/// Who the node is, and its cluster's CA, of a node that is a member.
fn membership(journal: &Journal) -> Result<(PublicKey, AuthorityCertificate), Failure> {
    let unusable = |source: Box<dyn std::error::Error + Send + Sync>| Failure::Disk {
        what: "the enrolment journal cannot be used",
        source,
    };
    let node = PublicKey::new(journal.node_public_key).map_err(|error| unusable(error.into()))?;
    let der = journal.cluster_ca.clone().ok_or_else(|| {
        unusable(
            "the data partition is encrypted with a key that the cluster keeps, and the journal names no cluster"
                .into(),
        )
    })?;
    let certificate = Certificate::from_der(der).map_err(|error| unusable(error.into()))?;
    let authority = verify_certificate_authority(certificate).map_err(|error| unusable(error.into()))?;
    Ok((node, authority))
}

/// What an operator says comes first, then what members say now, then what was known before.
fn all_addresses(told: &[(NodeId, IpAddr)], said: &BTreeMap<NodeId, IpAddr>, kept: &[IpAddr]) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = Vec::new();
    for address in told.iter().map(|(_, address)| address).chain(said.values()).chain(kept) {
        if !all.contains(address) {
            all.push(*address);
        }
    }
    all
}
