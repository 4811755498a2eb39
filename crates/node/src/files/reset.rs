//! Making nothing of a node, from any state (`polis node reset`).
//!
//! The order is what makes it safe. First the journal is brought to its final phase, in which no start does anything but say so.
//! Then everything else goes, and the journal last; of its two files the older one first, so that the one that is left is
//! always one that does not start. A journal that cannot be read does not start anyway, and is left like that until the end.
//! So a kill at any point leaves a node that was not touched, or one that does not start and can be reset again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use polis_consensus::set_aside_directories;
use polis_control::{EnrolmentPhase, NodeFilesError, Reset, ResetItem, ResetOutcome, ResetPlan};
use polis_identity::{NodeId, PublicKey};
use polis_storage::journal::{JOURNAL_FORMAT, Phase};
use polis_storage::{
    Data, DataEtcd, DataNode, Directory, Disk, DiskError, DiskPath, Encrypted, Ephemeral, Esp, EspPolis, Journal,
    JournalError, JournalStore, Layout, Metadata, RootDirectory, durable,
};
use polis_supervisor::with_causes;

use super::failed;
use crate::keeping::seals;

/// What the journal of a node says that is being reset.
pub(super) const REASON: &str = "`polis node reset` has begun to delete this node and was cut off; repeat it";

/// What file systems make by themselves.
const LOST_AND_FOUND: &str = "lost+found";

/// A reset that holds the lock of its node.
pub(super) struct HeldReset {
    pub(super) root: RootDirectory,
    pub(super) reset: NodeReset,
}

impl Reset for HeldReset {
    fn plan(&self) -> &ResetPlan {
        &self.reset.plan
    }

    fn run(self: Box<Self>) -> Result<ResetOutcome, NodeFilesError> {
        let Self { root, reset } = *self;
        let incomplete = |error: ResetError| {
            failed(
                format!("the node at {} was not deleted to the end", root.path().display()),
                error,
                Some("what is left does not start as a node; see to the disk and repeat the reset"),
            )
        };
        let directories = reset.directories();
        let outcome = reset.run().map_err(incomplete)?;
        for directory in directories {
            // One with something of others in it stays, and so does one that is a mount point.
            let _ = std::fs::remove_dir(directory);
        }
        Ok(outcome)
    }
}

/// Why it did not work.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResetError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("the enrolment journal could not be marked, so nothing was deleted")]
    Mark(#[source] JournalError),
}

/// A node that is to become nothing.
pub(super) struct NodeReset {
    disk: Arc<dyn Disk>,
    journal: JournalStore,
    /// The journal, if it can be read.
    present: Option<Journal>,
    pub(super) plan: ResetPlan,
}

/// What there is to delete, in the order of deletion.
enum Step {
    /// A file, durably.
    File(DiskPath),
    /// All that is in a directory, which belongs to the node alone.
    Content(DiskPath),
}

impl NodeReset {
    /// Looks at what is there, and changes nothing.
    pub(super) fn look(disk: Arc<dyn Disk>) -> Result<Self, DiskError> {
        let layout = Layout::new(Arc::clone(&disk));
        let journal = layout.journal_store(seals(None));
        let (present, journal_problem) = match journal.load() {
            Ok(loaded) => (loaded.map(|loaded| loaded.value), None),
            Err(JournalError::Disk(error)) => return Err(error),
            Err(error) => (None, Some(with_causes(&error))),
        };
        let phase = match (&present, &journal_problem) {
            (Some(journal), _) => Some(phase(journal.phase())),
            (None, None) => Some(EnrolmentPhase::None),
            (None, Some(_)) => None,
        };
        let key = present.as_ref().and_then(|journal| PublicKey::new(journal.node_public_key).ok());
        let plan = ResetPlan {
            node_id: key.as_ref().map(NodeId::of),
            cluster_id: present.as_ref().and_then(|journal| journal.cluster_id.clone()),
            phase,
            journal_problem,
            consensus_member: layout.data.etcd.credentials.exists()?,
            items: items(&*disk, &layout)?,
            stays: stays(&*disk, &layout)?,
        };
        Ok(Self { disk, journal, present, plan })
    }

    /// Deletes what the plan says.
    pub(super) fn run(self) -> Result<ResetOutcome, ResetError> {
        let layout = Layout::new(Arc::clone(&self.disk));
        self.mark(&layout)?;
        for (step, _) in steps(&*self.disk, &layout)? {
            match step {
                Step::File(path) => durable::remove(&*self.disk, "reset/file", &path)?,
                Step::Content(path) => {
                    self.disk.clear_directory(&path)?;
                    self.disk.sync_directory("reset/content", &path)?;
                }
            }
        }
        Ok(ResetOutcome { stays: stays(&*self.disk, &layout)? })
    }

    /// Sees to it that the node does not start any more. After this its journal is absent, cannot be read, or is in its final phase.
    fn mark(&self, layout: &Layout) -> Result<(), ResetError> {
        let Some(journal) = &self.present else { return Ok(()) };
        // Every phase may become this one.
        let Ok(marked) = journal.advance(Phase::Removed { reason: REASON.to_owned() }) else { return Ok(()) };
        match self.journal.store(&marked, "reset/mark") {
            Err(error) if error.disk_error().is_some_and(DiskError::is_full) => {
                // On a full disk the older generation makes room for the one that takes its place.
                let slots = journal_slots(&*self.disk, layout)?;
                if let [older, _newest] = &slots[..] {
                    durable::remove(&*self.disk, "reset/make-room", older)?;
                }
                self.journal.store(&marked, "reset/mark").map_err(ResetError::Mark)
            }
            marked => marked.map_err(ResetError::Mark),
        }
    }

    /// Full paths of the node's directories, the innermost first.
    fn directories(&self) -> Vec<PathBuf> {
        let layout = Layout::new(Arc::clone(&self.disk));
        let set_aside = set_aside_directories(&*self.disk, &layout.data.etcd).unwrap_or_default();
        let own = own_directories(&layout);
        let own = own.iter().map(|directory| directory.path().clone());
        let mut paths: Vec<DiskPath> = own.chain(set_aside).collect();
        paths.retain(|path| matches!(self.disk.metadata(path), Ok(Some(Metadata::Directory { .. }))));
        paths.sort();
        paths.iter().rev().map(|path| self.disk.full_path(path)).collect()
    }
}

const fn phase(phase: &Phase) -> EnrolmentPhase {
    match phase {
        Phase::Formattable => EnrolmentPhase::Formattable,
        Phase::Formatted => EnrolmentPhase::Formatted,
        Phase::Enrolled => EnrolmentPhase::Enrolled,
        Phase::Removed { .. } => EnrolmentPhase::Removed,
    }
}

/// What will be deleted, for people.
fn items(disk: &dyn Disk, layout: &Layout) -> Result<Vec<ResetItem>, DiskError> {
    let shown = steps(disk, layout)?.into_iter().map(|(step, what)| {
        let (Step::File(path) | Step::Content(path)) = step;
        ResetItem { path: disk.full_path(&path), what }
    });
    Ok(shown.collect())
}

/// What there is of the node, in the order in which it goes. The whole layout is named here: a new file in it does not compile
/// before it has its place.
fn steps(disk: &dyn Disk, layout: &Layout) -> Result<Vec<(Step, &'static str)>, DiskError> {
    let Layout { directory: root, esp, data, encrypted, ephemeral, last_state } = layout;
    let Esp { directory: esp, polis } = esp;
    let EspPolis {
        directory: polis,
        journal: _,
        cluster_directory,
        operator_peers,
        signed_members,
        unlock,
        recovery,
        announced,
        network,
        clock,
        failures,
        // Somebody put it there. It stays, and is named.
        parameters: _,
    } = polis;
    let Data { directory: data, partition, log, snapshots, etcd, node } = data;
    let DataEtcd { directory: etcd, data: etcd_data, credentials: peer_credentials, joining } = etcd;
    let DataNode { directory: node, credentials, roles, revocations } = node;
    let Encrypted { directory: encrypted, partition: encrypted_partition, slots, cipher, work } = encrypted;
    // What is in it is emptied as a whole, as at each start.
    let Ephemeral { directory: ephemeral, control_socket: _, consensus: _ } = ephemeral;

    let mut steps = Vec::new();
    // Without its keys nothing of the ciphertext can be read any more, so they go first.
    let mut file = |path: &DiskPath, what| match disk.metadata(path)? {
        Some(Metadata::File { .. } | Metadata::Other) => {
            steps.push((Step::File(path.clone()), what));
            Ok::<(), DiskError>(())
        }
        // A directory in the place of a file is not ours.
        Some(Metadata::Directory { .. }) | None => Ok(()),
    };
    for slot in slots {
        file(slot.path(), "a key slot of the encrypted data partition")?;
    }
    file(&place(disk, &credentials.full_path()), "the node's key and certificates")?;
    file(&place(disk, &peer_credentials.full_path()), "the consensus member's key and certificates")?;
    file(&place(disk, &joining.full_path()), "that the consensus member is new")?;
    for path in roles.full_paths() {
        file(&place(disk, &path), "the node's roles")?;
    }
    for path in revocations.full_paths() {
        file(&place(disk, &path), "the cluster's revocations")?;
    }
    for path in cluster_directory.full_paths() {
        file(&place(disk, &path), "where the cluster's nodes are")?;
    }
    for path in operator_peers.full_paths() {
        file(&place(disk, &path), "where an operator said that nodes are")?;
    }
    for path in unlock.full_paths() {
        file(&place(disk, &path), "the node's unlock key, encrypted to the other members")?;
    }
    for path in recovery.full_paths() {
        file(&place(disk, &path), "the node's keys, encrypted to the recovery key")?;
    }
    for path in signed_members.full_paths() {
        file(&place(disk, &path), "the list of consensus members")?;
    }
    for path in announced.full_paths() {
        file(&place(disk, &path), "numbers of announcements")?;
    }
    for path in network.full_paths() {
        file(&place(disk, &path), "how the network of the machine is set up")?;
    }
    for slot in clock {
        file(slot.path(), "the last time that the machine knew")?;
    }
    file(failures.path(), "how often the machine has failed")?;
    file(last_state.path(), "the last state")?;
    for directory in [root, esp, polis, encrypted, data, etcd, node] {
        for name in names(disk, directory)?.into_iter().filter(|name| durable::is_temporary(name)) {
            if let Ok(path) = directory.path().child(&name) {
                file(&path, "left by a write that was interrupted")?;
            }
        }
    }
    let mut content = |path: &DiskPath, what| {
        if matches!(disk.metadata(path)?, Some(Metadata::Directory { .. })) && !disk.list(path)?.is_empty() {
            steps.push((Step::Content(path.clone()), what));
        }
        Ok::<(), DiskError>(())
    };
    content(etcd_data.path(), "the cluster's state, this node's copy")?;
    for path in set_aside_directories(disk, &layout.data.etcd)? {
        content(&path, "the cluster's state, of an earlier membership or a recovery")?;
    }
    content(snapshots.path(), "copies of the cluster's state")?;
    content(log.path(), "the log of the node and of its machine")?;
    content(cipher.path(), "the encrypted data partition")?;
    content(work.path(), "what an interrupted change of keys left")?;
    content(ephemeral.path(), "sockets and files of the last run")?;
    // Until the end it says whose the rest is.
    for marker in [partition, encrypted_partition].map(|marker| place(disk, &marker.full_path())) {
        if matches!(disk.metadata(&marker)?, Some(Metadata::File { .. } | Metadata::Other)) {
            steps.push((Step::File(marker), "the marker of the data partition"));
        }
    }
    for slot in journal_slots(disk, layout)? {
        steps.push((Step::File(slot), "the enrolment journal, with the node's secrets"));
    }
    Ok(steps)
}

/// The place of one of the layout's files on its disk.
fn place(disk: &dyn Disk, full_path: &Path) -> DiskPath {
    let below = full_path.strip_prefix(disk.full_path(&DiskPath::root())).ok().and_then(Path::to_str);
    below.and_then(|below| DiskPath::parse(below).ok()).unwrap_or_else(DiskPath::root)
}

/// The files of the journal that are there, in the order in which they may go: whole ones first, the older before the newer.
fn journal_slots(disk: &dyn Disk, layout: &Layout) -> Result<Vec<DiskPath>, DiskError> {
    let mut slots = Vec::new();
    for path in layout.esp.polis.journal.full_paths() {
        let path = place(disk, &path);
        if disk.metadata(&path)?.is_none() {
            continue;
        }
        let whole = match disk.read(&path, JOURNAL_FORMAT.file_limit()) {
            Ok(bytes) => JOURNAL_FORMAT.decode(&zeroize::Zeroizing::new(bytes)).ok(),
            // Whatever it is, no start can read it either.
            Err(_) => None,
        };
        slots.push((whole.is_none(), whole.map(|envelope| envelope.generation), path));
    }
    slots.sort_by_key(|(unreadable, generation, _)| (*unreadable, *generation));
    Ok(slots.into_iter().map(|(_, _, path)| path).collect())
}

/// What lies in the node's directories and is not its own.
fn stays(disk: &dyn Disk, layout: &Layout) -> Result<Vec<PathBuf>, DiskError> {
    let own = own_directories(layout);
    let mut known: Vec<DiskPath> = steps(disk, layout)?
        .into_iter()
        .map(|(Step::File(path) | Step::Content(path), _)| path)
        .chain(set_aside_directories(disk, &layout.data.etcd)?)
        .collect();
    for directory in own {
        // A file in the place of a directory is not ours.
        if matches!(disk.metadata(directory.path())?, Some(Metadata::Directory { .. })) {
            known.push(directory.path().clone());
        }
    }
    let mut stays = Vec::new();
    for directory in std::iter::once(&layout.directory).chain(own.iter().copied()) {
        let emptied = known.contains(directory.path()) && is_emptied(layout, directory);
        if emptied {
            continue;
        }
        for name in names(disk, directory)? {
            let Ok(path) = directory.path().child(&name) else {
                stays.push(disk.full_path(directory.path()).join(&name));
                continue;
            };
            if !known.contains(&path) && name != LOST_AND_FOUND {
                stays.push(disk.full_path(&path));
            }
        }
    }
    Ok(stays)
}

/// Whether all that is in it goes, whoever made it.
fn is_emptied(layout: &Layout, directory: &Directory) -> bool {
    let all = [
        &layout.data.etcd.data,
        &layout.data.log,
        &layout.data.snapshots,
        &layout.encrypted.cipher,
        &layout.encrypted.work,
        &layout.ephemeral.directory,
        &layout.ephemeral.consensus.directory,
    ];
    all.iter().any(|emptied| emptied.path() == directory.path())
}

/// The declared directories below the root, parents first.
fn own_directories(layout: &Layout) -> [&Directory; 13] {
    let (data, encrypted, ephemeral) = (&layout.data, &layout.encrypted, &layout.ephemeral);
    [
        &layout.esp.directory,
        &layout.esp.polis.directory,
        &data.directory,
        &data.etcd.directory,
        &data.etcd.data,
        &data.node.directory,
        &data.log,
        &data.snapshots,
        &encrypted.directory,
        &encrypted.cipher,
        &encrypted.work,
        &ephemeral.directory,
        &ephemeral.consensus.directory,
    ]
}

/// Names in a directory; none if it is not there.
fn names(disk: &dyn Disk, directory: &Directory) -> Result<Vec<String>, DiskError> {
    match disk.metadata(directory.path())? {
        Some(Metadata::Directory { .. }) => disk.list(directory.path()),
        Some(Metadata::File { .. } | Metadata::Other) | None => Ok(Vec::new()),
    }
}
