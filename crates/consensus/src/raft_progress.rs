//! How far every member is, as the leader's etcd tells it. Pure.
//!
//! etcd's own figures (`/debug/vars`, "raft.status", the same from 3.4 to 3.6) are the only place where it says how far
//! another member has come. They are for people and for caution: what is not there or not understood is unknown.

use std::collections::BTreeMap;

use serde_json::Value;

/// How far a learner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchUp {
    /// Entries that it is known to have; 0 until it has answered for the first time.
    pub matched: u64,
    /// It has come far enough for a vote.
    pub is_ready: bool,
}

/// What raft on this member knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RaftProgress {
    /// Last entry that is committed.
    pub(crate) commit: u64,
    /// By member id, the last entry that it is known to have. Only a leader knows.
    pub(crate) matched: BTreeMap<u64, u64>,
}

impl RaftProgress {
    /// Reads the figures; `None` when they are not there.
    pub(crate) fn parse(variables: &[u8]) -> Option<Self> {
        let variables: Value = serde_json::from_slice(variables).ok()?;
        let status = variables.get("raft.status")?;
        let matched = status.get("progress").and_then(Value::as_object).map(|members| {
            let member = |(id, progress): (&String, &Value)| {
                Some((u64::from_str_radix(id, 16).ok()?, progress.get("match")?.as_u64()?))
            };
            members.iter().filter_map(member).collect()
        });
        Some(Self { commit: status.get("commit")?.as_u64()?, matched: matched.unwrap_or_default() })
    }

    /// How far a member is; `None` when this member does not know.
    pub(crate) fn of(&self, member: u64) -> Option<CatchUp> {
        let matched = *self.matched.get(&member)?;
        // etcd itself asks for nine tenths. Before the member has ever answered it is known to have nothing.
        let is_ready = matched > 0 && matched.saturating_mul(10) >= self.commit.saturating_mul(9);
        Some(CatchUp { matched, is_ready })
    }

    /// Entries by which a member is behind what is committed; `None` when this member does not know.
    pub(crate) fn lag(&self, member: u64) -> Option<u64> {
        Some(self.commit.saturating_sub(*self.matched.get(&member)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_and_what_is_missing_is_unknown() {
        let leader = br#"{"cmdline":["etcd"],"raft.status":{"id":"a","term":2,"commit":9,"raftState":"StateLeader",
            "progress":{"cccce00fd225328f":{"match":9,"next":10,"state":"StateReplicate"},"b":{"match":4}}}}"#;
        let progress = RaftProgress::parse(leader).unwrap();
        assert_eq!(progress.lag(0xcccc_e00f_d225_328f), Some(0));
        assert_eq!(progress.lag(0xb), Some(5));
        assert_eq!(progress.lag(0xc), None);
        let of = |matched, commit| RaftProgress { commit, matched: BTreeMap::from([(1, matched)]) }.of(1).unwrap();
        for (matched, commit, expected) in [(0, 0, false), (0, 9, false), (8, 9, false), (9, 9, true), (9, 10, true)] {
            assert_eq!(of(matched, commit), CatchUp { matched, is_ready: expected });
        }
        assert_eq!(progress.of(0xc), None);
        let follower = br#"{"raft.status":{"id":"a","commit":9,"progress":{}}}"#;
        assert_eq!(RaftProgress::parse(follower).unwrap().lag(0xa), None);
        for nothing in [&b""[..], b"[]", b"{}", br#"{"raft.status":{}}"#, br#"{"raft.status":null}"#] {
            assert_eq!(RaftProgress::parse(nothing), None);
        }
    }
}
