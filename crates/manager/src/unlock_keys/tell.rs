//! What the keeper of the keys tells: the drills, the cluster, and people.

use polis_condition::Severity;
use polis_roleserve::SplitState;
use polis_supervisor::{Context, with_causes};
use polis_unlock::ClusterUnlockKey;
use polis_unlock_service::{Exercise, Owner};

use super::error::SettleError;
use super::memory::Memory;
use super::plan::{Copied, Demand};
use super::settle::Sight;
use crate::consensus::ConsensusProvider;
use crate::manager::Inner;

/// Name of the condition that the key of this node and the one that the cluster keeps are not in order yet.
const UNLOCK_KEY_UNSETTLED: &str = "unlock-key-unsettled";

/// Name of the condition that the key cannot be split.
const UNLOCK_KEY_NOT_SPLIT: &str = "unlock-key-not-split";

/// Name of the condition that nobody knows yet whether the members would open this node.
const COLD_START_NOT_VERIFIED: &str = "cold-start-not-verified";

/// Name of the condition that the members have failed to open this node, when that was tried.
const COLD_START_DRILL_FAILED: &str = "cold-start-drill-failed";

impl<C: ConsensusProvider> Inner<C> {
    /// Says for the cluster how the key is split, as soon as that is as the newest list asks.
    pub(super) fn publish_split(&self, memory: &Memory, sight: &Sight) {
        let epoch = sight.list.as_ref().map(|list| list.list().epoch());
        let view = &sight.view;
        let state = match (view.demand, epoch) {
            // What was said last is as true as it was.
            (Demand::Unsaid, _) | (_, None) => return,
            (Demand::Guest, _) => None,
            (Demand::Copy, Some(epoch)) => {
                let has_copy = view
                    .copy
                    .is_some_and(|Copied { current, pending }| current == view.opened || pending == Some(view.opened));
                if !has_copy {
                    return;
                }
                let holders = Default::default();
                Some(SplitState { list: epoch, split: epoch, shares_needed: 0, holders, is_verified: true })
            }
            (Demand::Shares { .. }, Some(list)) => {
                let opened = ClusterUnlockKey::new(sight.keys.cluster.clone());
                let fits = view.file.iter().flat_map(|file| [Some(file.current), file.pending]).flatten();
                let fits = fits.filter(|piece| piece.key == view.opened).any(|piece| piece.fits);
                let Some(split) = memory.split_of(&opened).filter(|_| fits) else { return };
                Some(SplitState {
                    list,
                    split: split.epoch,
                    shares_needed: split.scheme.shares_needed(),
                    holders: split.holders.iter().map(|held| held.holder).collect(),
                    is_verified: memory.is_verified(split),
                })
            }
        };
        self.split.send_if_modified(|published| {
            let is_new = *published != state;
            *published = state;
            is_new
        });
    }

    /// Has the first split tried that has not been, of the key that opens the data and of the next one.
    pub(super) fn begin_drill(&self, memory: &mut Memory, sight: &Sight) {
        let Some(member) = &sight.member else { return };
        match sight.view.demand {
            Demand::Shares { .. } => {}
            Demand::Unsaid => return,
            Demand::Copy | Demand::Guest => {
                self.exercise.send_if_modified(|exercise| exercise.take().is_some());
                return;
            }
        }
        let keys = [Some(sight.keys.cluster.clone()), memory.next.clone()].into_iter().flatten();
        let untried = keys.map(ClusterUnlockKey::new).find_map(|key| {
            let split = memory.split_of(&key)?.clone();
            let is_worth_it = !memory.is_verified(&split) && !memory.is_useless(&split);
            is_worth_it.then_some((key, split))
        });
        let Some((key, split)) = untried else { return };
        let Some(number) = memory.begin_drill(&split) else { return };
        let file = memory.file.clone().flatten();
        let owner = Owner { id: member.id, authority: member.authority.clone(), file };
        self.exercise.send_replace(Some(Exercise { number, owner, key }));
    }

    /// Says that the keys are not in order, and why. `is_begun` says whether the key is being replaced.
    pub(super) fn tell_trouble(&self, context: &Context, error: &SettleError, is_begun: bool) {
        match error {
            SettleError::Stopping => {}
            SettleError::Split(error) => context.conditions().raise(
                UNLOCK_KEY_NOT_SPLIT,
                Severity::Warning,
                format!(
                    "the key of this node's data cannot be split among the members, so that they could not open it after a power \
                     failure of all: {}",
                    with_causes(error)
                ),
                "each member reports its share key once it runs this version: update those that do not; the node goes on by itself",
            ),
            SettleError::Data(_)
            | SettleError::Cluster(_)
            | SettleError::NoContact
            | SettleError::NoList
            | SettleError::DoesNotOpen
            | SettleError::ReadBack
            | SettleError::Recoverable(_)
            | SettleError::Disk(_) => {
                let what = if is_begun {
                    "the cluster unlock key of this node is being replaced, which is not finished"
                } else {
                    "the cluster unlock key of this node is not in order yet"
                };
                context.conditions().raise(
                    UNLOCK_KEY_UNSETTLED,
                    Severity::Warning,
                    format!("{what}: {}", with_causes(error)),
                    "nothing is lost by this: a key that opens the data is known whatever happens; it is tried again by itself",
                );
            }
        }
    }

    /// Says that the keys are in order as far as they can be.
    pub(super) fn tell_order(&self, context: &Context) {
        for name in [UNLOCK_KEY_UNSETTLED, UNLOCK_KEY_NOT_SPLIT] {
            context.conditions().clear(name);
        }
    }

    /// Says that a drill waits, and for whom.
    pub(super) fn tell_unverified(&self, context: &Context, has_copy: bool) {
        let waits = self.cold_start.drilling.borrow().describe();
        let meanwhile = if has_copy {
            "until then it keeps a copy of its key beside its own half"
        } else {
            "until then it is not known whether it comes back after a power failure of all members"
        };
        context.conditions().raise(
            COLD_START_NOT_VERIFIED,
            Severity::Warning,
            format!("the other members have not shown yet that they would open the data of this node: {waits}; {meanwhile}"),
            "bring the members up that do not answer, or remove those that do not come back (polis cluster status); the node goes on \
             by itself",
        );
    }

    /// Says that no drill waits any more.
    pub(super) fn tell_verified(&self, context: &Context) {
        for name in [COLD_START_NOT_VERIFIED, COLD_START_DRILL_FAILED] {
            context.conditions().clear(name);
        }
    }

    /// Says that a drill was not passed.
    pub(super) fn tell_failed_drill(&self, context: &Context, reason: &str) {
        context.conditions().raise(
            COLD_START_DRILL_FAILED,
            Severity::Error,
            format!("the other members could not open the data of this node when that was tried: {reason}"),
            "the key is split anew and tried again by itself; keep a quorum of the members running until this is gone",
        );
    }
}
