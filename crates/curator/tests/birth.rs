//! The birth of a cluster: all or nothing, once, and found again by its first node alone.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use polis_curator::{
    Birth, BirthError, Cluster, ClusterStore, Creation, Entry, PeerAuthority, StoreError, create_cluster, layout,
};
use polis_identity::{
    CertificateAuthority, JoinKey, NodeId, NodeKey, OwnerKey, PEER_AUTHORITY_NAME, ShareKey, verify_node_in_cluster,
};
use polis_parameters::Labels;
use polis_proto::common::{ClusterConfiguration, NodeState, NodeTpmUsage};
use polis_proto::curator_private::Node;
use polis_proto::curator_state;
use polis_secret::Secret32;
use polis_unlock::{Epoch, SignedMemberList};
use prost::Message as _;

/// A store in memory that can lose replies.
#[derive(Default)]
struct MemoryStore {
    entries: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Replies that are still lost after the operation was done.
    lose_replies: AtomicU32,
}

impl MemoryStore {
    fn reply<T>(&self, operation: &'static str, value: T) -> Result<T, StoreError> {
        let lost = self.lose_replies.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        lost.map_or(Ok(value), |_| Err(StoreError { operation, source: "the reply was lost".into() }))
    }
}

#[async_trait]
impl ClusterStore for MemoryStore {
    async fn create(&self, _: &'static str, new: Vec<Entry>) -> Result<Creation, StoreError> {
        let creation = {
            let mut entries = self.entries.lock().unwrap();
            if new.iter().any(|entry| entries.contains_key(&entry.key)) {
                Creation::Exists
            } else {
                entries.extend(new.into_iter().map(|entry| (entry.key, entry.value)));
                Creation::Created
            }
        };
        self.reply("create", creation)
    }

    async fn put(&self, _: &'static str, entry: Entry) -> Result<(), StoreError> {
        self.entries.lock().unwrap().insert(entry.key, entry.value);
        self.reply("put", ())
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.entries.lock().unwrap().get(key).cloned();
        self.reply("get", value)
    }
}

/// A first node and its peers' CA.
struct Founder {
    node_key: NodeKey,
    join_key: JoinKey,
    share_key: ShareKey,
    owner: OwnerKey,
    recovery_key: Option<[u8; 32]>,
    peers: CertificateAuthority,
}

impl Founder {
    fn new() -> Self {
        let peers = CertificateAuthority::generate(PEER_AUTHORITY_NAME);
        Self {
            node_key: NodeKey::generate(),
            join_key: JoinKey::generate(),
            share_key: ShareKey::generate(),
            owner: OwnerKey::generate(),
            recovery_key: None,
            peers,
        }
    }

    fn id(&self) -> NodeId {
        NodeId::of(&self.node_key.public())
    }

    async fn create(&self, store: &MemoryStore, with_authority_key: bool) -> Result<Cluster, BirthError> {
        self.create_with(store, with_authority_key, None).await
    }

    async fn create_with(
        &self,
        store: &MemoryStore,
        with_authority_key: bool,
        cluster_unlock_key: Option<&Secret32>,
    ) -> Result<Cluster, BirthError> {
        let key = self.peers.key().pkcs8_der();
        let revocations = self.peers.certificate_revocation_list(1, &[]);
        let member = self.peers.issue_peer(&self.node_key.public());
        let birth = Birth {
            node_key: &self.node_key,
            join_key: &self.join_key,
            share_key: &self.share_key.public(),
            address: None,
            owner: &self.owner.public(),
            configuration: &ClusterConfiguration { cluster_domain: "cluster.internal".into(), ..Default::default() },
            labels: &Labels::default(),
            tpm_usage: NodeTpmUsage::NotPresent,
            cluster_unlock_key,
            recovery_key: self.recovery_key.as_ref(),
            peers: PeerAuthority {
                key: with_authority_key.then_some(&key[..]),
                certificate: self.peers.certificate().der(),
                revocation_list: revocations.der(),
                member_certificate: member.der(),
                member_url: "https://[fd00::1]:7834",
            },
        };
        create_cluster(store, "birth", &birth).await
    }
}

#[tokio::test]
async fn everything_is_there_and_fits_together() {
    let (store, founder) = (MemoryStore::default(), Founder::new());
    let cluster = founder.create(&store, true).await.unwrap();
    let identity = verify_node_in_cluster(&cluster.node_certificate, &cluster.authority).unwrap();
    assert_eq!(identity.id, founder.id());

    let entries = store.entries.lock().unwrap();
    let mut expected = vec![
        layout::cluster_authority_key(),
        layout::cluster_authority_certificate(),
        layout::cluster_revocation_list(),
        layout::node_certificate(&founder.id()),
        layout::node(&founder.id()),
        layout::join_key(&founder.join_key.public()),
        layout::initial_owner(),
        layout::cluster_configuration(),
        layout::peer_authority_key(),
        layout::peer_authority_certificate(),
        layout::peer_revocation_list(),
        layout::peer_certificate(&founder.id()),
        layout::enrolment(&founder.id()),
        layout::epoch(),
    ];
    expected.sort();
    assert_eq!(entries.keys().cloned().collect::<Vec<_>>(), expected);

    let node = Node::decode(&entries[&layout::node(&founder.id())][..]).unwrap();
    assert_eq!(node.id, founder.id().to_string());
    assert_eq!(node.fsm_state(), NodeState::Up);
    let roles = node.roles.unwrap();
    assert!(roles.kubernetes_controller.is_some() && roles.kubernetes_worker.is_none());
    let member = roles.consensus_member.unwrap();
    assert_eq!(member.peers.len(), 1);
    assert_eq!(member.ca_certificate, founder.peers.certificate().der());

    let list = curator_state::SignedMemberList::decode(&entries[&layout::epoch()][..]).unwrap();
    let list = SignedMemberList::verify(list, &cluster.authority).unwrap();
    assert_eq!(list.list().epoch(), Epoch::FIRST);
    assert_eq!(list.list().members().len(), 1);
    assert_eq!(list.list().member(&founder.id()).unwrap().share_key, Some(founder.share_key.public()));
}

#[tokio::test]
async fn the_founders_key_is_kept_from_the_birth_on() {
    for key in [None, Some(Secret32::new([5; 32]))] {
        let (store, founder) = (MemoryStore::default(), Founder::new());
        founder.create_with(&store, true, key.as_ref()).await.unwrap();
        let entries = store.entries.lock().unwrap();
        let node = Node::decode(&entries[&layout::node(&founder.id())][..]).unwrap();
        assert_eq!(node.cluster_unlock_key, key.map(|key| key.expose().to_vec()).unwrap_or_default());
    }
}

#[tokio::test]
async fn a_recovery_key_is_there_from_the_birth_on() {
    let (store, founder) = (MemoryStore::default(), Founder { recovery_key: Some([9; 32]), ..Founder::new() });
    founder.create(&store, true).await.unwrap();
    let entries = store.entries.lock().unwrap();
    let key = curator_state::RecoveryKey::decode(&entries[&layout::recovery_key()][..]).unwrap();
    assert_eq!(key.public_key, [9; 32]);
}

#[tokio::test]
async fn a_lost_reply_is_followed_by_the_same_cluster() {
    let (store, founder) = (MemoryStore::default(), Founder::new());
    store.lose_replies.store(1, Ordering::SeqCst);
    assert!(matches!(founder.create(&store, true).await.unwrap_err(), BirthError::Store(_)));
    let before = store.entries.lock().unwrap().clone();

    let again = founder.create(&store, true).await.unwrap();
    let later = founder.create(&store, false).await.unwrap();
    assert_eq!(again.authority.der(), before[&layout::cluster_authority_certificate()]);
    assert_eq!(again.node_certificate.der(), before[&layout::node_certificate(&founder.id())]);
    assert_eq!((again.authority, again.node_certificate), (later.authority, later.node_certificate));
    assert_eq!(*store.entries.lock().unwrap(), before, "nothing was changed");
}

#[tokio::test]
async fn another_nodes_cluster_is_left_alone() {
    let store = MemoryStore::default();
    Founder::new().create(&store, true).await.unwrap();
    let before = store.entries.lock().unwrap().clone();
    let stranger = Founder::new();
    let error = stranger.create(&store, true).await.unwrap_err();
    assert!(matches!(&error, BirthError::AnotherCluster { node } if *node == stranger.id()), "{error}");
    assert_eq!(*store.entries.lock().unwrap(), before, "nothing was changed");
}

#[tokio::test]
async fn a_node_that_has_seen_its_cluster_does_not_make_another() {
    let (store, founder) = (MemoryStore::default(), Founder::new());
    let error = founder.create(&store, false).await.unwrap_err();
    assert!(matches!(&error, BirthError::Lost { node } if *node == founder.id()), "{error}");
    assert!(store.entries.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_damaged_cluster_is_named_by_its_part() {
    let (store, founder) = (MemoryStore::default(), Founder::new());
    founder.create(&store, true).await.unwrap();
    for key in
        [layout::cluster_authority_certificate(), layout::node_certificate(&founder.id()), layout::node(&founder.id())]
    {
        let whole = store.entries.lock().unwrap().insert(key.clone(), b"\xff".to_vec()).unwrap();
        let error = founder.create(&store, true).await.unwrap_err();
        assert!(matches!(&error, BirthError::Damaged { key: damaged, .. } if *damaged == key), "{error}");
        store.entries.lock().unwrap().insert(key, whole);
    }
    founder.create(&store, true).await.unwrap();
}
