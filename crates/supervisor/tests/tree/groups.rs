//! Groups: they start together, die together, and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, SharedRunnable, State, runnable};
use tokio::time::{Instant, sleep};

use crate::{DEADLINE, chain, find, good, is, mortal, restarts, root, until};

#[tokio::test(start_paused = true)]
async fn simple_a_group_becomes_healthy_and_done() {
    let done = runnable(|context| async move {
        context.healthy();
        context.done();
        Ok(())
    });
    let harness = Harness::start(root(vec![vec![("one", done), ("two", good())]]));
    harness.wait_for("root.one", State::Done, DEADLINE).await;
    harness.wait_for("root.two", State::Healthy, DEADLINE).await;
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn simple_failure_takes_the_sibling_and_both_come_back() {
    let (one, kill) = mortal();
    let harness = Harness::start(root(vec![vec![("one", one), ("two", good())], vec![("other", good())]]));
    harness.wait_for("root.one", State::Healthy, DEADLINE).await;
    kill.send(()).await.unwrap();
    let dump = until(harness.observer(), |dump| {
        ["root.one", "root.two"].iter().all(|name| restarts(dump, name) == 1 && is(dump, name, State::Healthy))
    })
    .await;
    assert_eq!(find(&dump, "root.one").unwrap().last_error.as_deref(), Some("told to die"));
    assert_eq!(find(&dump, "root.two").unwrap().last_error, None);
    assert_eq!(restarts(&dump, "root.other"), 0);
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn deep_failure_tears_the_siblings_tree_down_and_builds_it_again() {
    let (one, kill) = mortal();
    let harness = Harness::start(root(vec![vec![("one", one), ("deep", chain(5))]]));
    let leaf = "root.deep.next.next.next.next";
    harness.wait_for(leaf, State::Healthy, DEADLINE).await;
    kill.send(()).await.unwrap();
    until(harness.observer(), |dump| find(dump, leaf).is_none()).await;
    let dump = until(harness.observer(), |dump| is(dump, leaf, State::Healthy)).await;
    assert_eq!((restarts(&dump, "root.deep"), restarts(&dump, leaf)), (1, 0));
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn multiple_level_failure_of_two_trees_in_one_group() {
    fn dying_chain(depth: u32) -> SharedRunnable {
        runnable(move |context| async move {
            if depth > 0 {
                context.run("next", dying_chain(depth - 1))?;
            }
            context.healthy();
            context.unless_cancelled(sleep(Duration::from_secs(u64::from(depth) + 1))).await?;
            Err("every level dies".into())
        })
    }
    let harness = Harness::start(root(vec![vec![("one", dying_chain(4)), ("two", dying_chain(4))]]));
    let deepest = ["root.one.next.next.next.next", "root.two.next.next.next.next"];
    for round in 1..=3 {
        until(harness.observer(), |dump| {
            restarts(dump, "root.one") == round && deepest.iter().all(|name| is(dump, name, State::Healthy))
        })
        .await;
    }
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn done_delay_a_runnable_that_has_not_returned_is_not_started_again() {
    let living = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&living);
    let lingering = runnable(move |context: Context| {
        let living = Arc::clone(&counted);
        async move {
            assert_eq!(living.fetch_add(1, Ordering::SeqCst), 0, "two lives at a time");
            context.healthy();
            context.done();
            let _ = context.cancelled().await;
            sleep(Duration::from_secs(1)).await;
            living.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let (one, kill) = mortal();
    let harness = Harness::start(root(vec![vec![("one", one), ("lingering", lingering)]]));
    harness.wait_for("root.lingering", State::Healthy, DEADLINE).await;
    let before = Instant::now();
    kill.send(()).await.unwrap();
    let dump = until(harness.observer(), |dump| restarts(dump, "root.lingering") == 1).await;
    assert!(before.elapsed() >= Duration::from_millis(1250), "the backoff follows the barrier");
    assert_eq!(find(&dump, "root.lingering").unwrap().last_error, None);
    assert_eq!(restarts(&dump, "root.one"), 1);
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn cancel_done_sibling_starts_it_again() {
    let done = runnable(|context| async move {
        context.healthy();
        context.done();
        Ok(())
    });
    let (one, kill) = mortal();
    let harness = Harness::start(root(vec![vec![("one", one), ("done", done)]]));
    harness.wait_for("root.done", State::Done, DEADLINE).await;
    kill.send(()).await.unwrap();
    until(harness.observer(), |dump| restarts(dump, "root.done") == 1 && is(dump, "root.done", State::Done)).await;
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn lives_of_a_group_never_overlap() {
    let living = Arc::new(AtomicU32::new(0));
    let highest_generation = Arc::new(AtomicU32::new(0));
    let member = |lingers: u64| {
        let (living, highest) = (Arc::clone(&living), Arc::clone(&highest_generation));
        let generation = AtomicU32::new(0);
        let counted = Arc::new(generation);
        runnable(move |context: Context| {
            let (living, highest, counted) = (Arc::clone(&living), Arc::clone(&highest), Arc::clone(&counted));
            async move {
                let generation = counted.fetch_add(1, Ordering::SeqCst) + 1;
                highest.fetch_max(generation, Ordering::SeqCst);
                living.fetch_add(1, Ordering::SeqCst);
                context.healthy();
                let result = context.unless_cancelled(sleep(Duration::from_millis(500 + 70 * lingers))).await;
                sleep(Duration::from_millis(300 * lingers)).await;
                assert_eq!(
                    highest.load(Ordering::SeqCst),
                    generation,
                    "a sibling of the next generation lives already"
                );
                living.fetch_sub(1, Ordering::SeqCst);
                result?;
                Err("dies".into())
            }
        })
    };
    let group = vec![("a", member(0)), ("b", member(1)), ("c", member(3))];
    let harness = Harness::start(root(vec![group]));
    let dump = until(harness.observer(), |dump| restarts(dump, "root.a") == 4).await;
    for name in ["root.a", "root.b", "root.c"] {
        assert_eq!(restarts(&dump, name), 4, "all start in one step");
        let error = find(&dump, name).unwrap().last_error.clone();
        assert!(error.as_deref().is_none_or(|error| error == "dies"), "{name}: {error:?}");
    }
    harness.finish().await;
}
