//! How far an unlock or a drill is, for people and programs.

use std::collections::BTreeMap;
use std::time::Duration;

use polis_identity::NodeId;
use polis_unlock::{Alarm, PeerAnswer, Progress};
use tokio::time::Instant;

use crate::peers::Peers;

/// Most alarms that are remembered: more than there are peers.
const MAX_ALARMS: usize = 32;

/// The unit in which silence is told.
const SECOND: Duration = Duration::from_secs(1);

/// How far an unlock or a drill is. It is published whenever it changes, which is every second at least.
#[derive(Clone, Debug, PartialEq)]
pub struct UnlockStatus {
    /// What it has and needs. Addresses are those where peers are really looked for, and
    /// [`silent_since`](polis_unlock::PeerProgress::silent_since) counts in seconds, not in ticks, of [`UnlockStatus::seconds`].
    pub progress: Progress,
    /// How long it has been going on, in seconds.
    pub seconds: u64,
    /// Why silent peers are: what happened when they were last asked.
    pub failures: BTreeMap<NodeId, String>,
    /// What should not happen and did, each once, the first ones.
    pub alarms: Vec<Alarm>,
}

impl UnlockStatus {
    /// What the node waits for, in one line.
    #[must_use]
    pub fn describe(&self) -> String {
        self.progress.describe(self.seconds, SECOND)
    }

    pub(crate) fn add_alarm(&mut self, alarm: Alarm) -> bool {
        let is_new = self.alarms.len() < MAX_ALARMS && !self.alarms.contains(&alarm);
        if is_new {
            self.alarms.push(alarm);
        }
        is_new
    }

    /// Puts what the collector cannot know into what it reports: the time, and where peers are looked for.
    pub(crate) fn refresh(&mut self, peers: &Peers, began: Instant, now: Instant) {
        self.seconds = now.duration_since(began).as_secs();
        self.failures.clear();
        for progress in &mut self.progress.peers {
            let silence = peers.silence(&progress.node);
            progress.addresses = peers.addresses(&progress.node);
            progress.silent_since = silence.map(|silence| silence.since.duration_since(began).as_secs());
            if let Some(silence) = silence {
                self.failures.insert(progress.node, silence.failure.clone());
            }
        }
    }
}

impl Default for UnlockStatus {
    /// That of one that has not begun.
    fn default() -> Self {
        let progress = Progress { counts: None, peers: Vec::new(), not_named: None, dead_keys: 0 };
        Self { progress, seconds: 0, failures: BTreeMap::new(), alarms: Vec::new() }
    }
}

/// What a peer has answered, for people who ask it.
pub(crate) fn describe_answer(answer: &PeerAnswer) -> String {
    match answer {
        PeerAnswer::Share => "a share".to_owned(),
        PeerAnswer::BadShare => "a share that is wrong".to_owned(),
        PeerAnswer::Key => "a key".to_owned(),
        PeerAnswer::WrongKey => "a key that is wrong".to_owned(),
        PeerAnswer::NewerMembers => "a newer member list".to_owned(),
        PeerAnswer::OlderMembers => "it knows an older member list".to_owned(),
        PeerAnswer::BadList => "a member list that is not signed by the cluster".to_owned(),
        PeerAnswer::Nonsense => "something that was not asked for".to_owned(),
        PeerAnswer::Refused { reason, detail, .. } if detail.is_empty() => format!("refused: {reason}"),
        PeerAnswer::Refused { reason, detail, .. } => format!("refused: {reason} ({detail})"),
    }
}
