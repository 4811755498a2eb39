//! What the node knows of the cluster's members: durable first, then known.

use std::sync::Arc;

use async_trait::async_trait;
use polis_identity::{NodeId, PublicKey};
use polis_supervisor::BoxError;
use polis_unlock::{Epoch, Floors, SignedMemberList};
use tokio::sync::{Mutex, watch};

/// What the node knows of the cluster's members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownMembers {
    /// The newest list that it has; `None` when it has lost it.
    pub list: Option<SignedMemberList>,
    /// Highest epoch that it has ever seen, which is under its seal.
    pub highest: Option<Epoch>,
    /// Below which epochs it opens shares no more.
    pub floors: Floors,
}

impl KnownMembers {
    /// Whether this is the join key of a member.
    #[must_use]
    pub fn has_key(&self, join_key: &PublicKey) -> bool {
        self.list.as_ref().is_some_and(|list| list.list().members().iter().any(|member| member.join_key == *join_key))
    }
}

/// Keeps what the node knows of the members, also through a power cut. Calls do not overlap, as long as what a call has begun is over
/// when it returns: it is dropped before only when the runnable ends in which it was made.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Keeps this list and that its epoch was seen. The list is durable before the epoch is: after a cut between them the node has a
    /// list that is newer than what it remembers to have seen, and never the other way round.
    ///
    /// # Errors
    ///
    /// When it is not durable for certain. Then the node goes on as if it had not seen the list.
    async fn store_list(&self, list: &SignedMemberList) -> Result<(), BoxError>;

    /// Keeps these floors.
    ///
    /// # Errors
    ///
    /// When they are not durable for certain.
    async fn store_floors(&self, floors: &Floors) -> Result<(), BoxError>;
}

/// What could not be made durable.
#[derive(Debug, thiserror::Error)]
pub enum StoreMembersError {
    /// A list.
    #[error("the member list of epoch {epoch} could not be stored, so that it is not gone by")]
    List {
        /// Its epoch.
        epoch: Epoch,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// A floor.
    #[error("that {owner} has split its key anew in epoch {epoch} could not be stored")]
    Floor {
        /// Whose floor.
        owner: NodeId,
        /// The floor.
        epoch: Epoch,
        /// Why.
        #[source]
        source: BoxError,
    },
}

/// What the node knows of the cluster's members, shared by all who learn of it: who serves, who asks, and the running cluster. What
/// is known here is durable. Clones share it.
#[derive(Clone)]
pub struct Members(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    known: watch::Sender<Arc<KnownMembers>>,
    /// Held by whoever writes.
    writes: Mutex<()>,
}

impl Members {
    /// What was stored before, and where more is to be stored.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, stored: KnownMembers) -> Self {
        Self(Arc::new(Inner { store, known: watch::Sender::new(Arc::new(stored)), writes: Mutex::default() }))
    }

    /// What is known, and what will be.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<KnownMembers>> {
        self.0.known.subscribe()
    }

    /// What is known now.
    #[must_use]
    pub fn known(&self) -> Arc<KnownMembers> {
        Arc::clone(&self.0.known.borrow())
    }

    /// Takes over a list that is newer than the known one. Returns whether it is; an older one changes nothing.
    ///
    /// # Errors
    ///
    /// When it cannot be stored. Then it is not taken over.
    pub async fn take_over(&self, list: SignedMemberList) -> Result<bool, StoreMembersError> {
        let _writes = self.0.writes.lock().await;
        let epoch = list.list().epoch();
        let known = self.known();
        let is_newer = known.list.as_ref().is_none_or(|known| known.list().epoch() < epoch);
        if !is_newer || known.highest.is_some_and(|highest| highest > epoch) {
            return Ok(false);
        }
        self.0.store.store_list(&list).await.map_err(|source| StoreMembersError::List { epoch, source })?;
        self.0.known.send_modify(|known| {
            let known = Arc::make_mut(known);
            known.list = Some(list);
            known.highest = Some(epoch);
        });
        Ok(true)
    }

    /// Opens no share of this owner any more that is older than this, as the owner has reported a split of this epoch. Returns
    /// whether that is new.
    ///
    /// # Errors
    ///
    /// When it cannot be stored. Then the floor is as it was.
    pub async fn raise_floor(&self, owner: NodeId, epoch: Epoch) -> Result<bool, StoreMembersError> {
        let _writes = self.0.writes.lock().await;
        let mut floors = self.known().floors.clone();
        if floors.of(&owner).is_some_and(|floor| floor >= epoch) {
            return Ok(false);
        }
        floors.raise(owner, epoch);
        let stored = self.0.store.store_floors(&floors).await;
        stored.map_err(|source| StoreMembersError::Floor { owner, epoch, source })?;
        self.0.known.send_modify(|known| Arc::make_mut(known).floors = floors);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority, NodeKey};
    use polis_unlock::MemberList;

    use super::*;

    /// What was stored, in order, or that nothing can be.
    #[derive(Default)]
    struct Recorder(StdMutex<Option<Vec<String>>>);

    impl Recorder {
        fn store(&self, what: String) -> Result<(), BoxError> {
            self.0.lock().unwrap().as_mut().ok_or("the disk is gone")?.push(what);
            Ok(())
        }
    }

    #[async_trait]
    impl Store for Recorder {
        async fn store_list(&self, list: &SignedMemberList) -> Result<(), BoxError> {
            self.store(format!("list {}", list.list().epoch()))
        }

        async fn store_floors(&self, floors: &Floors) -> Result<(), BoxError> {
            self.store(format!("floors {:?}", floors.iter().map(|(_, floor)| floor.to_string()).collect::<Vec<_>>()))
        }
    }

    fn at(epoch: u64) -> Epoch {
        Epoch { incarnation: 1, epoch }
    }

    #[tokio::test]
    async fn only_what_is_newer_and_durable_is_known() {
        let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
        let list =
            |epoch| MemberList::new(authority.certificate().cluster_id(), at(epoch), Vec::new()).sign(&authority);
        let recorder = Arc::new(Recorder(StdMutex::new(Some(Vec::new()))));
        let stored = KnownMembers { highest: Some(at(3)), ..KnownMembers::default() };
        let members = Members::new(Arc::clone(&recorder) as Arc<dyn Store>, stored);
        // It has lost its list, and knows that it had a newer one.
        assert!(!members.take_over(list(2)).await.unwrap());
        assert!(members.take_over(list(3)).await.unwrap());
        assert!(!members.take_over(list(3)).await.unwrap());
        assert!(members.take_over(list(5)).await.unwrap());
        let owner = NodeId::of(&NodeKey::generate().public());
        assert!(members.raise_floor(owner, at(4)).await.unwrap());
        assert!(!members.raise_floor(owner, at(4)).await.unwrap());
        assert!(!members.raise_floor(owner, at(3)).await.unwrap());

        let before = members.known();
        let told = recorder.0.lock().unwrap().take().unwrap();
        assert_eq!(told, ["list 1.3", "list 1.5", "floors [\"1.4\"]"]);
        assert!(members.take_over(list(6)).await.is_err());
        assert!(members.raise_floor(owner, at(6)).await.is_err());
        assert_eq!(members.known(), before);
        assert_eq!((before.highest, before.floors.of(&owner)), (Some(at(5)), Some(at(4))));
    }
}
