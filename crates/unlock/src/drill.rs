//! The share path, run while it is not needed: a path that is used only in disasters does not work in disasters.

use polis_identity::NodeId;

use crate::collector::{Action, Alarm, Collector, Event, Settings};
use crate::progress::Progress;
use crate::request::UnlockRequest;
use crate::{ClusterUnlockKey, Epoch, SignedMemberList, Split};

/// What a drill wants to be done. Executed in order.
#[derive(Clone, Debug, PartialEq)]
pub enum DrillAction {
    /// Makes a newer member list durable. The key is to be split anew then.
    Persist(SignedMemberList),
    /// Asks a peer.
    Ask {
        /// The peer.
        peer: NodeId,
        /// What to ask.
        request: UnlockRequest,
    },
    /// Tells how far it is.
    Report(Progress),
    /// Something that should not happen.
    Alarm(Alarm),
    /// Enough others have opened their shares, and they give the key: `verified`. The drill is over.
    Verified {
        /// Epoch of the split that was tried.
        epoch: Epoch,
    },
}

/// Collects shares of a key that the node has, and compares. After each boot, and after each split.
pub struct Drill {
    collector: Collector,
    split: Split,
    key: ClusterUnlockKey,
    is_over: bool,
}

/// There is nothing to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDrill {
    /// The node has no unlock file that can be believed.
    #[error("the node has no unlock file")]
    NoFile,
    /// The unlock file is about other keys.
    #[error("the unlock file does not know the key that opens the data")]
    OtherKey,
    /// The key is not split: a copy lies beside the node's own half, and opens with it.
    #[error("the key is not split")]
    Local {
        /// Epoch for which that was decided.
        epoch: Epoch,
    },
}

impl Drill {
    /// A drill for the key that opens the data.
    ///
    /// # Errors
    ///
    /// When there is nothing to try. [`NoDrill::Local`] is as good as a drill that was passed.
    pub fn new(settings: Settings, key: ClusterUnlockKey) -> Result<Self, NoDrill> {
        let file = settings.file.as_ref().ok_or(NoDrill::NoFile)?;
        let value = key.check_value();
        let split = file.splits().find(|split| split.check_value == value).ok_or(NoDrill::OtherKey)?.clone();
        if split.scheme.shares_needed() == 0 {
            return Err(NoDrill::Local { epoch: split.epoch });
        }
        let collector = Collector::for_shares_of(settings, split.clone());
        Ok(Self { collector, split, key, is_over: false })
    }

    /// Takes in what has happened, and says what is to be done. Nothing more once the drill is over.
    pub fn handle(&mut self, event: Event) -> Vec<DrillAction> {
        let actions = if self.is_over { Vec::new() } else { self.collector.handle(event) };
        actions.into_iter().map(|action| self.translate(action)).collect()
    }

    /// The newest member list that it knows.
    #[must_use]
    pub const fn members(&self) -> Option<&SignedMemberList> {
        self.collector.members()
    }

    /// Ticks that have passed.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.collector.now()
    }

    fn translate(&mut self, action: Action) -> DrillAction {
        match action {
            Action::Persist(list) => DrillAction::Persist(list),
            Action::Ask { peer, request } => DrillAction::Ask { peer, request },
            Action::Report(progress) => DrillAction::Report(progress),
            Action::Alarm(alarm) => DrillAction::Alarm(alarm),
            Action::Open { key, proof: _ } => {
                self.is_over = true;
                let epoch = self.split.epoch;
                // The check value has said so already; this is the comparison that the name promises.
                if key == self.key {
                    DrillAction::Verified { epoch }
                } else {
                    DrillAction::Alarm(Alarm::UselessSplit { epoch })
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
