//! The state of a snapshot, made that of a cluster whose only consensus member is a new node.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use polis_consensus::{EtcdBinary, OfflineMember, OfflineStart, RECOVERY_DIRECTORIES};
use polis_curator::{Adopted, adopt, wanted_of_nodes};
use polis_identity::NodeId;
use polis_manager::{Restoration, recommended_storage};
use polis_snapshots::{RestoreTool, Restored};
use polis_storage::journal::StorageSecurity;
use polis_storage::{DIRECTORY_MODE, Disk, DiskPath, Layout};
use polis_supervisor::{BoxError, Context};
use tokio::runtime::Runtime;

use super::source::{Form, Source, extract};
use super::supervised::{Teller, supervised};
use super::swap::swap;

/// What came of it.
pub(super) enum Made {
    /// The state is in its place, and the node has what it needs of it.
    Adopted(Box<Adopted>),
    /// The cluster asks for data that are kept like this. Nothing but the place was made.
    Wants(StorageSecurity),
}

/// What the work needs. Clones are the same.
#[derive(Clone)]
pub(super) struct RestoredState {
    pub(super) disk: Arc<dyn Disk>,
    /// The new node, whose data partition is open.
    pub(super) restoration: Arc<Restoration>,
    /// How its data are kept.
    pub(super) security: StorageSecurity,
    pub(super) etcd: EtcdBinary,
    pub(super) tool: RestoreTool,
    pub(super) node_id: NodeId,
    pub(super) source: Source,
}

impl RestoredState {
    /// Does it. Blocks.
    pub(super) fn make(self, runtime: &Runtime, tell: &dyn Fn(&str)) -> Result<Made, BoxError> {
        supervised(runtime, tell, move |context, teller| {
            let state = self.clone();
            async move { state.work(&context, &teller).await }
        })
    }

    async fn work(self, context: &Context, teller: &Teller) -> Result<Made, BoxError> {
        let etcd = Layout::new(Arc::clone(&self.disk)).data.etcd.directory.path().clone();
        let [workshop, recovered] = [etcd.child(RECOVERY_DIRECTORIES[0])?, etcd.child(RECOVERY_DIRECTORIES[1])?];
        let work = std::path::absolute(self.disk.full_path(&workshop))?;
        teller.say("opening the snapshot");
        let snapshot = self.open(context, workshop.clone(), work.join("snapshot")).await?;
        teller.say("making a cluster of one of it");
        let restored = Restored {
            data_directory: std::path::absolute(self.disk.full_path(&recovered))?,
            name: self.node_id.to_string(),
            peer_url: self.restoration.newcomer().member_url.to_owned(),
            // Another one each time: the new member and the new cluster have ids that nobody has ever had.
            token: format!("polis-{:032x}", rand::random::<u128>()),
        };
        self.tool.restore(context, &snapshot, &restored).await?;
        let member =
            OfflineMember::start(context, &self.etcd, &restored.data_directory, &work, OfflineStart::AsTheyAre).await?;
        let made = self.change(context, &member, teller).await;
        member.stop().await;
        match made? {
            Made::Wants(wanted) => Ok(Made::Wants(wanted)),
            Made::Adopted(adopted) => {
                teller.say("putting it into its place");
                context
                    .blocking(move || self.put(&adopted, &workshop, &recovered).map(|()| adopted))
                    .await
                    .map(Made::Adopted)
            }
        }
    }

    /// A workshop, and in it the snapshot in etcd's form.
    async fn open(&self, context: &Context, workshop: DiskPath, to: PathBuf) -> Result<PathBuf, BoxError> {
        let (disk, source) = (Arc::clone(&self.disk), self.source.clone());
        context
            .blocking(move || {
                disk.create_directory(&workshop, DIRECTORY_MODE)?;
                match source {
                    Source::Snapshot { file, form: Form::OfPolis(key), .. } => {
                        extract(&file, key.as_ref(), &to)?;
                        Ok(to)
                    }
                    Source::Snapshot { file, form: Form::Etcd, .. } => Ok(file),
                    Source::Data { .. } => Err("it is no snapshot".into()),
                }
            })
            .await
    }

    /// Lets the state be that of a cluster with the new node, if this machine keeps data as the cluster asks.
    async fn change(&self, context: &Context, member: &OfflineMember, teller: &Teller) -> Result<Made, BoxError> {
        let (tpm_mode, policy) = wanted_of_nodes(member.kv_root()).await?;
        let wanted = recommended_storage(policy);
        if wanted != self.security {
            return Ok(Made::Wants(wanted));
        }
        let restoration = Arc::clone(&self.restoration);
        context.blocking(move || restoration.seal_as_wanted(tpm_mode)).await?;
        teller.say("making the new node its only consensus member");
        Ok(Made::Adopted(Box::new(adopt(member.kv_root(), &self.restoration.newcomer()).await?)))
    }

    /// Lets the node be who it is in that cluster, and the state be its own, durably.
    fn put(&self, adopted: &Adopted, workshop: &DiskPath, recovered: &DiskPath) -> Result<(), BoxError> {
        self.restoration.keep_identity(adopted)?;
        // The workshop holds a copy of the whole state.
        self.disk.clear_directory(workshop)?;
        std::fs::remove_dir(self.disk.full_path(workshop))?;
        // Those of the data partition, and below it those of the disk on which an encrypted one keeps its files.
        for place in [recovered, &DiskPath::root()] {
            rustix::fs::syncfs(&File::open(self.disk.full_path(place))?)?;
        }
        swap(&self.disk, recovered)?;
        Ok(())
    }
}
