//! One node's root with a gocryptfs partition, which leaves no mount and no process behind, whatever happens.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polis_encryption::GocryptfsData;
use polis_secret::Secret32;
use polis_storage::data::{DataError, DataPartition as _, Found, Progress, ProgressSender, UnlockKeys};
use polis_storage::journal::{FormatPermit, Intent, StorageSecurity};
use polis_storage::{DataGate, Disk, DiskPath, FILE_MODE, GuardedDisk, HostDisk, Journal, durable};
use tempfile::TempDir;

pub(crate) const NODE: &str = "metropolis-00000000000000000000000000000001";
pub(crate) const OTHER: &str = "metropolis-00000000000000000000000000000002";
/// How long something may take that takes milliseconds on an idle machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Whether this host can run the test. Where it must, a host that cannot is a failure.
pub(crate) fn can_run() -> bool {
    let root = tempfile::tempdir().unwrap();
    match World::at(root.path()).data.available() {
        Ok(()) => true,
        Err(error) => skip(&format!("{error}; {}", error.remedy)),
    }
}

pub(crate) fn skip(reason: &str) -> bool {
    assert!(std::env::var_os("CI").is_none(), "nothing is skipped where CI is set, but this test cannot run: {reason}");
    eprintln!("skipped: {reason}");
    false
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn permit() -> FormatPermit {
    let intent = Intent {
        parameters: b"parameters".to_vec(),
        node_key: Secret32::new([1; 32]),
        node_public_key: [2; 32],
        join_key: Secret32::new([3; 32]),
        share_key: Secret32::new([4; 32]),
        storage_security: Some(StorageSecurity::AuthenticatedEncrypted),
    };
    Journal::new(intent).permit_format().unwrap()
}

pub(crate) fn progress() -> ProgressSender {
    ProgressSender::new(Progress::default())
}

pub(crate) fn keys(cluster: u8) -> UnlockKeys {
    UnlockKeys { node: Secret32::new([0x4e; 32]), cluster: Secret32::new([cluster; 32]) }
}

pub(crate) fn path(text: &str) -> DiskPath {
    DiskPath::parse(text).unwrap()
}

/// A root of its own for a test.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn world(&self) -> World {
        World::at(self.path())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // What is left of a test that failed; one that passed has left nothing.
        for _ in 0..8 {
            if !is_mounted(&self.path().join("data")) {
                break;
            }
            let _ = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(self.path().join("data")).output();
        }
    }
}

/// One life of a node on a root: its process' view.
pub(crate) struct World {
    pub(crate) root: PathBuf,
    /// As the rest of a node sees it.
    pub(crate) disk: GuardedDisk,
    pub(crate) data: GocryptfsData,
}

impl World {
    pub(crate) fn at(root: &Path) -> Self {
        let (disk, gate) = Self::parts(root);
        Self {
            root: root.to_owned(),
            disk: GuardedDisk::new(disk.clone(), gate.clone()),
            data: GocryptfsData::new(disk, gate),
        }
    }

    /// With programs from these directories.
    pub(crate) fn with_programs(root: &Path, search: Vec<PathBuf>) -> Self {
        let (disk, gate) = Self::parts(root);
        Self {
            root: root.to_owned(),
            disk: GuardedDisk::new(disk.clone(), gate.clone()),
            data: GocryptfsData::with_programs(disk, gate, search),
        }
    }

    fn parts(root: &Path) -> (Arc<dyn Disk>, DataGate) {
        (Arc::new(HostDisk::open(root).unwrap()), DataGate::closed())
    }

    pub(crate) async fn prepare(&self) -> Result<Found, DataError> {
        self.data.prepare(&progress()).await
    }

    pub(crate) async fn format(&self, keys: &UnlockKeys) -> Result<(), DataError> {
        self.data.format(permit(), NODE, Some(keys), &progress()).await
    }

    pub(crate) async fn open(&self, keys: &UnlockKeys) -> Result<(), DataError> {
        self.data.open(NODE, Some(keys), &progress()).await
    }

    /// Formatted and opened.
    pub(crate) async fn born(&self, keys: &UnlockKeys) {
        self.format(keys).await.unwrap();
        self.open(keys).await.unwrap();
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        durable::write(&self.disk, "test", &path(name), FILE_MODE, bytes).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        self.disk.read(&path(name), 1 << 20).unwrap()
    }

    pub(crate) fn cipher(&self) -> PathBuf {
        self.root.join("encrypted/cipher")
    }

    /// The gocryptfs that holds the mount of this root.
    pub(crate) fn process(&self) -> Option<u32> {
        processes(&self.root).first().copied()
    }
}

/// Processes with this path in their arguments, other than this one.
pub(crate) fn processes(root: &Path) -> Vec<u32> {
    let needle = root.as_os_str().as_bytes();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap() {
        let name = entry.unwrap().file_name();
        let Some(process) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let arguments = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let ours = arguments.windows(needle.len()).any(|window| window == needle);
        if ours && arguments.starts_with(b"/") && process != std::process::id() {
            found.push(process);
        }
    }
    found
}

pub(crate) fn is_mounted(place: &Path) -> bool {
    let place = place.as_os_str();
    let mounts = fs::read("/proc/self/mountinfo").unwrap();
    mounts
        .split(|byte| *byte == b'\n')
        .any(|line| line.split(|byte| *byte == b' ').nth(4).map(OsStr::from_bytes) == Some(place))
}

/// Waits for a condition.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// All that is below a directory, with the content of files.
pub(crate) fn snapshot(directory: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.push((path.clone(), None));
                open.push(path);
            } else {
                let content = fs::read(&path).unwrap();
                found.push((path, Some(content)));
            }
        }
    }
    found.sort();
    found
}

/// Makes a program, a shell script. Another process writes it: the kernel runs none that a child of this one, started
/// by a test beside this, has open for writing.
pub(crate) fn program(path: &Path, script: &str) {
    let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
    let arguments = [Path::new("-c"), Path::new(write), path, Path::new(script)];
    assert!(Command::new("/bin/sh").args(arguments).status().unwrap().success());
}

/// Has what the processes that this one starts leave behind become children of this one, so that it can be seen.
pub(crate) fn adopt_orphans() {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
}

/// Children of this process that are ending and have not yet ended: their memory is gone, and something of them still runs.
pub(crate) fn ending() -> Vec<u32> {
    let mut found = Vec::new();
    let field = |status: &str, name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(|value| value.trim().to_owned())
    };
    for entry in fs::read_dir("/proc").unwrap() {
        let Ok(process) = entry.unwrap().file_name().to_string_lossy().parse::<u32>() else { continue };
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let ours = field(&status, "PPid") == Some(std::process::id().to_string());
        if !ours || !fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|arguments| arguments.is_empty()) {
            continue;
        }
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        let runs = |thread: fs::DirEntry| {
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            field(&status, "State").is_some_and(|state| !state.starts_with('Z'))
        };
        if threads.flatten().any(runs) {
            found.push(process);
        }
    }
    found
}
