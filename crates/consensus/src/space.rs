//! Makes room when etcd's database has reached its quota, and lets it take writes again once there is.
//!
//! At its quota etcd refuses every write until somebody compacts, defragments and takes back its alarm, by hand. All of that is
//! safe to do by itself: what compaction drops are old versions of keys, which watches that are behind learn of.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions};
use polis_supervisor::{Context, RunnableResult, with_causes};
use tokio::time::sleep;

use crate::arguments::QUOTA_BYTES;
use crate::client::{KvError, change, change_within, read};
use crate::consensus::Inner;
use crate::status::Status;

/// Pause before something is done, so that whoever looks sees what was wrong; it is also that before the next try.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Pause before the next try, when there was no room to be made.
const PAUSE: Duration = Duration::from_secs(60);

/// How long rewriting the database may take: 2 GiB on a disk that spins.
pub(crate) const DEFRAGMENT_DEADLINE: Duration = Duration::from_secs(120);

/// Room that must be there before writes are let in again, so that it does not begin anew at once: a tenth of the quota.
const ENOUGH_ROOM: u64 = QUOTA_BYTES / 10;

/// What is to be done next about a database that has been full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    /// Rewrite the file without its gaps.
    Defragment,
    /// Take back the alarm.
    Disarm,
    /// Nothing helps but deleting something.
    Nothing,
}

/// The remedy for a database of this size in the file, and this size in use.
const fn remedy(size: u64, in_use: u64, leads: bool) -> Remedy {
    if in_use + ENOUGH_ROOM > QUOTA_BYTES {
        Remedy::Nothing
    } else if size + ENOUGH_ROOM > QUOTA_BYTES {
        Remedy::Defragment
    } else if leads {
        Remedy::Disarm
    } else {
        // The leader does it for all.
        Remedy::Nothing
    }
}

/// Runs until it is cancelled.
pub(crate) async fn run(inner: Arc<Inner>, context: Context) -> RunnableResult {
    context.healthy();
    context.unless_cancelled(watch_over(&inner)).await?
}

async fn watch_over(inner: &Inner) -> RunnableResult {
    let mut status = inner.status.subscribe();
    loop {
        status.wait_for(|status| status.is_ready() && status.no_space).await?;
        sleep(FIRST_PAUSE).await;
        let now = status.borrow_and_update().clone();
        if let Err(error) = make_room(inner, &now).await {
            tracing::warn!("no room can be made in etcd's database: {}", with_causes(&error));
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            freed = status.wait_for(|status| !status.no_space) => { freed?; }
        }
    }
}

/// Compacts, defragments and takes back the alarm, as far as each is needed and this member's part.
async fn make_room(inner: &Inner, status: &Status) -> Result<(), KvError> {
    let local = inner.connection.local();
    let (mut maintenance, mut kv) = (local.maintenance_client(), inner.connection.kv());
    if status.is_leader() {
        let revision = read(maintenance.status()).await?.0.header.map_or(0, |header| header.revision);
        let options = CompactionOptions::new().with_physical();
        // That it was compacted before is no hindrance.
        let _ = change_within("etcd/space/compact", DEFRAGMENT_DEADLINE, kv.compact(revision, Some(options))).await;
    }
    // At most: defragment, disarm, look.
    for _ in 0..3 {
        let size = read(maintenance.status()).await?.0;
        let bytes = |size: i64| u64::try_from(size).unwrap_or_default();
        match remedy(bytes(size.db_size), bytes(size.db_size_in_use), status.is_leader()) {
            Remedy::Defragment => {
                tracing::info!("etcd's database is rewritten to make room");
                change_within("etcd/space/defragment", DEFRAGMENT_DEADLINE, maintenance.defragment()).await?;
            }
            Remedy::Disarm => {
                tracing::info!("there is room in etcd's database; it takes writes again");
                let alarm = maintenance.alarm(AlarmAction::Get, AlarmType::Nospace, None);
                for alarm in read(alarm).await?.0.alarms {
                    let mut options = AlarmOptions::new();
                    options.with_member(alarm.member_id);
                    let disarmed = maintenance.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options));
                    change("etcd/space/disarm", disarmed).await?;
                }
                return Ok(());
            }
            Remedy::Nothing => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_let_in_only_when_there_is_room_for_them() {
        const FULL: u64 = QUOTA_BYTES;
        const HALF: u64 = QUOTA_BYTES / 2;
        for (size, in_use, leads, expected) in [
            (FULL, FULL, true, Remedy::Nothing),
            (FULL, FULL - ENOUGH_ROOM / 2, true, Remedy::Nothing),
            (FULL, HALF, true, Remedy::Defragment),
            (FULL, HALF, false, Remedy::Defragment),
            (FULL - ENOUGH_ROOM, HALF, true, Remedy::Disarm),
            (HALF, HALF, true, Remedy::Disarm),
            (HALF, HALF, false, Remedy::Nothing),
            (0, 0, true, Remedy::Disarm),
        ] {
            assert_eq!(remedy(size, in_use, leads), expected, "{size} {in_use} {leads}");
        }
    }
}
