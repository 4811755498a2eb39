//! Runnables that hold real threads, and what the supervisor does when there is nothing to do. Real time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc as blocking_channel};
use std::time::{Duration, Instant};

use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, DOES_NOT_STOP, Settings, SharedRunnable, State, Supervisor, runnable};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(20);

fn runtime(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
}

fn good() -> SharedRunnable {
    runnable(|context| async move {
        context.healthy();
        Err(context.cancelled().await.into())
    })
}

/// Ends the spinning when the test ends, and also when it hangs: spinning threads may hold the timers of the runtime
/// too, so no deadline inside of it can be relied on.
struct Spinning {
    stop: Arc<AtomicBool>,
    finished: Option<blocking_channel::Sender<()>>,
    watchdog: Option<std::thread::JoinHandle<bool>>,
}

impl Spinning {
    fn new(stop: &Arc<AtomicBool>) -> Self {
        let (finished, wait) = blocking_channel::channel();
        let stops = Arc::clone(stop);
        let watchdog = std::thread::spawn(move || {
            let in_time = wait.recv_timeout(DEADLINE) != Err(blocking_channel::RecvTimeoutError::Timeout);
            stops.store(true, Ordering::Relaxed);
            in_time
        });
        Self { stop: Arc::clone(stop), finished: Some(finished), watchdog: Some(watchdog) }
    }

    /// Ends it; false when it had to be ended before because the test hung.
    fn end(mut self) -> bool {
        drop(self.finished.take());
        self.watchdog.take().is_some_and(|watchdog| watchdog.join().unwrap())
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Misbehaving runnables do not keep a well-behaved one from answering (TestResilience).
#[test]
fn resilience() {
    let runtime = runtime(4);
    let stop = Arc::new(AtomicBool::new(false));
    let stop_spinning = Spinning::new(&stop);
    let (requests, serve) = mpsc::channel::<oneshot::Sender<u32>>(1);
    let serve = Arc::new(tokio::sync::Mutex::new(serve));

    let answering = runnable(move |context| {
        let serve = Arc::clone(&serve);
        async move {
            context.healthy();
            let mut serve = serve.lock().await;
            for number in 0.. {
                let Some(request) = context.unless_cancelled(serve.recv()).await? else { break };
                let _ = request.send(number);
            }
            Err("nobody asks".into())
        }
    });
    // The first spins after it has woken the supervisor's loop on its own worker, the second from the beginning.
    let spinning = |signals: bool| {
        let stop = Arc::clone(&stop);
        runnable(move |context: Context| {
            let stop = Arc::clone(&stop);
            async move {
                if signals {
                    context.healthy();
                }
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                Err(context.cancelled().await.into())
            }
        })
    };
    let (spins_after_signal, spins) = (spinning(true), spinning(false));
    let stolen: Arc<Mutex<Option<Context>>> = Arc::default();
    let (lends, steals) = (Arc::clone(&stolen), stolen);
    let lender = runnable(move |context: Context| {
        *lends.lock().unwrap() = Some(context.clone());
        async move {
            context.healthy();
            Err(context.cancelled().await.into())
        }
    });
    let thief = runnable(move |context: Context| {
        let stolen = steals.lock().unwrap().clone();
        async move {
            stolen.inspect(Context::healthy);
            Err(context.cancelled().await.into())
        }
    });
    let done_too_early = runnable(|context| async move {
        context.done();
        Ok(())
    });
    let endless = runnable(|context| async move {
        for number in 0.. {
            context.run(format!("child-{number}"), good())?;
        }
        Ok(())
    });
    let root = runnable(move |context| {
        let members = [
            ("answering", answering.clone()),
            ("spins-after-signal", spins_after_signal.clone()),
            ("spins", spins.clone()),
            ("lender", lender.clone()),
            ("thief", thief.clone()),
            ("done-too-early", done_too_early.clone()),
            ("endless", endless.clone()),
        ];
        async move {
            for (name, runnable) in members {
                context.run(name, runnable)?;
            }
            context.healthy();
            Err(context.cancelled().await.into())
        }
    });

    runtime.block_on(async {
        let settings = Settings { stop_deadline: DEADLINE, max_children: 500, ..Settings::default() };
        let harness = Harness::start_with(settings, root);
        harness.wait_for("root.answering", State::Healthy, DEADLINE).await;
        harness.wait_for("root.spins-after-signal", State::Healthy, DEADLINE).await;
        for round in 0..5 {
            let (sender, receiver) = oneshot::channel();
            requests.send(sender).await.unwrap();
            let answer = timeout(Duration::from_secs(1), receiver).await;
            assert_eq!(answer.expect("an answer within a second"), Ok(round));
            // The next round meets them at another point of their misdeeds.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // The loop itself goes on too: a group dies and comes back.
        let dump = harness.observer().wait_until(|dump| {
            dump.iter().any(|node| node.distinguished_name.as_str() == "root.done-too-early" && node.restarts >= 1)
        });
        timeout(DEADLINE, dump).await.unwrap();
        let in_time = stop_spinning.end();
        harness.finish().await;
        assert!(in_time, "the runtime was stuck until the spinning was ended");
    });
}

/// A blocking closure cannot be stopped: it is named, and the runnable is not started again before it has ended.
#[test]
fn a_closure_that_blocks_is_named_and_waited_for() {
    let runtime = runtime(2);
    let (release, released) = blocking_channel::channel::<()>();
    let released = Arc::new(Mutex::new(Some(released)));
    let blocking = runnable(move |context: Context| {
        let released = released.lock().unwrap().take();
        async move {
            let Some(released) = released else {
                context.healthy();
                return Err(context.cancelled().await.into());
            };
            let closure = context.blocking(move || released.recv());
            // It dies while the closure runs.
            let _ = timeout(Duration::from_millis(50), closure).await;
            Err("dies".into())
        }
    });
    let root = runnable(move |context| {
        let blocking = blocking.clone();
        async move {
            context.run("blocking", blocking)?;
            context.healthy();
            Err(context.cancelled().await.into())
        }
    });
    let settings = Settings {
        stop_deadline: Duration::from_millis(200),
        stop_grace: Duration::from_millis(100),
        ..Settings::default()
    };
    runtime.block_on(async {
        let harness = Harness::start_with(settings, root);
        let mut conditions = harness.conditions().watch();
        let raised = timeout(DEADLINE, conditions.wait_for(|all| all.contains_key(DOES_NOT_STOP))).await.unwrap();
        assert!(raised.unwrap()[DOES_NOT_STOP].message.ends_with("root.blocking"));
        // Much longer than its backoff can be.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let dump = harness.observer().dump();
        assert_eq!((dump[1].restarts, dump[1].state, dump[1].running), (0, State::Dead, true));
        release.send(()).unwrap();
        harness.wait_for("root.blocking", State::Healthy, DEADLINE).await;
        assert_eq!(harness.conditions().get(DOES_NOT_STOP), None);
        harness.finish().await;
    });
}

#[test]
fn a_shutdown_and_the_harness_name_what_does_not_stop() {
    let runtime = runtime(2);
    let (release, released) = blocking_channel::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let root = runnable(move |context: Context| {
        let released = Arc::clone(&released);
        async move {
            context.run(
                "blocking",
                runnable(move |context: Context| {
                    let released = Arc::clone(&released);
                    async move {
                        context.healthy();
                        let _ = context.blocking(move || released.lock().unwrap().recv()).await;
                        Err(context.cancelled().await.into())
                    }
                }),
            )?;
            context.healthy();
            Err(context.cancelled().await.into())
        }
    });
    let quick = Duration::from_millis(100);
    let settings = Settings { stop_deadline: quick, stop_grace: quick, ..Settings::default() };
    runtime.block_on(async {
        let supervisor = Supervisor::builder().settings(settings).start(root.clone());
        let observer = supervisor.observer();
        timeout(DEADLINE, observer.wait_until(|dump| dump.len() == 2 && dump[1].state == State::Healthy))
            .await
            .unwrap();
        let error = supervisor.shutdown().await.unwrap_err();
        assert_eq!(error.to_string(), "still running after they were cancelled and aborted: root.blocking");
        release.send(()).unwrap();
        timeout(DEADLINE, observer.wait_until(|dump| dump.iter().all(|node| !node.running))).await.unwrap();

        let harness = Harness::start_with(settings, root);
        harness.wait_for("root.blocking", State::Healthy, DEADLINE).await;
        let observer = harness.observer().clone();
        let end = tokio::spawn(harness.finish()).await.unwrap_err().into_panic();
        let text = end.downcast_ref::<String>().unwrap();
        assert!(text.starts_with("the test ends while runnables are still running"), "{text}");
        assert!(text.contains("root.blocking: dead, running"), "{text}");
        release.send(()).unwrap();
        timeout(DEADLINE, observer.wait_until(|dump| dump.iter().all(|node| !node.running))).await.unwrap();
    });
}

/// No tick: while nothing happens no thread of the runtime wakes up.
#[test]
fn an_idle_tree_wakes_nobody() {
    let runtime = runtime(2);
    let root = runnable(|context| async move {
        for number in 0..100 {
            context.run(format!("child-{number}"), good())?;
        }
        context.healthy();
        Err(context.cancelled().await.into())
    });
    let supervisor = runtime.block_on(async {
        let supervisor = Supervisor::builder().start(root);
        let all_healthy = |dump: &[polis_supervisor::NodeReport]| {
            dump.len() == 101 && dump.iter().all(|node| node.state == State::Healthy)
        };
        timeout(DEADLINE, supervisor.observer().wait_until(all_healthy)).await.unwrap();
        supervisor
    });
    let parks = || {
        let metrics = runtime.metrics();
        (0..metrics.num_workers()).map(|worker| metrics.worker_park_count(worker)).sum::<u64>()
    };
    // Wait until the runtime has come to rest.
    let deadline = Instant::now() + DEADLINE;
    let mut before = parks();
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = parks();
        if now == before {
            break;
        }
        assert!(Instant::now() < deadline, "the runtime does not come to rest: {} wakes in 500 ms", now - before);
        before = now;
    }
    runtime.block_on(supervisor.shutdown()).unwrap();
}
