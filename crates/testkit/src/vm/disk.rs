//! Disks of a machine.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use super::tools;
use crate::processes;
use crate::scratch::Scratch;

/// How a disk is served to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// QEMU writes to the file; all that it wrote is there after a power cut.
    Plainly,
    /// By a server with a cache in memory, which is killed with the machine: what the machine did not flush is lost at a power cut.
    LosingWhatIsNotFlushed,
}

/// A disk: a file with its bytes, sparse. It lasts as long as this.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    _directory: Scratch,
}

impl Disk {
    /// A blank one.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    #[must_use]
    pub fn blank(size: u64) -> Self {
        let directory = Scratch::new();
        let path = directory.path().join("disk.raw");
        let file = OpenOptions::new().write(true).create_new(true).open(&path).expect("a disk can be made");
        file.set_len(size).expect("a disk can be sized");
        Self { path, _directory: directory }
    }

    /// One that begins with a copy of `image` and is `size` bytes long.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    #[must_use]
    pub fn with_image(image: &Path, size: u64) -> Self {
        let directory = Scratch::new();
        let path = directory.path().join("disk.raw");
        // Holes stay holes.
        let mut copy = std::process::Command::new("cp");
        let status = copy.args(["--sparse=always", "--"]).arg(image).arg(&path).status().expect("cp can be started");
        assert!(status.success(), "{copy:?}");
        let file = OpenOptions::new().write(true).open(&path).expect("a disk can be opened");
        assert!(size >= file.metadata().expect("it has a size").len(), "the disk is smaller than the image");
        file.set_len(size).expect("a disk can be sized");
        Self { path, _directory: directory }
    }

    /// A copy, as a thief would take it.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self::with_image(&self.path, fs::metadata(&self.path).expect("the disk is there").len())
    }

    /// The file with its bytes.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts what serves it, if anything does.
    pub(super) fn serve(&self, served: Served, socket: &Path) -> Option<Child> {
        match served {
            Served::Plainly => None,
            Served::LosingWhatIsNotFlushed => {
                let mut command = processes::bound_to_test(&tools::program("nbdkit"));
                // In the foreground; a flush of the machine writes the cache to the file.
                command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket);
                command.args(["--filter=cache", "file"]).arg(&self.path).arg("cache=writeback");
                command.stdin(Stdio::null()).stdout(Stdio::null());
                Some(processes::spawn(command))
            }
        }
    }

    /// What QEMU is told of the disk of this number.
    pub(super) fn arguments(&self, served: Served, socket: &Path, number: usize) -> Vec<String> {
        let drive = match served {
            // The host does not lose power in a test, so nothing needs to reach its disk.
            Served::Plainly => format!("file={},format=raw,cache=unsafe", self.path.display()),
            Served::LosingWhatIsNotFlushed => {
                format!(
                    "file.driver=nbd,file.server.type=unix,file.server.path={},format=raw,cache=writeback",
                    socket.display()
                )
            }
        };
        // QEMU takes 0 for a kernel that it loads itself.
        let device = format!("virtio-blk-pci,drive=disk{number},bootindex={}", number + 1);
        ["-drive", &format!("{drive},if=none,id=disk{number}"), "-device", &device].map(str::to_owned).to_vec()
    }
}
