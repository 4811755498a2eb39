//! The real disk: it does what its simulated twin does, and stays below its root.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use polis_storage::simulation::{Image, RecordingDisk, SimulatedDisk};
use polis_storage::{Disk, DiskError, DiskPath, HostDisk, Metadata, durable};
use proptest::prelude::*;

fn path(text: &str) -> DiskPath {
    DiskPath::parse(text).unwrap()
}

/// One call of a disk.
#[derive(Clone, Debug)]
enum Call {
    Read(DiskPath),
    Metadata(DiskPath),
    List(DiskPath),
    CreateDirectory(DiskPath),
    CreateExclusive(DiskPath, Vec<u8>),
    SyncFile(DiskPath),
    SyncDirectory(DiskPath),
    Rename(DiskPath, DiskPath),
    RemoveFile(DiskPath),
    ClearDirectory(DiskPath),
    Write(DiskPath, Vec<u8>),
    CreateDirectoryDurably(DiskPath),
    Remove(DiskPath),
}

/// Longest file that [`Call::Read`] reads.
const READ_LIMIT: usize = 6;

impl Call {
    /// What the call says, comparable.
    fn make(&self, disk: &dyn Disk) -> Result<String, String> {
        let done = |()| String::new();
        let result: Result<String, DiskError> = match self {
            Self::Read(path) => disk.read(path, READ_LIMIT).map(|bytes| format!("{bytes:?}")),
            // A directory's own length is the file system's business.
            Self::Metadata(path) => disk.metadata(path).map(|metadata| match metadata {
                Some(Metadata::File { length, mode }) => format!("file {length} {mode:o}"),
                Some(Metadata::Directory { mode }) => format!("directory {mode:o}"),
                Some(Metadata::Other) => "other".to_owned(),
                None => "nothing".to_owned(),
            }),
            Self::List(path) => disk.list(path).map(|names| format!("{names:?}")),
            Self::CreateDirectory(path) => disk.create_directory(path, 0o700).map(done),
            Self::CreateExclusive(path, bytes) => disk.create_exclusive(path, 0o600, bytes).map(done),
            Self::SyncFile(path) => disk.sync_file("test", path).map(done),
            Self::SyncDirectory(path) => disk.sync_directory("test", path).map(done),
            Self::Rename(from, to) => disk.rename(from, to).map(done),
            Self::RemoveFile(path) => disk.remove_file(path).map(done),
            Self::ClearDirectory(path) => disk.clear_directory(path).map(done),
            Self::Write(path, bytes) => durable::write(disk, "test", path, 0o600, bytes).map(done),
            Self::CreateDirectoryDurably(path) => durable::create_directory(disk, "test", path, 0o700).map(done),
            Self::Remove(path) => durable::remove(disk, "test", path).map(done),
        };
        // Not which temporary it was that failed: its name is random.
        result.map_err(|error| format!("{:?} {:?}", error.action, error.source.kind()))
    }
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let paths = prop::sample::select(["a", "b", "a/c", "a/d", "a/c/e", "b/c", "x/y"].map(path).to_vec());
    let directories = prop::sample::select(["", "a", "b", "a/c"].map(path).to_vec());
    let bytes = prop::collection::vec(any::<u8>(), 0..9);
    let call = prop_oneof![
        paths.clone().prop_map(Call::Read),
        paths.clone().prop_map(Call::Metadata),
        directories.clone().prop_map(Call::List),
        paths.clone().prop_map(Call::CreateDirectory),
        (paths.clone(), bytes.clone()).prop_map(|(path, bytes)| Call::CreateExclusive(path, bytes)),
        paths.clone().prop_map(Call::SyncFile),
        directories.clone().prop_map(Call::SyncDirectory),
        (paths.clone(), paths.clone()).prop_map(|(from, to)| Call::Rename(from, to)),
        paths.clone().prop_map(Call::RemoveFile),
        directories.prop_map(Call::ClearDirectory),
        (paths.clone(), bytes).prop_map(|(path, bytes)| Call::Write(path, bytes)),
        paths.clone().prop_map(Call::CreateDirectoryDurably),
        paths.prop_map(Call::Remove),
    ];
    prop::collection::vec(call, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn the_simulated_disk_answers_as_the_real_one(calls in calls()) {
        let root = tempfile::tempdir().unwrap();
        std::fs::set_permissions(root.path(), Permissions::from_mode(0o700)).unwrap();
        let host = HostDisk::open(root.path()).unwrap();
        let simulated = SimulatedDisk::default();
        for call in &calls {
            prop_assert_eq!(call.make(&host), call.make(&simulated), "{:?} in {:?}", call, calls);
        }
        prop_assert!(Image::read_from(root.path()).unwrap() == simulated.image(), "{:?}", calls);
    }

    #[test]
    fn a_recording_of_a_real_disk_leads_to_what_is_there(calls in calls()) {
        let root = tempfile::tempdir().unwrap();
        let host = Arc::new(HostDisk::open(root.path()).unwrap());
        host.create_exclusive(&path("before"), 0o600, b"before").unwrap();
        let recorder = RecordingDisk::new(host, Image::read_from(root.path()).unwrap(), Vec::new());
        for call in &calls {
            let _ = call.make(&recorder);
        }
        let recording = recorder.recording();
        let last = recording.cuts().unwrap().pop().unwrap();
        prop_assert!(last.image() == Image::read_from(root.path()).unwrap());
        let copy = tempfile::tempdir().unwrap();
        last.power_cut(2).materialise(&copy.path().join("copy")).unwrap();
        prop_assert!(last.power_cut(2) == Image::read_from(&copy.path().join("copy")).unwrap());
    }
}

fn host(root: &Path) -> HostDisk {
    HostDisk::open(root).unwrap()
}

#[test]
fn no_link_leads_out_of_the_root() {
    let root = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    symlink(outside.path(), root.path().join("directory")).unwrap();
    symlink(outside.path().join("secret"), root.path().join("file")).unwrap();
    let disk = host(root.path());
    let inside = path("directory/secret");
    let new = path("directory/new");
    let results = [
        disk.read(&inside, 100).map(|_| ()),
        disk.read(&path("file"), 100).map(|_| ()),
        disk.metadata(&inside).map(|_| ()),
        disk.list(&path("directory")).map(|_| ()),
        disk.create_exclusive(&new, 0o600, b"new"),
        disk.create_exclusive(&path("file"), 0o600, b"new"),
        disk.create_directory(&new, 0o700),
        disk.sync_file("test", &path("file")),
        disk.sync_directory("test", &path("directory")),
        disk.rename(&inside, &new),
        disk.remove_file(&inside),
        disk.clear_directory(&path("directory")),
        durable::write(&disk, "test", &inside, 0o600, b"new"),
    ];
    for (number, result) in results.into_iter().enumerate() {
        assert!(result.is_err(), "call {number} followed the link");
    }
    assert_eq!(disk.metadata(&path("file")).unwrap(), Some(Metadata::Other));
    disk.clear_directory(&DiskPath::root()).unwrap();
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn a_pipe_is_no_file_and_is_not_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let pipe = root.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    assert!(host(root.path()).read(&path("pipe"), 100).is_err());
}

#[test]
fn an_error_says_what_failed_where_and_why() {
    let root = tempfile::tempdir().unwrap();
    let error = host(root.path()).read(&path("absent"), 100).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read the file {}/absent", root.path().display()));
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "No such file or directory (os error 2)");
    assert!(error.is_absent());
    std::fs::write(root.path().join("long"), [0; 101]).unwrap();
    let error = host(root.path()).read(&path("long"), 100).unwrap_err();
    assert!(error.is_too_long());
    assert!(error.source.to_string().contains("longer than the 100 bytes"), "{}", error.source);
}

#[test]
fn a_deep_tree_is_cleared_and_a_bottomless_one_refused() {
    let root = tempfile::tempdir().unwrap();
    let disk = host(root.path());
    std::fs::create_dir_all(root.path().join("ephemeral/a/b/c")).unwrap();
    std::fs::write(root.path().join("ephemeral/a/b/c/file"), "").unwrap();
    std::fs::write(root.path().join("kept"), "").unwrap();
    disk.clear_directory(&path("ephemeral")).unwrap();
    assert_eq!(disk.list(&DiskPath::root()).unwrap(), ["ephemeral", "kept"]);
    std::fs::create_dir_all(root.path().join("ephemeral").join("d/".repeat(40))).unwrap();
    let error = disk.clear_directory(&path("ephemeral")).unwrap_err();
    assert!(error.source.to_string().contains("directories deep"), "{}", error.source);
}
