//! What runnables log with the macros of `tracing`. A process of its own: subscribers and threads without one must not
//! meet.

use std::time::Duration;

use polis_logtree::{DistinguishedName, LogTree, ReadOptions};
use polis_supervisor::{Supervisor, runnable};
use tracing_subscriber::layer::SubscriberExt;

#[test]
fn what_is_logged_lands_under_the_name_of_the_runnable() {
    let log_tree = LogTree::default();
    let subscriber = tracing_subscriber::registry().with(log_tree.layer());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let root = runnable(|context| async move {
            tracing::info!("from the future");
            context.blocking(|| tracing::info!("from a closure")).await;
            let (sender, receiver) = tokio::sync::oneshot::channel();
            context.spawn(async {
                tracing::info!("from a task");
                let _ = sender.send(());
                Ok(())
            });
            receiver.await?;
            context.healthy();
            Err(context.cancelled().await.into())
        });
        let supervisor = Supervisor::builder().log_tree(log_tree.clone()).start(root);
        let observer = supervisor.observer();
        let healthy = observer.wait_until(|dump| dump[0].state == polis_supervisor::State::Healthy);
        tokio::time::timeout(Duration::from_secs(10), healthy).await.unwrap();
        supervisor.shutdown().await.unwrap();
    });
    let root = DistinguishedName::parse("root").unwrap();
    let reader = log_tree.read(&root, ReadOptions::default()).unwrap();
    let lines: Vec<String> = reader.backlog.iter().map(|entry| entry.text().into_owned()).collect();
    assert_eq!(lines, ["from the future", "from a closure", "from a task"]);
}
