//! [`Tools`]: the programs, where they are, and what their ends mean.

use std::path::{Path, PathBuf};
use std::time::Duration;

use polis_storage::DataUnavailable;
use polis_storage::journal::StorageSecurity;
use polis_sys::ExitStatus;
use rustix::fs::Access;

use super::commands::{Invocation, Program};
use crate::child::{self, Finished, ToolError};

/// Directories in which programs of a distribution are, first those of whoever runs this host.
pub(super) const SEARCH: [&str; 5] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"];
/// Where the kernel says that it has device mapper.
const DEVICE_MAPPER: [&str; 2] = ["/sys/class/misc/device-mapper", "/sys/module/dm_mod"];
/// Opening it makes a kernel with modules load device mapper.
const DEVICE_MAPPER_CONTROL: &str = "/dev/mapper/control";
/// How long a command may take. All but `mkfs.xfs` write some megabytes at most, and that one the log of the file system, 2 GiB at
/// most; on a machine that is emulated, or a disk that is shared, this takes minutes.
const DEADLINE: Duration = Duration::from_secs(900);
/// What `cryptsetup` exits with when no slot is opened by the key (cryptsetup(8), RETURN CODES).
const NO_KEY: ExitStatus = ExitStatus::Exited { code: 2 };

/// The programs.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    search: Vec<PathBuf>,
}

impl Tools {
    pub(super) fn new(search: Vec<PathBuf>) -> Self {
        Self { search }
    }

    /// Whether what is needed is there. Starts no process.
    pub(super) fn look(&self, security: StorageSecurity) -> Result<(), DataUnavailable> {
        self.find(Program::MakeXfs, security)?;
        match security {
            StorageSecurity::Insecure => Ok(()),
            StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted => {
                self.find(Program::Cryptsetup, security)?;
                if has_device_mapper() {
                    return Ok(());
                }
                Err(DataUnavailable {
                    security,
                    reason: "this kernel has no device mapper".to_owned(),
                    remedy: "load it with `modprobe dm-mod dm-crypt dm-integrity`; a container gets it from its host only, and \
                             cannot do without --data-device"
                        .to_owned(),
                })
            }
        }
    }

    fn find(&self, program: Program, security: StorageSecurity) -> Result<PathBuf, DataUnavailable> {
        let (name, package) = match program {
            Program::Cryptsetup => ("cryptsetup", "cryptsetup-bin"),
            Program::MakeXfs => ("mkfs.xfs", "xfsprogs"),
        };
        let paths = self.search.iter().map(|directory| directory.join(name));
        let mut found = paths.filter(|path| rustix::fs::access(path, Access::EXEC_OK).is_ok());
        found.next().ok_or_else(|| DataUnavailable {
            security,
            reason: format!("the program {name} is not installed"),
            remedy: format!("install it with `apt-get install {package}`"),
        })
    }

    /// Runs a command, gives it `input`, and fails unless it succeeds.
    pub(super) fn run(
        &self,
        invocation: &Invocation,
        input: &[u8],
        security: StorageSecurity,
    ) -> Result<Result<Finished, ToolError>, DataUnavailable> {
        let program = self.find(invocation.program, security)?;
        let command = child::command(&program, invocation.arguments.clone());
        Ok(child::run(command, input, DEADLINE).and_then(|finished| finished.success(&program)))
    }
}

/// Whether a command failed because no slot is opened by the key that it was given.
pub(super) fn is_wrong_key(error: &ToolError) -> bool {
    matches!(error, ToolError::Failed { status: NO_KEY, .. })
}

fn has_device_mapper() -> bool {
    let known = || DEVICE_MAPPER.iter().any(|path| Path::new(path).exists());
    // Opening it is all that is wanted; it says nothing.
    known() || (std::fs::File::open(DEVICE_MAPPER_CONTROL).is_ok() && known())
}
