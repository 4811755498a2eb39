//! Gives back the room in the members' databases that is no longer used, one member at a time.
//!
//! etcd's file never shrinks by itself: what was deleted and compacted is used again, but stays on the disk, in every snapshot and
//! against the quota. Rewriting the file gives it back, and stops the member for as long as that takes. So it is done in rounds that
//! the leader of raft leads: it gives each member its turn, itself the last, and only while all members answer and none of them is
//! about to come or go. The turn is a key with a lease, of which there is one: so no two members have theirs at a time, also when
//! two members think that they lead, and one that dies in its turn holds up nobody for long. A member whose turn it is looks
//! for itself whether it is worth the while. The only member of a cluster has no turns, as nobody could stand in for it.

use std::sync::Arc;
use std::time::Duration;

use polis_supervisor::{Context, RunnableResult, with_causes};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::client::{Change, KvError, Namespaced, Transaction, change_within};
use crate::consensus::{Consensus, Inner};
use crate::membership::{CHANGE_UNDER_WAY_KEY, MembershipError};
use crate::space::{DEFRAGMENT_DEADLINE, Sizes, sizes};
use crate::status::Status;
use crate::survey::{self, Survey};

/// Time between two rounds: compaction drops nothing more often (`--auto-compaction-retention`).
pub const ROUND_INTERVAL: Duration = Duration::from_secs(3600);

/// Least bytes that a rewrite must give back. It reads and writes all that is in use and stops the member meanwhile, which is not
/// worth it for what a few hours of work fill again.
pub const WORTH_BYTES: u64 = 32 << 20;

/// Least share of the file that must be unused, in per cent: with less, the file is as large as it will be again soon.
pub const WORTH_PER_CENT: u64 = 50;

/// Whose turn it is: etcd's id of the member, in hexadecimal digits.
pub(crate) const TURN_KEY: &str = "namespaced:polis//consensus/defragmentation-turn";

/// How long a turn may take. After that the next member is not given one in this round.
const TURN_DEADLINE: Duration = DEFRAGMENT_DEADLINE.saturating_add(Duration::from_secs(10));

/// Time after which the turn of a member that has died in it is over: longer than a turn, so that it never ends while the member is
/// at work.
pub(crate) const TURN_LEASE: Duration = TURN_DEADLINE.saturating_add(Duration::from_secs(20));

/// Pause before a watch is made anew, or a round that failed is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// What has come of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Round {
    /// Every member has had its turn.
    Done,
    /// It was not begun, or not gone on with, for this reason.
    Stopped(String),
}

/// A round failed.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    /// The members could not be surveyed.
    #[error("the members could not be asked how they are before one of them rewrites its database")]
    Survey(#[from] MembershipError),
    /// A turn could not be given or followed.
    #[error("no member could be given its turn to rewrite its database")]
    Turn(#[from] KvError),
}

/// Whether rewriting a file of `size` bytes with `in_use` bytes in use is worth the while.
#[must_use]
const fn is_worth(size: u64, in_use: u64) -> bool {
    let gain = size.saturating_sub(in_use);
    gain >= WORTH_BYTES && gain.saturating_mul(100) >= size.saturating_mul(WORTH_PER_CENT)
}

/// Why no member can be spared at the moment; `None` when one can.
fn hindrance(survey: &Survey) -> Option<String> {
    if survey.members.len() < 2 {
        return Some("there is no other member that could stand in".into());
    }
    survey.members.iter().find_map(|surveyed| {
        let name = surveyed.member.node_id.map_or_else(|| format!("{:x}", surveyed.member.id), |id| id.to_string());
        if surveyed.member.is_learner || !surveyed.member.is_started {
            Some(format!("{name} is about to become a member"))
        } else if !surveyed.is_reachable() {
            Some(format!("{name} does not answer, or is behind"))
        } else {
            None
        }
    })
}

/// The order of turns: the leader is the last.
fn turns(survey: &Survey, leader: u64) -> Vec<u64> {
    let ids = survey.members.iter().map(|surveyed| surveyed.member.id);
    ids.filter(|id| *id != leader).chain([leader]).collect()
}

/// Runs until it is cancelled.
pub(crate) async fn run(consensus: Consensus, context: Context) -> RunnableResult {
    context.healthy();
    let both = async { tokio::join!(lead(&consensus), take_turns(&consensus)) };
    context.unless_cancelled(both).await?.0
}

/// Leads a round in every interval in which this member leads.
async fn lead(consensus: &Consensus) -> RunnableResult {
    loop {
        sleep(ROUND_INTERVAL).await;
        if !leads(&consensus.status().borrow()) {
            continue;
        }
        match consensus.defragment_members().await {
            Ok(Round::Done) => {}
            Ok(Round::Stopped(reason)) => tracing::debug!("no databases are rewritten now: {reason}"),
            Err(error) => tracing::info!("rewriting the members' databases is put off: {}", with_causes(&error)),
        }
    }
}

fn leads(status: &Status) -> bool {
    status.is_ready() && status.is_leader() && !status.no_space
}

impl Consensus {
    /// Gives every member its turn to rewrite its database, one after the other, and returns when they have had it. It is done by
    /// itself every [`ROUND_INTERVAL`] by the member that leads. May be dropped at any time.
    ///
    /// # Errors
    ///
    /// When etcd does not answer.
    pub async fn defragment_members(&self) -> Result<Round, RoundError> {
        let root = self.kv_root();
        let own = self.status().borrow().member_id.unwrap_or_default();
        let first = self.survey().await?;
        if let Some(hindrance) = hindrance(&first) {
            return Ok(Round::Stopped(hindrance));
        }
        for member in turns(&first, own) {
            // Each turn rests on answers of its own moment.
            let survey = self.survey().await?;
            if let Some(hindrance) = hindrance(&survey) {
                return Ok(Round::Stopped(hindrance));
            }
            if let Some(stopped) = give_turn(&root, member).await? {
                return Ok(Round::Stopped(stopped));
            }
        }
        Ok(Round::Done)
    }
}

/// Gives one turn and waits for its end; `Some` is why the round cannot go on.
async fn give_turn(root: &Namespaced, member: u64) -> Result<Option<String>, KvError> {
    let lease = root.lease_grant("etcd/defragmentation/lease", TURN_LEASE).await?;
    let turn = Transaction::new().if_absent(CHANGE_UNDER_WAY_KEY).if_absent(TURN_KEY).put_with_lease(
        TURN_KEY,
        format!("{member:x}"),
        lease,
    );
    let given = match root.transact("etcd/defragmentation/turn", turn).await {
        Ok(given) => given,
        Err(error) => {
            // Whether it was made or not, nothing of it is left then.
            root.lease_revoke("etcd/defragmentation/revoke", lease).await?;
            return match error {
                KvError::PreconditionFailed { .. } => {
                    Ok(Some("a change of the members is under way, or another member has its turn".into()))
                }
                KvError::Unavailable { .. }
                | KvError::NoLeader { .. }
                | KvError::OutcomeUnknown { .. }
                | KvError::NoSpace { .. }
                | KvError::LeaseNotFound
                | KvError::Refused { .. } => Err(error),
            };
        }
    };
    let mut watch = root.watch_key(TURN_KEY, given.revision);
    let deadline = Instant::now() + TURN_DEADLINE;
    loop {
        let Ok(changes) = timeout_at(deadline, watch.next()).await else {
            // Its lease goes on: should the member be at work all the same, nobody else is meanwhile.
            return Ok(Some(format!("the member {member:x} has not finished its turn")));
        };
        let is_over = |change: &Change| matches!(change, Change::Delete { .. });
        // Compacted before it was seen: then it was long ago.
        if changes.map_or(true, |changes| changes.iter().any(is_over)) {
            break;
        }
    }
    root.lease_revoke("etcd/defragmentation/revoke", lease).await?;
    Ok(None)
}

/// Takes the turns of this member.
async fn take_turns(consensus: &Consensus) {
    let inner = &consensus.0;
    let root = consensus.kv_root();
    let mut status = consensus.status();
    loop {
        // Watching without a quorum would only wait.
        if status.wait_for(Status::is_ready).await.is_err() {
            return;
        }
        if let Err(error) = follow(inner, &root).await {
            tracing::debug!("turns to rewrite the database are not seen for now: {}", with_causes(&error));
        }
        sleep(PAUSE).await;
    }
}

async fn follow(inner: &Arc<Inner>, root: &Namespaced) -> Result<(), KvError> {
    let found = root.list(TURN_KEY).await?;
    let mut watch = root.watch_key(TURN_KEY, found.revision);
    let mut values: Vec<Vec<u8>> = found.entries.into_iter().map(|pair| pair.value).collect();
    loop {
        let own = inner.status.borrow().member_id.map(|id| format!("{id:x}").into_bytes());
        for value in values.drain(..).filter(|value| Some(value) == own.as_ref()) {
            if let Err(error) = defragment_if_worth(inner).await {
                tracing::warn!("etcd's database could not be rewritten to give back room: {}", with_causes(&error));
            }
            let over = Transaction::new().if_value(TURN_KEY, value).delete(TURN_KEY);
            match root.transact("etcd/defragmentation/over", over).await {
                // It was over already.
                Ok(_) | Err(KvError::PreconditionFailed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // Compacted: the caller lists again.
        let Ok(changes) = watch.next().await else { return Ok(()) };
        values.extend(changes.into_iter().filter_map(|change| match change {
            Change::Put(pair) => Some(pair.value),
            Change::Delete { .. } => None,
        }));
    }
}

/// Rewrites the database of this member if that is worth the while.
async fn defragment_if_worth(inner: &Inner) -> Result<(), RoundError> {
    let sizes = sizes(inner).await?;
    if is_worth(sizes.file, sizes.in_use) { rewrite(inner, sizes).await } else { Ok(()) }
}

/// Rewrites the database of this member, which has these sizes. One that leads hands over first, if there is another that can lead.
pub(crate) async fn rewrite(inner: &Inner, sizes: Sizes) -> Result<(), RoundError> {
    let status = inner.status.borrow().clone();
    if status.is_leader()
        && let Some(other) = stand_in(&survey::survey(inner).await?, status.member_id)
    {
        inner.membership.move_leader_to("etcd/defragmentation/hand-over", other).await?;
        let mut status = inner.status.subscribe();
        // The others go on also when that is seen late.
        let _ = timeout(PAUSE, status.wait_for(|status| !status.is_leader())).await;
    }
    let began = Instant::now();
    let mut maintenance = inner.connection.local().maintenance_client();
    change_within("etcd/defragmentation/defragment", DEFRAGMENT_DEADLINE, maintenance.defragment()).await?;
    tracing::info!(
        "etcd's database was rewritten in {} ms: of its {} MiB {} MiB were in use",
        began.elapsed().as_millis(),
        sizes.file >> 20,
        sizes.in_use >> 20
    );
    Ok(())
}

/// Who leads meanwhile: one that votes and answers.
fn stand_in(survey: &Survey, own: Option<u64>) -> Option<u64> {
    let others = survey.members.iter().filter(|surveyed| Some(surveyed.member.id) != own);
    let mut fit = others.filter(|surveyed| !surveyed.member.is_learner && surveyed.is_reachable());
    fit.next().map(|surveyed| surveyed.member.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Member;
    use crate::survey::SurveyedMember;
    use crate::version::Version;

    #[test]
    fn a_rewrite_must_give_back_enough_and_a_good_part() {
        const MIB: u64 = 1 << 20;
        for (size, in_use, expected) in [
            (0, 0, false),
            (32 * MIB, 0, true),
            (31 * MIB, 0, false),
            (64 * MIB, 32 * MIB, true),
            (65 * MIB, 33 * MIB, false),
            (1000 * MIB, 501 * MIB, false),
            (1000 * MIB, 500 * MIB, true),
            // Not that it could be.
            (MIB, 2 * MIB, false),
        ] {
            assert_eq!(is_worth(size, in_use), expected, "{size} {in_use}");
        }
    }

    fn surveyed(id: u64) -> SurveyedMember {
        let member = Member { id, node_id: None, address: None, is_learner: false, is_started: true };
        let version = Some(Version::new(3, 4, 23));
        SurveyedMember { member, version, failure: None, lag: Some(0), database_bytes: None }
    }

    fn survey(members: Vec<SurveyedMember>) -> Survey {
        Survey { members, leader: Some(2), raft_term: 1, alarms: Vec::new() }
    }

    #[test]
    fn a_member_is_spared_only_while_all_are_well() {
        let changed = |change: fn(&mut SurveyedMember)| {
            let mut last = surveyed(3);
            change(&mut last);
            survey(vec![surveyed(1), surveyed(2), last])
        };
        for (name, survey, expected) in [
            ("three", changed(|_| {}), true),
            ("two", survey(vec![surveyed(1), surveyed(2)]), true),
            ("one", survey(vec![surveyed(1)]), false),
            ("none is known", survey(vec![]), false),
            ("a learner", changed(|last| last.member.is_learner = true), false),
            ("one that has not started", changed(|last| last.member.is_started = false), false),
            ("one that is down", changed(|last| last.version = None), false),
            ("one that is behind", changed(|last| last.lag = Some(u64::MAX)), false),
        ] {
            assert_eq!(hindrance(&survey).is_none(), expected, "{name}: {:?}", hindrance(&survey));
        }
    }

    #[test]
    fn only_one_that_votes_and_answers_leads_meanwhile() {
        let mut three = survey(vec![surveyed(1), surveyed(2), surveyed(3)]);
        assert_eq!(stand_in(&three, Some(1)), Some(2));
        three.members[1].version = None;
        assert_eq!(stand_in(&three, Some(1)), Some(3));
        three.members[2].member.is_learner = true;
        assert_eq!(stand_in(&three, Some(1)), None);
    }

    #[test]
    fn the_leader_is_the_last() {
        let three = survey(vec![surveyed(1), surveyed(2), surveyed(3)]);
        assert_eq!(turns(&three, 2), [1, 3, 2]);
        assert_eq!(turns(&three, 3), [1, 2, 3]);
    }

    #[test]
    fn a_turn_never_ends_while_the_member_is_at_work() {
        const { assert!(TURN_LEASE.as_secs() > TURN_DEADLINE.as_secs()) };
        const { assert!(TURN_DEADLINE.as_secs() > DEFRAGMENT_DEADLINE.as_secs()) };
    }
}
