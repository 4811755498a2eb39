//! What a running node remembers about its keys beside what is durable.

use polis_secret::Secret32;
use polis_unlock::{ClusterUnlockKey, KeyCheckValue, Split, UnlockFile};
use polis_unlock_service::{DrillOutcome, Drilled};

/// What a life of the keeper remembers. Has no `Debug`: it holds a key.
#[derive(Default)]
pub(super) struct Memory {
    /// The key that is to take the place of the present one.
    pub(super) next: Option<Secret32>,
    /// The unlock file as it was read or written last; the outer one is absent until it was read.
    pub(super) file: Option<Option<UnlockFile>>,
    /// The key is to be replaced, and that has not begun.
    pub(super) is_rekey_asked: bool,
    /// A list has named the node.
    pub(super) was_member: bool,
    verified: Vec<Split>,
    /// What others have opened, and what gave no key.
    useless: Option<Split>,
    /// The last exercise, with its number.
    exercise: Option<(u64, Split)>,
    exercises: u64,
}

/// What a drill has shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// Nothing new.
    Nothing,
    /// The split gives the key.
    Verified,
    /// It does not.
    Failed {
        /// Why.
        reason: String,
    },
}

impl Memory {
    pub(super) fn is_verified(&self, split: &Split) -> bool {
        self.verified.contains(split)
    }

    /// Whether the shares of this split were found to give no key.
    pub(super) fn is_useless(&self, split: &Split) -> bool {
        self.useless.as_ref() == Some(split)
    }

    /// The split of this key in the unlock file.
    pub(super) fn split_of(&self, key: &ClusterUnlockKey) -> Option<&Split> {
        let value: KeyCheckValue = key.check_value();
        self.file.as_ref()?.as_ref()?.splits().find(|split| split.check_value == value)
    }

    /// Takes over the file as it is on the disk now.
    pub(super) fn set_file(&mut self, file: Option<UnlockFile>) {
        if let Some(file) = &file {
            self.verified.retain(|split| file.splits().any(|kept| kept == split));
        } else {
            self.verified.clear();
            self.exercise = None;
        }
        self.file = Some(file);
    }

    /// The number of a drill of this split; nothing if that is under way already, or over.
    pub(super) fn begin_drill(&mut self, split: &Split) -> Option<u64> {
        if self.is_verified(split) || self.exercise.as_ref().is_some_and(|(_, exercised)| exercised == split) {
            return None;
        }
        self.exercises += 1;
        self.exercise = Some((self.exercises, split.clone()));
        Some(self.exercises)
    }

    /// Takes in how far the drills are.
    pub(super) fn take_drilled(&mut self, drilled: &Drilled) -> Shown {
        let Some((number, split)) = &self.exercise else { return Shown::Nothing };
        if *number != drilled.exercise {
            return Shown::Nothing;
        }
        let reason = match &drilled.outcome {
            DrillOutcome::NotYet | DrillOutcome::UnderWay => return Shown::Nothing,
            DrillOutcome::Verified(epoch) if *epoch == split.epoch => {
                if self.verified.contains(split) {
                    return Shown::Nothing;
                }
                self.verified.push(split.clone());
                return Shown::Verified;
            }
            DrillOutcome::Verified(epoch) => format!("a split of epoch {epoch} was tried instead"),
            DrillOutcome::Nothing(nothing) => nothing.to_string(),
            DrillOutcome::Failed { reason } => reason.clone(),
        };
        if self.is_useless(split) {
            return Shown::Nothing;
        }
        self.useless = Some(split.clone());
        Shown::Failed { reason }
    }
}

#[cfg(test)]
mod tests;
