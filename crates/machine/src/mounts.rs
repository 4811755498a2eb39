//! The file systems of the kernel, and what is mounted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

/// One file system that a machine needs. What is not `needed` may be missing in the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelMount {
    pub(crate) kind: &'static str,
    pub(crate) target: &'static str,
    flags: MountFlags,
    options: &'static str,
    needed: bool,
}

const STRICT: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Mounted before anything else, in this order.
pub(crate) const FIRST: &[KernelMount] = &[
    KernelMount { kind: "devtmpfs", target: "/dev", flags: MountFlags::NOSUID, options: "mode=0755", needed: true },
    KernelMount { kind: "proc", target: "/proc", flags: STRICT, options: "", needed: true },
    KernelMount { kind: "sysfs", target: "/sys", flags: STRICT, options: "", needed: true },
    KernelMount { kind: "devpts", target: "/dev/pts", flags: MountFlags::NOSUID, options: "mode=0600", needed: false },
    KernelMount { kind: "tmpfs", target: "/dev/shm", flags: STRICT, options: "mode=1777,size=25%", needed: false },
    KernelMount { kind: "tmpfs", target: "/run", flags: STRICT, options: "mode=0755,size=10%", needed: true },
    KernelMount { kind: "tmpfs", target: "/tmp", flags: STRICT, options: "mode=1777,size=25%", needed: true },
    KernelMount { kind: "cgroup2", target: "/sys/fs/cgroup", flags: STRICT, options: "", needed: false },
];

/// Mounted after the modules, some of which bring these.
pub(crate) const AFTER_MODULES: &[KernelMount] = &[
    KernelMount { kind: "pstore", target: "/sys/fs/pstore", flags: STRICT, options: "", needed: false },
    KernelMount { kind: "efivarfs", target: "/sys/firmware/efi/efivars", flags: STRICT, options: "", needed: false },
];

/// A file system of the kernel that cannot be mounted and without which nothing works.
#[derive(Debug, thiserror::Error)]
#[error("cannot mount {kind} on {target}")]
pub struct MountError {
    kind: &'static str,
    target: &'static str,
    #[source]
    source: io::Error,
}

/// Mounts these in order. What is mounted already stays. Returns what is missing and not needed, with the reason.
pub(crate) fn mount_all(mounts: &[KernelMount]) -> Result<Vec<String>, MountError> {
    let mut missing = Vec::new();
    for KernelMount { kind, target, flags, options, needed } in mounts {
        // Below /sys directories are the kernel's: where one is missing there is nothing to mount, as on a machine without EFI.
        if target.starts_with("/sys/") && !Path::new(target).exists() {
            continue;
        }
        let mounted = make_directory(Path::new(target)).and_then(|()| {
            match mount(*kind, *target, *kind, *flags, options_text(options).as_deref()) {
                // Somebody was faster, the kernel itself for one.
                Ok(()) | Err(Errno::BUSY) => Ok(()),
                Err(error) => Err(error.into()),
            }
        });
        match mounted {
            Ok(()) => {}
            Err(source) if *needed => return Err(MountError { kind, target, source }),
            Err(error) => missing.push(format!("{kind} on {target}: {error}")),
        }
    }
    Ok(missing)
}

/// Options as the system call takes them; none for none.
pub(crate) fn options_text(options: &str) -> Option<std::ffi::CString> {
    // The options are constants without zero bytes.
    (!options.is_empty()).then(|| std::ffi::CString::new(options).ok()).flatten()
}

/// Makes a directory in memory, unless it is there.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

/// Something mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub(crate) target: PathBuf,
    pub(crate) kind: String,
    /// The device, or whatever the file system calls its source.
    pub(crate) source: String,
}

/// Reads `/proc/self/mountinfo`, in the order in which things were mounted.
pub(crate) fn parse_mountinfo(text: &str) -> Vec<Mounted> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mounted> {
    // Fields of a variable number, then a hyphen, then the kind and the source (proc(5)).
    let (before, after) = line.split_once(" - ")?;
    let target = before.split(' ').nth(4)?;
    let mut after = after.split(' ');
    Some(Mounted {
        target: PathBuf::from(unescape(target)),
        kind: after.next()?.to_owned(),
        source: unescape(after.next()?),
    })
}

/// Blanks and the like stand there as a backslash and three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a file system lives on a disk, and so has to be unmounted before the machine goes down.
pub(crate) fn is_on_disk(mounted: &Mounted) -> bool {
    mounted.source.starts_with("/dev/") || mounted.kind.starts_with("fuse")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_with_and_without_optional_fields() {
        let text = "\
22 1 0:21 / /proc rw,nosuid - proc proc rw
30 1 254:1 / /esp rw,nodev shared:1 master:2 - vfat /dev/vda1 rw,fmask=0177
31 1 253:0 / /data rw - xfs /dev/mapper/polis-data rw
40 31 0:40 / /data/with\\040blank\\134 rw - fuse.gocryptfs /encrypted rw
broken line
41 1 0:41 / /cut";
        let mounted = parse_mountinfo(text);
        let short: Vec<_> = mounted.iter().map(|m| (m.target.to_str().unwrap(), &*m.kind, is_on_disk(m))).collect();
        assert_eq!(
            short,
            [
                ("/proc", "proc", false),
                ("/esp", "vfat", true),
                ("/data", "xfs", true),
                ("/data/with blank\\", "fuse.gocryptfs", true),
            ]
        );
    }

    #[test]
    fn a_directory_is_mounted_after_the_one_it_is_in() {
        let order: Vec<_> = FIRST.iter().chain(AFTER_MODULES).map(|mount| Path::new(mount.target)).collect();
        for (at, path) in order.iter().enumerate() {
            let later = &order[at + 1..];
            assert!(!later.iter().any(|later| path.starts_with(later)), "{}", path.display());
        }
    }
}
