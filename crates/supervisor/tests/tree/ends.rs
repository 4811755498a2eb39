//! How a tree, a runnable and its tasks end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, DOES_NOT_STOP, State, Supervisor, runnable};
use tokio::time::{Instant, sleep};

use crate::{DEADLINE, find, good, is, mortal, panic_text, restarts, root, until};

#[tokio::test(start_paused = true)]
async fn a_runnable_that_does_not_stop_is_named_and_then_aborted() {
    let deaf = runnable(|context| async move {
        context.healthy();
        std::future::pending().await
    });
    let (one, kill) = mortal();
    let harness = Harness::start(root(vec![vec![("one", one), ("deaf", deaf)]]));
    harness.wait_for("root.deaf", State::Healthy, DEADLINE).await;
    let before = Instant::now();
    kill.send(()).await.unwrap();
    let mut conditions = harness.conditions().watch();
    let raised = conditions.wait_for(|all| all.contains_key(DOES_NOT_STOP)).await.unwrap().clone();
    assert!(raised[DOES_NOT_STOP].message.ends_with("root.deaf"), "{raised:?}");
    assert_eq!(before.elapsed().as_secs(), 2);
    assert!(find(&harness.observer().dump(), "root.deaf").unwrap().overdue);
    conditions.wait_for(|all| !all.contains_key(DOES_NOT_STOP)).await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 4);
    let dump = until(harness.observer(), |dump| restarts(dump, "root.deaf") == 1).await;
    let error = find(&dump, "root.deaf").unwrap().last_error.clone().unwrap();
    assert_eq!(error, "was aborted because it did not stop after it was cancelled");
    let end = tokio::spawn(harness.finish()).await.unwrap_err();
    assert!(panic_text(end).contains("root.deaf"));
}

#[tokio::test(start_paused = true)]
async fn tasks_end_with_their_runnable_and_before_the_next_life() {
    struct Dropped(Arc<AtomicU32>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let tasks = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&tasks);
    let parent = runnable(move |context: Context| {
        let tasks = Arc::clone(&counted);
        async move {
            assert_eq!(tasks.load(Ordering::SeqCst), 0, "a task of the earlier life is still there");
            for _ in 0..3 {
                tasks.fetch_add(1, Ordering::SeqCst);
                let guard = Dropped(Arc::clone(&tasks));
                context.spawn(async move {
                    let _guard = guard;
                    std::future::pending().await
                });
            }
            context.spawn(async { Ok(()) });
            context.healthy();
            context.unless_cancelled(sleep(Duration::from_secs(1))).await?;
            Err("dies".into())
        }
    });
    let harness = Harness::start(root(vec![vec![("parent", parent)]]));
    let dump = until(harness.observer(), |dump| restarts(dump, "root.parent") == 3).await;
    assert_eq!(find(&dump, "root.parent").unwrap().last_error.as_deref(), Some("dies"));
    harness.finish().await;
    assert_eq!(tasks.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_supervisor_stops_everything() {
    let supervisor = Supervisor::builder().start(root(vec![vec![("a", good())]]));
    let observer = supervisor.observer();
    until(&observer, |dump| is(dump, "root.a", State::Healthy)).await;
    drop(supervisor);
    until(&observer, |dump| dump.iter().all(|node| !node.running)).await;
}

#[tokio::test(start_paused = true)]
async fn the_harness_fails_when_the_root_died_or_it_was_not_finished() {
    let harness = Harness::start(runnable(|context| async move {
        context.unless_cancelled(sleep(Duration::from_millis(1))).await?;
        Err("the root is broken".into())
    }));
    until(harness.observer(), |dump| restarts(dump, "root") == 1).await;
    let end = tokio::spawn(harness.finish()).await.unwrap_err();
    assert!(panic_text(end).contains("the root died: the root is broken"));

    let harness = Harness::start(good());
    let end = tokio::spawn(async move { drop(harness) }).await.unwrap_err();
    assert!(panic_text(end).contains("without finish()"));
}
