//! Swap that is on, and whether what is written there can be read from the disk.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, major, minor};

/// What device mapper calls devices that encrypt (cryptsetup: the beginning of their uuid). Its other devices that begin with
/// `CRYPT-`, for verity and integrity, do not.
const ENCRYPTING: [&str; 7] = [
    "CRYPT-PLAIN-",
    "CRYPT-LUKS1-",
    "CRYPT-LUKS2-",
    "CRYPT-LOOPAES-",
    "CRYPT-TCRYPT-",
    "CRYPT-BITLK-",
    "CRYPT-FVAULT2-",
];

/// Devices on devices that are looked through. A logical volume on a RAID of encrypted partitions takes four.
const DEPTH: usize = 8;

/// Where the system tells of swap and of devices, and how it is asked for the device of a file.
pub(super) struct Places {
    pub(super) swaps: PathBuf,
    pub(super) sys: PathBuf,
    /// The device that a path is, or that it lies on.
    pub(super) device: fn(&Path) -> io::Result<Dev>,
}

impl Default for Places {
    fn default() -> Self {
        Self { swaps: "/proc/swaps".into(), sys: "/sys".into(), device: device_of }
    }
}

fn device_of(path: &Path) -> io::Result<Dev> {
    let data = fs::metadata(path)?;
    Ok(if data.file_type().is_block_device() { data.rdev() } else { data.dev() })
}

/// The swap areas that are on and not known to be encrypted or to stay in memory; empty where the system knows no swap.
pub(super) fn unencrypted(places: &Places) -> Vec<String> {
    let Ok(swaps) = fs::read_to_string(&places.swaps) else { return Vec::new() };
    areas(&swaps).filter(|path| !places.is_safe(Path::new(path), DEPTH)).collect()
}

/// The paths in a file like `/proc/swaps` (proc(5)): after a line of titles, a line for each area, which begins with its path.
fn areas(swaps: &str) -> impl Iterator<Item = String> {
    swaps.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next()).map(plain)
}

/// A path in which the kernel has written spaces and the like as a backslash and three octal digits.
fn plain(escaped: &str) -> String {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Places {
    /// Whether what is written to this device, or to this file, cannot be read from a disk. What is not known is not safe.
    fn is_safe(&self, path: &Path, depth: usize) -> bool {
        let Ok(device) = (self.device)(path) else { return false };
        let link = self.sys.join(format!("dev/block/{}:{}", major(device), minor(device)));
        // A file system that is no device of its own, such as one of several disks, has none.
        fs::canonicalize(link).is_ok_and(|directory| self.is_safe_device(&directory, depth))
    }

    /// The same for a device with this directory in sysfs.
    fn is_safe_device(&self, directory: &Path, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return false };
        let text = |name: &str| fs::read_to_string(directory.join(name)).ok().map(|text| text.trim_end().to_owned());
        if text("dm/uuid").is_some_and(|uuid| ENCRYPTING.iter().any(|kind| uuid.starts_with(kind))) {
            return true;
        }
        // Compressed memory; what it has no room for may go to a disk.
        if directory.file_name().is_some_and(|name| name.to_string_lossy().starts_with("zram")) {
            return text("backing_dev")
                .is_none_or(|backing| backing == "none" || self.is_safe(Path::new(&backing), depth));
        }
        if directory.join("partition").exists() {
            return directory.parent().is_some_and(|disk| self.is_safe_device(disk, depth));
        }
        let slaves: Vec<_> = fs::read_dir(directory.join("slaves")).map(|slaves| slaves.collect()).unwrap_or_default();
        !slaves.is_empty()
            && slaves.into_iter().all(|slave| {
                let slave = slave.and_then(|slave| fs::canonicalize(slave.path()));
                slave.is_ok_and(|slave| self.is_safe_device(&slave, depth))
            })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::makedev;

    use super::*;

    /// A sysfs with one device of each sort: the minor number of its device, its directory, and its files.
    struct Sysfs(tempfile::TempDir);

    impl Sysfs {
        fn new() -> Self {
            let this = Self(tempfile::tempdir().unwrap());
            let device = |number: u32, place: &str, files: &[(&str, &str)]| {
                let directory = this.0.path().join("devices").join(place);
                fs::create_dir_all(directory.join("dm")).unwrap();
                for (name, content) in files {
                    fs::write(directory.join(name), content).unwrap();
                }
                fs::create_dir_all(this.0.path().join("dev/block")).unwrap();
                symlink(&directory, this.0.path().join(format!("dev/block/7:{number}"))).unwrap();
            };
            let slaves = |place: &str, slaves: &[&str]| {
                let directory = this.0.path().join("devices").join(place).join("slaves");
                fs::create_dir_all(&directory).unwrap();
                for slave in slaves {
                    let name = Path::new(slave).file_name().unwrap();
                    symlink(this.0.path().join("devices").join(slave), directory.join(name)).unwrap();
                }
            };
            device(1, "sda", &[]);
            device(2, "sda/sda2", &[("partition", "2\n")]);
            device(3, "dm-3", &[("dm/uuid", "CRYPT-LUKS2-0123-swap\n")]);
            slaves("dm-3", &["sda/sda2"]);
            device(4, "dm-4", &[("dm/uuid", "LVM-abc\n")]);
            slaves("dm-4", &["dm-3"]);
            device(5, "dm-5", &[("dm/uuid", "LVM-def\n")]);
            slaves("dm-5", &["dm-3", "sda/sda2"]);
            device(6, "dm-6", &[("dm/uuid", "CRYPT-VERITY-0123\n")]);
            slaves("dm-6", &["sda/sda2"]);
            device(7, "zram0", &[("backing_dev", "none\n")]);
            device(8, "zram1", &[("backing_dev", "/dev/2\n")]);
            device(9, "zram2", &[("backing_dev", "/dev/3\n")]);
            device(10, "dm-10", &[("dm/uuid", "CRYPT-PLAIN-cryptswap\n")]);
            // A device that stands on itself.
            device(11, "dm-11", &[("dm/uuid", "LVM-ghi\n")]);
            slaves("dm-11", &["dm-11"]);
            this
        }

        fn unencrypted(&self, swaps: &str) -> Vec<String> {
            let file = self.0.path().join("swaps");
            fs::write(&file, swaps).unwrap();
            unencrypted(&Places { swaps: file, sys: self.0.path().to_owned(), device: device_in_name })
        }
    }

    /// The devices of these tests have their number as their name.
    fn device_in_name(path: &Path) -> io::Result<Dev> {
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        number.map(|number| makedev(7, number)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    #[test]
    fn what_does_not_encrypt_is_named() {
        let table = [
            ("1", false, "a disk"),
            ("2", false, "a partition"),
            ("3", true, "LUKS"),
            ("4", true, "a logical volume on LUKS"),
            ("5", false, "a logical volume of which one half is on LUKS"),
            ("6", false, "verity"),
            ("7", true, "memory"),
            ("8", false, "memory before a partition"),
            ("9", true, "memory before LUKS"),
            ("10", true, "a random key"),
            ("11", false, "a loop of devices"),
            ("12", false, "a device that the system does not know, as a file on more than one disk"),
            ("gone", false, "what is not there any more"),
        ];
        let sysfs = Sysfs::new();
        for (name, safe, what) in table {
            let swaps =
                format!("Filename\tType\t\tSize\t\tUsed\t\tPriority\n/dev/{name}   partition\t1024\t\t0\t\t-2\n");
            let expect = if safe { Vec::new() } else { vec![format!("/dev/{name}")] };
            assert_eq!(sysfs.unencrypted(&swaps), expect, "{what}");
        }
    }

    #[test]
    fn only_what_is_on_counts() {
        let sysfs = Sysfs::new();
        assert_eq!(sysfs.unencrypted(""), Vec::<String>::new());
        assert_eq!(sysfs.unencrypted("Filename\tType\tSize\tUsed\tPriority\n"), Vec::<String>::new());
        let swaps = "Filename Type Size Used Priority\n/dev/3 partition 1 0 -2\n/a\\040b/2 file 1 0 -3\n/dev/1 partition 1 0 -4\n";
        assert_eq!(sysfs.unencrypted(swaps), ["/a b/2", "/dev/1"]);
        // A system without swap has no such file.
        let places = Places { swaps: "/does/not/exist".into(), ..Places::default() };
        assert_eq!(unencrypted(&places), Vec::<String>::new());
    }

    #[test]
    fn escapes_of_the_kernel_are_undone() {
        for (escaped, expect) in
            [("/swap", "/swap"), ("/a\\040b\\134c", "/a b\\c"), ("/a\\04", "/a\\04"), ("\\999", "\\999")]
        {
            assert_eq!(plain(escaped), expect);
        }
    }
}
