//! The members of the cluster, and changes of them.
//!
//! etcd's own guard against losing the quorum is off (it would make growing slow), so whoever changes the members checks
//! the margin first.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use etcd_client::MemberAddOptions;
use polis_identity::{NodeId, PeerAddress, PublicKey};
use tokio::time::{Instant, sleep};

use crate::client::{Connection, KvError, change, read};
use crate::peer_url;
use crate::status::Member;

/// Pause between two tries to promote a learner that is not in sync yet. Catching up takes 0.1 to 0.2 s for a small state.
const PROMOTION_PAUSE: Duration = Duration::from_millis(50);

/// Key that exists while a change of the members is under way: whoever changes them keeps it there meanwhile, so that nothing else
/// that lessens the margin is begun.
pub const CHANGE_UNDER_WAY_KEY: &str = "namespaced:polis//membership/intent";

/// What etcd says about a learner that has not caught up.
const NOT_IN_SYNC: &str = "in sync with leader";
/// What etcd says about a learner that is none any more.
const NOT_A_LEARNER: &str = "can only promote a learner member";
/// What etcd says when it is asked to hand over a leadership that it does not have.
const NOT_THE_LEADER: &str = "not leader";

/// The members of the cluster. A node is named by its public key: both its id and its peer address follow from it, also
/// while its member has never started. Clones are cheap.
#[derive(Clone)]
pub struct Membership {
    connection: Connection,
    /// When members were removed here, in seconds since the epoch.
    removed: Arc<Mutex<BTreeMap<Ipv6Addr, u64>>>,
}

/// A change of members failed.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// etcd did not do it, or did not say whether it did. Every change can be repeated.
    #[error("the members of the cluster could not be read or changed")]
    Etcd(#[from] KvError),
    /// The node has no member.
    #[error("the node {0} is not a member of the cluster's consensus")]
    NotAMember(NodeId),
    /// The learner has not caught up within the time it was given.
    #[error("the learner on node {node} has not caught up within {} ms; it stays a learner", budget.as_millis())]
    NotInSync {
        /// Its node.
        node: NodeId,
        /// The time it was given.
        budget: Duration,
    },
    /// Only the leader can hand over its leadership.
    #[error("this member does not lead, so it cannot hand over")]
    NotTheLeader,
}

impl Membership {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection, removed: Arc::default() }
    }

    /// The members as this member knows them, ordered by id.
    ///
    /// # Errors
    ///
    /// When etcd does not answer.
    pub async fn members(&self) -> Result<Vec<Member>, MembershipError> {
        let mut cluster = self.connection.local().cluster_client();
        Ok(Member::list(read(cluster.member_list()).await?.0.members))
    }

    /// Adds the node with `key` as a learner, and returns the list that it needs to join. A node that is a member
    /// already, of whatever kind, is left as it is.
    ///
    /// # Errors
    ///
    /// When etcd does not do it; among the reasons is that there is a learner already, as etcd takes one at a time.
    pub async fn add_learner(&self, site: &'static str, key: &PublicKey) -> Result<Vec<Member>, MembershipError> {
        let address = PeerAddress::of(key).ip();
        let members = self.members().await?;
        if members.iter().any(|member| member.address == Some(address)) {
            return Ok(members);
        }
        self.outwait_removal(address).await;
        let mut cluster = self.connection.client().cluster_client();
        let options = MemberAddOptions::new().with_is_learner();
        let added = change(site, cluster.member_add([peer_url::format(address)], Some(options))).await?;
        Ok(Member::list(added.0.members))
    }

    /// Gives the learner of the node with `key` a vote, as soon as it has caught up and within `budget`. One that has a
    /// vote already is left as it is.
    ///
    /// # Errors
    ///
    /// [`MembershipError::NotInSync`] when it does not catch up in time.
    pub async fn promote(
        &self,
        site: &'static str,
        key: &PublicKey,
        budget: Duration,
    ) -> Result<Vec<Member>, MembershipError> {
        let deadline = Instant::now() + budget;
        loop {
            let member = self.find(key).await?;
            if !member.is_learner {
                return self.members().await;
            }
            let mut cluster = self.connection.client().cluster_client();
            match change(site, cluster.member_promote(member.id)).await {
                Ok(promoted) => return Ok(Member::list(promoted.0.members)),
                Err(error) if says(&error, NOT_A_LEARNER) && !says(&error, NOT_IN_SYNC) => {
                    return self.members().await;
                }
                Err(error) if !says(&error, NOT_IN_SYNC) => return Err(error.into()),
                Err(_) if Instant::now() >= deadline => {
                    return Err(MembershipError::NotInSync { node: NodeId::of(key), budget });
                }
                Err(_) => sleep(PROMOTION_PAUSE).await,
            }
        }
    }

    /// Removes the member of the node with `key`. A node that is no member is left as it is.
    ///
    /// # Errors
    ///
    /// When etcd does not do it.
    pub async fn remove(&self, site: &'static str, key: &PublicKey) -> Result<Vec<Member>, MembershipError> {
        let member = match self.find(key).await {
            Ok(member) => member,
            Err(MembershipError::NotAMember(_)) => return self.members().await,
            Err(error) => return Err(error),
        };
        let mut cluster = self.connection.client().cluster_client();
        let removed = change(site, cluster.member_remove(member.id)).await?;
        let now = seconds(SystemTime::now());
        let mut known = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        // Only removals of this second matter, so the map stays as small as the cluster.
        known.retain(|_, second| *second >= now);
        known.insert(PeerAddress::of(key).ip(), now);
        Ok(Member::list(removed.0.members))
    }

    /// Removes the member with this id of etcd: for one that is on no node. One that is not there is no error.
    ///
    /// # Errors
    ///
    /// When etcd does not do it.
    pub async fn remove_member(&self, site: &'static str, id: u64) -> Result<Vec<Member>, MembershipError> {
        if self.members().await?.iter().any(|member| member.id == id) {
            let mut cluster = self.connection.client().cluster_client();
            let removed = change(site, cluster.member_remove(id)).await?;
            return Ok(Member::list(removed.0.members));
        }
        self.members().await
    }

    /// Hands leadership over to the member of the node with `key`. Only the leader can.
    ///
    /// # Errors
    ///
    /// [`MembershipError::NotTheLeader`] when this member does not lead.
    pub async fn move_leader(&self, site: &'static str, key: &PublicKey) -> Result<(), MembershipError> {
        let member = self.find(key).await?;
        self.move_leader_to(site, member.id).await
    }

    /// The same, to the member with this id.
    pub(crate) async fn move_leader_to(&self, site: &'static str, id: u64) -> Result<(), MembershipError> {
        let mut maintenance = self.connection.client().maintenance_client();
        match change(site, maintenance.move_leader(id)).await {
            Ok(_) => Ok(()),
            Err(error) if says(&error, NOT_THE_LEADER) => Err(MembershipError::NotTheLeader),
            Err(error) => Err(error.into()),
        }
    }

    async fn find(&self, key: &PublicKey) -> Result<Member, MembershipError> {
        let address = PeerAddress::of(key).ip();
        let members = self.members().await?;
        let found = members.into_iter().find(|member| member.address == Some(address));
        found.ok_or_else(|| MembershipError::NotAMember(NodeId::of(key)))
    }

    /// etcd computes a member's id from its URL and the second of its addition, and never takes a removed id again: who
    /// is added again within the second of its removal would get its old id and could never join.
    async fn outwait_removal(&self, address: Ipv6Addr) {
        let removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner).get(&address).copied();
        if let Some(removed) = removed {
            loop {
                let now = SystemTime::now();
                if seconds(now) != removed {
                    break;
                }
                let into_second = now.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
                sleep(Duration::from_secs(1) - Duration::from_nanos(into_second.into())).await;
            }
        }
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether etcd's refusal contains `text`.
fn says(error: &KvError, text: &str) -> bool {
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<tonic::Status>().is_some_and(|status| status.message().contains(text)) {
            return true;
        }
        next = error.source();
    }
    false
}
