//! The programs that machines need, and what a test does without them.

use std::path::{Path, PathBuf};

/// The line that brings all of it.
const BROUGHT_BY: &str = "scripts/setup vm";

/// Environment variable with which machines are asked for: they take too long to be part of every run.
const ASKED_FOR: &str = "POLIS_TEST_MACHINES";

/// Something a test of machines needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// To run machines at all.
    Qemu,
    /// To start them by UEFI.
    Firmware,
    /// To make keys and enrol them.
    SecureBoot,
    /// To give them a TPM.
    Tpm,
    /// To serve disks that lose what was not flushed.
    LossyDisk,
    /// To put them into a network.
    Network,
    /// A kernel, unpacked, in `target/tools/kernel` or where `POLIS_KERNEL` says.
    Kernel,
    /// To look at images with the tools of others.
    DiskTools,
    /// A static shell and its commands, for machines that run something smaller than Polis.
    Busybox,
}

impl Need {
    /// What of it is not here.
    fn missing(self) -> Option<String> {
        let program = |name: &str| find(name).is_none().then(|| format!("the program {name}"));
        let file = |path: &str| (!Path::new(path).is_file()).then(|| format!("the file {path}"));
        match self {
            Self::Qemu => program("qemu-system-x86_64"),
            Self::Firmware => file(super::firmware::CODE).or_else(|| file(super::firmware::VARIABLES)),
            Self::SecureBoot => program("openssl")
                .or_else(|| program("sbsign"))
                .or_else(|| file(super::firmware::SECURE_CODE))
                .or_else(|| (!super::firmware::can_enrol()).then(|| "the Python package virt-firmware".to_owned())),
            Self::Tpm => program("swtpm"),
            Self::LossyDisk => program("nbdkit"),
            Self::Network if !rustix::process::geteuid().is_root() => Some("root, to make a network".to_owned()),
            Self::Network => program("ip").or_else(|| program("nft")).or_else(|| program("dnsmasq")),
            Self::Kernel => (!kernel().join("boot").is_dir()).then(|| format!("a kernel in {}", kernel().display())),
            Self::DiskTools => ["sgdisk", "fsck.vfat", "mdir", "objdump"].into_iter().find_map(program),
            Self::Busybox => program("busybox"),
        }
    }
}

/// Whether all of it is here. When not, it says what is missing, and the test is to return; where nothing may be skipped (`CI` is set),
/// it panics instead.
///
/// # Panics
///
/// When the environment variable `CI` is set and something is missing.
#[must_use]
pub fn available(needs: &[Need]) -> bool {
    if std::env::var_os(ASKED_FOR).is_none() {
        eprintln!("skipped: it starts machines, which takes long: scripts/test-vm runs it");
        return false;
    }
    let missing: Vec<String> = needs.iter().filter_map(|need| need.missing()).collect();
    if missing.is_empty() {
        return true;
    }
    let missing = missing.join(", ");
    assert!(
        std::env::var_os("CI").is_none(),
        "nothing is skipped where CI is set, but this test needs {missing}: {BROUGHT_BY}"
    );
    eprintln!("skipped: it needs {missing}: {BROUGHT_BY}");
    false
}

/// The directory that the package of a kernel was unpacked into.
#[must_use]
pub fn kernel() -> PathBuf {
    std::env::var_os("POLIS_KERNEL").map_or_else(|| tools().join("kernel"), PathBuf::from)
}

/// Where `scripts/setup` puts what it brings.
pub(super) fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools")
}

/// Where a program is: in `PATH`, or where Debian has what only root calls.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&search).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.map(|place| place.join(name)).find(|path| path.is_file())
}

/// As [`find`], for what was asked for with [`available`].
///
/// # Panics
///
/// When it is not there.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| panic!("there is no {name}; bring it with: {BROUGHT_BY}"))
}
