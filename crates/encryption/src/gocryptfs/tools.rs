//! The programs that the backend needs, where they are and whether they are new enough.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polis_storage::DataUnavailable;
use polis_storage::journal::StorageSecurity;
use polis_sys::Command;
use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;

use crate::child::{self, Finished, ToolError};

/// Directories in which programs of a distribution are, first those of whoever runs this host.
pub(super) const SEARCH: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/usr/sbin", "/bin"];
/// Through which the kernel gives a file system into the hands of a process.
const FUSE_DEVICE: &str = "/dev/fuse";
/// Oldest version that will do: 2.1 is the first that passes on the sync of a directory, without which no rename would
/// survive a power cut, and 2.2 the first that can do without unsynced files in directories.
const OLDEST: (u32, u32) = (2, 2);
/// How long a run of gocryptfs that mounts nothing, or of fusermount3, may take: a second at most, on a machine that swaps too.
const DEADLINE: Duration = Duration::from_secs(60);

/// The programs.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    search: Vec<PathBuf>,
    fuse_device: PathBuf,
}

impl Tools {
    pub(super) fn new(search: Vec<PathBuf>) -> Self {
        Self { search, fuse_device: FUSE_DEVICE.into() }
    }

    #[cfg(test)]
    pub(super) fn with_fuse_device(self, fuse_device: PathBuf) -> Self {
        Self { fuse_device, ..self }
    }

    /// Whether what is needed is there. Starts no process.
    pub(super) fn look(&self) -> Result<(), DataUnavailable> {
        self.gocryptfs()?;
        let fusermount = self.fusermount()?;
        // A user without rights mounts through a program that has them, unless whoever started the node forbade that.
        if !rustix::process::geteuid().is_root() && rustix::thread::no_new_privs().is_ok_and(|forbidden| forbidden) {
            let reason =
                format!("this process may gain no privileges, so {} cannot mount for it", fusermount.display());
            let remedy = "run the node as root, or without `NoNewPrivileges=yes` in its systemd unit and without the options \
                          that imply it for other users (LockPersonality, MemoryDenyWriteExecute, RestrictRealtime, \
                          RestrictSUIDSGID)";
            return Err(unavailable(reason, remedy.to_owned()));
        }
        match rustix::fs::open(&self.fuse_device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            Ok(_) => Ok(()),
            Err(cause) => {
                let device = self.fuse_device.display();
                let remedy = match cause {
                    Errno::ACCESS | Errno::PERM => format!(
                        "let this user read and write {device} (`chmod 666 {device}` is what distributions do), or run the \
                         node as root; in a container, pass the device with `--device {device}` and give it CAP_SYS_ADMIN"
                    ),
                    _ => format!(
                        "load the kernel's module with `modprobe fuse`; in a container, pass the device with `--device {device}`"
                    ),
                };
                let cause = std::io::Error::from(cause);
                Err(unavailable(format!("{device} cannot be opened: {cause}"), remedy))
            }
        }
    }

    /// Whether the gocryptfs that is there is one that is known to work.
    pub(super) fn check_version(&self) -> Result<(), DataUnavailable> {
        let program = self.gocryptfs()?;
        let finished = child::run(child::command(&program, vec!["-version".into()]), b"", DEADLINE)
            .and_then(|finished| finished.success(&program))
            .map_err(|error| unavailable(format!("{} does not run: {error}", program.display()), install()))?;
        match version(&finished.output) {
            Some(version) if version >= OLDEST => Ok(()),
            Some(_) | None => {
                let line: String = finished.output.lines().next().unwrap_or_default().chars().take(100).collect();
                let (major, minor) = OLDEST;
                let reason =
                    format!("{} is not version {major}.{minor} or newer, but says {line:?}", program.display());
                Err(unavailable(reason, install()))
            }
        }
    }

    /// `gocryptfs`, to be run with these arguments.
    pub(super) fn command(&self, arguments: Vec<OsString>) -> Result<Command, DataUnavailable> {
        Ok(child::command(&self.gocryptfs()?, arguments))
    }

    /// Runs gocryptfs to its end.
    pub(super) fn run(
        &self,
        arguments: Vec<OsString>,
        input: &[u8],
    ) -> Result<Result<Finished, ToolError>, DataUnavailable> {
        Ok(child::run(self.command(arguments)?, input, DEADLINE))
    }

    /// Unmounts what is at this place; lazily means that who uses it keeps it until the end.
    pub(super) fn unmount(&self, place: &Path, lazily: bool) -> Result<Result<(), ToolError>, DataUnavailable> {
        let program = self.fusermount()?;
        let mut arguments: Vec<OsString> = vec!["-u".into()];
        if lazily {
            arguments.push("-z".into());
        }
        arguments.extend(["--".into(), place.into()]);
        let finished = child::run(child::command(&program, arguments), b"", DEADLINE);
        Ok(finished.and_then(|finished| finished.success(&program)).map(drop))
    }

    fn gocryptfs(&self) -> Result<PathBuf, DataUnavailable> {
        self.find("gocryptfs")
    }

    fn fusermount(&self) -> Result<PathBuf, DataUnavailable> {
        self.find("fusermount3")
    }

    fn find(&self, name: &str) -> Result<PathBuf, DataUnavailable> {
        let found = self.search.iter().map(|directory| directory.join(name));
        let mut found = found.filter(|path| rustix::fs::access(path, Access::EXEC_OK).is_ok() && path.is_file());
        found.next().ok_or_else(|| {
            let search: Vec<String> = self.search.iter().map(|path| path.display().to_string()).collect();
            unavailable(format!("the program {name} is not in {}", search.join(", ")), install())
        })
    }
}

/// Major and minor number in the first line of `gocryptfs -version`, for example `gocryptfs v2.4.0; go-fuse ..`.
fn version(output: &str) -> Option<(u32, u32)> {
    let version = output.lines().next()?.strip_prefix("gocryptfs ")?;
    let mut numbers = version.strip_prefix('v').unwrap_or(version).split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn install() -> String {
    "install version 2.2 or newer with `apt-get install gocryptfs fuse3` (Debian 12, Ubuntu 24.04 or newer) or `dnf install \
     gocryptfs fuse3`"
        .to_owned()
}

fn unavailable(reason: String, remedy: String) -> DataUnavailable {
    DataUnavailable { security: StorageSecurity::AuthenticatedEncrypted, reason, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a program. Another process writes it: a child that a test beside this one starts meanwhile would have the file
    /// open for writing for a moment, and the kernel runs no such program.
    fn program(directory: &Path, name: &str, script: &str) {
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let arguments = [Path::new("-c"), Path::new(write), &directory.join(name), Path::new(script)];
        assert!(std::process::Command::new("/bin/sh").args(arguments).status().unwrap().success());
    }

    #[test]
    fn the_version_is_read() {
        let table = [
            ("gocryptfs 2.3; go-fuse 2.1.0+git20220822.58a7e14; 2023-04-09 go1.19.8 linux/amd64", Some((2, 3))),
            ("gocryptfs v2.4.0; go-fuse v2.1.1; 2023-06-10 go1.21.1 linux/amd64\nmore", Some((2, 4))),
            ("gocryptfs v1.8.0-31-g6736212-dirty; go-fuse", Some((1, 8))),
            ("gocryptfs [version not set - please compile]", None),
            ("", None),
        ];
        for (line, expected) in table {
            assert_eq!(version(line), expected, "{line}");
        }
    }

    #[test]
    fn what_is_missing_is_named_with_what_installs_it() {
        let directory = tempfile::tempdir().unwrap();
        let tools = Tools::new(vec![directory.path().to_owned()]);
        let error = tools.look().unwrap_err();
        assert!(error.reason.contains("the program gocryptfs is not in"), "{error}");
        assert!(error.remedy.contains("apt-get install gocryptfs fuse3"), "{}", error.remedy);
        program(directory.path(), "gocryptfs", "echo 'gocryptfs v1.8.0; x'");
        assert!(tools.look().unwrap_err().reason.contains("the program fusermount3 is not in"));
        program(directory.path(), "fusermount3", "exit 1");
        let tools = tools.with_fuse_device(directory.path().join("fuse"));
        let error = tools.look().unwrap_err();
        assert!(error.reason.contains("fuse cannot be opened: No such file"), "{error}");
        assert!(error.remedy.contains("modprobe fuse"), "{}", error.remedy);
        std::fs::write(directory.path().join("fuse"), "").unwrap();
        tools.look().unwrap();
        let error = tools.check_version().unwrap_err();
        assert!(error.reason.contains("is not version 2.2 or newer, but says \"gocryptfs v1.8.0; x\""), "{error}");
        program(directory.path(), "gocryptfs", "exit 7");
        assert!(tools.check_version().unwrap_err().reason.contains("does not run"));
    }
}
