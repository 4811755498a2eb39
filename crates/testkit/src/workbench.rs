//! A machine's TPM on a workbench: what its journal holds is known to the test, as it is to nobody who has the disk alone.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use polis_storage::journal::Seals;
use polis_tpm::TpmSeal;

use crate::address::TestAddress;
use crate::processes;
use crate::scratch::{self, Scratch};
use crate::vm::{self, Tpm};

/// Where commands go. What is beside commands goes to the port after it (libtss2).
const PORT: u16 = 2321;

/// How long the program may take until it listens. It takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// A copy of a TPM that runs on this host.
#[derive(Debug)]
pub struct Workbench {
    child: Child,
    address: TestAddress,
    /// Its state.
    _directory: Scratch,
}

impl Workbench {
    /// Puts a copy of the TPM of a machine that is off on the bench, and measures `digests` into PCR 7, as the machine's firmware
    /// does. Needs the programs `swtpm` and `tpm2`.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn new(tpm: &Tpm, digests: &[[u8; 32]]) -> Self {
        let directory = Scratch::new();
        for file in scratch::files(tpm.state()) {
            let name = file.file_name().expect("a file has a name");
            std::fs::copy(&file, directory.path().join(name)).expect("the state can be copied");
        }
        let address = TestAddress::claim();
        let ip = address.ip;
        let at = |port: u16| format!("type=tcp,port={port},bindaddr={ip}");
        let mut command = processes::bound_to_test(&vm::program("swtpm"));
        command.args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear", "--tpmstate"]);
        command.arg(format!("dir={}", directory.path().display()));
        command.args(["--server", &at(PORT), "--ctrl", &at(PORT + 1)]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let bench = Self { child: processes::spawn(command), address, _directory: directory };
        let end = Instant::now() + PATIENCE;
        // It takes one connection after the other: this one is over when the next comes.
        while [PORT, PORT + 1].iter().any(|port| TcpStream::connect((ip, *port)).is_err()) {
            assert!(Instant::now() < end, "swtpm does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        for digest in digests {
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            let mut extend = Command::new(vm::program("tpm2"));
            extend.args(["pcrextend", &format!("7:sha256={hex}")]).env("TPM2TOOLS_TCTI", bench.interface());
            let output = extend.stdin(Stdio::null()).output().expect("tpm2 can be started");
            assert!(output.status.success(), "{extend:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        bench
    }

    /// The seals of the machine, by `polis-tpm`, or by the one in `PATH`.
    #[must_use]
    pub fn seals(&self, helper: Option<&Path>) -> Seals {
        Seals::with_tpm(Arc::new(TpmSeal::find(helper, std::env::var_os("PATH"), Some(self.interface()))))
    }

    /// How programs reach it.
    fn interface(&self) -> String {
        format!("swtpm:host={},port={PORT}", self.address.ip)
    }
}

impl Drop for Workbench {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
