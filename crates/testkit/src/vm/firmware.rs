//! The firmware of a machine, and keys for Secure Boot.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::tools;
use crate::scratch::Scratch;

/// Debian's OVMF.
pub(super) const CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
/// The same with Secure Boot, which protects its variables by system management mode.
pub(super) const SECURE_CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd";
/// Variables of a machine that nobody has started yet.
pub(super) const VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";

/// Owner of the keys in the lists of the firmware; any will do.
const OWNER: &str = "7a57b5f0-5b1f-4e1c-8b0a-1d0c7b1d5a01";

/// Whether a firmware checks what it starts.
#[derive(Clone, Copy, Debug)]
pub enum SecureBoot<'a> {
    /// It starts anything.
    Off,
    /// It starts only what these keys have signed.
    On(&'a SecureBootKeys),
}

/// A firmware with its variables, which last as long as this.
#[derive(Debug)]
pub struct Firmware {
    variables: PathBuf,
    secure: bool,
    _directory: Scratch,
}

impl Firmware {
    /// A firmware that was never started.
    ///
    /// # Panics
    ///
    /// When its files cannot be made.
    #[must_use]
    pub fn new(secure_boot: SecureBoot<'_>) -> Self {
        let directory = Scratch::new();
        let variables = directory.path().join("variables.fd");
        let secure = match secure_boot {
            SecureBoot::Off => {
                std::fs::copy(VARIABLES, &variables).expect("the variables can be copied");
                false
            }
            SecureBoot::On(keys) => {
                keys.enrol(&variables);
                true
            }
        };
        Self { variables, secure, _directory: directory }
    }

    /// What QEMU is told, beside the machine itself.
    pub(super) fn arguments(&self) -> Vec<String> {
        let code = if self.secure { SECURE_CODE } else { CODE };
        let mut arguments = vec![
            "-drive".to_owned(),
            format!("if=pflash,format=raw,unit=0,file={code},readonly=on"),
            "-drive".to_owned(),
            format!("if=pflash,format=raw,unit=1,file={}", self.variables.display()),
        ];
        if self.secure {
            arguments.extend(["-global", "driver=cfi.pflash01,property=secure,value=on"].map(str::to_owned));
        }
        arguments
    }

    /// The machine that it is for.
    pub(super) fn machine(&self) -> &'static str {
        if self.secure { "q35,smm=on" } else { "q35" }
    }
}

/// Keys of the owner of machines: the platform's, and the one that signs.
#[derive(Debug)]
pub struct SecureBootKeys {
    directory: Scratch,
}

impl SecureBootKeys {
    /// Makes new ones.
    ///
    /// # Panics
    ///
    /// When openssl does not.
    #[must_use]
    pub fn new() -> Self {
        let directory = Scratch::new();
        for name in ["platform", "exchange", "signing"] {
            let mut command = Command::new(tools::program("openssl"));
            // What all firmware knows.
            command.args(["req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-sha256", "-days", "3650"]);
            command.args(["-subj", &format!("/CN=Polis test {name}/")]);
            command.arg("-keyout").arg(directory.path().join(format!("{name}.key")));
            command.arg("-out").arg(directory.path().join(format!("{name}.pem")));
            run(command);
        }
        Self { directory }
    }

    /// The private key that signs, PEM.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.directory.path().join("signing.key")
    }

    /// Its certificate, PEM.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.directory.path().join("signing.pem")
    }

    fn enrol(&self, variables: &Path) {
        let mut command = enrolment();
        command.args(["--input", VARIABLES, "--secure-boot", "--output"]).arg(variables);
        for (option, name) in [("--set-pk", "platform"), ("--add-kek", "exchange"), ("--add-db", "signing")] {
            command.args([option, OWNER]).arg(self.directory.path().join(format!("{name}.pem")));
        }
        run(command);
    }
}

impl Default for SecureBootKeys {
    fn default() -> Self {
        Self::new()
    }
}

/// The program that changes variables without starting the machine, which comes as a Python package.
fn enrolment() -> Command {
    let mut command = Command::new("python3");
    let mut paths = vec![tools::tools().join("virt-firmware")];
    paths.extend(std::env::split_paths(&std::env::var_os("PYTHONPATH").unwrap_or_default()));
    command.env("PYTHONPATH", std::env::join_paths(paths).expect("no path holds a colon"));
    command.args(["-m", "virt.firmware.vars"]);
    command
}

pub(super) fn can_enrol() -> bool {
    let mut command = enrolment();
    command.arg("--help").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn run(mut command: Command) {
    let output = command.stdin(Stdio::null()).output().expect("it can be started");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
