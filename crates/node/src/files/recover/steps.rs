//! The steps of a recovery, one after the other.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use polis_consensus::{OfflineMember, OfflineStart, RECOVERY_DIRECTORIES, peer_url};
use polis_control::RecoverReport;
use polis_curator::{KnownHistory, leave_alone};
use polis_identity::{NodeId, PeerAddress};
use polis_snapshots::{Checker, Restored};
use polis_storage::{DIRECTORY_MODE, Disk, DiskPath, FILE_MODE, Layout, SignedMembers};
use polis_supervisor::{BoxError, Context, with_causes};

use super::data::KeyKeeper;
use super::source::{Form, MEMBER, Source, copy_member, extract};
use super::supervised::{Teller, supervised};
use super::swap::swap;
use super::{HeldRecovery, runtime};

/// Directories below etcd's: in which everything is made, and beside the old data, as only there they can take their place, the new
/// ones. What is found there is from an attempt that was cut off.
const WORKSHOP: &str = RECOVERY_DIRECTORIES[0];
/// See [`WORKSHOP`].
const RECOVERED: &str = RECOVERY_DIRECTORIES[1];

/// Does all of it.
pub(super) fn run(recovery: &HeldRecovery, tell: &dyn Fn(&str)) -> Result<RecoverReport, BoxError> {
    let runtime = runtime()?;
    let job = Arc::new(Job::of(recovery)?);
    supervised(&runtime, tell, move |context, teller| {
        let job = Arc::clone(&job);
        async move { job.run(&context, &teller).await }
    })
}

/// What the work needs of the recovery.
struct Job {
    disk: Arc<dyn Disk>,
    workshop: DiskPath,
    recovered: DiskPath,
    node_id: NodeId,
    identity_address: std::net::Ipv6Addr,
    cluster_id: String,
    known: Option<KnownHistory>,
    source: OwnedSource,
    etcd: polis_consensus::EtcdBinary,
    tool: polis_snapshots::RestoreTool,
    key: KeyKeeper,
}

enum OwnedSource {
    Data(std::path::PathBuf),
    Snapshot(std::path::PathBuf, Form),
}

impl Job {
    fn of(recovery: &HeldRecovery) -> Result<Self, BoxError> {
        let disk = Arc::clone(&recovery.keeping.disk);
        let layout = Layout::new(Arc::clone(&disk));
        let etcd = layout.data.etcd.directory;
        let journal = Layout::new(Arc::clone(&disk)).journal_store(recovery.keeping.seals.clone());
        Ok(Self {
            workshop: etcd.path().child(WORKSHOP)?,
            recovered: etcd.path().child(RECOVERED)?,
            node_id: recovery.survivor.node_id,
            identity_address: PeerAddress::of(&recovery.survivor.key.public()).ip(),
            cluster_id: recovery.survivor.cluster_id.clone(),
            known: recovery.survivor.known.clone(),
            source: match &recovery.source {
                Source::Data { directory, .. } => OwnedSource::Data(directory.clone()),
                Source::Snapshot { file, form, .. } => OwnedSource::Snapshot(file.clone(), form.clone()),
            },
            etcd: recovery.etcd.clone(),
            tool: recovery.tool.clone(),
            key: recovery.data.key_keeper(journal),
            disk,
        })
    }

    async fn run(self: &Arc<Self>, context: &Context, teller: &Teller) -> Result<RecoverReport, BoxError> {
        self.on_disk(context, |job| job.begin()).await?;
        let workshop = std::path::absolute(self.disk.full_path(&self.workshop))?;
        let snapshot = match &self.source {
            OwnedSource::Data(data) => {
                teller.say("copying the data of this node's member");
                let (from, to) = (data.join(MEMBER), workshop.join("copy").join(MEMBER));
                context.blocking(move || copy_member(&from, &to)).await?;
                teller.say("reading them as those of a cluster of one, where nobody reaches them");
                let taken = workshop.join("snapshot");
                self.take_snapshot(context, &workshop, &taken).await?;
                taken
            }
            OwnedSource::Snapshot(file, Form::Etcd) => file.clone(),
            OwnedSource::Snapshot(file, Form::OfPolis(key)) => {
                teller.say("opening the snapshot");
                let opened = workshop.join("snapshot");
                let (file, key, to) = (file.clone(), key.clone(), opened.clone());
                context.blocking(move || extract(&file, key.as_ref(), &to)).await?;
                opened
            }
        };
        teller.say("making a cluster of one of them");
        let restored = Restored {
            data_directory: std::path::absolute(self.disk.full_path(&self.recovered))?,
            name: self.node_id.to_string(),
            peer_url: peer_url(self.identity_address),
            // Another one each time: the new member and the new cluster have ids that nobody has ever had.
            token: format!("polis-{:032x}", rand::random::<u128>()),
        };
        self.tool.restore(context, &snapshot, &restored).await?;
        let member =
            OfflineMember::start(context, &self.etcd, &restored.data_directory, &workshop, OfflineStart::AsTheyAre)
                .await?;
        teller.say("taking the other members out of its state");
        let left = leave_alone(member.kv_root(), &self.node_id, &self.cluster_id, self.known.clone()).await;
        member.stop().await;
        let left = left?;
        self.on_disk(context, |job| Ok(job.key.keep()?)).await?;
        teller.say("putting the new data in the place of the old ones");
        let kept = self.on_disk(context, |job| job.finish()).await?;
        self.keep_list(context, teller, left.signed_list).await;
        Ok(RecoverReport {
            revision: left.revision,
            others: left.others.into_iter().collect(),
            with_keys: left.with_keys.into_iter().collect(),
            incarnation: left.epoch.incarnation,
            kept,
        })
    }

    /// Lets the next start know from its beginning which side it is on. Should that fail, it learns it from its own state, a moment
    /// later.
    async fn keep_list(&self, context: &Context, teller: &Teller, signed_list: Vec<u8>) {
        let file = Layout::new(Arc::clone(&self.disk)).esp.polis.signed_members;
        let stored = context.blocking(move || file.store(&SignedMembers { signed_list }, "recover/list")).await;
        if let Err(error) = stored {
            teller
                .say(&format!("the new list of members could not be written to the ESP yet: {}", with_causes(&error)));
        }
    }

    async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        context: &Context,
        work: fn(&Self) -> Result<T, BoxError>,
    ) -> Result<T, BoxError> {
        let job = Arc::clone(self);
        context.blocking(move || work(&job)).await
    }

    /// An empty workshop.
    fn begin(&self) -> Result<(), BoxError> {
        if self.disk.metadata(&self.workshop)?.is_some() {
            self.disk.clear_directory(&self.workshop)?;
        } else {
            self.disk.create_directory(&self.workshop, DIRECTORY_MODE)?;
        }
        if self.disk.metadata(&self.recovered)?.is_some() {
            self.disk.clear_directory(&self.recovered)?;
            std::fs::remove_dir(self.disk.full_path(&self.recovered))?;
        }
        Ok(())
    }

    async fn take_snapshot(&self, context: &Context, workshop: &Path, taken: &Path) -> Result<(), BoxError> {
        let copy = workshop.join("copy");
        let member = OfflineMember::start(context, &self.etcd, &copy, workshop, OfflineStart::ForceAlone).await?;
        let received = receive(&member, taken).await;
        member.stop().await;
        received
    }

    /// Makes sure that all of the new data are on the disk, and lets them be the member's.
    fn finish(&self) -> Result<Option<std::path::PathBuf>, BoxError> {
        // Those of the data partition, and below it those of the disk on which an encrypted one keeps its files.
        for place in [&self.recovered, &DiskPath::root()] {
            rustix::fs::syncfs(&std::fs::File::open(self.disk.full_path(place))?)?;
        }
        let kept = swap(&self.disk, &self.recovered)?;
        // What is left of the work; the new data are in their place, so that what cannot be removed does no harm.
        let _ = self.disk.clear_directory(&self.workshop);
        let _ = std::fs::remove_dir(self.disk.full_path(&self.workshop));
        Ok(kept)
    }
}

/// Takes a snapshot of a member that nobody else uses.
async fn receive(member: &OfflineMember, taken: &Path) -> Result<(), BoxError> {
    let mut stream = member.snapshot().await?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(taken)?;
    let mut checker = Checker::default();
    while let Some(bytes) = stream.next().await? {
        checker.update(&bytes);
        file.write_all(&bytes)?;
    }
    checker.finish()?;
    Ok(())
}
