//! How far a node is on its way to being open, for people and programs.

use std::net::IpAddr;
use std::time::Duration;

use polis_identity::NodeId;

use crate::Epoch;
use crate::request::{Counts, Reason};

/// How far a node is on its way to being open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Of the key that is nearest; absent when the node knows no split of its key, and only members that run can give it.
    pub counts: Option<Counts>,
    /// What it has of each of the others, ordered by node id.
    pub peers: Vec<PeerProgress>,
    /// The newest member list does not name this node.
    pub not_named: Option<NotNamed>,
    /// Keys that were put together, or came, and do not open the data.
    pub dead_keys: usize,
}

/// What a node has of one other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerProgress {
    /// The other.
    pub node: NodeId,
    /// Where it is looked for.
    pub addresses: Vec<IpAddr>,
    /// What it has last answered; absent before its first answer.
    pub answer: Option<PeerAnswer>,
    /// Tick since which it has not answered; absent if its last request was answered.
    pub silent_since: Option<u64>,
}

/// What a peer has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAnswer {
    /// A good share.
    Share,
    /// A share that is not the one which was made for it.
    BadShare,
    /// A key that opens.
    Key,
    /// A key that is not the one which is looked for.
    WrongKey,
    /// It knows a newer member list.
    NewerMembers,
    /// It knows an older one.
    OlderMembers,
    /// A list that is not to be believed.
    BadList,
    /// Something that was not asked for.
    Nonsense,
    /// Nothing.
    Refused {
        /// Why.
        reason: Reason,
        /// The same for people; may be empty.
        detail: String,
        /// How far it is itself.
        counts: Option<Counts>,
    },
}

/// The newest member list does not name this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotNamed {
    /// Its epoch.
    pub epoch: Epoch,
    /// It is of a later incarnation than any that named the node: the cluster was recovered without it.
    pub is_superseded: bool,
}

impl Progress {
    /// What the node waits for, in one line: who has answered what, and who is silent.
    ///
    /// Silence is counted in ticks: `now` is the present one and `tick` how long one takes on average.
    #[must_use]
    pub fn describe(&self, now: u64, tick: Duration) -> String {
        let mut parts = Vec::new();
        match self.not_named {
            Some(NotNamed { epoch, is_superseded: true }) => {
                parts.push(format!("the cluster was recovered without this node, in epoch {epoch}"));
            }
            Some(NotNamed { epoch, is_superseded: false }) => {
                parts.push(format!("this node is not a consensus member any more, since epoch {epoch} or before"));
            }
            None => {}
        }
        match self.counts {
            Some(Counts { have, need }) => parts.push(format!("unlocked by {have} of {need} peers")),
            None => parts.push("waits for a member that runs".to_owned()),
        }
        if self.dead_keys > 0 {
            parts.push(format!("{} keys do not open the data", self.dead_keys));
        }
        parts.extend(self.peers.iter().filter_map(|peer| peer.describe(now, tick)));
        parts.join("; ")
    }
}

impl PeerProgress {
    /// What is worth saying of the peer; nothing of one that has done what it can.
    fn describe(&self, now: u64, tick: Duration) -> Option<String> {
        let node = self.node;
        if let Some(since) = self.silent_since {
            let addresses: Vec<_> = self.addresses.iter().map(IpAddr::to_string).collect();
            let place = if addresses.is_empty() { String::new() } else { format!(" at {}", addresses.join(", ")) };
            let ticks = u32::try_from(now.saturating_sub(since)).unwrap_or(u32::MAX);
            return Some(format!("no answer from {node}{place} for {} s", tick.saturating_mul(ticks).as_secs()));
        }
        match self.answer.as_ref()? {
            PeerAnswer::Share | PeerAnswer::Key | PeerAnswer::NewerMembers | PeerAnswer::OlderMembers => None,
            PeerAnswer::BadShare => Some(format!("{node} has answered with a share that is wrong")),
            PeerAnswer::WrongKey => Some(format!("{node} has answered with a key that is wrong")),
            PeerAnswer::BadList => {
                Some(format!("{node} has answered with a member list that is not signed by the cluster"))
            }
            PeerAnswer::Nonsense => Some(format!("{node} has answered something that was not asked for")),
            PeerAnswer::Refused { reason, detail, counts } => {
                let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
                let counts = counts.map(|Counts { have, need }| format!(", and has itself {have} of {need}"));
                Some(format!("{node} refuses: {reason}{detail}{}", counts.unwrap_or_default()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;
    use polis_secret::Secret32;

    use super::*;

    #[test]
    fn people_read_who_is_missing_and_for_how_long() {
        let node = |seed| NodeId::of(&NodeKey::from_secret(Secret32::new([seed; 32])).public());
        let peer = |seed, answer, silent_since| PeerProgress {
            node: node(seed),
            addresses: vec![[10, 0, 0, seed].into()],
            answer,
            silent_since,
        };
        let refused = PeerAnswer::Refused {
            reason: Reason::OldShare,
            detail: String::new(),
            counts: Some(Counts { have: 0, need: 2 }),
        };
        let mut progress = Progress {
            counts: Some(Counts { have: 1, need: 2 }),
            peers: vec![peer(2, Some(PeerAnswer::Share), None), peer(3, None, Some(10)), peer(4, Some(refused), None)],
            not_named: None,
            dead_keys: 0,
        };
        assert_eq!(
            progress.describe(170, Duration::from_millis(250)),
            format!(
                "unlocked by 1 of 2 peers; no answer from {} at 10.0.0.3 for 40 s; {} refuses: the share is older than the last \
                 split that this node has reported, and has itself 0 of 2",
                node(3),
                node(4)
            )
        );
        progress.peers.clear();
        progress.counts = None;
        progress.not_named = Some(NotNamed { epoch: Epoch::FIRST, is_superseded: true });
        progress.dead_keys = 2;
        assert_eq!(
            progress.describe(0, Duration::ZERO),
            "the cluster was recovered without this node, in epoch 1.1; waits for a member that runs; 2 keys do not open the data"
        );
    }
}
