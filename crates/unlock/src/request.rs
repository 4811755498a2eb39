//! What a node asks the others, and what they answer: the checked forms of the messages of `polis.unlock.v1`.

use polis_identity::NodeId;
use polis_proto::curator_state;
use polis_proto::unlock::{self, unlock_request, unlock_response};
use polis_secret::Secret32;

use crate::{ClusterUnlockKey, Epoch, Share};

/// What a node asks another one for.
#[derive(Clone, Debug, PartialEq)]
pub struct UnlockRequest {
    /// Whose key it is about: the caller.
    pub owner: NodeId,
    /// The share that the peer is to open; absent when the caller has none for it.
    pub share: Option<SealedShare>,
    /// Epoch of the caller's member list; absent when it has none.
    pub list_epoch: Option<Epoch>,
    /// What would do.
    pub want: Want,
    /// The caller's member list, for a peer that knows an older one. Not checked yet.
    pub list: Option<curator_state::SignedMemberList>,
}

/// A share, encrypted to the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedShare {
    /// Which one it is.
    pub x: u8,
    /// Epoch for which it was made.
    pub epoch: Epoch,
    /// HPKE.
    pub ciphertext: Vec<u8>,
}

/// What the caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Want {
    /// The key, or a share of it.
    Any,
    /// A share, also from a peer that could give the key.
    Share,
}

/// What a peer answers.
#[derive(Clone, Debug, PartialEq)]
pub enum UnlockReply {
    /// The caller's key.
    Full(ClusterUnlockKey),
    /// The share, opened.
    Share(Share),
    /// The peer knows a newer member list. Not checked yet.
    NewerMembers(curator_state::SignedMemberList),
    /// The peer knows an older list, of this epoch, or none: it is to be shown the caller's.
    OlderMembers(Option<Epoch>),
    /// Nothing.
    Refused(Refusal),
}

/// Why a peer gives nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The same for people, with what is known beyond it; may be empty.
    pub detail: String,
    /// How far the peer itself is, when it is locked too.
    pub counts: Option<Counts>,
}

/// How far a node is on its way to being open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Counts {
    /// Good shares that have come.
    pub have: u8,
    /// Shares that are needed.
    pub need: u8,
}

/// Why a peer gives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Reason {
    /// The peer knows no member with the caller's key.
    #[error("it knows no member with this node's join key")]
    UnknownKey,
    /// The caller's key is not that of the owner that it named.
    #[error("the join key is not that of the node that was named")]
    OtherOwner,
    /// The request makes no sense.
    #[error("it does not understand the request")]
    Malformed,
    /// The ciphertext is no share of this owner, for this peer, of this number and epoch.
    #[error("the share is not one that was made for it")]
    NotForMe,
    /// The owner has split its key anew since.
    #[error("the share is older than the last split that this node has reported")]
    OldShare,
    /// There were more requests than it answers.
    #[error("it was asked too often")]
    TooOften,
    /// The caller is not UP in the cluster.
    #[error("this node is not UP in the cluster")]
    NotUp,
    /// It can answer neither with the key nor with a share now.
    #[error("it has nothing to give at the moment")]
    NothingToGive,
    /// The presented list is not signed by the cluster, or does not name the caller.
    #[error("it does not believe the member list that was shown")]
    BadList,
}

/// A message that is no request or answer.
#[derive(Debug, thiserror::Error)]
pub enum InvalidUnlockMessage {
    /// A field has an impossible value.
    #[error("its field {field} is wrong")]
    Field {
        /// Name of the field in the schema.
        field: &'static str,
    },
}

fn wrong(field: &'static str) -> InvalidUnlockMessage {
    InvalidUnlockMessage::Field { field }
}

fn number(x: u32) -> Result<u8, InvalidUnlockMessage> {
    u8::try_from(x).ok().filter(|x| *x > 0).ok_or(wrong("x"))
}

impl From<UnlockRequest> for unlock::UnlockRequest {
    fn from(request: UnlockRequest) -> Self {
        let UnlockRequest { owner, share, list_epoch, want, list } = request;
        let want = match want {
            Want::Any => unlock_request::Want::Any,
            Want::Share => unlock_request::Want::Share,
        };
        let (x, share_epoch, ciphertext) = match share {
            Some(share) => (share.x.into(), Some(share.epoch.into()), share.ciphertext),
            None => Default::default(),
        };
        Self {
            owner: owner.to_string(),
            x,
            ciphertext,
            share_epoch,
            list_epoch: list_epoch.map(Into::into),
            want: want.into(),
            newer_list: list,
        }
    }
}

impl TryFrom<unlock::UnlockRequest> for UnlockRequest {
    type Error = InvalidUnlockMessage;

    fn try_from(message: unlock::UnlockRequest) -> Result<Self, InvalidUnlockMessage> {
        let want = match message.want() {
            unlock_request::Want::Any => Want::Any,
            unlock_request::Want::Share => Want::Share,
            unlock_request::Want::Invalid => return Err(wrong("want")),
        };
        let unlock::UnlockRequest { owner, x, ciphertext, share_epoch, list_epoch, want: _, newer_list } = message;
        let share = if ciphertext.is_empty() {
            None
        } else {
            let epoch = share_epoch.ok_or(wrong("share_epoch"))?.into();
            Some(SealedShare { x: number(x)?, epoch, ciphertext })
        };
        Ok(Self {
            owner: owner.parse().map_err(|_| wrong("owner"))?,
            share,
            list_epoch: list_epoch.map(Into::into),
            want,
            list: newer_list,
        })
    }
}

impl From<UnlockReply> for unlock::UnlockResponse {
    fn from(reply: UnlockReply) -> Self {
        use unlock_response::Answer;
        let answer = match reply {
            UnlockReply::Full(key) => Answer::Full(key.secret().expose().to_vec()),
            UnlockReply::Share(share) => {
                Answer::Share(unlock::Share { x: share.x().into(), y: share.y().expose().to_vec() })
            }
            UnlockReply::NewerMembers(list) => Answer::NewerMembers(list),
            UnlockReply::OlderMembers(epoch) => {
                Answer::OlderMembers(unlock::OlderMembers { list_epoch: epoch.map(Into::into) })
            }
            UnlockReply::Refused(refusal) => Answer::Refused(refusal.into()),
        };
        Self { answer: Some(answer) }
    }
}

impl TryFrom<unlock::UnlockResponse> for UnlockReply {
    type Error = InvalidUnlockMessage;

    fn try_from(message: unlock::UnlockResponse) -> Result<Self, InvalidUnlockMessage> {
        use unlock_response::Answer;
        let secret =
            |field, bytes: Vec<u8>| Secret32::try_from(&zeroize::Zeroizing::new(bytes)[..]).map_err(|_| wrong(field));
        Ok(match message.answer.ok_or(wrong("answer"))? {
            Answer::Full(key) => Self::Full(ClusterUnlockKey::new(secret("full", key)?)),
            Answer::Share(share) => Self::Share(Share::new(number(share.x)?, secret("share", share.y)?)),
            Answer::NewerMembers(list) => Self::NewerMembers(list),
            Answer::OlderMembers(older) => Self::OlderMembers(older.list_epoch.map(Into::into)),
            Answer::Refused(refused) => Self::Refused(refused.try_into()?),
        })
    }
}

impl From<Refusal> for unlock::Refused {
    fn from(refusal: Refusal) -> Self {
        use unlock::refused::Reason as Wire;
        let reason = match refusal.reason {
            Reason::UnknownKey => Wire::UnknownKey,
            Reason::OtherOwner => Wire::OtherOwner,
            Reason::Malformed => Wire::Malformed,
            Reason::NotForMe => Wire::NotForMe,
            Reason::OldShare => Wire::OldShare,
            Reason::TooOften => Wire::TooOften,
            Reason::NotUp => Wire::NotUp,
            Reason::NothingToGive => Wire::NothingToGive,
            Reason::BadList => Wire::BadList,
        };
        let counts = refusal.counts.map(Into::into);
        Self { reason: reason.into(), detail: refusal.detail, counts }
    }
}

impl TryFrom<unlock::Refused> for Refusal {
    type Error = InvalidUnlockMessage;

    fn try_from(message: unlock::Refused) -> Result<Self, InvalidUnlockMessage> {
        use unlock::refused::Reason as Wire;
        let reason = match message.reason() {
            Wire::Invalid => return Err(wrong("refused.reason")),
            Wire::UnknownKey => Reason::UnknownKey,
            Wire::OtherOwner => Reason::OtherOwner,
            Wire::Malformed => Reason::Malformed,
            Wire::NotForMe => Reason::NotForMe,
            Wire::OldShare => Reason::OldShare,
            Wire::TooOften => Reason::TooOften,
            Wire::NotUp => Reason::NotUp,
            Wire::NothingToGive => Reason::NothingToGive,
            Wire::BadList => Reason::BadList,
        };
        let count = |count: u32| u8::try_from(count).map_err(|_| wrong("refused.counts"));
        let counts = message.counts.map(|counts| Ok(Counts { have: count(counts.have)?, need: count(counts.need)? }));
        Ok(Self { reason, detail: message.detail, counts: counts.transpose()? })
    }
}

impl From<Counts> for unlock::Counts {
    fn from(counts: Counts) -> Self {
        Self { have: counts.have.into(), need: counts.need.into() }
    }
}
