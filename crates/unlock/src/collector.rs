//! The side of the owner: how a node collects what opens its data. Pure: no connections, no clock, no randomness.

use std::collections::{BTreeMap, BTreeSet};

use polis_identity::{AuthorityCertificate, NodeId};
use polis_proto::curator_state;

use crate::progress::{NotNamed, PeerAnswer, PeerProgress, Progress};
use crate::request::{Reason, Refusal, SealedShare, UnlockReply, UnlockRequest, Want};
use crate::share;
use crate::{
    ClusterUnlockKey, Counts, Epoch, KeyCheckValue, Lineage, MemberList, Share, SignedMemberList, Split, UnlockFile,
};

mod peer;

use peer::Peer;

/// Ticks after which a request counts as not answered: 5 s with four ticks a second, as long as a handshake may take.
pub const ANSWER_TICKS: u64 = 20;
/// Longest pause between two requests to a peer: 2 s with four ticks a second, so that a node opens within 5 s of the arrival of the
/// one that was missing.
pub const LONGEST_PAUSE_TICKS: u64 = 8;
/// Most keys that are tried on the word of a member alone: one that makes up more of them is not to be trusted.
const WORDS_LIMIT: usize = 64;

/// What happens to a collector.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Time has passed: about a quarter of a second, which the driver varies at random so that not all nodes ask at once.
    Tick,
    /// There is reason to think that a peer can be reached now.
    PeerUp(NodeId),
    /// A peer has answered.
    Reply(NodeId, UnlockReply),
    /// A peer could not be reached, or has not answered.
    NoAnswer(NodeId),
    /// A list has come in another way. It has been checked.
    MembersChanged(SignedMemberList),
    /// The key that was last to open the data does not.
    DidNotOpen,
}

/// What is to be done. Executed in order: what must be durable comes before what is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Makes a newer member list durable.
    Persist(SignedMemberList),
    /// Asks a peer; its answer, or that there was none, comes as an event.
    Ask {
        /// The peer. Its join key and its addresses are in the newest member list.
        peer: NodeId,
        /// What to ask.
        request: UnlockRequest,
    },
    /// Opens the data with a key. If it is not the right one, [`Event::DidNotOpen`] follows; any other trouble is the driver's.
    Open {
        /// The key.
        key: ClusterUnlockKey,
        /// Why it should be the right one.
        proof: Proof,
    },
    /// Tells people and programs how far it is. Comes whenever that has changed.
    Report(Progress),
    /// Something that should not happen, for the operator.
    Alarm(Alarm),
}

/// Why a key should be the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The unlock file says so.
    CheckValue,
    /// Only a running member says so: the unlock file knows other keys, or there is none. It may be older than the key.
    Word,
}

/// A member has answered what it should not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Alarm {
    /// A share is not the one that was made for the member.
    #[error(
        "{peer} has answered with a share that is wrong: its disk or its memory is damaged, or it is not to be trusted"
    )]
    BadShare {
        /// The member.
        peer: NodeId,
    },
    /// A key is not the one that the unlock file is about.
    #[error(
        "{peer} has answered with a key that is wrong: the cluster keeps another key of this node than the node does"
    )]
    WrongKey {
        /// The member.
        peer: NodeId,
    },
    /// A list is not signed by the cluster.
    #[error("{peer} has answered with a member list that is not signed by the cluster")]
    BadList {
        /// The member.
        peer: NodeId,
    },
    /// All shares are the ones that were made, and give no key: the unlock file is wrong.
    #[error("the shares of epoch {epoch} are whole and give no key, so that the unlock file is wrong")]
    UselessSplit {
        /// Epoch of the split.
        epoch: Epoch,
    },
}

/// What a collector begins with.
pub struct Settings {
    /// The node itself.
    pub id: NodeId,
    /// The authority of its cluster.
    pub authority: AuthorityCertificate,
    /// The newest list that the node has; none when it has lost it, so that it can ask nobody before one comes.
    pub members: Option<SignedMemberList>,
    /// Its unlock file; none when it has none that can be believed, so that only members that run can help.
    pub file: Option<UnlockFile>,
}

/// How a node collects what opens its data. It never gives up.
pub struct Collector {
    id: NodeId,
    authority: AuthorityCertificate,
    members: Option<SignedMemberList>,
    want: Want,
    now: u64,
    collections: Vec<Collection>,
    peers: BTreeMap<NodeId, Peer>,
    /// Keys that do not open.
    dead: BTreeSet<KeyCheckValue>,
    /// A key that is being tried. Nobody is asked meanwhile.
    trying: Option<KeyCheckValue>,
    /// Epoch of the newest list of a recovered cluster that does not name the node, and that it does not take over.
    superseded: Option<Epoch>,
    reported: Option<Progress>,
}

/// The shares of one key.
struct Collection {
    split: Split,
    shares: BTreeMap<NodeId, Share>,
    is_useless: bool,
}

impl Collector {
    /// A collector that has asked nobody yet: it begins with the first event.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let splits = settings.file.iter().flat_map(UnlockFile::splits).cloned().collect();
        Self::for_splits(settings, splits, Want::Any)
    }

    /// One that takes nothing but shares of this key.
    pub(crate) fn for_shares_of(settings: Settings, split: Split) -> Self {
        Self::for_splits(settings, vec![split], Want::Share)
    }

    fn for_splits(settings: Settings, splits: Vec<Split>, want: Want) -> Self {
        let Settings { id, authority, members, file: _ } = settings;
        let collect = |split| Collection { split, shares: BTreeMap::new(), is_useless: false };
        let mut collector = Self {
            id,
            authority,
            members,
            want,
            now: 0,
            collections: splits.into_iter().map(collect).collect(),
            peers: BTreeMap::new(),
            dead: BTreeSet::new(),
            trying: None,
            superseded: None,
            reported: None,
        };
        collector.follow_members();
        collector
    }

    /// Ticks that have passed, on which [`PeerProgress::silent_since`] stands.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// The newest member list that it knows: where the peers are that it asks.
    #[must_use]
    pub const fn members(&self) -> Option<&SignedMemberList> {
        self.members.as_ref()
    }

    /// Takes in what has happened, and says what is to be done.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Tick => {
                self.now += 1;
                let now = self.now;
                self.peers.values_mut().for_each(|peer| peer.pass_time(now));
            }
            Event::PeerUp(node) => {
                let now = self.now;
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.is_up(now);
                }
            }
            Event::NoAnswer(node) => {
                let now = self.now;
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.is_silent(now);
                }
            }
            Event::Reply(node, reply) => self.take_reply(node, reply, &mut actions),
            Event::MembersChanged(list) => self.take_list(list, &mut actions),
            Event::DidNotOpen => {
                self.dead.extend(self.trying.take());
            }
        }
        self.open_if_complete(&mut actions);
        self.ask(&mut actions);
        self.report(&mut actions);
        actions
    }

    fn take_reply(&mut self, node: NodeId, reply: UnlockReply, actions: &mut Vec<Action>) {
        let now = self.now;
        // A peer that is not on the list any more, or one that was not asked: what it says is not waited for.
        let Some(asked) = self.peers.get_mut(&node).and_then(|peer| peer.answered(now)) else { return };
        let answer = match reply {
            UnlockReply::Full(key) => self.take_key(node, key, actions),
            UnlockReply::Share(share) => self.take_share(node, asked.collection, share, actions),
            UnlockReply::NewerMembers(wire) => self.take_newer(node, wire, actions),
            UnlockReply::OlderMembers(_) => PeerAnswer::OlderMembers,
            UnlockReply::Refused(Refusal { reason, detail, counts }) => PeerAnswer::Refused { reason, detail, counts },
        };
        let collections = self.collections.len();
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.judge(answer, asked, now, collections);
        }
    }

    fn take_key(&mut self, node: NodeId, key: ClusterUnlockKey, actions: &mut Vec<Action>) -> PeerAnswer {
        match self.want {
            Want::Share => return PeerAnswer::Nonsense,
            Want::Any => {}
        }
        let value = key.check_value();
        let is_listed = self.collections.iter().any(|collection| collection.split.check_value == value);
        if self.dead.contains(&value) {
            return PeerAnswer::WrongKey;
        }
        if !is_listed && !self.collections.is_empty() {
            actions.push(Action::Alarm(Alarm::WrongKey { peer: node }));
        }
        // A key that the unlock file does not know is tried as well, though it is not relied on: the file may be from last week, and
        // a wrong key destroys nothing.
        let proof = if is_listed { Proof::CheckValue } else { Proof::Word };
        if self.trying.is_none() && (is_listed || self.dead.len() < WORDS_LIMIT) {
            self.trying = Some(value);
            actions.push(Action::Open { key, proof });
        }
        if is_listed || self.collections.is_empty() { PeerAnswer::Key } else { PeerAnswer::WrongKey }
    }

    fn take_share(
        &mut self,
        node: NodeId,
        collection: Option<usize>,
        share: Share,
        actions: &mut Vec<Action>,
    ) -> PeerAnswer {
        let collection = collection.and_then(|index| self.collections.get_mut(index));
        let Some((collection, held)) = collection.and_then(|collection| {
            let held = collection.split.held_by(&node)?.clone();
            Some((collection, held))
        }) else {
            return PeerAnswer::Nonsense;
        };
        if share.x() != held.x || share.hash() != held.hash {
            actions.push(Action::Alarm(Alarm::BadShare { peer: node }));
            return PeerAnswer::BadShare;
        }
        collection.shares.insert(node, share);
        PeerAnswer::Share
    }

    fn take_newer(
        &mut self,
        node: NodeId,
        wire: curator_state::SignedMemberList,
        actions: &mut Vec<Action>,
    ) -> PeerAnswer {
        match SignedMemberList::verify(wire, &self.authority) {
            Ok(list) => {
                if self.hear_of(list, actions) {
                    PeerAnswer::NewerMembers
                } else {
                    // Such a peer has nothing for this node, however often it is asked.
                    let detail = "it is of a cluster that was recovered without this node, or apart from it".to_owned();
                    PeerAnswer::Refused { reason: Reason::NothingToGive, detail, counts: None }
                }
            }
            Err(_) => {
                actions.push(Action::Alarm(Alarm::BadList { peer: node }));
                PeerAnswer::BadList
            }
        }
    }

    /// The newer list wins, unless it is of a cluster that was recovered without this node or apart from it. Those whom its own list names are the ones
    /// who hold its shares, and they may well live: a member that was only cut off has become that cluster. Returns whether the list is of
    /// this node's own cluster.
    fn hear_of(&mut self, list: SignedMemberList, actions: &mut Vec<Action>) -> bool {
        if self.members.as_ref().is_some_and(|known| is_of_others(list.list(), known.list(), &self.id)) {
            self.superseded = self.superseded.max(Some(list.list().epoch()));
            return false;
        }
        self.take_list(list, actions);
        true
    }

    /// The newer list wins.
    fn take_list(&mut self, list: SignedMemberList, actions: &mut Vec<Action>) {
        let known = self.members.as_ref().map(|known| known.list().epoch());
        if known.is_some_and(|known| known >= list.list().epoch()) {
            return;
        }
        if known.is_some_and(|known| list.list().supersedes(known, &self.id)) {
            self.superseded = self.superseded.max(Some(list.list().epoch()));
        }
        let ends = |superseded: Epoch| list.list().epoch() >= superseded && list.list().member(&self.id).is_some();
        self.superseded = self.superseded.filter(|superseded| !ends(*superseded));
        actions.push(Action::Persist(list.clone()));
        self.members = Some(list);
        self.follow_members();
    }

    /// Asks those who are on the newest list.
    fn follow_members(&mut self) {
        let Some(members) = &self.members else { return };
        let others = members.list().members().iter().map(|member| member.node_id).filter(|node| *node != self.id);
        let mut before = std::mem::take(&mut self.peers);
        let now = self.now;
        self.peers = others.map(|node| (node, before.remove(&node).unwrap_or_else(|| Peer::new(now)))).collect();
    }

    fn open_if_complete(&mut self, actions: &mut Vec<Action>) {
        for collection in &mut self.collections {
            if self.trying.is_some() {
                return;
            }
            let value = collection.split.check_value;
            let Some(key) = collection.key().filter(|_| !self.dead.contains(&value)) else { continue };
            if key.check_value() == value {
                self.trying = Some(value);
                actions.push(Action::Open { key, proof: Proof::CheckValue });
            } else {
                collection.is_useless = true;
                actions.push(Action::Alarm(Alarm::UselessSplit { epoch: collection.split.epoch }));
            }
        }
    }

    fn ask(&mut self, actions: &mut Vec<Action>) {
        let (now, want) = (self.now, self.want);
        if self.trying.is_some() {
            return;
        }
        let list_epoch = self.members.as_ref().map(|members| members.list().epoch());
        for (node, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.is_due(now)) {
            let lacking = |index: &usize| self.collections[*index].lacks(node, &self.dead);
            let collection = peer.order(self.collections.len()).find(lacking);
            let want = match want {
                Want::Any if peer.gives_wrong_keys() && collection.is_some() => Want::Share,
                Want::Any => Want::Any,
                Want::Share if collection.is_some() => Want::Share,
                // A drill wants no more of this one.
                Want::Share => continue,
            };
            let share = collection.and_then(|index| {
                let split = &self.collections[index].split;
                let held = split.held_by(node)?;
                Some(SealedShare { x: held.x, epoch: split.epoch, ciphertext: held.ciphertext.clone() })
            });
            let list = self.members.as_ref().filter(|_| peer.wants_list()).map(|members| members.wire().clone());
            peer.ask(now, collection, list.is_some());
            let request = UnlockRequest { owner: self.id, share, list_epoch, want, list };
            actions.push(Action::Ask { peer: *node, request });
        }
    }

    fn report(&mut self, actions: &mut Vec<Action>) {
        let progress = self.progress();
        if self.reported.as_ref() != Some(&progress) {
            self.reported = Some(progress.clone());
            actions.push(Action::Report(progress));
        }
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let list = self.members.as_ref().map(SignedMemberList::list);
        let addresses = |node| list.and_then(|list| list.member(node)).map(|member| member.addresses.clone());
        let peers = self.peers.iter().map(|(node, peer)| PeerProgress {
            node: *node,
            addresses: addresses(node).unwrap_or_default(),
            answer: peer.answer().cloned(),
            silent_since: peer.silent_since(),
        });
        let not_named = list
            .filter(|list| list.member(&self.id).is_none())
            .map(|list| NotNamed { epoch: list.epoch(), is_superseded: false });
        let not_named = self.superseded.map(|epoch| NotNamed { epoch, is_superseded: true }).or(not_named);
        let nearest = self.collections.iter().filter(|collection| !collection.is_spent(&self.dead));
        Progress {
            counts: nearest.map(Collection::counts).min_by_key(|counts| counts.need.saturating_sub(counts.have)),
            peers: peers.collect(),
            not_named,
            dead_keys: self.dead.len(),
        }
    }
}

impl Collection {
    /// Whether a share of this holder would help.
    fn lacks(&self, holder: &NodeId, dead: &BTreeSet<KeyCheckValue>) -> bool {
        !self.is_spent(dead) && !self.shares.contains_key(holder) && self.split.held_by(holder).is_some()
    }

    fn is_spent(&self, dead: &BTreeSet<KeyCheckValue>) -> bool {
        self.is_useless || dead.contains(&self.split.check_value)
    }

    fn counts(&self) -> Counts {
        Counts { have: u8::try_from(self.shares.len()).unwrap_or(u8::MAX), need: self.split.scheme.shares_needed() }
    }

    /// What the shares give, once there are enough.
    fn key(&self) -> Option<ClusterUnlockKey> {
        let needed = usize::from(self.split.scheme.shares_needed());
        if self.is_useless || self.shares.len() < needed {
            return None;
        }
        share::combine(self.split.scheme, &self.shares.values().take(needed).collect::<Vec<_>>())
    }
}

/// Whether a list is of a cluster that was recovered without this node, which knows another list, or apart from its own.
fn is_of_others(list: &MemberList, known: &MemberList, own: &NodeId) -> bool {
    list.supersedes(known.epoch(), own) || list.lineage(known) == Lineage::Parted
}

#[cfg(test)]
mod tests;
