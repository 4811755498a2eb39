//! [`NodeData`]: what is below `data` of a node that does not run, also where it is encrypted.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use polis_encryption::{Purpose, derive};
use polis_proto::storage::unlock_file;
use polis_storage::data::UnlockKeys;
use polis_storage::journal::{ClusterUnlockKey, Journal, Seals};
use polis_storage::{HostDisk, Layout};
use prost::Message as _;
use rustix::fs::{FlockOperation, flock};

use crate::processes;
use crate::scratch::Scratch;

/// Where encrypted data are below the root, and what is written there last of all.
const ENCRYPTED: &str = "encrypted";
/// The marker of a partition that is whole.
const MARKER: &str = "partition";
/// The key slots.
const SLOTS: [&str; 2] = ["slot.0", "slot.1"];
/// What gocryptfs exits with when the key is not the one of the slot.
const WRONG_KEY: i32 = 12;
/// How often it is looked whether the gocryptfs of the node has ended.
const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// Longest time that mounting may take, and that of a killed node may stay: well under a second, and more on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The data of a node, mostly of one that does not run, for a look at it or to change something. Encrypted data are mounted for that
/// at a place of their own, by gocryptfs and not through the node, which leaves what is below the root as it is. Dropping it closes
/// them.
#[derive(Debug)]
pub struct NodeData {
    root: PathBuf,
    state: State,
}

/// How the data are.
#[derive(Debug)]
enum State {
    /// A directory below the root, or nothing yet.
    Plain,
    /// Mounted.
    Open(Mount),
    /// Encrypted, and its formatting was not finished: of nothing in it there is a promise.
    Unfinished(Scratch),
    /// Encrypted, and this machine alone does not have both halves of the key.
    Locked,
}

#[derive(Debug)]
struct Mount {
    process: Child,
    /// Its `data` is the mount point.
    place: Scratch,
}

impl NodeData {
    /// The data of the node with this root, with the keys that its journal has.
    ///
    /// # Panics
    ///
    /// When they are encrypted and whole, and no key of the journal opens them.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        if !root.join(ENCRYPTED).exists() {
            return Self { root: root.to_owned(), state: State::Plain };
        }
        let is_whole = root.join(ENCRYPTED).join(MARKER).exists();
        let candidates = unlock_keys(root);
        let state = match (is_whole, candidates.iter().find_map(|keys| Mount::with(root, keys))) {
            (true, Some(mount)) => State::Open(mount),
            (true, None) => {
                assert!(candidates.is_empty(), "no key of the journal opens the data below {}", root.display());
                State::Locked
            }
            (false, _) => State::Unfinished(Scratch::new()),
        };
        Self { root: root.to_owned(), state }
    }

    /// The data of a node that runs and has them open, as it sees them itself.
    #[must_use]
    pub fn of_running(root: &Path) -> Self {
        Self { root: root.to_owned(), state: State::Plain }
    }

    /// The data of the node with this root if these keys open them.
    #[must_use]
    pub fn opened_with(root: &Path, keys: &UnlockKeys) -> Option<Self> {
        Some(Self { root: root.to_owned(), state: State::Open(Mount::with(root, keys)?) })
    }

    /// The directory in which `data` is.
    #[must_use]
    pub fn parent(&self) -> &Path {
        match &self.state {
            State::Plain | State::Locked => &self.root,
            State::Open(mount) => mount.place.path(),
            State::Unfinished(nothing) => nothing.path(),
        }
    }

    /// A path below `data`, given relative to the node's root.
    #[must_use]
    pub fn path(&self, below_root: &str) -> PathBuf {
        self.parent().join(below_root)
    }

    /// Whether this machine alone does not have both halves of the key.
    #[must_use]
    pub const fn is_locked(&self) -> bool {
        matches!(self.state, State::Locked)
    }

    /// The layout of it, of which only what is below `data` is that of the node.
    ///
    /// # Panics
    ///
    /// When there is no root, or nobody can open the data.
    #[must_use]
    pub fn layout(&self) -> Layout {
        assert!(!self.is_locked(), "the data below {} are locked", self.root.display());
        Layout::new(Arc::new(HostDisk::open(self.parent()).expect("there is a root")))
    }
}

/// The keys that the journal of a node has for its data: the present ones and, while they are being changed, the next ones. None
/// where the cluster keeps the other half.
///
/// # Panics
///
/// When the journal is there and not whole.
#[must_use]
pub fn unlock_keys(root: &Path) -> Vec<UnlockKeys> {
    let Some(journal) = journal(root) else { return Vec::new() };
    let (Some(node), Some(cluster)) = (journal.node_unlock_key, journal.cluster_unlock_key) else { return Vec::new() };
    let ClusterUnlockKey { current, pending } = cluster;
    std::iter::once(current).chain(pending).map(|cluster| UnlockKeys { node: node.clone(), cluster }).collect()
}

/// What tells the keys of a node's unlock file from others, the key that opens first and then the one that will; nothing without a file.
///
/// # Panics
///
/// When it is there and not whole.
#[must_use]
pub fn split_keys(root: &Path) -> Vec<Vec<u8>> {
    let Ok(disk) = HostDisk::open(root) else { return Vec::new() };
    let loaded = Layout::new(Arc::new(disk)).esp.polis.unlock.load().expect("the unlock file is whole");
    let Some(loaded) = loaded else { return Vec::new() };
    let content = unlock_file::Content::decode(&loaded.value.content[..]).expect("the unlock file makes sense");
    content.current.into_iter().chain(content.pending).map(|split| split.key_check_value).collect()
}

/// The journal of a node.
///
/// # Panics
///
/// When it is there and not whole.
#[must_use]
pub fn journal(root: &Path) -> Option<Journal> {
    let layout = Layout::new(Arc::new(HostDisk::open(root).ok()?));
    let loaded = layout.journal_store(Seals::plain_only()).load().expect("the journal is whole");
    loaded.map(|loaded| loaded.value)
}

impl Mount {
    /// Mounts with the slot that these keys open.
    fn with(root: &Path, keys: &UnlockKeys) -> Option<Self> {
        let encrypted = root.join(ENCRYPTED);
        let key = derive(keys, Purpose::Gocryptfs);
        let digits: String = key.expose().iter().map(|byte| format!("{byte:02x}")).collect();
        let slots = SLOTS.iter().map(|slot| encrypted.join(slot)).filter(|slot| slot.exists());
        slots.into_iter().find_map(|slot| Self::with_slot(&encrypted, &slot, &digits))
    }

    fn with_slot(encrypted: &Path, slot: &Path, key: &str) -> Option<Self> {
        let place = Scratch::new();
        let mount_point = place.path().join("data");
        std::fs::create_dir(&mount_point).expect("a directory of the test can be made");
        let claim = claim(encrypted);
        let mut command = processes::bound_to_test(Path::new("gocryptfs"));
        command.args(["-fg", "-q", "-nosyslog", "-config"]).arg(slot).arg("--").arg(encrypted.join("cipher"));
        command.arg(&mount_point).stdin(Stdio::piped()).stdout(claim).stderr(Stdio::null());
        let mut process = processes::spawn(command);
        let mut input = process.stdin.take().expect("its input is a pipe");
        writeln!(input, "{key}").expect("gocryptfs takes a key");
        drop(input);
        let deadline = Instant::now() + PATIENCE;
        while crate::mounts::below(&mount_point).is_empty() {
            if let Some(end) = process.try_wait().expect("a child can be waited for") {
                assert!(ended_with_wrong_key(end), "gocryptfs ended with {end} for {}", slot.display());
                return None;
            }
            assert!(Instant::now() < deadline, "gocryptfs does not mount {}", encrypted.display());
            std::thread::sleep(Duration::from_millis(2));
        }
        Some(Self { process, place })
    }
}

/// Waits until no gocryptfs of the node works on its data any more, and keeps others from it meanwhile, as a node does: by a lock on the
/// directory. That of a killed node unmounts and ends by itself.
fn claim(encrypted: &Path) -> OwnedFd {
    let directory = std::fs::File::open(encrypted).expect("it can be opened");
    let deadline = Instant::now() + PATIENCE;
    while flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err() {
        assert!(Instant::now() < deadline, "a gocryptfs still works on {}", encrypted.display());
        std::thread::sleep(LOOK_PAUSE);
    }
    directory.into()
}

fn ended_with_wrong_key(end: ExitStatus) -> bool {
    end.code() == Some(WRONG_KEY)
}

impl Drop for Mount {
    fn drop(&mut self) {
        let mount_point = self.place.path().join("data");
        let unmount = || Command::new("fusermount3").args(["-u", "--"]).arg(&mount_point).output();
        let deadline = Instant::now() + PATIENCE;
        // It is in use as long as the kernel closes a file of it.
        while !unmount().is_ok_and(|output| output.status.success()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        // gocryptfs ends by itself when it is unmounted; what could not be is cleared with the place.
        while self.process.try_wait().is_ok_and(|end| end.is_none()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
