//! Fault points: before and after each step of everything durable, and a process that dies at any of them leaves the old
//! or the new.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};

use polis_storage::{Disk as _, DiskPath, HostDisk, durable};

/// Names the root in which a child of this test does its work.
const ROOT: &str = "POLIS_STORAGE_TEST_ROOT";

/// Every point of the workload, in order.
const POINTS: [&str; 19] = [
    "settle/begin",
    "settle/done",
    "directory/begin",
    "directory/created",
    "directory/done",
    "old/begin",
    "old/created",
    "old/synced",
    "old/renamed",
    "old/named",
    "old/done",
    "new/begin",
    "new/created",
    "new/synced",
    "new/renamed",
    "new/named",
    "new/done",
    "remove/begin",
    "remove/removed",
];

fn work(root: &Path) {
    let disk = HostDisk::open(root).unwrap();
    let [directory, file] = ["directory", "directory/file"].map(|text| DiskPath::parse(text).unwrap());
    durable::settle(&disk, "settle", &DiskPath::root()).unwrap();
    durable::create_directory(&disk, "directory", &directory, 0o700).unwrap();
    durable::write(&disk, "old", &file, 0o600, b"old").unwrap();
    durable::write(&disk, "new", &file, 0o600, b"new").unwrap();
    durable::remove(&disk, "remove", &file).unwrap();
}

/// Does the work in another process, which dies at `fault` if there is one; returns the points that it passed.
fn run(root: &Path, fault: Option<&str>) -> (ExitStatus, Vec<String>) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "each_step_is_between_two_points_and_a_kill_there_leaves_old_or_new"]);
    child.env(ROOT, root).env("POLIS_FAULT_LOG", log.path()).env_remove("POLIS_FAULT");
    if let Some(fault) = fault {
        child.env("POLIS_FAULT", fault);
    }
    let status = child.output().unwrap().status;
    let points = std::fs::read_to_string(log.path()).unwrap().lines().map(str::to_owned).collect();
    (status, points)
}

#[test]
fn each_step_is_between_two_points_and_a_kill_there_leaves_old_or_new() {
    if let Some(root) = std::env::var_os(ROOT) {
        return work(Path::new(&root));
    }
    let root = tempfile::tempdir().unwrap();
    let (status, points) = run(root.path(), None);
    assert!(status.success());
    let (last, others) = points.split_last().unwrap();
    assert_eq!(others, POINTS);
    assert_eq!(last, "remove/done");

    for (index, fault) in POINTS.iter().enumerate() {
        let root = tempfile::tempdir().unwrap();
        let (status, points) = run(root.path(), Some(fault));
        assert_eq!(status.signal(), Some(9), "{fault}");
        assert_eq!(points, POINTS[..=index], "{fault}");
        let passed = |point: &str| points.iter().any(|passed| passed == point);
        let disk = HostDisk::open(root.path()).unwrap();
        let directory = DiskPath::parse("directory").unwrap();
        assert_eq!(disk.metadata(&directory).unwrap().is_some(), passed("directory/created"), "{fault}");
        let content = disk.read(&directory.child("file").unwrap(), 100).ok();
        let expected = match () {
            () if passed("remove/removed") => None,
            () if passed("new/renamed") => Some(b"new".to_vec()),
            () if passed("old/renamed") => Some(b"old".to_vec()),
            () => None,
        };
        assert_eq!(content, expected, "{fault}");
        let swept = durable::sweep(&disk, &directory).unwrap().len();
        let temporary = ["old/created", "old/synced", "new/created", "new/synced"].contains(fault);
        assert_eq!(swept, usize::from(temporary), "{fault}");
        work(root.path());
        assert_eq!(disk.list(&directory).unwrap(), Vec::<String>::new(), "{fault}");
    }
}
