//! From what was seen of etcd to what is said about it: phase and faults. Pure; time comes in from outside.

use std::time::Duration;

use tokio::time::Instant;

use crate::fault::Fault;
use crate::status::{Member, Phase, Status};

/// Time between two checks when etcd's log gives no reason for one. The plan's number.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long an answer to a check may take. etcd answers it from memory, so that only one that hangs needs this long.
pub(crate) const CHECK_DEADLINE: Duration = Duration::from_secs(3);

/// How long etcd may be silent before it counts as hanging: one interval and the deadline of its check.
pub const HANGING_AFTER: Duration = Duration::from_secs(8);

/// How long a cluster may be without a leader before that is a condition. An election takes one or two seconds with
/// network timing.
pub const LEADERLESS_AFTER: Duration = Duration::from_secs(3);

/// What is known about the child process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Child {
    /// The run that is on, if etcd runs.
    pub(crate) run: Option<Run>,
    /// Counts lines that hint at a change.
    pub(crate) hints: u64,
}

/// One run of etcd.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// `None` for the moment in which its first lines are read before its start has returned.
    pub(crate) process_id: Option<u32>,
    pub(crate) started: Instant,
    /// It has said that it serves clients.
    pub(crate) serving: bool,
    /// Since when it has been looking for a leader, by its log.
    pub(crate) electing_since: Option<Instant>,
    /// It has complained about a full disk.
    pub(crate) no_space: bool,
}

impl Run {
    /// A run of which nothing is known yet.
    pub(crate) const fn new(started: Instant) -> Self {
        Self { process_id: None, started, serving: false, electing_since: None, no_space: false }
    }
}

/// An answer to a check.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) member_id: u64,
    pub(crate) is_learner: bool,
    /// 0 is none.
    pub(crate) leader: u64,
    pub(crate) raft_term: u64,
    pub(crate) members: Vec<Member>,
    /// A linearizable read was answered, now or earlier in this run.
    pub(crate) has_read: bool,
    /// etcd's alarm about its quota.
    pub(crate) no_space: bool,
}

/// How long after an answer that says that etcd is nearly ready it is asked again.
const ALMOST_READY_PAUSE: Duration = Duration::from_millis(50);

/// What is remembered between observations, most of it for the time of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    /// The run that this is about, by its start.
    run: Option<Instant>,
    /// The disk was full in this run or an earlier one, and etcd was not ready on another since. It outlasts a run: etcd
    /// dies of a full disk.
    disk_was_full: bool,
    last_answer: Option<(Instant, Answer)>,
    leaderless_since: Option<Instant>,
}

/// What follows from an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) phase: Phase,
    pub(crate) faults: Vec<Fault>,
    /// When to look again even if nothing is heard; `None`: not before something is heard.
    pub(crate) again_at: Option<Instant>,
}

impl Health {
    /// Takes in the state of the child and, if one was made, the outcome of a check.
    pub(crate) fn observe(&mut self, now: Instant, child: &Child, checked: Option<Option<Answer>>, data: &str) -> Verdict {
        let started = child.run.as_ref().map(|run| run.started);
        if self.run != started {
            *self = Self { run: started, disk_was_full: self.disk_was_full, ..Self::default() };
        }
        let Some(run) = &child.run else {
            return Verdict { phase: Phase::Down, faults: self.disk_full(None, data).into_iter().collect(), again_at: None };
        };
        if let Some(Some(answer)) = checked {
            self.leaderless_since = if answer.leader == 0 { self.leaderless_since.or(Some(now)) } else { None };
            self.last_answer = Some((now, answer));
        }
        self.disk_was_full |= run.no_space;
        let verdict = self.judge(now, run, data);
        if verdict.phase == Phase::Ready && !run.no_space {
            self.disk_was_full = false;
        }
        verdict
    }

    /// Whether a linearizable read was answered in this run.
    pub(crate) fn has_read(&self) -> bool {
        self.answer().is_some_and(|answer| answer.has_read)
    }

    /// Whether etcd has answered in this run.
    pub(crate) fn has_answered(&self) -> bool {
        self.last_answer.is_some()
    }

    fn answer(&self) -> Option<&Answer> {
        self.last_answer.as_ref().map(|(_, answer)| answer)
    }

    fn judge(&self, now: Instant, run: &Run, data: &str) -> Verdict {
        let heard = self.last_answer.as_ref().map_or(run.started, |(at, _)| *at);
        // Without a quorum, an etcd that was just started serves nobody: that is no hanging.
        let electing = if self.last_answer.is_none() { run.electing_since } else { self.leaderless_since };
        let hanging = now.saturating_duration_since(heard) >= HANGING_AFTER && !(self.last_answer.is_none() && electing.is_some());
        let leaderless = electing.is_some_and(|since| now.saturating_duration_since(since) >= LEADERLESS_AFTER);
        let phase = match self.answer() {
            _ if hanging => Phase::Hanging,
            None if leaderless => Phase::Leaderless,
            None => Phase::Starting,
            Some(answer) if answer.leader == 0 => Phase::Leaderless,
            Some(answer) if answer.is_learner => Phase::Learner,
            Some(answer) if answer.has_read && is_listed(answer) => Phase::Ready,
            Some(_) => Phase::Starting,
        };
        let mut faults = Vec::new();
        if hanging {
            faults.push(Fault::EtcdHanging { process_id: run.process_id, silent_for: HANGING_AFTER });
        } else if leaderless {
            let voters = self.answer().map_or(0, |answer| answer.members.iter().filter(|member| !member.is_learner).count());
            faults.push(Fault::NoLeader { members: voters });
        }
        faults.extend(self.disk_full(Some((phase, run)), data));
        let mut again_at = now + CHECK_INTERVAL;
        if !hanging {
            again_at = again_at.min(heard + HANGING_AFTER);
        }
        if let (Some(since), false) = (electing, leaderless) {
            again_at = again_at.min(since + LEADERLESS_AFTER);
        }
        if phase == Phase::Starting && self.answer().is_some() {
            again_at = again_at.min(now + ALMOST_READY_PAUSE);
        }
        Verdict { phase, faults, again_at: Some(again_at.max(now)) }
    }

    fn disk_full(&self, run: Option<(Phase, &Run)>, data: &str) -> Option<Fault> {
        let reason = if self.answer().is_some_and(|answer| answer.no_space) {
            "its database has reached its quota"
        } else if self.disk_was_full && run.is_none_or(|(phase, run)| phase != Phase::Ready || run.no_space) {
            "no space left on the disk"
        } else {
            return None;
        };
        Some(Fault::DiskFull { directory: data.to_owned(), reason: reason.to_owned() })
    }

    /// Writes what is known into `status`.
    pub(crate) fn describe(&self, child: &Child, phase: Phase, status: &mut Status) {
        status.phase = phase;
        status.process_id = child.run.as_ref().and_then(|run| run.process_id);
        match self.answer() {
            Some(answer) => {
                status.member_id = Some(answer.member_id);
                status.is_learner = answer.is_learner;
                status.leader = (answer.leader != 0).then_some(answer.leader);
                status.raft_term = answer.raft_term;
                status.members.clone_from(&answer.members);
            }
            // Who the members are outlasts a restart; who leads does not.
            None => status.leader = None,
        }
    }
}

/// Whether the member that answered is among those it lists, with a name and a vote.
fn is_listed(answer: &Answer) -> bool {
    answer.members.iter().any(|member| member.id == answer.member_id && member.is_started && !member.is_learner)
}
