//! The data partition on a device, as far as a host without device mapper goes: the insecure stack in full on an image file, and all
//! that is done to a LUKS header. The example `luks_check` does the rest in a virtual machine.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use polis_encryption::{DeviceBackends, LuksData};
use polis_secret::Secret32;
use polis_storage::data::{DataError, DataPartition as _, Found, Progress, ProgressSender, UnlockKeys};
use polis_storage::journal::{FormatPermit, Intent, StorageSecurity};
use polis_storage::{DataBackends as _, DataGate, DiskPath, HostDisk, Journal, durable};

const NODE: &str = "metropolis-00000000000000000000000000000001";
const OTHER: &str = "metropolis-00000000000000000000000000000002";
const MIB: u64 = 1 << 20;
const SIZE: u64 = 600 * MIB;

fn permit() -> FormatPermit {
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

fn keys(cluster: u8) -> UnlockKeys {
    UnlockKeys { node: Secret32::new([0x4e; 32]), cluster: Secret32::new([cluster; 32]) }
}

fn progress() -> ProgressSender {
    ProgressSender::new(Progress::default())
}

fn skip(reason: &str) -> bool {
    assert!(std::env::var_os("CI").is_none(), "nothing is skipped where CI is set, but this test cannot run: {reason}");
    eprintln!("skipped: {reason}");
    false
}

/// Whether this host has a program.
fn has(program: &str, package: &str) -> bool {
    let directories = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    directories.iter().any(|directory| Path::new(directory).join(program).exists())
        || skip(&format!("{program} is not installed: apt-get install {package}"))
}

/// A root and an image file. What is mounted below the root is unmounted, whatever happens.
struct World {
    directory: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("root")).unwrap();
        let world = Self { directory };
        std::fs::File::create(world.image()).unwrap().set_len(SIZE).unwrap();
        world
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn data(&self, security: StorageSecurity) -> LuksData {
        let disk = Arc::new(HostDisk::open(&self.root()).unwrap());
        LuksData::new(disk, DataGate::closed(), self.image(), security)
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        std::fs::File::options().write(true).open(self.image()).unwrap().write_all_at(bytes, offset).unwrap();
    }

    /// What tells of any change: what is at both ends of the image, and how much of the file is not a hole.
    fn state(&self) -> (Vec<u8>, Vec<u8>, u64) {
        let file = std::fs::File::open(self.image()).unwrap();
        let mut start = vec![0; 20 << 20];
        let mut end = vec![0; 2 << 20];
        file.read_exact_at(&mut start, 0).unwrap();
        file.read_exact_at(&mut end, SIZE - 2 * MIB).unwrap();
        (start, end, file.metadata().unwrap().blocks())
    }

    fn is_mounted(&self) -> bool {
        let data = self.root().join("data");
        std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!(" {} ", data.display()))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        while self.is_mounted() {
            if !Command::new("umount").arg(self.root().join("data")).status().unwrap().success() {
                break;
            }
        }
    }
}

fn cryptsetup(arguments: &[&str], input: &str, image: &Path) {
    use std::io::Write as _;
    let mut child = Command::new("/sbin/cryptsetup")
        .args(arguments)
        .arg(image)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{arguments:?}");
}

async fn prepare(data: &LuksData) -> Found {
    data.prepare(&progress()).await.unwrap()
}

/// Whether this host can mount an XFS on a file.
fn can_mount() -> bool {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can mount");
    }
    if !Path::new("/dev/loop-control").exists() {
        return skip("this kernel has no loop devices");
    }
    let _ = Command::new("modprobe").arg("xfs").output();
    let known = std::fs::read_to_string("/proc/filesystems").unwrap().lines().any(|line| line.trim() == "xfs");
    (known || skip("this kernel has no XFS")) && has("mkfs.xfs", "xfsprogs")
}

#[tokio::test]
async fn an_insecure_device_is_formatted_opened_left_behind_and_opened_again() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let data = world.data(StorageSecurity::Insecure);
    assert!(data.describe().warning.unwrap().contains("without encryption"));
    assert_eq!(prepare(&data).await, Found::Nothing);
    assert!(matches!(data.open(NODE, None, &progress()).await, Err(DataError::NotFormatted { .. })));
    data.format(permit(), NODE, None, &progress()).await.unwrap();
    data.open(NODE, None, &progress()).await.unwrap();
    assert!(world.is_mounted());
    let line = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = line.lines().find(|line| line.contains(&*world.root().join("data").to_string_lossy())).unwrap();
    assert!(line.contains("nosuid,nodev,noexec") && line.contains(" - xfs "), "{line}");
    let disk = HostDisk::open(&world.root()).unwrap();
    durable::write(&disk, "test", &DiskPath::parse("data/node/file").unwrap(), 0o600, b"kept").unwrap();

    // The process dies: nobody unmounts. Its successor clears that away and finds all as it was.
    drop(data);
    assert!(world.is_mounted());
    let data = world.data(StorageSecurity::Insecure);
    assert_eq!(prepare(&data).await, Found::Formatted { owner: None });
    assert!(!world.is_mounted(), "what a dead process has mounted is not taken over");
    for _ in 0..2 {
        data.open(NODE, None, &progress()).await.unwrap();
        assert_eq!(std::fs::read(world.root().join("data/node/file")).unwrap(), b"kept");
    }
    data.close().await.unwrap();
    assert!(!world.is_mounted());
    data.close().await.unwrap();

    // A second format of the same node changes nothing; another node gets nowhere.
    data.format(permit(), NODE, None, &progress()).await.unwrap();
    let error = data.open(OTHER, None, &progress()).await.unwrap_err();
    assert!(matches!(error, DataError::OtherNode { .. }), "{error:?}");
    let error = data.format(permit(), OTHER, None, &progress()).await.unwrap_err();
    assert!(matches!(error, DataError::OtherNode { .. }), "{error:?}");
    let error = world.data(StorageSecurity::Encrypted).open(NODE, Some(&keys(1)), &progress()).await.unwrap_err();
    assert!(matches!(error, DataError::OtherBackend { .. }), "{error:?}");
    data.open(NODE, None, &progress()).await.unwrap();
    assert_eq!(std::fs::read(world.root().join("data/node/file")).unwrap(), b"kept");

    // Somebody unmounts it: it is lost, and can be opened again.
    let loss = tokio::spawn({
        let data = data.clone();
        async move { data.lost().await }
    });
    assert!(Command::new("umount").arg(world.root().join("data")).status().unwrap().success());
    let reason = tokio::time::timeout(std::time::Duration::from_secs(60), loss).await.unwrap().unwrap();
    assert!(reason.contains("is not mounted any more"), "{reason}");
    data.open(NODE, None, &progress()).await.unwrap();
    data.close().await.unwrap();
}

/// As after a metadata block that could not be read or written, such as one whose tag is wrong: all is an error until it is mounted
/// anew, which brings back what was synced.
#[tokio::test]
async fn a_file_system_that_has_shut_down_is_lost_and_comes_back_when_it_is_opened_again() {
    if !can_mount() {
        return;
    }
    // A name of its own: of two file systems with one UUID, the kernel mounts one at a time.
    let world = World::new();
    let data = world.data(StorageSecurity::Insecure);
    data.format(permit(), OTHER, None, &progress()).await.unwrap();
    data.open(OTHER, None, &progress()).await.unwrap();
    let disk = HostDisk::open(&world.root()).unwrap();
    let file = DiskPath::parse("data/node/file").unwrap();
    durable::write(&disk, "test", &file, 0o600, b"kept").unwrap();
    for _ in 0..2 {
        let no_loss = tokio::time::timeout(std::time::Duration::from_secs(3), data.lost()).await;
        assert!(no_loss.is_err(), "a file system that works is not lost: {no_loss:?}");
        let shut_down = Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(world.root().join("data")).output();
        assert!(shut_down.unwrap().status.success());
        assert!(durable::write(&disk, "test", &file, 0o600, b"lost").is_err());
        assert!(world.is_mounted());
        let reason = tokio::time::timeout(std::time::Duration::from_secs(60), data.lost()).await.unwrap();
        assert!(reason.contains("has shut itself down"), "{reason}");
        // As the Manager does.
        data.close().await.unwrap();
        assert!(matches!(prepare(&data).await, Found::Formatted { .. }));
        data.open(OTHER, None, &progress()).await.unwrap();
        assert_eq!(std::fs::read(world.root().join("data/node/file")).unwrap(), b"kept");
    }
    data.close().await.unwrap();
}

#[tokio::test]
async fn what_is_on_a_device_is_not_formatted_over() {
    if !has("cryptsetup", "cryptsetup-bin") {
        return;
    }
    for (offset, bytes, name) in [
        (1080, &b"\x53\xef"[..], "an ext2, ext3 or ext4 file system"),
        (0, b"XFSB", "an XFS file system"),
        (510, b"\x55\xaa", "a partition table (MBR)"),
        (3 * MIB, b"x", "data of an unknown kind at byte 3145728"),
        (SIZE - 1, b"x", "data of an unknown kind at byte 629145599"),
    ] {
        let world = World::new();
        world.write(offset, bytes);
        let before = world.state();
        for security in [StorageSecurity::Insecure, StorageSecurity::Encrypted] {
            let data = world.data(security);
            let expected = PathBuf::from(format!("{} ({name})", world.image().display()));
            assert_eq!(prepare(&data).await, Found::Foreign { path: expected.clone() });
            let keys = (security != StorageSecurity::Insecure).then(|| keys(1));
            let error = data.format(permit(), NODE, keys.as_ref(), &progress()).await.unwrap_err();
            assert!(matches!(&error, DataError::ForeignContent { found, .. } if *found == expected), "{error:?}");
            let error = data.open(NODE, keys.as_ref(), &progress()).await.unwrap_err();
            assert!(matches!(&error, DataError::Damaged { problem, .. } if problem.contains(name)), "{error:?}");
        }
        assert!(world.state() == before, "{name}");
    }
}

#[tokio::test]
async fn a_header_of_somebody_else_is_foreign() {
    if !has("cryptsetup", "cryptsetup-bin") {
        return;
    }
    let world = World::new();
    let arguments = [
        "-q",
        "luksFormat",
        "--type",
        "luks2",
        "--pbkdf",
        "pbkdf2",
        "--pbkdf-force-iterations",
        "1000",
        "--key-file",
        "-",
    ];
    cryptsetup(&arguments, "key", &world.image());
    let before = world.state();
    let data = world.data(StorageSecurity::Encrypted);
    let expected = PathBuf::from(format!("{} (an encrypted volume (LUKS))", world.image().display()));
    assert_eq!(prepare(&data).await, Found::Foreign { path: expected });
    assert!(data.format(permit(), NODE, Some(&keys(1)), &progress()).await.is_err());
    assert!(world.state() == before);
}

#[tokio::test]
async fn a_device_that_is_too_small_or_none_is_refused_with_the_reason() {
    let world = World::new();
    std::fs::File::options().write(true).open(world.image()).unwrap().set_len(100 * MIB).unwrap();
    let error = world.data(StorageSecurity::Insecure).prepare(&progress()).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("has 104857600 bytes, and a data partition needs"), "{cause}");
    std::fs::remove_file(world.image()).unwrap();
    let error = world.data(StorageSecurity::Insecure).prepare(&progress()).await.unwrap_err();
    assert!(error.disk_error().unwrap().is_absent(), "{error:?}");
}

/// On a host without device mapper a format ends where the volume is to be opened: half done, with a header. All that follows
/// needs nothing but the header.
#[tokio::test]
async fn slots_of_a_header_are_added_tested_and_removed() {
    if !has("cryptsetup", "cryptsetup-bin") || !has("mkfs.xfs", "xfsprogs") {
        return;
    }
    let world = World::new();
    let data = world.data(StorageSecurity::Encrypted);
    if data.available().is_ok() {
        // There is a device mapper, and the format goes through.
        data.format(permit(), NODE, Some(&keys(1)), &progress()).await.unwrap();
        data.close().await.unwrap();
    } else {
        let error = data.format(permit(), NODE, Some(&keys(1)), &progress()).await.unwrap_err();
        assert!(matches!(error, DataError::Tool { action: "opening the encrypted volume", .. }), "{error:?}");
        assert_eq!(prepare(&data).await, Found::HalfFormatted);
        let error = data.open(NODE, Some(&keys(1)), &progress()).await.unwrap_err();
        assert!(matches!(error, DataError::NotFormatted { .. }), "{error:?}");
        // What another node has begun is none of ours.
        let before = world.state();
        let error = data.format(permit(), OTHER, Some(&keys(1)), &progress()).await.unwrap_err();
        assert!(matches!(&error, DataError::OtherNode { found, .. } if found == NODE), "{error:?}");
        assert!(world.state() == before);
        let token = format!(r#"{{"type":"polis-data","keyslots":[],"node":"{NODE}"}}"#);
        cryptsetup(&["token", "import", "--json-file", "-"], &token, &world.image());
    }
    assert_eq!(prepare(&data).await, Found::Formatted { owner: Some(NODE.to_owned()) });
    // It is formatted, and with these keys: nothing is done. With others it is an error.
    let before = world.state();
    data.format(permit(), NODE, Some(&keys(1)), &progress()).await.unwrap();
    let error = data.format(permit(), NODE, Some(&keys(2)), &progress()).await.unwrap_err();
    assert!(matches!(error, DataError::WrongKeys { .. }), "{error:?}");
    let error = data.open(OTHER, Some(&keys(1)), &progress()).await.unwrap_err();
    assert!(matches!(error, DataError::OtherNode { .. }), "{error:?}");
    if data.available().is_ok() {
        let error = data.open(NODE, Some(&keys(2)), &progress()).await.unwrap_err();
        assert!(matches!(error, DataError::WrongKeys { .. }), "{error:?}");
    }
    assert!(matches!(data.open(NODE, None, &progress()).await, Err(DataError::WrongKeys { .. })));
    let other = world.data(StorageSecurity::AuthenticatedEncrypted);
    let error = other.open(NODE, Some(&keys(1)), &progress()).await.unwrap_err();
    assert!(matches!(&error, DataError::OtherBackend { found, .. } if found == "luks"), "{error:?}");
    assert!(world.state() == before, "nothing of this changes anything");

    let opens = async |cluster| data.test_open(&keys(cluster)).await.unwrap();
    assert!(opens(1).await && !opens(2).await);
    // Added twice, it is there once.
    for _ in 0..2 {
        data.add_key(&keys(1), &keys(2)).await.unwrap();
    }
    assert!(opens(1).await && opens(2).await && !opens(3).await);
    assert!(matches!(data.add_key(&keys(3), &keys(4)).await, Err(DataError::WrongKeys { .. })));
    // The last key is never removed.
    assert!(matches!(data.remove_others(&keys(3)).await, Err(DataError::WrongKeys { .. })));
    data.remove_others(&keys(1)).await.unwrap();
    assert!(opens(1).await);
    data.add_key(&keys(1), &keys(2)).await.unwrap();
    assert_eq!(data.count_keys().await.unwrap(), 2);
    for _ in 0..2 {
        data.remove_others(&keys(2)).await.unwrap();
        assert!(!opens(1).await && opens(2).await);
    }

    // One copy of the header is damaged: the other is enough. Both: it is damaged or foreign, and never blank.
    world.write(0, &[0; 4096]);
    assert_eq!(prepare(&data).await, Found::Formatted { owner: Some(NODE.to_owned()) });
    assert!(opens(2).await);
    world.write(0, &[0x5a; 32 * 1024]);
    assert!(matches!(prepare(&data).await, Found::Foreign { .. }));
    let error = data.open(NODE, Some(&keys(2)), &progress()).await.unwrap_err();
    assert!(
        matches!(&error, DataError::Damaged { problem, .. } if problem.contains("the header was overwritten")),
        "{error:?}"
    );
    assert!(matches!(data.test_open(&keys(2)).await, Err(DataError::NotFormatted { .. })));
}

#[tokio::test]
async fn an_insecure_device_knows_no_keys() {
    let world = World::new();
    let data = world.data(StorageSecurity::Insecure);
    let results = [
        data.test_open(&keys(1)).await.map(|_| ()),
        data.add_key(&keys(1), &keys(2)).await,
        data.count_keys().await.map(|_| ()),
        data.remove_others(&keys(2)).await,
        data.open(NODE, Some(&keys(1)), &progress()).await,
        data.format(permit(), NODE, Some(&keys(1)), &progress()).await,
    ];
    for result in results {
        let error = result.unwrap_err();
        assert!(matches!(error, DataError::NotSupported { backend: "xfs", .. }), "{error:?}");
    }
}

#[tokio::test]
async fn what_a_host_cannot_do_is_refused_with_the_reason() {
    let world = World::new();
    let disk = Arc::new(HostDisk::open(&world.root()).unwrap());
    let backends = DeviceBackends::new(disk, &world.image());
    assert!(!backends.disk().gate().is_open(), "nothing is written where the partition will be mounted");
    if Path::new("/sys/class/misc/device-mapper").exists()
        || !has("cryptsetup", "cryptsetup-bin")
        || !has("mkfs.xfs", "xfsprogs")
    {
        return;
    }
    assert!(backends.choose(StorageSecurity::Insecure).is_ok());
    for security in [StorageSecurity::Encrypted, StorageSecurity::AuthenticatedEncrypted] {
        let unavailable = backends.choose(security).err().unwrap();
        assert_eq!((unavailable.security, &*unavailable.reason), (security, "this kernel has no device mapper"));
    }
}
