//! The pause before a runnable is started again, and what is said of one that needs it often.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, RESTARTS_OFTEN, Settings, runnable};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::{find, restarts, root, until};

#[tokio::test(start_paused = true)]
async fn backoff_grows_and_is_reset_by_staying_healthy() {
    let births = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&births);
    let dying = runnable(move |context: Context| {
        let noted = Arc::clone(&noted);
        async move {
            let number = {
                let mut births = noted.lock().unwrap();
                births.push(Instant::now());
                births.len()
            };
            // The sixth life stays up for longer than any backoff of the first five.
            if number == 6 {
                context.healthy();
                sleep(Duration::from_secs(10)).await;
            }
            Err("dies".into())
        }
    });
    let settings = Settings { seed: Some(7), ..Settings::default() };
    let harness = Harness::start_with(settings, root(vec![vec![("dying", dying)]]));
    until(harness.observer(), |dump| restarts(dump, "root.dying") == 6).await;
    let births = births.lock().unwrap().clone();
    let waits: Vec<Duration> = births.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (wait, interval) in waits.iter().zip([500, 750, 1125, 1687, 2531]) {
        let interval = Duration::from_millis(interval);
        assert!((interval / 2..=interval * 3 / 2 + Duration::from_millis(2)).contains(wait), "{waits:?}");
    }
    let after_health = waits[5] - Duration::from_secs(10);
    let first = Duration::from_millis(250)..=Duration::from_millis(752);
    assert!(first.contains(&after_health), "{waits:?}");
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn cancel_restart_does_not_wait_for_a_backoff_below() {
    let (release, released) = mpsc::channel::<()>(1);
    let released = Arc::new(tokio::sync::Mutex::new(released));
    let parent = runnable(move |context| {
        let released = Arc::clone(&released);
        async move {
            context.run("child", runnable(|_| async { Err("always".into()) }))?;
            context.healthy();
            context.unless_cancelled(async { released.lock().await.recv().await }).await?;
            Err("the parent dies".into())
        }
    });
    let harness = Harness::start(root(vec![vec![("parent", parent)]]));
    let child = "root.parent.child";
    let long = Duration::from_secs(4);
    until(harness.observer(), |dump| find(dump, child).and_then(|node| node.starts_in).is_some_and(|wait| wait > long))
        .await;
    let before = Instant::now();
    release.send(()).await.unwrap();
    until(harness.observer(), |dump| restarts(dump, "root.parent") == 1 && find(dump, child).is_some()).await;
    assert!(before.elapsed() <= Duration::from_secs(1), "{:?}", before.elapsed());
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_runnable_that_dies_again_and_again_is_named() {
    let born = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&born);
    let dying = runnable(move |context| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        async move {
            if number < 5 {
                return Err("still broken".into());
            }
            context.healthy();
            Err(context.cancelled().await.into())
        }
    });
    let harness = Harness::start(root(vec![vec![("dying", dying)]]));
    let mut conditions = harness.conditions().watch();
    let raised = conditions.wait_for(|all| all.contains_key(RESTARTS_OFTEN)).await.unwrap().clone();
    assert_eq!(raised[RESTARTS_OFTEN].message, "dying again and again: root.dying");
    let dump = until(harness.observer(), |dump| restarts(dump, "root.dying") == 5).await;
    assert_eq!(find(&dump, "root.dying").unwrap().recent_restarts, 5);
    timeout(Duration::from_secs(70), conditions.wait_for(|all| !all.contains_key(RESTARTS_OFTEN)))
        .await
        .unwrap()
        .unwrap();
    harness.finish().await;
}
