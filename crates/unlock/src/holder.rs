//! The side of a peer: what it answers to a member that asks for its key.

use std::collections::BTreeMap;

use polis_identity::{AuthorityCertificate, NodeId, PublicKey, ShareKey};

use crate::request::{Counts, Reason, Refusal, SealedShare, UnlockReply, UnlockRequest, Want};
use crate::sealing::{Binding, Sealing};
use crate::{ClusterUnlockKey, Epoch, Lineage, MemberEntry, Share, SignedMemberList};

/// What a node has at hand when it is asked. It is enough to answer while the node is locked.
pub struct Holder<'a> {
    /// The node itself.
    pub id: NodeId,
    /// The authority of its cluster.
    pub authority: &'a AuthorityCertificate,
    /// Key to which the shares of others are encrypted.
    pub share_key: &'a ShareKey,
    /// How they are.
    pub sealing: &'a dyn Sealing,
    /// The newest list that it has; `None` when it has lost it.
    pub list: Option<&'a SignedMemberList>,
    /// Highest epoch that it has ever seen, which is under its seal. A list that is older was put back by somebody.
    pub highest: Option<Epoch>,
    /// Below which epochs it opens shares no more.
    pub floors: &'a Floors,
    /// How far it is itself, while it is locked.
    pub counts: Option<Counts>,
}

/// Oldest epoch, for each owner, for which a share is still opened: that of the split which the owner has last reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Floors(BTreeMap<NodeId, Epoch>);

/// What the running cluster says about the caller, from a read with quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterWord {
    /// Nothing: this node is locked, or has no quorum.
    Unavailable,
    /// The node is UP, and this is its key.
    Key(ClusterUnlockKey),
    /// The node is not UP.
    NotUp,
}

/// Whether the caller has kept to what one caller may ask for in a time. The clock is the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// It has.
    Within,
    /// It has asked for more than this many a minute.
    Exceeded {
        /// The limit.
        per_minute: u32,
    },
}

/// An answer, and what comes before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Must be durable before the answer is sent, and is what the node knows from then on, whatever the answer. If it cannot be made
    /// durable, nothing is sent.
    pub persist: Option<SignedMemberList>,
    /// The answer.
    pub answer: UnlockReply,
}

impl Floors {
    /// The floor of this owner.
    #[must_use]
    pub fn of(&self, owner: &NodeId) -> Option<Epoch> {
        self.0.get(owner).copied()
    }

    /// Raises the floor of an owner, which has reported a split of this epoch. Returns whether that changed anything: a floor never
    /// sinks.
    pub fn raise(&mut self, owner: NodeId, epoch: Epoch) -> bool {
        let floor = self.0.entry(owner).or_insert(epoch);
        let raised = *floor < epoch;
        *floor = epoch.max(*floor);
        raised
    }

    /// Every floor, ordered by node id.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, &Epoch)> {
        self.0.iter()
    }
}

impl FromIterator<(NodeId, Epoch)> for Floors {
    fn from_iter<I: IntoIterator<Item = (NodeId, Epoch)>>(floors: I) -> Self {
        let mut all = Self::default();
        for (owner, epoch) in floors {
            all.raise(owner, epoch);
        }
        all
    }
}

impl Holder<'_> {
    /// Decides what is answered to the caller with this join key.
    ///
    /// The checks are those of `cold-start.md`, "Protocol", in their order. A caller that is UP is given its key by a running cluster
    /// whatever the age of its share and of its list, as the cluster's word is newer than both.
    #[must_use]
    pub fn answer(&self, caller: &PublicKey, request: &UnlockRequest, word: ClusterWord, rate: Rate) -> Decision {
        let shown = match self.look_at_shown(caller, request, rate) {
            Ok(shown) => shown,
            Err(answer) => return Decision { persist: None, answer },
        };
        let answer = self.answer_by(shown.as_ref().or(self.list), caller, request, word, rate);
        Decision { persist: shown, answer }
    }

    /// The list that the caller has shown, if it is one to take over. This is the one thing that an unknown key may do: show a list
    /// that the cluster has signed and that names it. If it is older than the holder's, the caller was a member, and may see the newer one.
    fn look_at_shown(
        &self,
        caller: &PublicKey,
        request: &UnlockRequest,
        rate: Rate,
    ) -> Result<Option<SignedMemberList>, UnlockReply> {
        let Some(shown) = &request.list else { return Ok(None) };
        let is_member = self.list.is_some_and(|list| entry(list, caller).is_some());
        if !is_member && let Rate::Exceeded { per_minute } = rate {
            return Err(too_often(per_minute));
        }
        let shown = SignedMemberList::verify(shown.clone(), self.authority)
            .map_err(|invalid| refused(Reason::BadList, invalid.to_string()))?;
        if !is_member && entry(&shown, caller).is_none() {
            return Err(refused(Reason::BadList, "it does not name the node that shows it"));
        }
        let epoch = shown.list().epoch();
        let known = self.list.map(|list| list.list().epoch()).max(self.highest);
        // Whom the caller has lost, it has lost: this node stays with those of its own list.
        let is_parted = self.list.is_some_and(|list| shown.list().lineage(list.list()) == Lineage::Parted);
        if is_parted || known.is_some_and(|known| shown.list().supersedes(known, &self.id)) {
            return Err(refused(
                Reason::BadList,
                "it is that of a cluster that was recovered without the node that is asked",
            ));
        }
        match self.list {
            Some(known) if known.list().epoch() < epoch => Ok(Some(shown)),
            Some(known) if !is_member => Err(UnlockReply::NewerMembers(known.wire().clone())),
            Some(_) => Ok(None),
            // Lost, or not yet received; but never older than what was seen.
            None if self.highest.is_none_or(|highest| highest <= epoch) => Ok(Some(shown)),
            None => Err(self.nothing_to_give(STALE)),
        }
    }

    fn answer_by(
        &self,
        list: Option<&SignedMemberList>,
        caller: &PublicKey,
        request: &UnlockRequest,
        word: ClusterWord,
        rate: Rate,
    ) -> UnlockReply {
        let Some((list, member)) = list.and_then(|list| Some((list, entry(list, caller)?))) else {
            return refused(Reason::UnknownKey, "");
        };
        if member.node_id != request.owner {
            return refused(Reason::OtherOwner, format!("the key is that of {}", member.node_id));
        }
        match (word, request.want, rate) {
            (ClusterWord::NotUp, Want::Any | Want::Share, _) => return refused(Reason::NotUp, ""),
            (ClusterWord::Key(_), Want::Any, Rate::Exceeded { per_minute }) => return too_often(per_minute),
            (ClusterWord::Key(key), Want::Any, Rate::Within) => return UnlockReply::Full(key),
            (ClusterWord::Key(_), Want::Share, _) | (ClusterWord::Unavailable, Want::Any | Want::Share, _) => {}
        }
        let epoch = list.list().epoch();
        if request.list_epoch.is_none_or(|callers| callers < epoch) {
            return UnlockReply::NewerMembers(list.wire().clone());
        }
        if request.list_epoch.is_some_and(|callers| callers > epoch) {
            return UnlockReply::OlderMembers(Some(epoch));
        }
        if self.highest.is_some_and(|highest| highest > epoch) {
            return self.nothing_to_give(STALE);
        }
        let Some(sealed) = &request.share else { return self.nothing_to_give("no share was made for it") };
        match self.open(list, request.owner, sealed) {
            None => refused(Reason::NotForMe, ""),
            Some(_) if self.floors.of(&request.owner).is_some_and(|floor| sealed.epoch < floor) => {
                refused(Reason::OldShare, "")
            }
            Some(share) => match rate {
                Rate::Within => UnlockReply::Share(share),
                Rate::Exceeded { per_minute } => too_often(per_minute),
            },
        }
    }

    fn open(&self, list: &SignedMemberList, owner: NodeId, sealed: &SealedShare) -> Option<Share> {
        let SealedShare { x, epoch, ciphertext } = sealed;
        let cluster = *list.list().cluster_id();
        let binding = Binding { cluster, owner, holder: self.id, x: *x, epoch: *epoch };
        Some(Share::new(*x, self.sealing.open(self.share_key, &binding, ciphertext)?))
    }

    fn nothing_to_give(&self, detail: &str) -> UnlockReply {
        let refusal = Refusal { reason: Reason::NothingToGive, detail: detail.to_owned(), counts: self.counts };
        UnlockReply::Refused(refusal)
    }
}

const STALE: &str = "its member list is older than one that it has seen, and it waits for a newer one";

/// The member with this join key.
fn entry<'a>(list: &'a SignedMemberList, join_key: &PublicKey) -> Option<&'a MemberEntry> {
    list.list().members().iter().find(|member| member.join_key == *join_key)
}

fn refused(reason: Reason, detail: impl Into<String>) -> UnlockReply {
    UnlockReply::Refused(Refusal { reason, detail: detail.into(), counts: None })
}

fn too_often(per_minute: u32) -> UnlockReply {
    refused(Reason::TooOften, format!("it answers {per_minute} requests a minute"))
}

#[cfg(test)]
mod tests;
