//! From what was seen of etcd to what is said about it: phase and faults. Pure; time comes in from outside.

use std::time::Duration;

use tokio::time::Instant;

use crate::fault::{Fault, Fullness, Room};
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

/// Time between two checks while there is a member that has not started or has no vote: that changes without a line in
/// the logs of the others.
const UNSETTLED_INTERVAL: Duration = Duration::from_secs(1);

/// How long a complaint about a full disk counts in a run that goes on all the same.
const DISK_FULL_FOR: Duration = Duration::from_secs(60);

/// Checks after which the members are listed again although no log line gave a reason: once a minute.
const CHECKS_BETWEEN_LISTS: u32 = 12;

/// What is known about the child process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Child {
    /// The run that is on, if etcd runs.
    pub(crate) run: Option<Run>,
    /// Counts lines that hint at a change.
    pub(crate) hints: u64,
    /// The last run that ended did because the cluster has removed this member.
    pub(crate) removed: bool,
    /// The next run waits for this room on the disk.
    pub(crate) awaited_room: Option<Room>,
}

/// One run of etcd.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// `None` for the moment in which its first lines are read before its start has returned.
    pub(crate) process_id: Option<u32>,
    pub(crate) started: Instant,
    /// It has said that it serves clients.
    pub(crate) serving: bool,
    /// It has said that it serves other members.
    pub(crate) serving_peers: bool,
    /// Since when it has been looking for a leader, by its log.
    pub(crate) electing_since: Option<Instant>,
    /// When it has last complained about a full disk.
    pub(crate) no_space_at: Option<Instant>,
    /// It has answered a check.
    pub(crate) has_answered: bool,
    /// It has said that the cluster has removed this member.
    pub(crate) removed: bool,
    /// What it has said about its data, which it cannot read.
    pub(crate) damage: Option<String>,
}

impl Run {
    /// A run of which nothing is known yet.
    pub(crate) const fn new(started: Instant) -> Self {
        Self {
            process_id: None,
            started,
            serving: false,
            serving_peers: false,
            electing_since: None,
            no_space_at: None,
            has_answered: false,
            removed: false,
            damage: None,
        }
    }
}

/// An answer to a check.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) member_id: u64,
    pub(crate) cluster_id: u64,
    pub(crate) is_learner: bool,
    /// 0 is none.
    pub(crate) leader: u64,
    pub(crate) raft_term: u64,
    /// `None` when it was not asked or does not tell.
    pub(crate) members: Option<Vec<Member>>,
    /// A linearizable read was answered, now or earlier in this run.
    pub(crate) has_read: bool,
    /// etcd's alarm about its quota.
    pub(crate) no_space: bool,
    /// Bytes of its database's file.
    pub(crate) database_size: u64,
    /// Bytes of it that are in use.
    pub(crate) database_in_use: u64,
}

/// How long after an answer that says that etcd is nearly ready it is asked again.
const ALMOST_READY_PAUSE: Duration = Duration::from_millis(50);

/// How long after an answer with a new leader in an old term etcd is asked again. It shows the leader of a new term at once, and
/// the term itself when the leader's first entry is applied: milliseconds later, and without a word in its log.
const STALE_TERM_PAUSE: Duration = Duration::from_millis(10);

/// What is remembered between observations, most of it for the time of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    /// The run that this is about, by its start.
    run: Option<Instant>,
    /// The disk was full in this run or an earlier one, and that is not known to be over. It outlasts a run: etcd dies of
    /// a full disk.
    disk_was_full: bool,
    last_answer: Option<(Instant, Answer)>,
    /// The members as last told, at which count of hints, and how many checks ago.
    members: Option<(Vec<Member>, u64, u32)>,
    leaderless_since: Option<Instant>,
    /// The leader that was named last, and its term; with a leader of which the term is not known yet, the one before it.
    led: Option<(u64, u64)>,
    /// Whether the last answer named another leader than `led` in no later term, which cannot be.
    has_stale_term: bool,
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
    /// Forgets what was known about an earlier run.
    pub(crate) fn enter(&mut self, child: &Child) {
        let started = child.run.as_ref().map(|run| run.started);
        if self.run != started {
            *self = Self { run: started, disk_was_full: self.disk_was_full, ..Self::default() };
        }
    }

    /// Whether the next check should ask for the members.
    pub(crate) fn wants_members(&self, child: &Child) -> bool {
        self.members
            .as_ref()
            .is_none_or(|(_, hints, age)| *hints != child.hints || *age >= CHECKS_BETWEEN_LISTS || !self.is_settled())
    }

    /// Takes in the state of the child and, if one was made, the outcome of a check.
    pub(crate) fn observe(
        &mut self,
        now: Instant,
        child: &Child,
        checked: Option<Option<Answer>>,
        data: &str,
    ) -> Verdict {
        self.enter(child);
        let Some(run) = &child.run else {
            let phase = if child.removed { Phase::Removed } else { Phase::Down };
            return Verdict { phase, faults: self.disk_full(child, data).into_iter().collect(), again_at: None };
        };
        if let Some(Some(answer)) = checked {
            self.members = match (&answer.members, self.members.take()) {
                (Some(members), _) => Some((members.clone(), child.hints, 0)),
                (None, known) => known.map(|(members, hints, age)| (members, hints, age + 1)),
            };
            self.has_stale_term = answer.leader != 0
                && self.led.is_some_and(|(leader, term)| answer.leader != leader && answer.raft_term <= term);
            if answer.leader != 0 && !self.has_stale_term {
                self.led = Some((answer.leader, answer.raft_term));
            }
            self.leaderless_since = if answer.leader == 0 { self.leaderless_since.or(Some(now)) } else { None };
            self.last_answer = Some((now, answer));
        }
        let mut phase = self.phase(now, run);
        if phase == Phase::Starting && child.removed {
            // What it was told holds until it finds out something else.
            phase = Phase::Removed;
        }
        // A run that is ready and has not complained lately has found room.
        let complains = run.no_space_at.is_some_and(|at| now.saturating_duration_since(at) < DISK_FULL_FOR);
        self.disk_was_full = complains || (self.disk_was_full || run.no_space_at.is_some()) && phase != Phase::Ready;
        self.judge(now, phase, child, run, data)
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

    fn members(&self) -> &[Member] {
        self.members.as_ref().map_or(&[], |(members, ..)| members)
    }

    /// Whether every member has started and has a vote.
    fn is_settled(&self) -> bool {
        self.members().iter().all(|member| member.is_started && !member.is_learner)
    }

    /// Whether this member is listed, with a name and a vote.
    fn is_voter(&self, id: u64) -> bool {
        self.members().iter().any(|member| member.id == id && member.is_started && !member.is_learner)
    }

    /// When etcd was last heard of.
    fn heard(&self, run: &Run) -> Instant {
        self.last_answer.as_ref().map_or(run.started, |(at, _)| *at)
    }

    /// Since when there is no leader. Without a quorum, an etcd that was just started serves nobody, so then its log says
    /// it.
    fn leaderless_since(&self, run: &Run) -> Option<Instant> {
        if self.has_answered() { self.leaderless_since } else { run.electing_since }
    }

    fn phase(&self, now: Instant, run: &Run) -> Phase {
        let silent = now.saturating_duration_since(self.heard(run)) >= HANGING_AFTER;
        let leaderless = self.leaderless_since(run);
        match self.answer() {
            None if leaderless.is_some_and(|since| now.saturating_duration_since(since) >= LEADERLESS_AFTER) => {
                Phase::Leaderless
            }
            None if silent && leaderless.is_none() => Phase::Hanging,
            None => Phase::Starting,
            Some(_) if silent => Phase::Hanging,
            Some(answer) if answer.leader == 0 => Phase::Leaderless,
            Some(answer) if answer.is_learner => Phase::Learner,
            Some(answer) if answer.has_read && self.is_voter(answer.member_id) => Phase::Ready,
            Some(_) => Phase::Starting,
        }
    }

    fn judge(&self, now: Instant, phase: Phase, child: &Child, run: &Run, data: &str) -> Verdict {
        let electing = self.leaderless_since(run);
        let hanging = phase == Phase::Hanging;
        let leaderless = electing.is_some_and(|since| now.saturating_duration_since(since) >= LEADERLESS_AFTER);
        let mut faults = Vec::new();
        if hanging {
            faults.push(Fault::EtcdHanging { process_id: run.process_id, silent_for: HANGING_AFTER });
        } else if leaderless {
            faults.push(Fault::NoLeader { members: self.members().iter().filter(|member| !member.is_learner).count() });
        }
        faults.extend(self.disk_full(child, data));
        let mut again_at = now + CHECK_INTERVAL;
        if !hanging {
            again_at = again_at.min(self.heard(run) + HANGING_AFTER);
        }
        if let (Some(since), false) = (electing, leaderless) {
            again_at = again_at.min(since + LEADERLESS_AFTER);
        }
        if phase == Phase::Ready && !self.is_settled() {
            again_at = again_at.min(now + UNSETTLED_INTERVAL);
        }
        if phase == Phase::Starting && self.answer().is_some() {
            again_at = again_at.min(now + ALMOST_READY_PAUSE);
        }
        if self.has_stale_term {
            again_at = again_at.min(now + STALE_TERM_PAUSE);
        }
        Verdict { phase, faults, again_at: Some(again_at.max(now)) }
    }

    fn disk_full(&self, child: &Child, data: &str) -> Option<Fault> {
        let fullness = match self.answer() {
            Some(answer) if answer.no_space => {
                Fullness::Quota { size: answer.database_size, in_use: answer.database_in_use }
            }
            Some(_) | None if self.disk_was_full || child.awaited_room.is_some() => Fullness::Disk(child.awaited_room),
            Some(_) | None => return None,
        };
        Some(Fault::DiskFull { directory: data.to_owned(), fullness })
    }

    /// Writes what is known into `status`.
    pub(crate) fn describe(&self, child: &Child, phase: Phase, status: &mut Status) {
        status.phase = phase;
        status.process_id = child.run.as_ref().and_then(|run| run.process_id);
        match self.answer() {
            Some(answer) => {
                status.member_id = Some(answer.member_id);
                status.cluster_id = Some(answer.cluster_id);
                status.is_learner = answer.is_learner;
                status.leader = (answer.leader != 0).then_some(answer.leader);
                status.raft_term = answer.raft_term;
                status.no_space = answer.no_space;
                if let Some((members, ..)) = &self.members {
                    status.members.clone_from(members);
                }
            }
            // Who the members are outlasts a restart; who leads does not.
            None => status.leader = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u64 = 1;

    fn member(id: u64, is_learner: bool) -> Member {
        Member { id, node_id: None, address: None, is_learner, is_started: true }
    }

    fn answer() -> Answer {
        Answer {
            member_id: OWN,
            cluster_id: 9,
            is_learner: false,
            leader: OWN,
            raft_term: 2,
            members: Some(vec![member(OWN, false), member(2, false)]),
            has_read: true,
            no_space: false,
            database_size: 3 << 20,
            database_in_use: 1 << 20,
        }
    }

    fn child(started: Instant) -> Child {
        let run = Run { process_id: Some(7), serving: true, ..Run::new(started) };
        Child { run: Some(run), ..Child::default() }
    }

    fn names(verdict: &Verdict) -> Vec<&'static str> {
        verdict.faults.iter().map(Fault::name).collect()
    }

    #[test]
    fn an_answer_decides_the_phase() {
        let learner = || Answer { is_learner: true, has_read: false, members: None, ..answer() };
        let now = Instant::now();
        for (name, answer, expected) in [
            ("all is well", answer(), Phase::Ready),
            ("no read yet", Answer { has_read: false, ..answer() }, Phase::Starting),
            ("not listed", Answer { members: Some(vec![member(2, false)]), ..answer() }, Phase::Starting),
            ("listed as a learner", Answer { members: Some(vec![member(OWN, true)]), ..answer() }, Phase::Starting),
            ("a learner", learner(), Phase::Learner),
            ("no leader", Answer { leader: 0, ..answer() }, Phase::Leaderless),
            ("a learner without a leader", Answer { leader: 0, ..learner() }, Phase::Leaderless),
        ] {
            let verdict = Health::default().observe(now, &child(now), Some(Some(answer)), "/data");
            assert_eq!(verdict.phase, expected, "{name}");
            assert_eq!(names(&verdict), Vec::<&str>::new(), "{name}");
        }
    }

    #[test]
    fn a_new_leader_in_an_old_term_is_asked_about_again_until_its_term_is_known() {
        let now = Instant::now();
        let (mut health, child) = (Health::default(), child(now));
        let soon = now + STALE_TERM_PAUSE;
        for (leader, raft_term, again_at) in [
            // The first answer of a run has nothing before it.
            (2, 5, now + CHECK_INTERVAL),
            // The other one is gone, and this member leads; its term is shown a little later.
            (0, 5, now + LEADERLESS_AFTER),
            (OWN, 5, soon),
            (OWN, 5, soon),
            (OWN, 6, now + CHECK_INTERVAL),
            // Handed over, without a moment in which nobody leads.
            (2, 6, soon),
            (2, 7, now + CHECK_INTERVAL),
            // The same leader again, after an election that it won, or that nobody did.
            (0, 8, now + LEADERLESS_AFTER),
            (2, 8, now + CHECK_INTERVAL),
        ] {
            let verdict = health.observe(now, &child, Some(Some(Answer { leader, raft_term, ..answer() })), "/data");
            assert_eq!(verdict.again_at, Some(again_at), "{leader} in term {raft_term}");
        }
    }

    #[test]
    fn silence_is_hanging_only_after_its_time_and_only_while_it_lasts() {
        let began = Instant::now();
        let (mut health, child) = (Health::default(), child(began));
        let verdict = health.observe(began, &child, None, "/data");
        assert_eq!((verdict.phase, verdict.again_at), (Phase::Starting, Some(began + CHECK_INTERVAL)));
        let late = began + HANGING_AFTER;
        let verdict = health.observe(late - Duration::from_secs(1), &child, Some(None), "/data");
        assert_eq!((verdict.phase, verdict.again_at), (Phase::Starting, Some(late)));
        let verdict = health.observe(late, &child, Some(None), "/data");
        assert_eq!((verdict.phase, names(&verdict)), (Phase::Hanging, vec!["consensus-etcd-hanging"]));
        assert_eq!(verdict.again_at, Some(late + CHECK_INTERVAL));
        let verdict = health.observe(late, &child, Some(Some(answer())), "/data");
        assert_eq!((verdict.phase, names(&verdict)), (Phase::Ready, vec![]));
        assert_eq!(verdict.again_at, Some(late + CHECK_INTERVAL));
        // One answer that fails to come is not enough.
        let verdict = health.observe(late + CHECK_INTERVAL, &child, Some(None), "/data");
        assert_eq!(verdict.phase, Phase::Ready);
    }

    #[test]
    fn a_cluster_without_a_leader_is_a_fault_after_the_time_of_an_election() {
        let began = Instant::now();
        let (mut health, child) = (Health::default(), child(began));
        let leaderless = || Some(Some(Answer { leader: 0, ..answer() }));
        let verdict = health.observe(began, &child, leaderless(), "/data");
        assert_eq!((verdict.phase, names(&verdict)), (Phase::Leaderless, vec![]));
        assert_eq!(verdict.again_at, Some(began + LEADERLESS_AFTER));
        let verdict = health.observe(began + LEADERLESS_AFTER, &child, leaderless(), "/data");
        assert_eq!(verdict.faults, [Fault::NoLeader { members: 2 }]);
        let verdict = health.observe(began + LEADERLESS_AFTER, &child, Some(Some(answer())), "/data");
        assert_eq!((verdict.phase, names(&verdict)), (Phase::Ready, vec![]));
    }

    #[test]
    fn an_etcd_that_starts_without_a_quorum_is_leaderless_and_not_hanging() {
        let began = Instant::now();
        let (mut health, mut child) = (Health::default(), child(began));
        child.run.as_mut().unwrap().electing_since = Some(began + Duration::from_secs(1));
        for seconds in [4, 8, 60] {
            let verdict = health.observe(began + Duration::from_secs(seconds), &child, Some(None), "/data");
            assert_eq!((verdict.phase, names(&verdict)), (Phase::Leaderless, vec!["consensus-no-leader"]));
        }
    }

    #[test]
    fn a_run_says_nothing_about_the_next_but_a_full_disk_stays_until_it_is_ready() {
        let began = Instant::now();
        let mut health = Health::default();
        let mut full = child(began);
        full.run.as_mut().unwrap().no_space_at = Some(began);
        let verdict = health.observe(began, &full, Some(Some(answer())), "/data");
        assert_eq!(names(&verdict), ["consensus-disk-full"]);
        let verdict = health.observe(began, &Child::default(), None, "/data");
        assert_eq!(
            (verdict.phase, names(&verdict), verdict.again_at),
            (Phase::Down, vec!["consensus-disk-full"], None)
        );
        let later = began + Duration::from_secs(1);
        let verdict = health.observe(later, &child(later), None, "/data");
        assert_eq!((verdict.phase, names(&verdict)), (Phase::Starting, vec!["consensus-disk-full"]));
        assert!(!health.has_read() && !health.has_answered());
        let verdict = health.observe(later, &child(later), Some(Some(answer())), "/data");
        assert_eq!((verdict.phase, names(&verdict)), (Phase::Ready, vec![]));
    }

    #[test]
    fn members_are_listed_when_there_is_a_reason_and_once_a_minute() {
        let now = Instant::now();
        let (mut health, mut child) = (Health::default(), child(now));
        assert!(health.wants_members(&child));
        health.observe(now, &child, Some(Some(answer())), "/data");
        for _ in 0..CHECKS_BETWEEN_LISTS {
            assert!(!health.wants_members(&child));
            let verdict = health.observe(now, &child, Some(Some(Answer { members: None, ..answer() })), "/data");
            assert_eq!(verdict.phase, Phase::Ready);
        }
        assert!(health.wants_members(&child));
        health.observe(now, &child, Some(Some(answer())), "/data");
        child.hints += 1;
        assert!(health.wants_members(&child));
        // One that is on its way is looked at more often.
        let learner = Answer { members: Some(vec![member(OWN, false), member(2, true)]), ..answer() };
        let verdict = health.observe(now, &child, Some(Some(learner)), "/data");
        assert!(health.wants_members(&child));
        assert_eq!(verdict.again_at, Some(now + UNSETTLED_INTERVAL));
    }

    #[test]
    fn a_run_that_survives_a_full_disk_is_believed_after_a_while() {
        let began = Instant::now();
        let (mut health, mut child) = (Health::default(), child(began));
        child.run.as_mut().unwrap().no_space_at = Some(began);
        let verdict = health.observe(began, &child, Some(Some(answer())), "/data");
        assert_eq!((verdict.phase, names(&verdict)), (Phase::Ready, vec!["consensus-disk-full"]));
        let verdict = health.observe(began + DISK_FULL_FOR, &child, Some(Some(answer())), "/data");
        assert_eq!((verdict.phase, names(&verdict)), (Phase::Ready, vec![]));
    }

    #[test]
    fn a_member_that_was_removed_is_not_only_down() {
        let removed = Child { removed: true, ..Child::default() };
        let verdict = Health::default().observe(Instant::now(), &removed, None, "/data");
        assert_eq!((verdict.phase, names(&verdict), verdict.again_at), (Phase::Removed, vec![], None));
    }

    #[test]
    fn a_member_that_was_removed_is_so_until_it_finds_out_something_else() {
        let now = Instant::now();
        let runs_again = Child { removed: true, ..child(now) };
        let observe = |answer: Option<Answer>| {
            let verdict = Health::default().observe(now, &runs_again, Some(answer), "/data");
            (verdict.phase, verdict.faults.len())
        };
        assert_eq!(observe(None), (Phase::Removed, 0));
        assert_eq!(observe(Some(Answer { has_read: false, ..answer() })), (Phase::Removed, 0));
        assert_eq!(observe(Some(answer())), (Phase::Ready, 0));
        assert_eq!(observe(Some(Answer { leader: 0, ..answer() })).0, Phase::Leaderless);
    }

    #[test]
    fn the_quota_is_a_full_disk_too() {
        let now = Instant::now();
        let verdict =
            Health::default().observe(now, &child(now), Some(Some(Answer { no_space: true, ..answer() })), "/data");
        assert_eq!((verdict.phase, names(&verdict)), (Phase::Ready, vec!["consensus-disk-full"]));
    }
}
