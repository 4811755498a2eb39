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
    let result = context.unless_cancelled(observe(&inner, context.conditions())).await;
    OBSERVED.iter().for_each(|name| context.conditions().clear(name));
    result?
}

async fn observe(inner: &Inner, conditions: &Conditions) -> RunnableResult {
    let mut children = inner.child.subscribe();
    let mut health = Health::default();
    let mut due = false;
    loop {
        let child = children.borrow_and_update().clone();
        health.enter(&child);
        // Before etcd serves clients, a call would only wait for it; but one that words its log differently is asked
        // all the same when a check is due.
        let ask = child.run.as_ref().is_some_and(|run| run.serving || due);
        let checked = if ask { Some(check(inner, &health, &child).await) } else { None };
        let verdict = health.observe(Instant::now(), &child, checked, &inner.data_path.display().to_string());
        publish(inner, conditions, &child, &health, &verdict);
        due = tokio::select! {
            changed = children.changed() => { changed?; false }
            () = until(verdict.again_at) => true,
        };
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// One check: calls that this member answers by itself, and until it has answered one, a read that needs the quorum.
async fn check(inner: &Inner, health: &Health, child: &Child) -> Option<Answer> {
    let local = inner.connection.local();
    let (mut maintenance, mut cluster, mut kv) =
        (local.maintenance_client(), local.cluster_client(), inner.connection.kv());
    let (list, has_read) = (health.wants_members(child), health.has_read());
    let calls = async {
        // A learner refuses to list the members.
        let members = async { if list { cluster.member_list().await.ok() } else { None } };
        let read = timeout(CHECK_DEADLINE / 2, async { has_read || kv.get("\0", None).await.is_ok() });
        tokio::join!(maintenance.status(), members, read)
    };
    let (status, members, read) = timeout(CHECK_DEADLINE, calls).await.ok()?;
    let status = status.ok()?.0;
    Some(Answer {
        member_id: status.header.as_ref().map_or(0, |header| header.member_id),
        cluster_id: status.header.as_ref().map_or(0, |header| header.cluster_id),
        is_learner: status.is_learner,
        leader: status.leader,
        raft_term: status.raft_term,
        members: members.map(|members| Member::list(members.0.members)),
        has_read: read.unwrap_or(false),
        no_space: status.errors.iter().any(|error| error.contains(NO_SPACE_ALARM)),
        database_size: status.db_size.try_into().unwrap_or_default(),
        database_in_use: status.db_size_in_use.try_into().unwrap_or_default(),
    })
}

fn publish(inner: &Inner, conditions: &Conditions, child: &Child, health: &Health, verdict: &Verdict) {
    inner.status.send_if_modified(|status| {
        let is_over =
            inner.child.borrow().run.as_ref().map(|run| run.started) != child.run.as_ref().map(|run| run.started);
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
    if health.has_answered() {
        conditions.clear(ETCD_EXITING);
        // Nobody waits for this to change.
        inner.child.send_if_modified(|now| {
            if let Some(run) =
                now.run.as_mut().filter(|run| child.run.as_ref().is_some_and(|own| own.started == run.started))
            {
                run.has_answered = true;
            }
            false
        });
    }
    for name in OBSERVED {
        match verdict.faults.iter().find(|fault| fault.name() == name) {
            Some(fault) => Fault::raise(fault, conditions),
            None => conditions.clear(name),
        }
    }
}

fn note(before: Phase, now: Phase) {
    match now {
        Phase::Ready => tracing::info!("the member is ready"),
        Phase::Learner => tracing::info!("the member is learning"),
        Phase::Leaderless => tracing::warn!("the cluster has no leader"),
        Phase::Hanging => tracing::warn!("etcd does not answer"),
        Phase::Starting => tracing::info!("etcd is starting"),
        Phase::Down => tracing::info!("etcd is down (it was {before:?})"),
        Phase::Removed => tracing::info!("the member was removed from the cluster"),
    }
}
