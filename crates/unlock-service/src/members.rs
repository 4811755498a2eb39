//! What the node knows of the cluster's members: durable first, then known.

use std::sync::Arc;

use async_trait::async_trait;
use polis_identity::{NodeId, PublicKey};
use polis_supervisor::BoxError;
use polis_unlock::{Epoch, Floors, Lineage, SignedMemberList};
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
    /// This node.
    own: NodeId,
    store: Arc<dyn Store>,
    known: watch::Sender<Arc<KnownMembers>>,
    /// Held by whoever writes.
    writes: Mutex<()>,
}

impl Members {
    /// What the node `own` has stored before, and where more is to be stored.
    #[must_use]
    pub fn new(own: NodeId, store: Arc<dyn Store>, stored: KnownMembers) -> Self {
        Self(Arc::new(Inner { own, store, known: watch::Sender::new(Arc::new(stored)), writes: Mutex::default() }))
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

    /// Takes over a list that is newer than the known one, whoever has brought it. Returns whether it did; an older one changes nothing,
    /// and neither does one of a cluster that was recovered without this node: its signature is good, and yet it may be that of a member
    /// that was only cut off, while the cluster of this node lives.
    ///
    /// # Errors
    ///
    /// When it cannot be stored. Then it is not taken over.
    pub async fn take_over(&self, list: SignedMemberList) -> Result<bool, StoreMembersError> {
        let known = self.known();
        let highest = known.list.as_ref().map(|known| known.list().epoch()).max(known.highest);
        // What is known only ever rises, so that this stays true.
        if highest.is_some_and(|highest| list.list().supersedes(highest, &self.0.own)) {
            return Ok(false);
        }
        self.follow(list).await
    }

    /// The same for the list of a leader that this node has decided to follow: it also takes over one that does not name this node. One
    /// of a cluster that was recovered apart from its own it does not take over from anybody: no order is between the two.
    ///
    /// # Errors
    ///
    /// When it cannot be stored. Then it is not taken over.
    pub async fn follow(&self, list: SignedMemberList) -> Result<bool, StoreMembersError> {
        let _writes = self.0.writes.lock().await;
        let epoch = list.list().epoch();
        let known = self.known();
        let is_newer = known.list.as_ref().is_none_or(|known| known.list().epoch() < epoch);
        let is_parted = known.list.as_ref().is_some_and(|known| list.list().lineage(known.list()) == Lineage::Parted);
        if is_parted || !is_newer || known.highest.is_some_and(|highest| highest > epoch) {
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
    use polis_unlock::{MemberEntry, MemberList, Recovery, Standing};

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

    /// Tokens of recoveries.
    const OWN: u64 = 1;
    /// See [`OWN`].
    const OTHER: u64 = 2;

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
        let own = NodeId::of(&NodeKey::generate().public());
        let members = Members::new(own, Arc::clone(&recorder) as Arc<dyn Store>, stored);
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

    #[tokio::test]
    async fn a_recovered_side_leads_nobody_away_whom_it_does_not_name() {
        let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
        let [own, other] = [(); 2].map(|()| NodeKey::generate().public());
        let entry = |key: PublicKey| MemberEntry {
            node_id: NodeId::of(&key),
            public_key: key,
            join_key: key,
            share_key: None,
            addresses: Vec::new(),
            standing: Standing::Stays,
        };
        // A list of a later incarnation than the first is of this recovery.
        let list = |(incarnation, epoch), token, keys: &[PublicKey]| {
            let entries = keys.iter().copied().map(entry).collect();
            let epoch = Epoch { incarnation, epoch };
            let recoveries = (2..=incarnation).map(|incarnation| Recovery { incarnation, token }).collect();
            let list = MemberList::new(authority.certificate().cluster_id(), epoch, entries);
            list.with_recoveries(recoveries).sign(&authority)
        };
        let both = [own, other];
        let at = |incarnation, epoch| Some(Epoch { incarnation, epoch });
        // The list that is known and the highest epoch that was seen; the epoch, the recoveries and the members of the list that somebody
        // brings; whether it is taken over, and whether it is when it is that of the leader that is followed.
        let cases = [
            ("without this node, in its own history", Some((1, 3)), at(1, 3), ((1, 4), OWN, &both[1..]), true, true),
            ("of a recovered cluster that names it", Some((1, 3)), at(1, 3), ((2, 1), OWN, &both[..]), true, true),
            ("of a recovered cluster without it", Some((1, 3)), at(1, 3), ((2, 1), OWN, &both[1..]), false, true),
            ("the same, when its own is lost", None, at(1, 3), ((2, 1), OWN, &both[1..]), false, true),
            ("the same, when it has never heard of any", None, None, ((2, 1), OWN, &both[1..]), true, true),
            ("that was seen, and is lost", None, at(2, 1), ((2, 1), OWN, &both[1..]), true, true),
            ("of what it was recovered from", Some((2, 1)), at(2, 1), ((1, 9), OWN, &both[..]), false, false),
            ("of its own recovered cluster", Some((2, 1)), at(2, 1), ((2, 2), OWN, &both[..]), true, true),
            ("of one that was recovered apart", Some((2, 1)), at(2, 1), ((2, 9), OTHER, &both[1..]), false, false),
            ("the same, and it names this node", Some((2, 1)), at(2, 1), ((3, 9), OTHER, &both[..]), false, false),
        ];
        for (name, known, highest, (epoch, token, keys), is_taken, is_followed) in cases {
            let brought = list(epoch, token, keys);
            for (follows, expected) in [(false, is_taken), (true, is_followed)] {
                let stored =
                    KnownMembers { list: known.map(|at| list(at, OWN, &both)), highest, ..KnownMembers::default() };
                let recorder = Arc::new(Recorder(StdMutex::new(Some(Vec::new()))));
                let members = Members::new(NodeId::of(&own), recorder, stored.clone());
                let taken = match follows {
                    true => members.follow(brought.clone()).await,
                    false => members.take_over(brought.clone()).await,
                };
                assert_eq!(taken.unwrap(), expected, "{name}, {follows}");
                assert_eq!(*members.known() == stored, !expected, "{name}, {follows}");
            }
        }
    }
}
