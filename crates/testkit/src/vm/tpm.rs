//! A TPM 2.0 of a machine.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use super::tools;
use crate::processes;
use crate::scratch::Scratch;

/// A chip. Its state lasts as long as this; a machine with it can be started again and again, one at a time.
#[derive(Debug)]
pub struct Tpm {
    directory: Scratch,
}

impl Tpm {
    /// A new chip.
    #[must_use]
    pub fn new() -> Self {
        Self { directory: Scratch::new() }
    }

    /// Where its state is.
    #[must_use]
    pub fn state(&self) -> &Path {
        self.directory.path()
    }

    /// Starts the program that plays it, which ends when the machine lets go of `socket`.
    pub(super) fn start(&self, socket: &Path) -> Child {
        let mut command = processes::bound_to_test(&tools::program("swtpm"));
        command.args(["socket", "--tpm2", "--terminate", "--tpmstate"]);
        command.arg(format!("dir={}", self.state().display()));
        command.arg("--ctrl").arg(format!("type=unixio,path={}", socket.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        processes::spawn(command)
    }

    /// What QEMU is told.
    pub(super) fn arguments(socket: &Path) -> Vec<String> {
        [
            "-chardev",
            &format!("socket,id=tpm-socket,path={}", socket.display()),
            "-tpmdev",
            "emulator,id=tpm0,chardev=tpm-socket",
            "-device",
            "tpm-tis,tpmdev=tpm0",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// Its socket in a directory of one run.
    pub(super) fn socket(directory: &Path) -> PathBuf {
        directory.join("tpm")
    }
}

impl Default for Tpm {
    fn default() -> Self {
        Self::new()
    }
}
