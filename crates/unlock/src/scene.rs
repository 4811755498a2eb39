//! A small cluster for tests, whose nodes have names that never change.

use std::sync::LazyLock;

use polis_identity::{AuthorityCertificate, CertificateAuthority, ClusterId, JoinKey, NodeId, NodeKey, ShareKey};
use polis_secret::Secret32;

use crate::{
    ClusterUnlockKey, ClusterWord, Decision, Epoch, Floors, Holder, Hpke, MemberEntry, MemberList, Rate, Settings,
    SignedMemberList, Standing, UnlockFile, UnlockReply, UnlockRequest, split,
};

static AUTHORITY: LazyLock<CertificateAuthority> = LazyLock::new(|| CertificateAuthority::generate("Test CA"));

/// A node by its number.
#[derive(Clone, Copy)]
pub(crate) struct Node(pub(crate) u8);

impl Node {
    fn key(self) -> NodeKey {
        NodeKey::from_secret(Secret32::new([self.0; 32]))
    }

    pub(crate) fn id(self) -> NodeId {
        NodeId::of(&self.key().public())
    }

    pub(crate) fn join_key(self) -> polis_identity::PublicKey {
        JoinKey::from_secret(Secret32::new([self.0 ^ 0xff; 32])).public()
    }

    pub(crate) fn share_key(self) -> ShareKey {
        ShareKey::from_secret(Secret32::new([self.0 ^ 0x55; 32]))
    }

    /// The cluster's half of the key of its data.
    pub(crate) fn key_of_data(self) -> ClusterUnlockKey {
        ClusterUnlockKey::new(Secret32::new([self.0 ^ 0xaa; 32]))
    }

    /// Its own half.
    pub(crate) fn node_unlock_key(self) -> Secret32 {
        Secret32::new([self.0 ^ 0x33; 32])
    }

    pub(crate) fn entry(self) -> MemberEntry {
        MemberEntry {
            node_id: self.id(),
            public_key: self.key().public(),
            join_key: self.join_key(),
            share_key: Some(self.share_key().public()),
            addresses: vec![[10, 0, 0, self.0].into()],
            standing: Standing::Stays,
        }
    }

    /// Its unlock file for this list.
    pub(crate) fn file(self, list: &SignedMemberList) -> UnlockFile {
        let current = split(&self.id(), &self.key_of_data(), list.list(), &Hpke, &mut rand::rng()).unwrap();
        UnlockFile { cluster: cluster(), owner: self.id(), current, pending: None }
    }

    /// What it begins to collect with.
    pub(crate) fn settings(self, list: &SignedMemberList) -> Settings {
        Settings {
            id: self.id(),
            authority: authority().clone(),
            members: Some(list.clone()),
            file: Some(self.file(list)),
        }
    }
}

pub(crate) fn authority() -> &'static AuthorityCertificate {
    AUTHORITY.certificate()
}

pub(crate) fn cluster() -> ClusterId {
    AUTHORITY.certificate().cluster_id()
}

pub(crate) fn at(incarnation: u64, epoch: u64) -> Epoch {
    Epoch { incarnation, epoch }
}

/// A list, signed.
pub(crate) fn signed(list: MemberList) -> SignedMemberList {
    list.sign(&AUTHORITY)
}

/// A signed list of these nodes.
pub(crate) fn list(epoch: Epoch, nodes: &[u8]) -> SignedMemberList {
    MemberList::new(cluster(), epoch, nodes.iter().map(|node| Node(*node).entry()).collect()).sign(&AUTHORITY)
}

/// What a peer has, which answers.
pub(crate) struct Peer {
    pub(crate) node: Node,
    pub(crate) list: Option<SignedMemberList>,
    pub(crate) highest: Option<Epoch>,
    pub(crate) floors: Floors,
    pub(crate) word: ClusterWord,
    pub(crate) rate: Rate,
}

impl Peer {
    /// A locked one.
    pub(crate) fn locked(node: u8, list: &SignedMemberList) -> Self {
        Self {
            node: Node(node),
            list: Some(list.clone()),
            highest: Some(list.list().epoch()),
            floors: Floors::default(),
            word: ClusterWord::Unavailable,
            rate: Rate::Within,
        }
    }

    /// Decides, and remembers what is to be remembered.
    pub(crate) fn decide(&mut self, caller: Node, request: &UnlockRequest) -> Decision {
        let share_key = self.node.share_key();
        let holder = Holder {
            id: self.node.id(),
            authority: authority(),
            share_key: &share_key,
            sealing: &Hpke,
            list: self.list.as_ref(),
            highest: self.highest,
            floors: &self.floors,
            counts: None,
        };
        let decision = holder.answer(&caller.join_key(), request, self.word.clone(), self.rate);
        if let Some(list) = &decision.persist {
            self.highest = self.highest.max(Some(list.list().epoch()));
            self.list = Some(list.clone());
        }
        decision
    }

    pub(crate) fn answer(&mut self, caller: Node, request: &UnlockRequest) -> UnlockReply {
        self.decide(caller, request).answer
    }
}
