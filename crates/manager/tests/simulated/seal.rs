//! The seal of the journal: a TPM that is there is never taken for none, and a running node says when its keys would not open at its
//! next start, until they would.

use std::sync::Arc;
use std::time::Duration;

use polis_condition::{Condition, Conditions};
use polis_manager::{KeyOrderError, Manager, Outcome, Place, Standing};
use polis_proto::common::NodeTpmUsage;
use polis_proto::common::cluster_configuration::{StorageSecurityPolicy, TpmMode};
use polis_storage::journal::{SealKind, Seals};
use polis_storage::simulation::{Image, SimulatedDisk, SimulatedTpm};
use polis_storage::{DiskPath, Layout};
use polis_supervisor::{Context, Supervisor, runnable};

use crate::cluster::{Cluster, Script, Scripted};
use crate::common::{
    Acknowledged, Host, Life, ParametersFile, SimulatedConsensus, Then, disk_with, live_on, manager_on, parameters_of,
    register_parameters,
};

/// Simulated time within which a change shows: more than an hour, which is how often a node looks.
const SHOWS: Duration = Duration::from_secs(2 * 3600);
/// Simulated time within which it shows that all is well again.
const IS_OVER: Duration = Duration::from_secs(120);
const WOULD_NOT_OPEN: &str = "seal-would-not-open";

/// A machine with a TPM, and a cluster.
struct World {
    file: ParametersFile,
    tpm: SimulatedTpm,
    cluster: Cluster,
}

/// A node that runs.
struct Running {
    tpm: SimulatedTpm,
    disk: Arc<SimulatedDisk>,
    manager: Manager<SimulatedConsensus>,
    conditions: Conditions,
}

impl World {
    fn founder(mode: TpmMode) -> Self {
        let parameters = parameters_of(mode, StorageSecurityPolicy::NeedsInsecure);
        let cluster =
            Cluster::new().changed(|cluster| cluster.standing = Some(Standing { voters: 1, place: Place::Voter }));
        Self { file: ParametersFile::with(&parameters), tpm: SimulatedTpm::new(), cluster }
    }

    fn guest(usage: NodeTpmUsage) -> Self {
        let cluster = Cluster::new().changed(|cluster| cluster.tpm_usage = usage);
        let file = ParametersFile::with(&register_parameters(&cluster, &cluster.ticket(), "192.0.2.1"));
        Self { file, tpm: SimulatedTpm::new(), cluster }
    }

    fn host(&self) -> Host {
        Host { seals: Seals::with_tpm(Arc::new(self.tpm.clone())), ..Host::default() }
    }

    /// A first start.
    fn start(&self) -> Life {
        live_on(&self.host(), Image::default(), self.file.source(), self.cluster.clone(), Script::default())
    }

    fn seal(&self, image: &Image) -> SealKind {
        let disk = Arc::new(SimulatedDisk::new(image.clone(), Vec::new()));
        let store = Layout::new(disk).journal_store(self.host().seals);
        store.load().unwrap().expect("there is a journal");
        store.seal_kind().unwrap()
    }

    /// Starts a node, and does this while it runs.
    fn while_it_runs(&self, meanwhile: impl AsyncFnOnce(&Running)) {
        let disk = disk_with(Image::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            Layout::new(disk.clone()).prepare_start().unwrap();
            let access = Scripted::new(disk.clone(), self.cluster.clone(), Script::default());
            let host = Host { then: Then::Nothing, ..self.host() };
            let (manager, _, _) = manager_on(&host, &disk, self.file.source(), &Acknowledged::default(), 0, &access);
            let conditions = Conditions::default();
            let running =
                Running { tpm: self.tpm.clone(), disk, manager: manager.clone(), conditions: conditions.clone() };
            let parts = runnable(move |context: Context| {
                let manager = manager.clone();
                async move {
                    context.run("keys", manager.key_keeper())?;
                    context.run("manager", manager.runnable())?;
                    context.healthy();
                    Err(context.cancelled().await.into())
                }
            });
            let supervisor = Supervisor::builder().conditions(conditions).start(parts);
            let outcome = tokio::time::timeout(SHOWS, running.manager.wait_finished()).await;
            assert!(matches!(outcome, Ok(Outcome::Running(_))));
            meanwhile(&running).await;
            supervisor.shutdown().await.unwrap();
        });
    }
}

impl Running {
    fn condition(&self) -> Option<Condition> {
        self.conditions.snapshot().into_iter().find(|condition| condition.name == WOULD_NOT_OPEN)
    }

    /// No generation of the journal can be read.
    fn lose_journal(&self) {
        for name in ["esp/polis/journal.0", "esp/polis/journal.1"] {
            self.disk.damage_medium(&DiskPath::parse(name).unwrap());
        }
    }

    /// Waits until the condition is there, or is not, and returns it.
    async fn until(&self, raised: bool, limit: Duration) -> Option<Condition> {
        let waiting = async {
            while self.condition().is_some() != raised {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let waited = tokio::time::timeout(limit, waiting).await;
        waited.unwrap_or_else(|_| panic!("raised is to be {raised}, and it is {:?}", self.condition()));
        self.condition()
    }
}

#[test]
fn a_best_effort_is_made_with_a_tpm_that_is_there_or_waits_for_it() {
    type Change = fn(&SimulatedTpm);
    let cases: [(&str, Change, Change); 2] = [
        ("seal-tpm-not-answering", |tpm| tpm.answer(false), |tpm| tpm.answer(true)),
        ("seal-helper-missing", |tpm| tpm.install_helper(false), |tpm| tpm.install_helper(true)),
    ];
    for (name, change, cure) in cases {
        let world = World::founder(TpmMode::BestEffort);
        change(&world.tpm);
        let waits = world.start();
        assert!(waits.outcome.is_none() && waits.condition(name).is_some(), "{name}: {}", waits.describe());
        let journal = DiskPath::parse("esp/polis/journal.0").unwrap();
        assert!(waits.end().get(&journal).is_none(), "{name}: keys were written");
        cure(&world.tpm);
        let life = world.start();
        assert!(life.runs(), "{name}: {}", life.describe());
        assert_eq!(world.seal(&life.end()), SealKind::Tpm, "{name}");
    }
    let without = World::founder(TpmMode::BestEffort);
    without.tpm.remove();
    let life = without.start();
    assert!(life.runs(), "{}", life.describe());
    assert_eq!(without.seal(&life.end()), SealKind::Plain);
}

#[test]
fn who_registers_tells_of_a_tpm_that_it_cannot_use_yet() {
    // One that is busy is waited for before anything is written.
    let busy = World::guest(NodeTpmUsage::PresentAndUsed);
    busy.tpm.answer(false);
    let waits = busy.start();
    assert!(waits.condition("seal-tpm-not-answering").is_some(), "{}", waits.describe());
    assert!(waits.end().get(&DiskPath::parse("esp/polis/journal.0").unwrap()).is_none());
    // Where the host is not set up for it the cluster decides, and it is told that there is one.
    for (usage, condition) in
        [(NodeTpmUsage::PresentAndUsed, Some("seal-helper-missing")), (NodeTpmUsage::PresentButUnused, None)]
    {
        let world = World::guest(usage);
        world.tpm.install_helper(false);
        let life = world.start();
        match condition {
            Some(name) => assert!(life.condition(name).is_some() && !life.runs(), "{usage:?}: {}", life.describe()),
            None => assert!(life.runs(), "{usage:?}: {}", life.describe()),
        }
        assert_eq!(life.cluster().told_of_tpm, Some(true), "{usage:?}");
    }
}

#[test]
fn keys_that_would_not_open_are_a_condition_until_they_would() {
    type Change = fn(&Running);
    let cases: [(&str, Change, Change); 4] = [
        ("renew the seal", |node| node.tpm.drift(2), |node| node.tpm.drift(1)),
        ("switch it on", |node| node.tpm.remove(), |node| node.tpm.insert()),
        ("may be busy", |node| node.tpm.answer(false), |node| node.tpm.answer(true)),
        // The disk with the journal does not answer.
        ("see to the disk", |node| node.lose_journal(), |node| node.disk.cure()),
    ];
    World::founder(TpmMode::Required).while_it_runs(async |node| {
        assert_eq!(node.condition(), None);
        for (hint, change, cure) in cases {
            change(node);
            let condition = node.until(true, SHOWS).await.unwrap();
            assert!(condition.hint.contains(hint), "{condition:?}");
            // Nothing but a look that is good ends it.
            tokio::time::sleep(SHOWS).await;
            assert!(node.condition().is_some_and(|now| now.hint.contains(hint)));
            cure(node);
            node.until(false, IS_OVER).await;
        }
    });
}

/// While the condition is there for one reason, another one takes its place and does not end it.
#[test]
fn a_journal_that_cannot_be_read_ends_no_condition() {
    World::founder(TpmMode::Required).while_it_runs(async |node| {
        node.tpm.drift(2);
        node.until(true, SHOWS).await;
        node.lose_journal();
        for _ in 0..SHOWS.as_secs() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(node.condition().is_some());
        }
        assert!(node.condition().unwrap().hint.contains("see to the disk"));
        node.disk.cure();
        tokio::time::sleep(IS_OVER).await;
        assert!(node.condition().unwrap().hint.contains("renew the seal"));
    });
}

#[test]
fn a_seal_is_renewed_where_there_is_one() {
    World::founder(TpmMode::Required).while_it_runs(async |node| {
        node.tpm.drift(2);
        node.until(true, SHOWS).await;
        assert_eq!(node.manager.reseal().await, Ok(SealKind::Tpm));
        assert_eq!(node.condition(), None, "it is looked at again at once");
        // A TPM that does not answer changes nothing.
        node.tpm.drift(3);
        node.tpm.answer(false);
        assert!(matches!(node.manager.reseal().await, Err(KeyOrderError::NotBegun { .. })));
        node.tpm.answer(true);
        node.until(true, SHOWS).await;
        assert_eq!(node.manager.reseal().await, Ok(SealKind::Tpm));
    });
    World::founder(TpmMode::Disabled).while_it_runs(async |node| {
        assert_eq!(node.manager.reseal().await, Err(KeyOrderError::NotSealed));
    });
}
