//! Unlocking: a node that has no key of its own which opens its data gets one from others, whoever gives it first.
//!
//! A running cluster keeps the key of every node and gives it to one that is UP; a node of any role asks it. The other members
//! open shares of it, also when no cluster runs; a member asks them that has an unlock file. Both are asked for ever, at the same
//! time, as a member that was away long may be known to the running cluster only. An operator with the recovery key may be faster.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use polis_condition::Severity;
use polis_identity::{AuthorityCertificate, JoinKey, NodeId, PublicKey};
use polis_roleserve::{Announce, LockedNode, addresses_on_disk, announce_while_locked};
use polis_secret::Secret32;
use polis_storage::Journal;
use polis_storage::data::UnlockKeys;
use polis_storage::journal::SealKind;
use polis_supervisor::{Context, with_causes};
use polis_unlock::UnlockFile;
use polis_unlock_service::{Owner, UnlockError, UnlockStatus, unlock};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::door::{ByShares, DATA_KEYS_WRONG, Door};
use super::told::{REPEAT_AFTER, REST_AFTER, is_news};
use super::whereabouts::{Whereabouts, directory_on_disk};
use super::{MemberKeys, changed, membership};
use crate::cluster_access::{Applicant, ApplicantKey};
use crate::consensus::ConsensusProvider;
use crate::manager::Inner;
use crate::pace::{Pace, Pauses};
use crate::petition::Petition;
use crate::trouble::Ended;
use crate::verdict;

/// Name of the condition that the data are locked, and that the other members are asked for shares of their key.
const DATA_LOCKED: &str = "data-locked";

/// Name of the condition that another member has answered what it should not.
pub(super) const UNLOCK_ALARM: &str = "unlock-alarm";

/// Name of the condition that this node itself cannot go on asking the other members.
const UNLOCK_CANNOT_GO_ON: &str = "unlock-cannot-go-on";

/// The conditions that are over once the data are open.
const WHILE_LOCKED: [&str; 3] = [DATA_LOCKED, UNLOCK_CANNOT_GO_ON, DATA_KEYS_WRONG];

/// A node that looks for a key.
struct Seeker<'a> {
    journal: &'a Journal,
    node: PublicKey,
    authority: AuthorityCertificate,
    /// Its keys that did not open the data, though they should.
    own: &'a [Secret32],
}

/// What a member asks the others with.
struct Shares {
    keys: Arc<MemberKeys>,
    file: UnlockFile,
}

impl<C: ConsensusProvider> Inner<C> {
    /// Opens the door with a key that others give, however long it takes until one does.
    pub(crate) async fn open_by_others(
        &self,
        context: &Context,
        journal: &Journal,
        door: &Door<'_>,
        own: &[Secret32],
    ) -> Result<UnlockKeys, Ended> {
        let (node, authority) = membership(journal)?;
        let seeker = Seeker { journal, node, authority, own };
        let whereabouts = watch::Sender::new(self.whereabouts(context, &seeker).await);
        let shares = self.shares(context, &seeker).await?;
        let opened = tokio::select! {
            opened = self.open_by_cluster(context, &seeker, door, &whereabouts) => opened,
            opened = self.open_by_shares(context, shares, door) => opened,
            opened = self.open_by_own(context, &seeker, door) => opened,
            opened = self.open_by_recovery(door) => opened,
            never = self.look_for_others(context, &seeker, &whereabouts) => match never {},
        };
        if opened.is_ok() {
            for name in WHILE_LOCKED.iter().chain(&verdict::CONDITIONS) {
                context.conditions().clear(name);
            }
        }
        opened
    }

    /// The cluster's half of the key, from a running cluster.
    async fn open_by_cluster(
        &self,
        context: &Context,
        seeker: &Seeker<'_>,
        door: &Door<'_>,
        whereabouts: &watch::Sender<Whereabouts>,
    ) -> Result<UnlockKeys, Ended> {
        let Seeker { journal, node, authority, own: _ } = seeker;
        let addresses = watch::Sender::new(whereabouts.borrow().of_anybody());
        let applicant = Applicant {
            key: ApplicantKey::Join(JoinKey::from_secret(journal.join_key.clone())),
            node: *node,
            authority: authority.clone(),
            addresses: addresses.subscribe(),
        };
        let link = self.settings.access.apply(context, applicant);
        let petition = Petition { link, node: *node, authority: authority.clone() };
        let sealed = self.journal.seal_kind() == Some(SealKind::Tpm);
        let mut news = whereabouts.subscribe();
        let follow = async {
            loop {
                addresses.send_replace(news.borrow_and_update().of_anybody());
                changed(&mut news).await;
            }
        };
        let ask = async {
            let mut pauses = Pauses::default();
            loop {
                let key = petition.join(context, sealed).await?;
                if let Some(keys) = door.try_key(&key).await? {
                    tracing::info!("the running cluster has given the key of the data");
                    return Ok(keys);
                }
                door.say_wrong();
                context.unless_cancelled(sleep(pauses.next(Pace::Soon, rand::random()))).await?;
            }
        };
        tokio::select! {
            opened = ask => opened,
            never = follow => never,
        }
    }

    /// What the other members can be asked with; nothing without an unlock file.
    async fn shares(&self, context: &Context, seeker: &Seeker<'_>) -> Result<Option<Shares>, Ended> {
        let keys = self.cold_start.keys.borrow().clone();
        let (Some(keys), Some(node_unlock_key)) = (keys, &seeker.journal.node_unlock_key) else { return Ok(None) };
        let file = self.load_unlock_file(context, node_unlock_key, &seeker.authority, &keys.id).await?;
        Ok(file.map(|file| Shares { keys, file }))
    }

    /// Asks the other members for their shares, if there is an unlock file.
    async fn open_by_shares(
        &self,
        context: &Context,
        shares: Option<Shares>,
        door: &Door<'_>,
    ) -> Result<UnlockKeys, Ended> {
        let Some(Shares { keys, file }) = shares else { return std::future::pending().await };
        self.cold_start.unlocking.send_replace(Arc::default());
        tokio::select! {
            opened = self.collect(context, &keys, file, door) => opened,
            never = self.tell_progress(context) => match never {},
        }
    }

    async fn collect(
        &self,
        context: &Context,
        keys: &MemberKeys,
        file: UnlockFile,
        door: &Door<'_>,
    ) -> Result<UnlockKeys, Ended> {
        let mut address = self.settings.address.clone();
        let mut pauses = Pauses::default();
        loop {
            address.mark_unchanged();
            let addresses = self.cold_start.addresses.subscribe();
            let surroundings = self.surroundings(keys, addresses, self.cold_start.unlocking.clone());
            let owner = Owner { id: keys.id, authority: keys.authority.clone(), file: Some(file.clone()) };
            let mut opener = ByShares { door, ended: None };
            let outcome = tokio::select! {
                outcome = context.unless_cancelled(unlock(&surroundings, owner, &mut opener)) => outcome?,
                // It calls from its address, and has another one now. It loses nothing by beginning anew between two keys.
                _untried = async {
                    changed(&mut address).await;
                    door.untried().await
                } => continue,
            };
            match (outcome, opener.ended) {
                (Ok(opened), _) => {
                    tracing::info!("the other members have opened the data");
                    return Ok(opened);
                }
                (Err(_), Some(ended)) => return Err(ended),
                (Err(error @ (UnlockError::Store(_) | UnlockError::Open(_))), None) => context.conditions().raise(
                    UNLOCK_CANNOT_GO_ON,
                    Severity::Error,
                    format!("the other members cannot be asked to open the data: {}", with_causes(&error)),
                    "see to the disk that the message names; the node goes on by itself",
                ),
            }
            context.unless_cancelled(sleep(pauses.next(Pace::Soon, rand::random()))).await?;
        }
    }

    /// Says what the node waits for, whenever that is another, and from time to time how long.
    async fn tell_progress(&self, context: &Context) -> Infallible {
        let mut status = self.cold_start.unlocking.subscribe();
        let mut told = UnlockStatus::default();
        loop {
            let now = Arc::clone(&status.borrow_and_update());
            if now.progress.counts.is_some() || !now.progress.peers.is_empty() {
                tell(context, &now);
                told = UnlockStatus::clone(&now);
            }
            let repeat_at = Instant::now() + REPEAT_AFTER;
            sleep(REST_AFTER).await;
            let news = async {
                while !is_news(&told, &status.borrow()) {
                    changed(&mut status).await;
                }
            };
            // Nothing new is as good a time as any to say it once more.
            let _ = timeout_at(repeat_at, news).await;
        }
    }

    /// Goes on trying the node's own keys: what does not belong together may be put together while it waits.
    async fn open_by_own(&self, context: &Context, seeker: &Seeker<'_>, door: &Door<'_>) -> Result<UnlockKeys, Ended> {
        if seeker.own.is_empty() {
            return std::future::pending().await;
        }
        let mut pauses = Pauses::default();
        loop {
            context.unless_cancelled(sleep(pauses.next(Pace::Soon, rand::random()))).await?;
            if let Some(keys) = door.try_keys(seeker.own).await? {
                return Ok(keys);
            }
        }
    }

    /// Takes what somebody with the recovery key gives.
    async fn open_by_recovery(&self, door: &Door<'_>) -> Result<UnlockKeys, Ended> {
        loop {
            let order = self.recovery.order().await;
            if let Some(keys) = door.try_keys(order.keys()).await? {
                order.opened();
                return Ok(keys);
            }
            order.wrong();
        }
    }

    /// Keeps it known where the others are: what an operator says, what members say on the link, and what was kept.
    async fn look_for_others(
        &self,
        context: &Context,
        seeker: &Seeker<'_>,
        whereabouts: &watch::Sender<Whereabouts>,
    ) -> Infallible {
        let heard = watch::Sender::<BTreeMap<NodeId, IpAddr>>::default();
        let (mut told, mut said) = (self.settings.peers.clone(), heard.subscribe());
        let locked = LockedNode {
            node: seeker.node,
            join_key: JoinKey::from_secret(seeker.journal.join_key.clone()),
            authority: seeker.authority.clone(),
            disk: self.settings.disk.clone(),
            address: self.settings.address.clone(),
            announce: Announce::WhereOthersAre,
            heard,
        };
        let listen = async {
            if let Err(error) = announce_while_locked(context, locked).await {
                tracing::warn!(error = with_causes(&*error), "members of the cluster are not listened to on the link");
            }
            std::future::pending().await
        };
        let follow = async {
            loop {
                whereabouts.send_modify(|whereabouts| {
                    whereabouts.told.clone_from(&told.borrow_and_update());
                    whereabouts.said.clone_from(&said.borrow_and_update());
                });
                self.cold_start.addresses.send_replace(Arc::new(whereabouts.borrow().by_node()));
                tokio::select! {
                    () = changed(&mut told) => {}
                    () = changed(&mut said) => {}
                }
            }
        };
        tokio::select! {
            never = listen => never,
            never = follow => never,
        }
    }

    async fn whereabouts(&self, context: &Context, seeker: &Seeker<'_>) -> Whereabouts {
        let (disk, own) = (self.settings.disk.clone(), NodeId::of(&seeker.node));
        let authority = seeker.authority.clone();
        let (kept, anybody) =
            context.blocking(move || (directory_on_disk(&disk), addresses_on_disk(&disk, &authority, &own))).await;
        let told = self.settings.peers.borrow().clone();
        Whereabouts { told, said: BTreeMap::new(), kept, anybody }
    }
}

fn tell(context: &Context, status: &UnlockStatus) {
    context.conditions().raise(
        DATA_LOCKED,
        Severity::Error,
        format!("the data of this node are locked: {}", status.describe()),
        "start the members that do not answer, or name their addresses with `polis node peers set`; the node goes on by itself. If too few \
         of them are left, the recovery key opens it: `polis unlock --recovery -`",
    );
    if !status.alarms.is_empty() {
        let alarms: Vec<_> = status.alarms.iter().map(ToString::to_string).collect();
        context.conditions().raise(
            UNLOCK_ALARM,
            Severity::Error,
            alarms.join("; "),
            "see to the members that are named: to their disks and memory, and to who has access to them",
        );
    }
}
