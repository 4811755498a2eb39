//! What can be seen of a tree: its names in the log, and its transitions in the metrics.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use polis_logtree::{DistinguishedName, ReadOptions};
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, Metrics, Observer, StartError, State, Supervisor, Transition, runnable};
use tokio::time::sleep;

use crate::{DEADLINE, good, is, restarts, until};

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
