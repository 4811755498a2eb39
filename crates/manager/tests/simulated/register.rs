//! The way into a cluster that others run: whatever its leader and its operator do, and whatever the node was told at first.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use polis_condition::Conditions;
use polis_identity::NodeKey;
use polis_manager::{Attempt, AttemptProblem, CallFailure, Manager, Outcome, State};
use polis_storage::journal::{Phase, Seals};
use polis_storage::simulation::{Failure as DiskFailure, Image, SimulatedDisk};
use polis_storage::{Journal, Layout};
use polis_supervisor::Supervisor;
use tokio::time::Instant;
use tonic::Code;

use crate::cluster::{Called, Cluster, Fate, Script, Scripted};
use crate::common::{
    Acknowledged, Life, ParametersFile, SimulatedConsensus, disk_with, live_beside, manager, register_parameters,
};

/// Parameters for this cluster.
fn parameters(cluster: &Cluster) -> ParametersFile {
    ParametersFile::with(&register_parameters(cluster, &cluster.ticket(), "192.0.2.1"))
}

/// A first start beside a new cluster in which this happens.
fn register(fate: impl Fn(Called, u32) -> Fate + Send + Sync + 'static) -> Life {
    let cluster = Cluster::new();
    live_beside(Image::default(), parameters(&cluster).source(), cluster, Script::new(fate))
}

fn journal(image: &Image) -> Journal {
    let layout = Layout::new(Arc::new(SimulatedDisk::new(image.clone(), Vec::new())));
    layout.journal_store(Seals::plain_only()).load().unwrap().expect("there is a journal").value
}

fn answer(code: Code, message: &str) -> CallFailure {
    CallFailure::Answered { code, message: message.into(), endpoint: None, tombstone: None }
}

#[test]
fn a_node_that_is_approved_becomes_a_member() {
    let life = register(|_, _| Fate::Answered);
    assert!(life.runs(), "{}", life.describe());
    life.fits_as_guest().unwrap();
    assert!(life.conditions.iter().all(|condition| condition.name == "storage-insecure"), "{:?}", life.conditions);
}

#[test]
fn whoever_waits_for_approval_says_so_with_the_command() {
    let cluster = Cluster::new();
    let script = Script { early_commits: u32::MAX, ..Script::default() };
    let life = live_beside(Image::default(), parameters(&cluster).source(), cluster, script);
    assert!(life.outcome.is_none(), "{}", life.describe());
    let condition = life.condition("waiting-for-approval").expect("it says what it waits for");
    let node = life.node_id.as_ref().unwrap();
    assert!(condition.hint.contains(&format!("polis node approve {node}")), "{condition:?}");
    assert!(condition.message.contains(node), "{condition:?}");
    assert_eq!(*journal(&life.end()).phase(), Phase::Formatted);
}

#[test]
fn a_call_or_an_answer_that_is_lost_changes_nothing() {
    for called in [Called::Register, Called::Commit] {
        for number in 1..=4 {
            for fate in [Fate::Lost, Fate::AnswerLost] {
                // The answer of the very last commit counts too (windows W8, W21, W26).
                let life = register(
                    move |now, count| {
                        if (now, count) == (called, number) { fate.clone() } else { Fate::Answered }
                    },
                );
                assert!(life.runs(), "{called:?} {number}: {}", life.describe());
                life.fits_as_guest().unwrap();
            }
        }
    }
}

#[test]
fn a_leader_that_answers_nothing_for_long_is_waited_for() {
    let life = register(|_, number| if number < 50 { Fate::Lost } else { Fate::Answered });
    assert!(life.runs(), "{}", life.describe());
    life.fits_as_guest().unwrap();
    assert_eq!(life.condition("cluster-not-ready"), None);
}

#[test]
fn a_cluster_that_has_lost_the_record_gets_it_again() {
    let life = register(
        |called, number| {
            if (called, number) == (Called::Commit, 2) { Fate::Forgotten } else { Fate::Answered }
        },
    );
    assert!(life.runs(), "{}", life.describe());
    assert_eq!((life.cluster().made, life.cluster().approvals), (2, 1));
}

#[test]
fn a_node_that_was_deleted_on_its_way_says_so_and_does_not_come_back() {
    for (called, number) in [(Called::Register, 1), (Called::Commit, 1), (Called::Commit, 2), (Called::Commit, 3)] {
        let cluster = Cluster::new();
        let file = parameters(&cluster);
        let script =
            Script::new(
                move |now, count| {
                    if (now, count) == (called, number) { Fate::Deleted("it was sold") } else { Fate::Answered }
                },
            );
        let life = live_beside(Image::default(), file.source(), cluster, script);
        let text = life.describe();
        assert!(
            text.contains("removed from the cluster") && text.contains("it was sold"),
            "{called:?} {number}: {text}"
        );
        let end = life.end();
        assert!(matches!(journal(&end).phase(), Phase::Removed { reason } if reason.contains("it was sold")));

        let again = live_beside(end.clone(), file.source(), life.cluster().clone(), Script::default());
        assert!(again.describe().contains("it was sold"), "{}", again.describe());
        assert!(again.end() == end, "{called:?} {number}: a later start has changed something");
        assert_eq!(again.clusters.len(), 1, "a later start has asked the cluster");
    }
}

#[test]
fn a_tombstone_that_proves_nothing_about_this_node_is_not_believed() {
    let other_cluster = Cluster::new();
    let stranger = NodeKey::generate().public();
    for shown in [b"no tombstone".to_vec(), other_cluster.tombstone_of(stranger, "sold")] {
        let life = register(move |called, number| match (called, number) {
            (Called::Commit, 1..=3) => Fate::Refused(CallFailure::Answered {
                code: Code::Unauthenticated,
                message: "this node was deleted".into(),
                endpoint: None,
                tombstone: Some(shown.clone()),
            }),
            (Called::Register | Called::Commit | Called::Join | Called::Tombstone | Called::StoreUnlockKey, _) => {
                Fate::Answered
            }
        });
        assert!(life.runs(), "{}", life.describe());
    }
    // Also one that the cluster itself has signed, for another node.
    let cluster = Cluster::new();
    let shown = cluster.tombstone_of(stranger, "sold");
    let file = parameters(&cluster);
    let script = Script::new(move |called, number| match (called, number) {
        (Called::Commit, 1) => Fate::Refused(CallFailure::Answered {
            code: Code::Unauthenticated,
            message: "this node was deleted".into(),
            endpoint: None,
            tombstone: Some(shown.clone()),
        }),
        (Called::Register | Called::Commit | Called::Join | Called::Tombstone | Called::StoreUnlockKey, _) => {
            Fate::Answered
        }
    });
    let life = live_beside(Image::default(), file.source(), cluster, script);
    assert!(life.runs(), "{}", life.describe());
}

#[test]
fn a_wrong_ticket_is_named_at_once_and_the_right_one_is_taken_without_losing_the_identity() {
    let cluster = Cluster::new();
    let wrong = [&[0x0a, 32][..], &[7; 32]].concat();
    let file = ParametersFile::with(&register_parameters(&cluster, &wrong, "192.0.2.1"));
    let life = live_beside(Image::default(), file.source(), cluster.clone(), Script::default());
    assert!(life.outcome.is_none(), "{}", life.describe());
    let condition = life.condition("register-ticket-refused").expect("it says what is wrong");
    assert!(condition.message.contains("wrong register ticket"), "{condition:?}");
    assert!(condition.message.contains(&cluster.authority().cluster_id().to_string()), "{condition:?}");
    assert!(condition.hint.contains("polis parameters register"), "{condition:?}");

    // As before, with no parameters at all: it goes on asking.
    file.remove();
    let same = live_beside(life.end(), file.source(), cluster.clone(), Script::default());
    assert!(same.outcome.is_none() && same.node_id == life.node_id, "{}", same.describe());

    file.replace(&register_parameters(&cluster, &cluster.ticket(), "192.0.2.2"));
    let right = live_beside(same.end(), file.source(), cluster, Script::default());
    assert!(right.runs(), "{}", right.describe());
    assert_eq!(right.node_id, life.node_id);
    right.fits_as_guest().unwrap();
}

#[test]
fn a_ticket_that_is_rotated_back_is_taken_in_the_same_life() {
    let life = register(|called, number| match called {
        Called::Register if number < 5 => Fate::Refused(answer(Code::PermissionDenied, "wrong register ticket")),
        Called::Register | Called::Commit | Called::Join | Called::Tombstone | Called::StoreUnlockKey => Fate::Answered,
    });
    assert!(life.runs(), "{}", life.describe());
    assert_eq!(life.condition("register-ticket-refused"), None);
}

#[test]
fn a_ticket_that_is_rotated_while_the_node_waits_is_not_missed() {
    let mut cluster = Cluster::new();
    let file = parameters(&cluster);
    let waiting = Script { early_commits: u32::MAX, ..Script::default() };
    let life = live_beside(Image::default(), file.source(), cluster, waiting);
    assert!(life.outcome.is_none(), "{}", life.describe());
    cluster = life.cluster().clone();
    cluster.rotate_ticket([1; 32]);
    let later = live_beside(life.end(), file.source(), cluster, Script::default());
    assert!(later.runs(), "{}", later.describe());
    assert_eq!(later.node_id, life.node_id);
}

#[test]
fn addresses_that_nobody_answers_at_are_named_and_others_are_taken_without_losing_the_identity() {
    let cluster = Cluster::new();
    let file = parameters(&cluster);
    let attempt = Attempt {
        address: "192.0.2.1:7835".parse().unwrap(),
        problem: AttemptProblem::Failed("connection refused".into()),
    };
    let nobody = CallFailure::Unreachable { attempts: vec![attempt] };
    let script = Script::new(move |_, _| Fate::Refused(nobody.clone()));
    let life = live_beside(Image::default(), file.source(), cluster.clone(), script);
    assert!(life.outcome.is_none(), "{}", life.describe());
    let condition = life.condition("cluster-unreachable").expect("it says what is wrong");
    assert!(condition.message.contains("192.0.2.1:7835: connection refused"), "{condition:?}");

    file.replace(&register_parameters(&cluster, &cluster.ticket(), "192.0.2.2"));
    let right = live_beside(life.end(), file.source(), cluster, Script::default());
    assert!(right.runs(), "{}", right.describe());
    assert_eq!(right.node_id, life.node_id);
}

#[test]
fn the_ca_of_another_cluster_may_be_mended_until_a_cluster_has_answered() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let file = ParametersFile::with(&register_parameters(&other, &cluster.ticket(), "192.0.2.1"));
    let life = live_beside(Image::default(), file.source(), cluster.clone(), Script::default());
    assert!(life.outcome.is_none(), "{}", life.describe());

    file.replace(&register_parameters(&cluster, &cluster.ticket(), "192.0.2.1"));
    let waiting = Script { early_commits: u32::MAX, ..Script::default() };
    let right = live_beside(life.end(), file.source(), cluster.clone(), waiting);
    assert!(right.condition("waiting-for-approval").is_some(), "{}", right.describe());
    assert_eq!(right.node_id, life.node_id);
    assert_eq!(right.cluster_id, Some(cluster.authority().cluster_id().to_string()));

    // Now it is known there, and parameters for another cluster are those of another node.
    file.replace(&register_parameters(&other, &other.ticket(), "192.0.2.1"));
    let stays = live_beside(right.end(), file.source(), right.cluster().clone(), Script::default());
    assert!(stays.runs(), "{}", stays.describe());
    let condition = stays.condition("parameters-ignored").expect("it says that it does not follow them");
    for id in [cluster.authority().cluster_id(), other.authority().cluster_id()] {
        assert!(condition.message.contains(&id.to_string()), "{condition:?}");
    }
    stays.fits_as_guest().unwrap();
}

#[test]
fn a_disk_that_fails_at_any_step_is_waited_for() {
    let whole = register(|_, _| Fate::Answered).recording.operations.len();
    assert!(whole > 20, "only {whole} operations");
    for after in 0..whole {
        let cluster = Cluster::new();
        let file = parameters(&cluster);
        let disk = disk_with(Image::default());
        disk.fail_once(after, DiskFailure::Full);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let runs = runtime.block_on(async {
            // What comes before the Manager is not its business.
            if Layout::new(disk.clone()).prepare_start().is_err() {
                Layout::new(disk.clone()).prepare_start().unwrap();
            }
            let access = Scripted::new(disk.clone(), cluster, Script::default());
            let manager = manager(&disk, file.source(), &Acknowledged::default(), 0, &access);
            let supervisor = Supervisor::builder().start(manager.runnable());
            let outcome = tokio::time::timeout(Duration::from_secs(60), manager.wait_finished()).await;
            supervisor.shutdown().await.unwrap();
            let last = access.history().pop().unwrap().1;
            let node = Layout::new(disk.clone()).data.node.credentials.load().unwrap().expect("it has credentials");
            last.has_one_node(&node).map(|()| matches!(outcome, Ok(Outcome::Running(_))))
        });
        assert_eq!(runs, Ok(true), "the disk was full after {after} operations");
    }
}

/// A Manager that registers, observed while it does.
struct Observed {
    manager: Manager<SimulatedConsensus>,
    supervisor: Supervisor,
    access: Scripted,
    conditions: Conditions,
    /// Kept for as long as the Manager may read it.
    _parameters: ParametersFile,
}

fn observe(script: Script) -> Observed {
    let cluster = Cluster::new();
    let file = parameters(&cluster);
    let disk = disk_with(Image::default());
    Layout::new(disk.clone()).prepare_start().unwrap();
    let access = Scripted::new(disk.clone(), cluster, script);
    let manager = manager(&disk, file.source(), &Acknowledged::default(), 0, &access);
    let conditions = Conditions::default();
    let supervisor = Supervisor::builder().conditions(conditions.clone()).start(manager.runnable());
    Observed { manager, supervisor, access, conditions, _parameters: file }
}

#[tokio::test(start_paused = true)]
async fn an_approval_shows_within_a_second() {
    let approved: Arc<Mutex<Option<Instant>>> = Arc::default();
    let begun = Instant::now();
    // Somebody approves after a minute.
    let script = Script {
        early_commits: 0,
        fate: Arc::new({
            let approved = approved.clone();
            move |called, _| match called {
                Called::Commit if begun.elapsed() < Duration::from_secs(60) => {
                    *approved.lock().unwrap() = Some(Instant::now());
                    Fate::Refused(answer(Code::PermissionDenied, "not approved"))
                }
                Called::Register | Called::Commit | Called::Join | Called::Tombstone | Called::StoreUnlockKey => {
                    Fate::Answered
                }
            }
        }),
    };
    let Observed { manager, supervisor, access, conditions, _parameters } = observe(script);
    let mut progress = manager.watch();
    progress.wait_for(|progress| progress.state == State::Registering).await.unwrap();
    assert!(matches!(manager.wait_finished().await, Outcome::Running(_)));
    let waited = begun.elapsed() - Duration::from_secs(60);
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    assert!(approved.lock().unwrap().is_some());
    assert!(access.calls(Called::Commit) < 200, "{} commits in a minute", access.calls(Called::Commit));
    assert_eq!(conditions.get("waiting-for-approval"), None);
    supervisor.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_identity_is_there_before_the_node_runs_and_stays_the_same() {
    let Observed { manager, supervisor, _parameters, .. } = observe(Script::default());
    let mut identity = manager.identity();
    let published = identity.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert!(matches!(manager.wait_finished().await, Outcome::Running(node) if node.id == published.node_id()));
    let in_progress = manager.watch().borrow().identity.clone().unwrap();
    assert!(Arc::ptr_eq(&published, &in_progress));
    supervisor.shutdown().await.unwrap();
}
