//! The Manager as others see it: its states, its waiters, its accessors, and that it survives its own death.

use std::sync::Arc;

use crate::cluster::{Cluster, Script, Scripted};
use crate::common::{Acknowledged, ParametersFile, SimulatedConsensus, live, manager};
use polis_manager::{Failure, Manager, Outcome, ParameterSource, State};
use polis_storage::Layout;
use polis_storage::journal::{Phase, Seals};
use polis_storage::simulation::{Image, SimulatedDisk};
use polis_supervisor::Supervisor;

/// A Manager on an empty disk, and the supervisor that runs it.
fn start(parameters: ParameterSource, panics: u32) -> (Manager<SimulatedConsensus>, Supervisor) {
    let disk = Arc::new(SimulatedDisk::default());
    Layout::new(disk.clone()).prepare_start().unwrap();
    let access = Scripted::new(disk.clone(), Cluster::new(), Script::default());
    let manager = manager(&disk, parameters, &Acknowledged::default(), panics, &access);
    let supervisor = Supervisor::builder().start(manager.runnable());
    (manager, supervisor)
}

fn nowhere() -> ParameterSource {
    let absent = std::path::PathBuf::from("/nonexistent/parameters.pb");
    ParameterSource { file: None, firmware: absent.clone(), esp: absent }
}

#[tokio::test(start_paused = true)]
async fn waiters_before_during_and_after_the_end_all_return() {
    let file = ParametersFile::new();
    for (source, runs) in [(file.source(), true), (nowhere(), false)] {
        let disk = Arc::new(SimulatedDisk::default());
        Layout::new(disk.clone()).prepare_start().unwrap();
        let access = Scripted::new(disk.clone(), Cluster::new(), Script::default());
        let manager = manager(&disk, source, &Acknowledged::default(), 0, &access);
        let wait = || {
            let manager = manager.clone();
            tokio::spawn(async move { manager.wait_finished().await })
        };
        let before: Vec<_> = (0..10).map(|_| wait()).collect();
        tokio::task::yield_now().await;
        assert!(before.iter().all(|waiter| !waiter.is_finished()), "nothing has happened yet");

        let supervisor = Supervisor::builder().start(manager.runnable());
        let mut progress = manager.watch();
        progress.wait_for(|progress| progress.state != State::New).await.unwrap();
        let during: Vec<_> = (0..10).map(|_| wait()).collect();
        progress.wait_for(|progress| progress.state.is_finished()).await.unwrap();
        let after: Vec<_> = (0..10).map(|_| wait()).collect();

        for waiter in before.into_iter().chain(during).chain(after) {
            match waiter.await.unwrap() {
                Outcome::Running(node) => assert!(runs && Some(node.id) == progress.borrow().node_id),
                Outcome::Failed(failure) => assert!(!runs && matches!(*failure, Failure::NoParameters { .. })),
            }
        }
        assert_eq!(manager.node().is_some(), runs);
        assert_eq!(manager.consensus_member().is_some(), runs);
        supervisor.shutdown().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_dies_goes_on_in_the_state_that_it_had() {
    let file = ParametersFile::new();
    // The first write of the node's own is the last step before Running: by then the journal says that it is a member.
    let (manager, supervisor) = start(file.source(), 2);
    let mut progress = manager.watch();
    let mut states = vec![progress.borrow_and_update().state];
    while !states.last().unwrap().is_finished() {
        progress.changed().await.unwrap();
        let state = progress.borrow_and_update().state;
        if states.last() != Some(&state) {
            states.push(state);
        }
    }
    assert_eq!(states.last(), Some(&State::Running), "{states:?}: {:?}", progress.borrow().failure);
    assert!(!states.contains(&State::Joining), "{states:?}");
    let report = supervisor.dump().into_iter().find(|report| report.restarts > 0).expect("it was started again");
    assert_eq!(report.restarts, 2, "{:?}", report.last_error);
    supervisor.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_manager_stays_failed_and_is_done() {
    let (manager, supervisor) = start(nowhere(), 0);
    assert!(matches!(manager.wait_finished().await, Outcome::Failed(_)));
    let done = |reports: &[polis_supervisor::NodeReport]| {
        reports.iter().all(|report| report.state == polis_supervisor::State::Done)
    };
    supervisor.observer().wait_until(done).await;
    assert_eq!(manager.state(), State::Failed);
    supervisor.shutdown().await.unwrap();
}

#[test]
fn a_removed_node_says_so_and_touches_nothing() {
    let file = ParametersFile::new();
    let life = live(Image::default(), file.source());
    let end = life.recording.cuts().unwrap().pop().unwrap().image();
    let disk = Arc::new(SimulatedDisk::new(end, Vec::new()));
    let store = Layout::new(disk.clone()).journal_store(Seals::plain_only());
    let journal = store.load().unwrap().unwrap().value;
    let removed = journal.advance(Phase::Removed { reason: "an operator has deleted it".into() }).unwrap();
    store.store(&removed, "test").unwrap();

    let image = disk.image();
    let life = live(image.clone(), file.source());
    match &life.outcome {
        Some(Outcome::Failed(failure)) => {
            let text = failure.to_string();
            assert!(text.contains("removed from the cluster") && text.contains("an operator has deleted it"), "{text}");
        }
        Some(Outcome::Running(_)) | None => panic!("{}", life.describe()),
    }
    assert!(life.recording.cuts().unwrap().pop().unwrap().image() == image, "something was changed");
}
