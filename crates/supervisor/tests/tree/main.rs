//! Metropolis' cases (metropolis.md A.9) and the mended ones, with real tasks under a paused clock.

mod backoff;
mod deaths;
mod ends;
mod groups;
mod observed;

use std::sync::Arc;
use std::time::Duration;

use polis_logtree::{Backlog, DistinguishedName, ReadOptions, Severity};
use polis_supervisor::testing::Harness;
use polis_supervisor::{NodeReport, Observer, SharedRunnable, State, runnable};
use tokio::sync::mpsc;
use tokio::time::timeout;

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

fn panic_text(error: tokio::task::JoinError) -> String {
    error.into_panic().downcast_ref::<String>().cloned().unwrap_or_else(|| "without finish()".into())
}
