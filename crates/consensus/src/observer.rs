//! Asks etcd how it is: when its log gives a reason, and every few seconds. Publishes the status and the conditions.

use std::sync::Arc;

use polis_condition::Conditions;
use polis_supervisor::{Context, RunnableResult};
use tokio::time::{Instant, sleep_until, timeout};

use crate::consensus::Inner;
use crate::fault::{DISK_FULL, ETCD_EXITING, ETCD_HANGING, Fault, NO_LEADER};
use crate::health::{Answer, CHECK_DEADLINE, Child, Health, Verdict};
use crate::status::{Member, Phase};

/// Conditions that follow from what is observed here.
const OBSERVED: [&str; 3] = [ETCD_HANGING, NO_LEADER, DISK_FULL];

/// Text in the errors of a status for etcd's alarm about its quota.
const NO_SPACE_ALARM: &str = "NOSPACE";

/// Runs until it is cancelled.
pub(crate) async fn run(inner: Arc<Inner>, context: Context) -> RunnableResult {
    context.healthy();
    let mut child = inner.child.subscribe();
    let mut health = Health::default();
    let mut due = false;
    loop {
        let now_child = child.borrow_and_update().clone();
        // Before etcd serves clients, a call would only wait for it; but one that words its log differently is asked
        // all the same when a check is due.
        let ask = now_child.run.as_ref().is_some_and(|run| run.serving || due);
        let checked = if ask {
            // The run may end meanwhile; what is said about it then is outdated at once, and the next round knows.
            Some(context.unless_cancelled(check(&inner, &health)).await?)
        } else {
            None
        };
        let verdict = health.observe(Instant::now(), &now_child, checked, &inner.data_path.display().to_string());
        publish(&inner, context.conditions(), &now_child, &health, &verdict);
        due = tokio::select! {
            _ = context.cancelled() => break,
            changed = child.changed() => { changed?; false }
            () = until(verdict.again_at) => true,
        };
    }
    OBSERVED.iter().for_each(|name| context.conditions().clear(name));
    Err(context.cancelled().await.into())
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// One check: two calls that this member answers by itself, and until it has answered one, a read that needs the quorum.
async fn check(inner: &Inner, health: &Health) -> Option<Answer> {
    let local = inner.connection.local();
    let (mut maintenance, mut cluster, mut kv) =
        (local.maintenance_client(), local.cluster_client(), inner.connection.kv());
    let has_read = health.has_read();
    let calls = async {
        let read = async { has_read || kv.get("\0", None).await.is_ok() };
        tokio::join!(maintenance.status(), cluster.member_list(), timeout(CHECK_DEADLINE / 2, read))
    };
    let (status, members, read) = timeout(CHECK_DEADLINE, calls).await.ok()?;
    let (status, members) = (status.ok()?.0, members.ok()?.0);
    Some(Answer {
        member_id: status.header.as_ref().map_or(0, |header| header.member_id),
        is_learner: status.is_learner,
        leader: status.leader,
        raft_term: status.raft_term,
        members: Member::list(members.members),
        has_read: read.unwrap_or(false),
        no_space: status.errors.iter().any(|error| error.contains(NO_SPACE_ALARM)),
    })
}

fn publish(inner: &Inner, conditions: &Conditions, child: &Child, health: &Health, verdict: &Verdict) {
    if health.has_answered() {
        conditions.clear(ETCD_EXITING);
    }
    for name in OBSERVED {
        match verdict.faults.iter().find(|fault| fault.name() == name) {
            Some(fault) => Fault::raise(fault, conditions),
            None => conditions.clear(name),
        }
    }
    inner.status.send_if_modified(|status| {
        let is_over = inner.child.borrow().run.as_ref().map(|run| run.started) != child.run.as_ref().map(|run| run.started);
        if is_over {
            return false;
        }
        let before = status.clone();
        health.describe(child, verdict.phase, status);
        status.timing = *inner.timing.borrow();
        if before.phase != status.phase {
            note(before.phase, status.phase);
        }
        *status != before
    });
}

fn note(before: Phase, now: Phase) {
    match now {
        Phase::Ready => tracing::info!("the member is ready"),
        Phase::Learner => tracing::info!("the member is learning"),
        Phase::Leaderless => tracing::warn!("the cluster has no leader"),
        Phase::Hanging => tracing::warn!("etcd does not answer"),
        Phase::Starting => tracing::info!("etcd is starting"),
        Phase::Down => tracing::info!("etcd is down (it was {before:?})"),
    }
}
