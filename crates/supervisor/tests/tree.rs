//! Metropolis' cases (metropolis.md A.9) and the mended ones, with real tasks under a paused clock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polis_logtree::{Backlog, DistinguishedName, ReadOptions, Severity};
use polis_supervisor::testing::Harness;
use polis_supervisor::{
    BoxError, Context, DOES_NOT_STOP, Metrics, NodeReport, Observer, RESTARTS_OFTEN, Settings, SharedRunnable,
    StartError, State, Supervisor, Transition, runnable,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

const DEADLINE: Duration = Duration::from_secs(30);

/// Healthy until it is to stop.
fn good() -> SharedRunnable {
    runnable(|context| async move {
        context.healthy();
        Err(context.cancelled().await.into())
    })
}

/// Healthy until it is told to die.
fn mortal() -> (SharedRunnable, mpsc::Sender<()>) {
    let (sender, receiver) = mpsc::channel(1);
    let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
    let runnable = runnable(move |context| {
        let receiver = Arc::clone(&receiver);
        async move {
            context.healthy();
            context.unless_cancelled(async { receiver.lock().await.recv().await }).await?;
            Err("told to die".into())
        }
    });
    (runnable, sender)
}

/// A root that starts these groups and is then healthy.
fn root(groups: Vec<Vec<(&'static str, SharedRunnable)>>) -> SharedRunnable {
    runnable(move |context| {
        let groups = groups.clone();
        async move {
            for group in groups {
                context.run_group(group)?;
            }
            context.healthy();
            Err(context.cancelled().await.into())
        }
    })
}

/// A chain of runnables of this depth, each with the next as its only child.
fn chain(depth: u32) -> SharedRunnable {
    runnable(move |context| async move {
        if depth > 1 {
            context.run("next", chain(depth - 1))?;
        }
        context.healthy();
        Err(context.cancelled().await.into())
    })
}

fn find<'a>(dump: &'a [NodeReport], name: &str) -> Option<&'a NodeReport> {
    dump.iter().find(|node| node.distinguished_name.as_str() == name)
}

fn restarts(dump: &[NodeReport], name: &str) -> u64 {
    find(dump, name).map_or(0, |node| node.restarts)
}

async fn until(observer: &Observer, wanted: impl FnMut(&[NodeReport]) -> bool) -> Vec<NodeReport> {
    match timeout(DEADLINE, observer.wait_until(wanted)).await {
        Ok(dump) => dump,
        Err(_) => panic!("the tree did not become as wanted: {:#?}", observer.dump()),
    }
}

fn is(dump: &[NodeReport], name: &str, state: State) -> bool {
    find(dump, name).is_some_and(|node| node.state == state)
}

fn fatal_lines(harness: &Harness, name: &str) -> Vec<String> {
    let options =
        ReadOptions { backlog: Backlog::All, minimum_severity: Some(Severity::Fatal), ..ReadOptions::default() };
    let reader = harness.log_tree().read(&DistinguishedName::parse(name).unwrap(), options).unwrap();
    reader.backlog.iter().map(|entry| entry.text().into_owned()).collect()
}

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

/// What a runnable may do to itself, and what it is then said to have died of.
fn deaths() -> Vec<(&'static str, SharedRunnable, &'static str)> {
    struct PanicsWhenDropped;
    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    vec![
        ("future", runnable(|_| async { panic!("in the future") }), "in the future"),
        (
            "construction",
            runnable(|context| {
                if !context.is_cancelled() {
                    panic!("in the making");
                }
                async { Ok(()) }
            }),
            "in the making",
        ),
        (
            "task",
            runnable(|context| async move {
                context.spawn(async { panic!("in a task") });
                std::future::pending().await
            }),
            "in a task",
        ),
        (
            "blocking",
            runnable(|context| async move { context.blocking(|| panic!("in a closure")).await }),
            "in a closure",
        ),
        (
            "blocking-not-awaited",
            runnable(|context| async move {
                let closure = context.blocking(|| panic!("in a closure"));
                let both = futures::future::join(closure, std::future::pending::<()>());
                both.await;
                Ok(())
            }),
            "in a closure",
        ),
        (
            "destructor",
            runnable(|context| async move {
                let _bomb = PanicsWhenDropped;
                context.spawn(async { Err("a task ends it".into()) });
                std::future::pending().await
            }),
            "a task ends it",
        ),
        (
            "task-error",
            runnable(|context| async move {
                context.spawn(async { Err(Box::new(std::io::Error::other("a task's error")) as BoxError) });
                std::future::pending().await
            }),
            "a task's error",
        ),
        (
            "ok-without-done",
            runnable(|context| async move {
                context.healthy();
                Ok(())
            }),
            "returned without having signalled Done",
        ),
        (
            "healthy-twice",
            runnable(|context| async move {
                context.healthy();
                context.healthy();
                Err(context.cancelled().await.into())
            }),
            "signalled Healthy while healthy",
        ),
        (
            "done-too-early",
            runnable(|context| async move {
                context.done();
                context.healthy();
                Ok(())
            }),
            "signalled Done while new",
        ),
        (
            "child-too-late",
            runnable(|context| async move {
                context.healthy();
                context.run("child", good())?;
                Ok(())
            }),
            "may start children only while it is new",
        ),
        (
            "bad-name",
            runnable(|context| async move {
                context.run("/dev/tty0", good())?;
                Ok(())
            }),
            "the name \"/dev/tty0\" under root.bad-name is not allowed",
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_death_is_its_own_and_is_told() {
    for (name, runnable, error) in deaths() {
        let harness = Harness::start(root(vec![vec![(name, runnable)], vec![("other", good())]]));
        let path = format!("root.{name}");
        let dump = until(harness.observer(), |dump| restarts(dump, &path) >= 2).await;
        let last_error = find(&dump, &path).unwrap().last_error.clone().unwrap();
        assert!(last_error.contains(error), "{name}: {last_error}");
        if error.starts_with("in ") {
            assert!(last_error.starts_with("panicked at crates/supervisor/tests/tree.rs:"), "{name}: {last_error}");
        }
        let lines = fatal_lines(&harness, &path);
        assert!(lines.len() >= 2 && lines.iter().all(|line| line.contains(error)), "{name}: {lines:?}");
        assert_eq!(restarts(&dump, "root.other"), 0, "{name}");
        assert_eq!(restarts(&dump, "root"), 0, "{name}");
        harness.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_a_cancelled_future_is_dropped_is_told() {
    struct PanicsWhenDropped;
    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    let stubborn = runnable(|context| async move {
        let _bomb = PanicsWhenDropped;
        context.healthy();
        std::future::pending().await
    });
    let (one, kill) = mortal();
    let harness = Harness::start(root(vec![vec![("one", one), ("stubborn", stubborn)]]));
    harness.wait_for("root.stubborn", State::Healthy, DEADLINE).await;
    kill.send(()).await.unwrap();
    let dump = until(harness.observer(), |dump| restarts(dump, "root.stubborn") == 1).await;
    let last_error = find(&dump, "root.stubborn").unwrap().last_error.clone().unwrap();
    assert!(last_error.ends_with("in a destructor, while its future was dropped"), "{last_error}");
    let end = tokio::spawn(harness.finish()).await.unwrap_err();
    assert!(panic_text(end).contains("had to be aborted"));
}

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
async fn sub_loggers_and_children_share_no_name() {
    let root = runnable(|context| async move {
        context.sub_logger("log")?.info("hello");
        assert!(matches!(context.sub_logger("log"), Err(StartError::NameInUse(..))));
        assert!(matches!(context.run("log", good()), Err(StartError::NameInUse(..))));
        context.run("child", good())?;
        assert!(matches!(context.sub_logger("child"), Err(StartError::NameInUse(..))));
        assert!(matches!(context.sub_logger("Child"), Err(StartError::BadName(..))));
        context.healthy();
        assert!(context.sub_logger("after-healthy").is_ok());
        Err(context.cancelled().await.into())
    });
    let harness = Harness::start(root);
    harness.wait_for("root", State::Healthy, DEADLINE).await;
    let log = DistinguishedName::parse("root.log").unwrap();
    let reader = harness.log_tree().read(&log, ReadOptions::default()).unwrap();
    assert_eq!(reader.backlog[0].text(), "hello");
    harness.finish().await;
}

#[derive(Default)]
struct Recorder {
    transitions: Mutex<Vec<String>>,
    observer: Mutex<Option<Observer>>,
    held_by_a_runnable: Arc<Mutex<()>>,
}

impl Metrics for Recorder {
    fn transition(&self, transition: &Transition) {
        // Both would hang if this were called from under a lock, or from the runnable's own call.
        drop(self.observer.lock().unwrap().as_ref().map(Observer::dump));
        drop(self.held_by_a_runnable.lock().unwrap());
        let from = transition.from.map_or("none".into(), |state| state.to_string());
        self.transitions.lock().unwrap().push(format!("{} {from}->{}", transition.distinguished_name, transition.to));
        if transition.to == State::Done {
            panic!("a hook that panics");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_hear_every_transition_in_order_and_under_no_lock() {
    let recorder = Arc::new(Recorder::default());
    let lock = Arc::clone(&recorder.held_by_a_runnable);
    let root = runnable(move |context: Context| {
        let lock = Arc::clone(&lock);
        async move {
            context.run(
                "once",
                runnable(|context| async move {
                    context.healthy();
                    context.done();
                    Ok(())
                }),
            )?;
            let held = lock.lock().unwrap();
            context.healthy();
            drop(held);
            sleep(Duration::from_secs(1)).await;
            Err("broken".into())
        }
    });
    let supervisor = Supervisor::builder().metrics(Arc::clone(&recorder) as Arc<dyn Metrics>).start(root);
    *recorder.observer.lock().unwrap() = Some(supervisor.observer());
    until(&supervisor.observer(), |dump| restarts(dump, "root") == 1 && is(dump, "root", State::Healthy)).await;
    supervisor.shutdown().await.unwrap();
    let transitions = recorder.transitions.lock().unwrap().clone();
    assert_eq!(
        transitions[..7],
        [
            "root none->new",
            "root.once none->new",
            "root new->healthy",
            "root.once new->healthy",
            "root.once healthy->done",
            "root healthy->dead",
            "root dead->new",
        ]
    );
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

#[tokio::test(start_paused = true)]
async fn a_foreign_context_is_the_death_of_who_uses_it() {
    let (give, take) = oneshot::channel::<Context>();
    let give = Mutex::new(Some(give));
    let victim = runnable(move |context: Context| {
        if let Some(give) = give.lock().unwrap().take() {
            let _ = give.send(context.clone());
        }
        async move {
            context.healthy();
            Err(context.cancelled().await.into())
        }
    });
    let take = Mutex::new(Some(take));
    let villain = runnable(move |context: Context| {
        let take = take.lock().unwrap().take();
        async move {
            if let Some(take) = take {
                let stolen = take.await?;
                assert!(matches!(stolen.run("child", good()), Err(StartError::Foreign(_))));
                stolen.done();
            }
            Err(context.cancelled().await.into())
        }
    });
    let harness = Harness::start(root(vec![vec![("victim", victim)], vec![("villain", villain)]]));
    let dump = until(harness.observer(), |dump| restarts(dump, "root.villain") == 1).await;
    let error = find(&dump, "root.villain").unwrap().last_error.clone().unwrap();
    assert_eq!(error, "gave a signal in the name of root.victim, which is another runnable");
    assert_eq!(restarts(&dump, "root.victim"), 0);
    harness.finish().await;
}

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

fn panic_text(error: tokio::task::JoinError) -> String {
    error.into_panic().downcast_ref::<String>().cloned().unwrap_or_else(|| "without finish()".into())
}
