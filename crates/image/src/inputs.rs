//! What an image is made from.

use std::fmt;
use std::path::PathBuf;

/// The kernel's command line, beside what is asked for. The machine's log goes to the screen and to the first serial port; a panic
/// starts the machine again after ten seconds, so that a slot on trial does not hang for ever; the processor's random numbers are
/// believed, as there is no other source so early; ciphers are not tested at each start; and the kernel does not audit, as nobody
/// asks for its records, which would go to the log and to the serial port instead.
pub const COMMAND_LINE: &str =
    "console=tty0 console=ttyS0,115200 quiet panic=10 random.trust_cpu=on cryptomgr.notests audit=0";

/// Added for virtual machines: on a busy host an emulated timer is late, and the kernel, which checks it once, would panic.
pub(crate) const VIRTUAL_MACHINE_COMMAND_LINE: &str = "no_timer_check";

/// Which drivers an image has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drivers {
    /// Those of common hardware and of virtual machines.
    #[default]
    Any,
    /// Those of virtual machines only: a smaller image that starts faster.
    VirtualMachine,
}

/// How the initramfs is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// As small as it gets with a window that the kernel takes: firmware reads and hashes each byte, and does so slowly.
    #[default]
    Zstd,
    /// Not at all, which needs no tool.
    None,
}

/// A program of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Where it is read from. Its libraries are looked for beside it, then where the system has them.
    pub source: PathBuf,
    /// Its name in `/bin`.
    pub name: String,
}

/// Key and certificate for Secure Boot.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKeys {
    /// The private key, PEM.
    pub key: PathBuf,
    /// Its certificate, PEM, which the firmware of the machines must know.
    pub certificate: PathBuf,
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SigningKeys({}, {})", self.key.display(), self.certificate.display())
    }
}

/// What an image is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInputs {
    /// Version of the Polis in it, for people.
    pub version: String,
    /// Directory that the package of a kernel was unpacked into.
    pub kernel: PathBuf,
    /// Which of its drivers are taken.
    pub drivers: Drivers,
    /// The static `polis`: the first process of the machine.
    pub polis: PathBuf,
    /// What it starts: etcd, cryptsetup, mkfs.xfs and so on.
    pub programs: Vec<Program>,
    /// Libraries that a program opens by their names while it runs, with the name of the program. One that is nowhere is left out.
    pub opened_later: Vec<(String, String)>,
    /// Looked into for libraries before the system's directories.
    pub library_directories: Vec<PathBuf>,
    /// systemd's stub (`linuxx64.efi.stub`).
    pub stub: PathBuf,
    /// systemd-boot (`systemd-bootx64.efi`).
    pub loader: PathBuf,
    /// Added to [`COMMAND_LINE`].
    pub command_line: String,
    /// How the initramfs is compressed.
    pub compression: Compression,
    /// Files for the directory `polis` of the EFI system partition: name there, and where each is read from.
    pub esp_files: Vec<(String, PathBuf)>,
    /// Signs boot loader and image, if given.
    pub signing: Option<SigningKeys>,
}
