//! A TPM: the program swtpm with a state of its own.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use polis_testkit::address::TestAddress;
use polis_tpm::{HelperPlace, Tpm, TpmSeal};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long things may take that take milliseconds, on a machine that has much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Whether the tools of these tests are there. When not, it says so and the test is to return; where nothing may be skipped (`CI`
/// is set), that is a failure.
#[must_use]
pub(crate) fn is_possible() -> bool {
    let missing: Vec<_> = [("swtpm", "swtpm"), ("tpm2", "tpm2-tools")]
        .into_iter()
        .filter(|(program, _)| Command::new(program).arg("--version").output().is_err())
        .map(|(_, package)| package)
        .collect();
    if missing.is_empty() {
        return true;
    }
    let reason = format!("the Debian packages {} are missing", missing.join(", "));
    assert!(std::env::var_os("CI").is_none(), "nothing is skipped where CI is set, but this test cannot run: {reason}");
    println!("skipped: {reason}");
    false
}

/// Where commands go. What is beside commands goes to the port after it (libtss2).
pub(crate) const PORT: u16 = 2321;

/// A TPM, running or not. Its seeds and what it keeps are in its directory; its PCRs begin anew with each start.
pub(crate) struct Emulator {
    address: TestAddress,
    directory: TempDir,
    child: Option<Child>,
}

impl Emulator {
    /// A new TPM, which runs.
    pub(crate) fn new() -> Self {
        let mut this = Self { address: TestAddress::claim(), directory: tempfile::tempdir().unwrap(), child: None };
        this.start();
        this
    }

    /// Switches it on.
    pub(crate) fn start(&mut self) {
        let at = |port: u16| format!("type=tcp,bindaddr={},port={port}", self.ip());
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "swtpm", "socket", "--tpm2", "--flags", "not-need-init,startup-clear"])
            .arg("--tpmstate")
            .arg(format!("dir={}", self.directory.path().display()))
            .args(["--server", &at(PORT), "--ctrl", &at(PORT + 1)])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let deadline = Instant::now() + PATIENCE;
        // It takes one connection after the other: this one is over when the next comes.
        while [PORT, PORT + 1].iter().any(|port| TcpStream::connect(SocketAddr::new(self.ip(), *port)).is_err()) {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
            assert!(ended.is_none(), "swtpm has ended: {ended:?}");
            assert!(Instant::now() < deadline, "swtpm does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Switches it off.
    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            let _ = child.wait().unwrap();
        }
    }

    /// Sends a signal to it.
    pub(crate) fn signal(&self, signal: Signal) {
        let process = Pid::from_child(self.child.as_ref().unwrap());
        kill_process(process, signal).unwrap();
    }

    /// The address that it has on this machine.
    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip
    }

    /// How programs reach it.
    pub(crate) fn tcti(&self) -> String {
        tcti(self.ip())
    }

    /// It, as Polis sees it.
    pub(crate) fn tpm(&self) -> Tpm {
        Tpm::new(self.tcti(), helper())
    }

    /// The seal by it.
    pub(crate) fn seal(&self) -> TpmSeal {
        TpmSeal::new(self.tpm())
    }

    /// Runs one of the tools that other people have made for TPMs.
    pub(crate) fn tool<const N: usize>(&self, arguments: [&str; N]) -> Output {
        tool(&self.tcti(), arguments)
    }

    /// Measures something into PCR 7, as a firmware does with its keys for Secure Boot.
    pub(crate) fn measure(&self, digest: char) {
        let digest = digest.to_string().repeat(64);
        let _ = self.tool(["pcrextend", &format!("7:sha256={digest}")]);
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The helper of this build.
pub(crate) fn helper() -> HelperPlace {
    HelperPlace::at(Path::new(env!("CARGO_BIN_EXE_polis-tpm")))
}

/// How programs reach what listens at this address.
pub(crate) fn tcti(ip: IpAddr) -> String {
    format!("swtpm:host={ip},port={PORT}")
}

/// Runs one of the tools that other people have made for TPMs.
pub(crate) fn tool<const N: usize>(tcti: &str, arguments: [&str; N]) -> Output {
    let output =
        Command::new("tpm2").args(arguments).env("TPM2TOOLS_TCTI", tcti).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "tpm2 {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
