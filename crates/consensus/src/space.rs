//! Makes room when etcd's database has reached its quota, and lets it take writes again once there is.
//!
//! At its quota etcd refuses every write until somebody compacts, defragments and takes back its alarm, by hand. All of that is
//! safe to do by itself: what compaction drops are old versions of keys, which watches that are behind learn of. A member whose file is
//! rewritten stands still meanwhile, so the leader gives one member after the other its turn, itself the last, and never one that is the
//! last healthy one.
//!
//! The turns of the hourly rounds are keys, which a full database does not take. But it takes alarms, which all members see in the same
//! order: the turn of a member is an alarm of the same kind under a number that no member has. So no two members are at work at a time,
//! also when two members think that they lead.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions};
use polis_supervisor::{Context, RunnableResult, with_causes};
use tokio::time::{Instant, sleep};

use crate::client::{KvError, Namespaced, change, change_within, read};
use crate::consensus::Inner;
use crate::defragmentation::{RoundError, TURN_KEY, TURN_LEASE, rewrite};
use crate::status::{Member, Status};
use crate::survey::{self, Survey};

/// Pause before something is done, so that whoever looks sees what was wrong; it is also that before the next try.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Pause before the next try, when there was no room to be made.
const PAUSE: Duration = Duration::from_secs(60);

/// Pause between two looks at whose turn it is, while the database is full: each is a small entry in raft's log.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// Pause after what failed, such as a turn in which the file could not be rewritten: what is in the way, such as a full disk or the change
/// of a leader, does not pass in a moment.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// How long compacting may take, and rewriting the database: 2 GiB on a disk that spins.
pub(crate) const DEFRAGMENT_DEADLINE: Duration = Duration::from_secs(120);

/// Looks until what was compacted counts as unused: each makes a change, and one or two are enough.
const LOOKS: usize = 8;

/// The member that does not exist.
const NOBODY: u64 = 0;

/// Room that must be there before writes are let in again, so that it does not begin anew at once: a tenth of the quota.
const fn enough(quota: u64) -> u64 {
    quota / 10
}

/// Bytes of a member's database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Of the file.
    pub(crate) file: u64,
    /// In use of them.
    pub(crate) in_use: u64,
}

impl Sizes {
    /// Whether the file has to be rewritten before there is room.
    const fn is_full(self, quota: u64) -> bool {
        self.file + enough(quota) > quota
    }

    /// Whether rewriting the file makes room.
    const fn can_be_less(self, quota: u64) -> bool {
        self.in_use + enough(quota) <= quota
    }
}

/// Number under which the turn of a member is an alarm: members have theirs from a hash of 64 bits, and none has that of another.
const fn turn_of(member: u64) -> u64 {
    !member
}

/// What the leader does next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Gives this member its turn.
    Give(u64),
    /// Waits for the end of the turn of this member.
    Wait(u64),
    /// Takes back the alarm.
    Disarm,
    /// Nothing, for this reason.
    Stop(&'static str),
}

/// What the leader knows when it decides.
struct Moment<'a> {
    survey: &'a Survey,
    /// Its own member.
    own: u64,
    /// Of its own database.
    sizes: Sizes,
    quota: u64,
    /// A member has its turn in an hourly round.
    hourly: bool,
    /// Under which numbers there is an alarm.
    alarms: &'a [u64],
    /// The members that have had their turn.
    done: &'a [u64],
}

impl Moment<'_> {
    fn step(&self) -> Step {
        let &Moment { survey, own, sizes, quota, hourly, alarms, done } = self;
        let mut ids = survey.members.iter().map(|surveyed| surveyed.member.id);
        if let Some(at_work) = ids.find(|id| alarms.contains(&turn_of(*id))) {
            return Step::Wait(at_work);
        }
        if !sizes.can_be_less(quota) {
            return Step::Stop("nearly all of it is in use: nothing helps but deleting something");
        }
        if hourly {
            return Step::Stop("a member rewrites its database in the hourly round");
        }
        let voters =
            || survey.members.iter().filter(|surveyed| surveyed.member.is_started && !surveyed.member.is_learner);
        let healthy: Vec<u64> =
            voters().filter(|surveyed| surveyed.is_reachable()).map(|surveyed| surveyed.member.id).collect();
        // The only member of a cluster has nobody who could stand in, and refuses all writes until it has done it.
        if voters().count() > 1 && healthy.len() < 2 {
            return Step::Stop("the only healthy member is not stopped for it");
        }
        let (others, last) = (healthy.iter().filter(|id| **id != own), healthy.iter().filter(|id| **id == own));
        match others.chain(last).find(|id| !done.contains(id)) {
            Some(next) => Step::Give(*next),
            None if sizes.is_full(quota) => Step::Stop("rewriting it has made no room"),
            None => Step::Disarm,
        }
    }
}

/// What a member does about its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// It has none.
    None,
    /// It takes it.
    Take,
    /// It gives it back: another has one.
    GiveBack,
}

/// The part of the member `own` while there is an alarm under these numbers.
fn part(own: u64, members: &[Member], alarms: &[u64]) -> Part {
    if !alarms.contains(&turn_of(own)) {
        return Part::None;
    }
    let other = members.iter().any(|member| member.id != own && alarms.contains(&turn_of(member.id)));
    if other { Part::GiveBack } else { Part::Take }
}

/// Runs until it is cancelled.
pub(crate) async fn run(inner: Arc<Inner>, context: Context) -> RunnableResult {
    context.healthy();
    let both = async { tokio::try_join!(lead(&inner), take_turns(&inner)).map(|(never, _)| never) };
    context.unless_cancelled(both).await?
}

/// Leads while this member leads.
async fn lead(inner: &Inner) -> RunnableResult {
    let mut status = inner.status.subscribe();
    loop {
        status.wait_for(|status| status.is_ready() && status.is_leader() && status.no_space).await?;
        sleep(FIRST_PAUSE).await;
        let made = make_room(inner).await;
        match &made {
            Ok(None) => tracing::info!("there is room in etcd's database; it takes writes again"),
            Ok(Some(reason)) => tracing::info!("no room is made in etcd's database: {reason}"),
            Err(error) => tracing::warn!("no room can be made in etcd's database: {}", with_causes(error)),
        }
        tokio::select! {
            () = sleep(if made.is_ok() { PAUSE } else { FAILURE_PAUSE }) => {}
            freed = status.wait_for(|status| !status.no_space || !status.is_leader()) => { freed?; }
        }
    }
}

/// Compacts, gives the members their turns, and takes back the alarm; `Some` is why not.
async fn make_room(inner: &Inner) -> Result<Option<&'static str>, RoundError> {
    let quota = inner.quota_bytes.load(Ordering::Relaxed);
    compact(inner, quota).await?;
    let root = Namespaced::root(inner.connection.clone());
    let mut done = Vec::new();
    loop {
        let status = inner.status.borrow().clone();
        let Some(own) = status.member_id.filter(|_| status.is_leader()) else {
            return Ok(Some("another member leads, and goes on with it"));
        };
        let alarms = alarms(inner).await?;
        let moment = Moment {
            // Each turn rests on answers of its own moment.
            survey: &survey::survey(inner).await?,
            own,
            sizes: sizes(inner).await?,
            quota,
            hourly: root.get(TURN_KEY).await?.is_some(),
            alarms: &alarms,
            done: &done,
        };
        match moment.step() {
            Step::Give(member) => {
                raise(inner, turn_of(member)).await?;
                if !turn_ends(inner, member).await? {
                    return Ok(Some("a member has not finished its turn"));
                }
                done.push(member);
            }
            Step::Wait(member) => {
                if !turn_ends(inner, member).await? {
                    return Ok(Some("a member has not finished the turn that it had"));
                }
            }
            Step::Disarm => {
                for alarm in alarms {
                    withdraw(inner, alarm).await?;
                }
                return Ok(None);
            }
            Step::Stop(reason) => return Ok(Some(reason)),
        }
    }
}

/// Drops the old versions of all keys, and sees them counted as unused.
async fn compact(inner: &Inner, quota: u64) -> Result<(), KvError> {
    let local = inner.connection.local();
    let revision = read(local.maintenance_client().status()).await?.0.header.map_or(0, |header| header.revision);
    let options = CompactionOptions::new().with_physical();
    let mut kv = inner.connection.kv();
    // That it was compacted before is no hindrance.
    let _ = change_within("etcd/space/compact", DEFRAGMENT_DEADLINE, kv.compact(revision, Some(options))).await;
    for _ in 0..LOOKS {
        if sizes(inner).await?.can_be_less(quota) {
            break;
        }
        // What was freed counts as unused from the next change on, and a full database takes no other.
        raise(inner, turn_of(NOBODY)).await?;
        withdraw(inner, turn_of(NOBODY)).await?;
        sleep(LOOK_PAUSE).await;
    }
    Ok(())
}

/// Waits until the member has had its turn. `false`: it does not end, and is taken back. Rewriting has a shorter deadline, so the member is
/// not at work any more then.
async fn turn_ends(inner: &Inner, member: u64) -> Result<bool, KvError> {
    let deadline = Instant::now() + TURN_LEASE;
    while alarms(inner).await?.contains(&turn_of(member)) {
        if Instant::now() >= deadline {
            withdraw(inner, turn_of(member)).await?;
            return Ok(false);
        }
        sleep(LOOK_PAUSE).await;
    }
    Ok(true)
}

/// Takes the turns of this member.
async fn take_turns(inner: &Inner) -> RunnableResult {
    let mut status = inner.status.subscribe();
    loop {
        status.wait_for(|status| status.is_ready() && status.no_space).await?;
        let now = status.borrow_and_update().clone();
        let taken = take_turn(inner, &now).await;
        if let Err(error) = &taken {
            tracing::warn!("etcd's database could not be rewritten to make room: {}", with_causes(error));
        }
        sleep(if taken.is_ok() { LOOK_PAUSE } else { FAILURE_PAUSE }).await;
    }
}

/// Takes the turn of this member, if it has one.
async fn take_turn(inner: &Inner, status: &Status) -> Result<(), RoundError> {
    let Some(own) = status.member_id else { return Ok(()) };
    match part(own, &status.members, &alarms(inner).await?) {
        Part::None => return Ok(()),
        Part::GiveBack => {}
        Part::Take => {
            let sizes = sizes(inner).await?;
            if sizes.is_full(inner.quota_bytes.load(Ordering::Relaxed)) {
                rewrite(inner, sizes).await?;
            }
        }
    }
    Ok(withdraw(inner, turn_of(own)).await?)
}

/// Numbers under which there is an alarm about the quota, after all that was agreed on before.
async fn alarms(inner: &Inner) -> Result<Vec<u64>, KvError> {
    let mut maintenance = inner.connection.client().maintenance_client();
    let found = read(maintenance.alarm(AlarmAction::Get, AlarmType::Nospace, None)).await?;
    Ok(found.0.alarms.into_iter().map(|alarm| alarm.member_id).collect())
}

async fn raise(inner: &Inner, number: u64) -> Result<(), KvError> {
    set(inner, "etcd/space/turn", AlarmAction::Activate, number).await
}

async fn withdraw(inner: &Inner, number: u64) -> Result<(), KvError> {
    set(inner, "etcd/space/disarm", AlarmAction::Deactivate, number).await
}

async fn set(inner: &Inner, site: &'static str, action: AlarmAction, number: u64) -> Result<(), KvError> {
    let mut maintenance = inner.connection.client().maintenance_client();
    let mut options = AlarmOptions::new();
    options.with_member(number);
    change(site, maintenance.alarm(action, AlarmType::Nospace, Some(options))).await?;
    Ok(())
}

/// Of this member's database.
pub(crate) async fn sizes(inner: &Inner) -> Result<Sizes, KvError> {
    let mut maintenance = inner.connection.local().maintenance_client();
    let answer = read(maintenance.status()).await?.0;
    let bytes = |size: i64| u64::try_from(size).unwrap_or_default();
    Ok(Sizes { file: bytes(answer.db_size), in_use: bytes(answer.db_size_in_use) })
}

#[cfg(test)]
mod tests;
