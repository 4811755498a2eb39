//! The root of a node: made when absent, held by one process, and refused with a reason that helps.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::thread::CapabilitySet;

use polis_storage::{Disk as _, DiskPath, RootDirectory, RootError};

/// Names the root that a child of this test holds.
const HOLD: &str = "POLIS_STORAGE_TEST_HOLD";

#[test]
fn an_absent_root_is_made_for_the_node_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lib/polis");
    assert!(matches!(RootDirectory::open(&path), Err(RootError::Absent { .. })));
    assert!(!directory.path().join("lib").exists());
    let root = RootDirectory::open_or_create(&path).unwrap();
    assert_eq!(root.path(), path);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
    assert_eq!(root.disk().list(&DiskPath::root()).unwrap(), Vec::<String>::new(), "the lock leaves no file");
}

/// A child that another test starts has every open file of this process between its fork and its exec, locks with them; so
/// what looks at the end of a lock and what starts processes take turns.
static FORKING: Mutex<()> = Mutex::new(());

/// The turn of one test. A test that has failed in its turn does not fail the others.
fn turn() -> MutexGuard<'static, ()> {
    FORKING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_root_is_held_once_in_a_process_and_as_long_as_its_disk() {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let root = RootDirectory::open(directory.path()).unwrap();
    let disk = root.disk();
    drop(root);
    let error = RootDirectory::open(directory.path()).unwrap_err();
    assert!(matches!(error, RootError::InUse { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(directory.path().to_str().unwrap()) && text.contains("stop that one first"), "{text}");
    drop(disk);
    RootDirectory::open(directory.path()).unwrap();
}

#[test]
fn a_root_is_held_against_other_processes_until_the_holder_is_killed() {
    if let Some(path) = std::env::var_os(HOLD) {
        let _root = RootDirectory::open(Path::new(&path)).unwrap();
        println!("\nheld");
        // Ends with the parent, which holds the other end.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_root_is_held_against_other_processes_until_the_holder_is_killed", "--nocapture"])
        .env(HOLD, directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let held = output.lines().any(|line| line.unwrap() == "held");
    let while_held = RootDirectory::open(directory.path());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(held, "the child did not hold the root");
    assert!(matches!(while_held, Err(RootError::InUse { .. })), "{while_held:?}");
    RootDirectory::open(directory.path()).unwrap();
}

#[test]
fn what_cannot_be_a_root_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "content").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = RootDirectory::open_or_create(&path).unwrap_err();
        assert!(matches!(error, RootError::NotADirectory { .. }), "{error:?}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"content");
    let error = RootDirectory::open_or_create(&directory.path().join("n".repeat(250))).unwrap_err();
    assert!(matches!(error, RootError::Name { .. }), "{error:?}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_root_of_another_user_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let other = if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(directory.path(), Some(65534), None).unwrap();
        directory.path()
    } else {
        Path::new("/usr")
    };
    let error = RootDirectory::open_or_create(other).unwrap_err();
    let RootError::OtherOwner { owner, this, .. } = &error else { panic!("{error:?}") };
    assert_ne!(owner, this);
    assert!(error.to_string().contains(&format!("belongs to user {owner}")), "{error}");
}

#[test]
fn a_root_that_cannot_be_written_to_is_refused() {
    // The rights of the super user would make any directory writable. This thread, and no other, gives them up.
    let mut capabilities = rustix::thread::capabilities(None).unwrap();
    capabilities.effective = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, capabilities).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let set_mode = |mode| std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(mode)).unwrap();
    set_mode(0o500);
    let error = RootDirectory::open_or_create(directory.path()).unwrap_err();
    set_mode(0o700);
    assert!(matches!(error, RootError::ReadOnly { .. }), "{error:?}");
    assert!(error.to_string().contains("make it writable"), "{error}");
}
