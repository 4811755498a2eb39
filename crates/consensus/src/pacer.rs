//! Keeps raft's timing right while the member runs: from round trips and syncs that etcd measures itself, with a margin, and
//! rarely, as each change is a restart of etcd.
//!
//! How many members there are decides between the timing of one alone and that for a network. The pace of a network is decided
//! from etcd's own measurements over minutes. A member changes its pace only while all others answer, so that its restart costs
//! nobody the quorum; a leader hands over first, and members take turns by their ids.
//!
//! All of that needs a leader that stays. A member that loses leaders again and again ([`Unrest`]) takes a calmer pace at once, as
//! there is no quorum that its restart could cost, and no faster one for an hour.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use polis_supervisor::{Context, RunnableResult};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::consensus::{Inner, MAX_METRICS};
use crate::histogram::Histogram;
use crate::status::Status;
use crate::survey::{Survey, survey};
use crate::timing::{Pace, Timing};
use crate::unrest::Unrest;

/// Time between two looks at what etcd has measured. It samples round trips every 30 s.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// Looks in a row that must ask for another pace before it is taken: what passes within minutes is no reason to restart.
const CONFIRMATIONS: u32 = 3;

/// How long a member must have been alone before it takes the timing for that: one that prepares for a second is not alone.
const ALONE_FOR: Duration = Duration::from_secs(30);

/// Time between the restarts of two members that change their pace.
const TURN: Duration = Duration::from_secs(5);

/// How long a pace at which leaders were lost is not taken again. Measurements do not show why it was too fast.
const TOO_FAST_FOR: Duration = Duration::from_secs(3600);

/// etcd's histogram of the time that syncing its log takes.
const SYNC: &str = "etcd_disk_wal_fsync_duration_seconds";

/// etcd's histograms of round trips, one for each peer.
const ROUND_TRIP: &str = "etcd_network_peer_round_trip_time_seconds";

/// Share of syncs that the sync time covers; a few are slow on every disk.
const SYNC_QUANTILE: f64 = 0.99;

/// What timing the members ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Keep,
    /// At once: the timing is wrong, not only not the best.
    Now(Timing),
    /// When it is confirmed and safe.
    Later(Pace),
}

/// What is decided from.
#[derive(Clone, Copy, Debug)]
struct Situation {
    timing: Timing,
    /// Members, those without a vote included.
    members: usize,
    voters: usize,
    alone_for: Duration,
    /// Round trip to the farthest member, and time of a sync, if measured since the last look.
    measured: Option<(Duration, Duration)>,
    /// No faster pace is taken.
    fastest: Pace,
}

/// The slowest pace at which leaders were lost, and when.
#[derive(Debug, Default)]
struct TooFast(Mutex<Option<(Pace, Instant)>>);

impl TooFast {
    fn note(&self, pace: Pace) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((pace, Instant::now()));
    }

    /// The fastest pace that may be taken.
    fn fastest(&self) -> Pace {
        let noted = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = noted.filter(|(_, when)| when.elapsed() < TOO_FAST_FOR);
        noted.map_or_else(Pace::default, |(pace, _)| pace.calmer().unwrap_or(pace))
    }
}

fn wish(situation: &Situation) -> Wish {
    match situation.timing {
        // A cluster that has grown without this member being told, as when its notes about the others were lost.
        Timing::Alone if situation.voters > 1 => Wish::Now(Timing::Network(situation.fastest)),
        Timing::Network(_) if situation.members == 1 && situation.alone_for >= ALONE_FOR => Wish::Now(Timing::Alone),
        Timing::Network(pace) if situation.voters > 1 => match situation.measured {
            Some((round_trip, sync)) => match pace.follow(round_trip, sync).max(situation.fastest.min(pace)) {
                next if next == pace => Wish::Keep,
                next => Wish::Later(next),
            },
            None => Wish::Keep,
        },
        Timing::Alone | Timing::Network(_) => Wish::Keep,
    }
}

/// How this member may change its pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Not now: somebody does not answer.
    NotNow,
    /// It hands over first, to the member with this id.
    HandOver(u64),
    /// It restarts, when this many others have had their turn.
    After(u32),
}

fn turn(survey: &Survey, own: u64) -> Turn {
    let voters = || survey.members.iter().filter(|it| !it.member.is_learner);
    if voters().any(|voter| !voter.is_reachable()) {
        return Turn::NotNow;
    }
    if survey.leader == Some(own) {
        let next = voters().filter(|voter| voter.member.id != own).min_by_key(|voter| voter.lag.unwrap_or(u64::MAX));
        return next.map_or(Turn::After(0), |next| Turn::HandOver(next.member.id));
    }
    Turn::After(u32::try_from(voters().filter(|voter| voter.member.id < own).count()).unwrap_or(u32::MAX))
}

/// Runs until it is cancelled.
pub(crate) async fn run(inner: Arc<Inner>, context: Context) -> RunnableResult {
    context.healthy();
    let too_fast = TooFast::default();
    let both = async { tokio::try_join!(keep_pace(&inner, &too_fast), calm_down(&inner, &too_fast)).map(|_| ()) };
    context.unless_cancelled(both).await?
}

/// Takes a calmer pace whenever leaders are lost again and again.
async fn calm_down(inner: &Inner, too_fast: &TooFast) -> RunnableResult {
    let mut status = inner.status.subscribe();
    let mut unrest = Unrest::default();
    loop {
        let now = status.borrow_and_update().clone();
        let is_restless = unrest.observe(Instant::now(), now.process_id, now.leader);
        let timing = *inner.timing.borrow();
        if let (true, Timing::Network(pace)) = (is_restless, timing) {
            too_fast.note(pace);
            let Some(calmer) = pace.calmer() else { continue };
            // One after the other, though each of them would be right to do it at once.
            let others = now.members.iter().filter(|member| Some(member.id) < now.member_id).count();
            sleep(TURN * u32::try_from(others).unwrap_or(u32::MAX)).await;
            tracing::warn!(
                "the leader was lost again and again; from now on members wait {} ms for it, not {} ms",
                Timing::Network(calmer).election().as_millis(),
                timing.election().as_millis()
            );
            inner.timing.send_if_modified(|known| {
                let is_as_before = *known == timing;
                if is_as_before {
                    *known = Timing::Network(calmer);
                }
                is_as_before
            });
        }
        status.changed().await?;
    }
}

async fn keep_pace(inner: &Inner, too_fast: &TooFast) -> RunnableResult {
    let mut status = inner.status.subscribe();
    let mut alone_since: Option<Instant> = None;
    let mut asked: Option<(Pace, u32)> = None;
    let mut before: Option<Measurements> = None;
    loop {
        let now = status.wait_for(Status::is_ready).await?.clone();
        let voters = now.members.iter().filter(|member| !member.is_learner).count();
        let timing = *inner.timing.borrow();
        // A member alone is looked at only when its members change: it has nothing to measure.
        let is_alone = now.members.len() == 1;
        alone_since = (is_alone && timing.is_network()).then(|| alone_since.unwrap_or_else(Instant::now));
        let measured = if voters > 1 { measure(inner, &mut before).await } else { None };
        let alone_for = alone_since.map_or(Duration::ZERO, |since| since.elapsed());
        let situation =
            Situation { timing, members: now.members.len(), voters, alone_for, measured, fastest: too_fast.fastest() };
        match wish(&situation) {
            // Without a measurement nothing is known that was not before.
            Wish::Keep if measured.is_none() => {}
            Wish::Keep => asked = None,
            Wish::Now(timing) => set(inner, timing),
            Wish::Later(pace) => {
                let times = asked.filter(|(known, _)| *known == pace).map_or(1, |(_, times)| times + 1);
                asked = Some((pace, times));
                if times >= CONFIRMATIONS && take_turn(inner, &now, pace).await {
                    asked = None;
                }
            }
        }
        let next = match (is_alone, timing.is_network()) {
            (true, false) => None,
            (true, true) => Some(ALONE_FOR),
            (false, _) => Some(LOOK_INTERVAL),
        };
        wait(&mut status, now.members.len(), voters, next).await?;
    }
}

/// Waits for another number of members, or for the time of the next look.
async fn wait(
    status: &mut watch::Receiver<Status>,
    members: usize,
    voters: usize,
    pause: Option<Duration>,
) -> Result<(), watch::error::RecvError> {
    let other_members = status.wait_for(|status| {
        let now = status.members.iter().filter(|member| !member.is_learner).count();
        (status.members.len(), now) != (members, voters)
    });
    let pause = async {
        match pause {
            Some(pause) => sleep(pause).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        changed = other_members => changed.map(|_| ()),
        () = pause => Ok(()),
    }
}

/// Changes the pace, if that is safe now; whether it was done.
async fn take_turn(inner: &Inner, status: &Status, pace: Pace) -> bool {
    let Some(own) = status.member_id else { return false };
    let Ok(known) = survey(inner).await else { return false };
    match turn(&known, own) {
        Turn::NotNow => false,
        Turn::HandOver(next) => {
            // The restart comes with the next look, as a follower.
            let _ = inner.membership.move_leader_to("etcd/pace/hand-over", next).await;
            false
        }
        Turn::After(others) => {
            sleep(TURN * others).await;
            let still = survey(inner).await.is_ok_and(|known| turn(&known, own) == Turn::After(others));
            if still {
                set(inner, Timing::Network(pace));
            }
            still
        }
    }
}

fn set(inner: &Inner, timing: Timing) {
    inner.timing.send_if_modified(|known| std::mem::replace(known, timing) != timing);
}

/// What etcd has measured in its run so far.
#[derive(Clone, Debug)]
struct Measurements {
    process_id: Option<u32>,
    sync: Histogram,
    round_trips: BTreeMap<String, Histogram>,
}

/// The round trip to the farthest member and the time of a sync since the last look; `None` when nothing was measured.
async fn measure(inner: &Inner, before: &mut Option<Measurements>) -> Option<(Duration, Duration)> {
    let text = inner.connection.get("/metrics", MAX_METRICS).await.ok()?;
    let text = String::from_utf8_lossy(&text);
    let now = Measurements {
        process_id: inner.status.borrow().process_id,
        sync: Histogram::parse(&text, SYNC).remove("").unwrap_or_default(),
        round_trips: Histogram::parse(&text, ROUND_TRIP),
    };
    let known = before.replace(now.clone()).filter(|known| known.process_id == now.process_id);
    let sync = known.as_ref().map_or_else(|| now.sync.clone(), |known| now.sync.since(&known.sync));
    let round_trips = now.round_trips.iter().filter_map(|(peer, histogram)| {
        let known = known.as_ref().and_then(|known| known.round_trips.get(peer));
        known.map_or_else(|| histogram.clone(), |known| histogram.since(known)).mean()
    });
    Some((round_trips.max()?, sync.quantile(SYNC_QUANTILE).unwrap_or(Duration::ZERO)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Member;
    use crate::survey::SurveyedMember;
    use crate::version::Version;

    const NEAR: Timing = Timing::Network(Pace::Near);

    #[test]
    fn the_members_decide_between_alone_and_network_and_measurements_about_the_pace() {
        let ms = Duration::from_millis;
        let none = None;
        let seconds = Duration::from_secs;
        let fastest = Pace::Near;
        for (timing, members, voters, alone_for, measured, expected) in [
            (Timing::Alone, 1, 1, seconds(0), none, Wish::Keep),
            (Timing::Alone, 2, 1, seconds(0), none, Wish::Keep),
            (Timing::Alone, 2, 2, seconds(0), none, Wish::Now(NEAR)),
            (NEAR, 1, 1, seconds(29), none, Wish::Keep),
            (NEAR, 1, 1, seconds(30), none, Wish::Now(Timing::Alone)),
            (NEAR, 2, 1, seconds(99), none, Wish::Keep),
            (NEAR, 3, 3, seconds(0), none, Wish::Keep),
            (NEAR, 3, 3, seconds(0), Some((ms(1), ms(2))), Wish::Keep),
            (NEAR, 3, 3, seconds(0), Some((ms(30), ms(2))), Wish::Later(Pace::Far)),
            (NEAR, 3, 3, seconds(0), Some((ms(1), ms(40))), Wish::Later(Pace::Regional)),
            (Timing::Network(Pace::Far), 3, 3, seconds(0), Some((ms(1), ms(2))), Wish::Later(Pace::Near)),
        ] {
            let situation = Situation { timing, members, voters, alone_for, measured, fastest };
            assert_eq!(wish(&situation), expected, "{situation:?}");
        }
    }

    #[test]
    fn a_pace_at_which_leaders_were_lost_is_not_taken_again() {
        let ms = Duration::from_millis;
        let quick = Some((ms(1), ms(2)));
        for (timing, fastest, measured, expected) in [
            (Timing::Alone, Pace::Far, None, Wish::Now(Timing::Network(Pace::Far))),
            (Timing::Network(Pace::Far), Pace::Far, quick, Wish::Keep),
            (Timing::Network(Pace::Remote), Pace::Far, quick, Wish::Later(Pace::Far)),
            (Timing::Network(Pace::Far), Pace::Far, Some((ms(90), ms(2))), Wish::Later(Pace::Remote)),
            // Only unrest itself makes it slower without a measurement that says so.
            (NEAR, Pace::Far, quick, Wish::Keep),
        ] {
            let situation = Situation { timing, members: 3, voters: 3, alone_for: Duration::ZERO, measured, fastest };
            assert_eq!(wish(&situation), expected, "{situation:?}");
        }
        let too_fast = TooFast::default();
        assert_eq!(too_fast.fastest(), Pace::Near);
        too_fast.note(Pace::Near);
        assert_eq!(too_fast.fastest(), Pace::Far);
        too_fast.note(Pace::Remote);
        assert_eq!(too_fast.fastest(), Pace::Remote);
    }

    fn survey_of(members: &[(u64, bool, bool)], leader: u64) -> Survey {
        let member = |(id, is_learner, answers): &(u64, bool, bool)| SurveyedMember {
            member: Member { id: *id, node_id: None, address: None, is_learner: *is_learner, is_started: true },
            version: answers.then_some(Version::new(3, 4, 23)),
            failure: None,
            lag: Some(0),
            database_bytes: None,
        };
        Survey { members: members.iter().map(member).collect(), leader: Some(leader), raft_term: 2, alarms: Vec::new() }
    }

    #[test]
    fn a_member_restarts_in_its_turn_and_the_leader_last() {
        let all = [(1, false, true), (2, false, true), (3, false, true)];
        for (own, leader, expected) in [
            (1, 2, Turn::After(0)),
            (2, 1, Turn::After(1)),
            (3, 1, Turn::After(2)),
            (1, 1, Turn::HandOver(2)),
            (3, 3, Turn::HandOver(1)),
        ] {
            assert_eq!(turn(&survey_of(&all, leader), own), expected, "{own} of which {leader} leads");
        }
        let one_down = [(1, false, true), (2, false, false), (3, false, true)];
        assert_eq!(turn(&survey_of(&one_down, 1), 3), Turn::NotNow);
        let learner_down = [(1, false, true), (2, true, false), (3, false, true)];
        assert_eq!(turn(&survey_of(&learner_down, 1), 3), Turn::After(1));
    }
}
