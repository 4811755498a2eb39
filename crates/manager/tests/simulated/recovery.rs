//! The recovery key: what is sealed to it follows what the node has, and brings back a node that cannot unseal its record, whatever is
//! cut off meanwhile. Nothing is written before its data are open.

use std::sync::Arc;
use std::time::Duration;

use polis_manager::{Manager, Outcome, Place, Standing};
use polis_proto::common::cluster_configuration::{StorageSecurityPolicy, TpmMode};
use polis_recovery::{Blob, BlobContent, RecoveryKey};
use polis_secret::Secret32;
use polis_storage::journal::Seals;
use polis_storage::simulation::{Image, Recording, SimulatedDisk, SimulatedTpm};
use polis_storage::{DiskPath, FILE_MODE, Journal, Layout, durable};
use polis_supervisor::{Context, Supervisor, runnable};
use polis_unlock_service::{Lock, RecoverError, Recovery as _, RecoveryAnswer};

use crate::cluster::{Cluster, Script, Scripted};
use crate::common::{
    Acknowledged, Host, ParametersFile, SimulatedConsensus, Then, disk_with, manager_on, parameters_of,
};

/// Simulated time after which what was waited for does not come.
const STUCK: Duration = Duration::from_secs(3600);

/// Ways in which each power cut goes.
const SEEDS: u64 = 3;

const ALONE: Standing = Standing { voters: 1, place: Place::Voter };

/// A node with encrypted data and a TPM, its cluster, and the recovery key of that.
struct World {
    file: ParametersFile,
    tpm: SimulatedTpm,
    key: RecoveryKey,
    cluster: Cluster,
}

/// A start that has ended.
struct Life {
    recording: Recording,
    cluster: Cluster,
}

impl Life {
    fn end(&self) -> Image {
        self.recording.cuts().unwrap().pop().expect("a recording has an end").image()
    }
}

/// A start that goes on.
struct Running {
    disk: Arc<SimulatedDisk>,
    manager: Manager<SimulatedConsensus>,
    access: Scripted,
}

impl World {
    fn new() -> Self {
        let parameters = parameters_of(TpmMode::Required, StorageSecurityPolicy::NeedsEncryptionAndAuthentication);
        Self {
            file: ParametersFile::with(&parameters),
            tpm: SimulatedTpm::new(),
            key: RecoveryKey::generate(),
            cluster: Cluster::new().changed(|cluster| cluster.standing = Some(ALONE)),
        }
    }

    fn seals(&self) -> Seals {
        Seals::with_tpm(Arc::new(self.tpm.clone()))
    }

    /// Starts the process on this disk, beside this cluster, and does this while it goes on.
    fn start(&self, image: Image, cluster: &Cluster, meanwhile: impl AsyncFnOnce(&Running)) -> Life {
        let disk = disk_with(image);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            Layout::new(disk.clone()).prepare_start().unwrap();
            let access = Scripted::new(disk.clone(), cluster.clone(), Script::default());
            access.set_recovery_key(&self.key.public());
            let host = Host { seals: self.seals(), then: Then::Nothing, ..Host::default() };
            let acknowledged = Acknowledged::default();
            let (manager, _, _) = manager_on(&host, &disk, self.file.source(), &acknowledged, 0, &access);
            let running = Running { disk: disk.clone(), manager: manager.clone(), access: access.clone() };
            let parts = runnable(move |context: Context| {
                let manager = manager.clone();
                async move {
                    context.run("recovery-blob", manager.blob_keeper())?;
                    context.run("keys", manager.key_keeper())?;
                    context.run("manager", manager.runnable())?;
                    context.healthy();
                    Err(context.cancelled().await.into())
                }
            });
            let supervisor = Supervisor::builder().start(parts);
            meanwhile(&running).await;
            let recording = disk.recording();
            supervisor.shutdown().await.unwrap();
            let cluster = access.history().pop().expect("it has a beginning").1;
            Life { recording, cluster: cluster.changed(|cluster| cluster.recovery_blob = access.recovery_blob()) }
        })
    }

    /// A first start, until the node has sealed its record.
    fn first(&self) -> Life {
        self.start(Image::default(), &self.cluster, async |running| {
            running.runs().await;
            running.has_sealed(self).await;
        })
    }

    fn journal(&self, image: &Image) -> Journal {
        Layout::new(disk_with(image.clone())).journal_store(self.seals()).load().unwrap().expect("there is one").value
    }

    /// What the blob on this disk holds.
    fn content(&self, image: &Image) -> BlobContent {
        let record = Layout::new(disk_with(image.clone())).esp.polis.recovery.load().unwrap().expect("there is one");
        let blob = Blob::from_bytes(&record.value.blob).unwrap();
        blob.open(&blob.content_key(&self.key).unwrap()).ok().unwrap()
    }
}

impl Running {
    async fn runs(&self) {
        let outcome = tokio::time::timeout(STUCK, self.manager.wait_finished()).await.expect("it comes to something");
        assert!(matches!(outcome, Outcome::Running(_)));
    }

    async fn until(&self, what: &str, wanted: impl AsyncFn() -> bool) {
        let waiting = async {
            while !wanted().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(STUCK, waiting).await.unwrap_or_else(|_| panic!("{what}"));
    }

    /// Waits until the cluster has a blob of the record and the key that the node has now.
    async fn has_sealed(&self, world: &World) {
        self.until("the cluster has what opens the node", async || {
            let Some(bytes) = self.access.recovery_blob() else { return false };
            let blob = Blob::from_bytes(&bytes).unwrap();
            let Ok(key) = blob.content_key(&world.key) else { return false };
            let content = blob.open(&key).ok().unwrap();
            let kept = self.access.history().pop().unwrap().1.kept;
            kept == Some(content.cluster_unlock_key) && content.pending_cluster_unlock_key.is_none()
        })
        .await;
    }

    async fn is_sealed(&self) {
        let mut lock = self.manager.lock();
        let sealed = lock.wait_for(|lock| matches!(lock, Lock::Sealed { .. }));
        tokio::time::timeout(STUCK, sealed).await.expect("it says that it is sealed").unwrap();
        self.until("it has looked for its blob", async || self.manager.offer().await.is_ok()).await;
    }

    /// What somebody does who has the recovery key.
    async fn recover(&self, key: &RecoveryKey) -> Result<String, RecoverError> {
        let blob = Blob::from_bytes(&self.manager.offer().await.unwrap()).unwrap();
        let content_key = blob.content_key(key).unwrap().secret().clone();
        self.manager.recover(RecoveryAnswer { content_key, blob_sha256: blob.digest() }).await
    }
}

#[test]
fn what_is_sealed_follows_what_the_node_has() {
    let world = World::new();
    let first = world.first();
    let (journal, content) = (world.journal(&first.end()), world.content(&first.end()));
    assert!(content.record == journal.to_payload());
    assert!(journal.cluster_unlock_key.is_some_and(|key| key.current == content.cluster_unlock_key));

    let rekeyed = world.start(first.end(), &first.cluster, async |running| {
        running.runs().await;
        running.manager.rekey().await.unwrap();
        running.has_sealed(&world).await;
    });
    let after = world.content(&rekeyed.end());
    assert!(after.cluster_unlock_key != content.cluster_unlock_key);
    assert!(after.record == world.journal(&rekeyed.end()).to_payload());

    // A later start writes nothing that is there, and gives it to a cluster that has it no more.
    let forgetful = rekeyed.cluster.clone().changed(|cluster| cluster.recovery_blob = None);
    let later = world.start(rekeyed.end(), &forgetful, async |running| {
        running.runs().await;
        running.has_sealed(&world).await;
    });
    for name in ["esp/polis/recovery.0", "esp/polis/recovery.1"] {
        let path = DiskPath::parse(name).unwrap();
        assert!(later.end().get(&path) == rekeyed.end().get(&path), "{name} was written");
    }

    // Another recovery key: in neither file is anything for the one before.
    let world = World { key: RecoveryKey::generate(), ..world };
    let replaced = world.start(later.end(), &later.cluster, async |running| {
        running.runs().await;
        running.has_sealed(&world).await;
    });
    for name in ["esp/polis/recovery.0", "esp/polis/recovery.1"] {
        let path = DiskPath::parse(name).unwrap();
        assert!(replaced.end().get(&path) != later.end().get(&path), "{name} is as it was");
    }
    world.content(&replaced.end());
}

/// Secure Boot or the firmware has changed on this machine, or its board did: the TPM gives nothing out. And every power cut within.
#[test]
fn a_node_that_cannot_unseal_comes_back_from_every_power_cut() {
    let changes: [fn(&SimulatedTpm); 2] = [|tpm| tpm.boot_into(2), |tpm| tpm.clear()];
    for change in changes {
        let world = World::new();
        let first = world.first();
        let before = world.journal(&first.end()).to_payload();
        world.tpm.restart();
        change(&world.tpm);
        let recovered = world.start(first.end(), &first.cluster, async |running| {
            running.is_sealed().await;
            let done = running.recover(&world.key).await.unwrap();
            assert!(done.contains("sealed to the present state"), "{done}");
            running.runs().await;
        });
        let mut recovered_again = 0;
        for cut in recovered.recording.cuts().unwrap() {
            for seed in 0..if cut.is_settled() { 1 } else { SEEDS } {
                world.tpm.restart();
                world.start(cut.power_cut(seed), &recovered.cluster, async |running| {
                    let mut lock = running.manager.lock();
                    let mut progress = running.manager.watch();
                    let sealed = tokio::select! {
                        _ = lock.wait_for(|lock| matches!(lock, Lock::Sealed { .. })) => true,
                        _ = progress.wait_for(|progress| progress.node.is_some()) => false,
                    };
                    if sealed {
                        running.is_sealed().await;
                        running.recover(&world.key).await.unwrap();
                        recovered_again += 1;
                    }
                    running.runs().await;
                });
            }
        }
        assert!(recovered_again > 0);
        // Whoever comes later needs nothing.
        world.tpm.restart();
        world.start(recovered.end(), &recovered.cluster, async |running| running.runs().await);
        world.tpm.restart();
        assert!(world.journal(&recovered.end()).to_payload() == before);
    }
}

/// What is wrong is said, and nothing is written.
#[test]
fn what_does_not_open_changes_nothing() {
    let world = World::new();
    let first = world.first();
    world.tpm.boot_into(2);
    let refused = world.start(first.end(), &first.cluster, async |running| {
        running.is_sealed().await;
        let blob = Blob::from_bytes(&running.manager.offer().await.unwrap()).unwrap();
        let content_key = blob.content_key(&world.key).unwrap().secret().clone();
        let other = RecoveryAnswer { content_key: content_key.clone(), blob_sha256: [0; 32] };
        assert!(matches!(running.manager.recover(other).await, Err(RecoverError::OtherBlob)));
        let wrong = RecoveryAnswer { content_key: Secret32::random(), blob_sha256: blob.digest() };
        assert!(matches!(running.manager.recover(wrong).await, Err(RecoverError::WrongKey(_))));
        // It cannot be sealed now, so it is not taken, and the data are not left open.
        world.tpm.answer(false);
        assert!(matches!(running.recover(&world.key).await, Err(RecoverError::Failed(_))));
        world.tpm.answer(true);
    });
    let kept = |image: &Image, name: &str| image.get(&DiskPath::parse(name).unwrap()).cloned();
    for name in ["esp/polis/journal.0", "esp/polis/journal.1", "esp/polis/recovery.0", "vault/slot.0", "data/partition"]
    {
        assert!(kept(&refused.end(), name) == kept(&first.end(), name), "{name} has changed");
    }
    // Data of another: the keys in the blob open nothing.
    let path = DiskPath::parse("vault/slot.0").unwrap();
    let locked = world.start(first.end(), &first.cluster, async |running| {
        running.is_sealed().await;
        durable::write(&*running.disk, "test", &path, FILE_MODE, b"another's").unwrap();
        let refused = running.recover(&world.key).await.unwrap_err();
        assert!(matches!(refused, RecoverError::Failed(_)), "{refused:?}");
    });
    for name in ["esp/polis/journal.0", "esp/polis/journal.1"] {
        assert!(kept(&locked.end(), name) == kept(&first.end(), name), "{name} has changed");
    }
}
