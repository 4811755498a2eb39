//! How many machines it takes: the table of `cold-start.md`, "Threshold", as functions.
//!
//! As many as etcd needs for its own quorum, of whom the owner of a key is one: a lower threshold would buy no availability, and a
//! higher one would lose some.

use std::num::NonZeroU8;

use crate::{MemberList, Standing};

/// Most voters that a cluster may have. With more, each change costs raft more than the cluster gains.
pub const VOTERS_LIMIT: usize = 9;

/// Voters that must be up for the consensus to work.
#[must_use]
pub const fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

/// How a cluster unlock key is kept by others than the running cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// Not at all: a copy lies beside the node's own half, under the same seal.
    Local,
    /// Each holder has the key itself, encrypted.
    Copies,
    /// Each holder has a share by Shamir.
    Shamir {
        /// Shares that give the key: two or more.
        needed: NonZeroU8,
    },
}

/// A number of voters for which there is no scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoScheme {
    /// There are none.
    #[error("there is no consensus without a voter")]
    NoVoters,
    /// There are too many.
    #[error("{voters} voters are more than the {VOTERS_LIMIT} that a cluster may have")]
    TooMany {
        /// How many.
        voters: usize,
    },
}

impl Scheme {
    /// The scheme of a cluster with this many voters. Two keep local copies until an operator has confirmed that they are to stay two:
    /// every growth to three passes two, where a dead joiner must not cost the founder its data.
    ///
    /// # Errors
    ///
    /// When there is none for this number.
    pub const fn of(voters: usize, two_confirmed: bool) -> Result<Self, NoScheme> {
        match voters {
            0 => Err(NoScheme::NoVoters),
            1 => Ok(Self::Local),
            2 if !two_confirmed => Ok(Self::Local),
            3..=VOTERS_LIMIT | 2 => Ok(Self::with_shares(quorum(voters) as u8 - 1)),
            _ => Err(NoScheme::TooMany { voters }),
        }
    }

    /// The scheme while voters change from `before` to `after`: the one that needs the fewer shares, so that every quorum of either
    /// opens (`cold-start.md`, "Membership change", B). Without a change, both are the same.
    ///
    /// # Errors
    ///
    /// When there is no scheme for one of the numbers.
    pub fn during(before: usize, after: usize, two_confirmed: bool) -> Result<Self, NoScheme> {
        Ok(Self::of(before, two_confirmed)?.min(Self::of(after, two_confirmed)?))
    }

    /// The scheme that a member list asks of one member.
    ///
    /// One that leaves keeps that of the voters before: after the change nobody needs it to open, and the fewer shares its key takes,
    /// the longer it could still open after its removal (`cold-start.md`, "Membership change", E).
    ///
    /// # Errors
    ///
    /// When the list has voters for which there is no scheme.
    pub fn for_member(list: &MemberList, standing: Standing) -> Result<Self, NoScheme> {
        let (before, after) = (list.voters_before().count(), list.voters_after().count());
        match standing {
            Standing::Stays | Standing::Joins => Self::during(before, after, list.is_two_confirmed()),
            Standing::Leaves => Self::of(before, list.is_two_confirmed()),
        }
    }

    /// Shares that give the key.
    #[must_use]
    pub const fn shares_needed(self) -> u8 {
        match self {
            Self::Local => 0,
            Self::Copies => 1,
            Self::Shamir { needed } => needed.get(),
        }
    }

    /// The scheme with which so many shares give the key.
    #[must_use]
    pub const fn with_shares(needed: u8) -> Self {
        match NonZeroU8::new(needed) {
            None => Self::Local,
            Some(NonZeroU8::MIN) => Self::Copies,
            Some(needed) => Self::Shamir { needed },
        }
    }

    /// What it means for a cold start, for people.
    #[must_use]
    pub fn describe(self, voters: usize) -> String {
        match self {
            Self::Local => "local: the node opens its data alone, protected by its own seal only".to_owned(),
            Self::Copies | Self::Shamir { .. } => {
                format!("{} members, any {} open", voters, self.shares_needed() + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests;
