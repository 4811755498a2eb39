//! Small images for tests.

use std::path::{Path, PathBuf};

use polis_image::{Built, Compression, Drivers, ImageInputs, ImagePlan, Program, SigningKeys};
use polis_testkit::scratch::Scratch;
use polis_testkit::vm::{self, Need, SecureBootKeys};

/// What every machine of these tests needs.
pub(crate) const NEEDS: &[Need] = &[Need::Qemu, Need::Firmware, Need::Kernel, Need::Busybox, Need::DiskTools];

/// Loads the modules as the first process does, and says how each went that did not load.
pub(crate) const LOAD: &str = "while read module rest; do insmod $module $rest 2>/tmp/said || { read said </tmp/said; echo NOT-LOADED $said; }; \
                    done </lib/modules.list; echo MODULES-DONE";

/// Runs a line of a shell as the first process, with the kernel's file systems mounted. No double quotes in it: the kernel's command
/// line has them around the line.
pub(crate) fn command_line(line: &str) -> String {
    format!(
        "rdinit=/bin/busybox -- sh -c \"export PATH=/bin; busybox mount -t proc proc /proc; busybox --install /bin; \
         mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev; {line}\""
    )
}

/// An image of a disk, and of kernel and system alone.
pub(crate) struct Made {
    pub(crate) disk: PathBuf,
    pub(crate) image: PathBuf,
    pub(crate) built: Built,
    _directory: Scratch,
}

/// Makes an image whose first process runs `line`.
pub(crate) fn made(line: &str, keys: Option<&SecureBootKeys>) -> Made {
    let directory = Scratch::new();
    let (disk, image) = (directory.path().join("disk.raw"), directory.path().join("image.efi"));
    let built = plan(line, keys).build(&disk, Some(&image), false).unwrap();
    Made { disk, image, built, _directory: directory }
}

pub(crate) fn plan(line: &str, keys: Option<&SecureBootKeys>) -> ImagePlan {
    let busybox = vm::program("busybox");
    ImagePlan::prepare(&ImageInputs {
        version: "0.0.0-test".to_owned(),
        kernel: vm::kernel(),
        drivers: Drivers::VirtualMachine,
        polis: busybox.clone(),
        programs: vec![
            Program { name: "busybox".to_owned(), source: busybox },
            Program { name: "cryptsetup".to_owned(), source: vm::program("cryptsetup") },
        ],
        opened_later: Vec::new(),
        library_directories: Vec::new(),
        stub: "/usr/lib/systemd/boot/efi/linuxx64.efi.stub".into(),
        loader: "/usr/lib/systemd/boot/efi/systemd-bootx64.efi".into(),
        command_line: command_line(line),
        // Nothing is measured here, and compressing takes longer than starting.
        compression: Compression::None,
        esp_files: Vec::new(),
        signing: keys.map(|keys| SigningKeys { key: keys.key(), certificate: keys.certificate() }),
    })
    .unwrap()
}

/// Runs a program, which must succeed, and gives its output.
pub(crate) fn output(program: &str, arguments: &[&str], path: &Path) -> String {
    let mut command = std::process::Command::new(vm::program(program));
    let output = command.args(arguments).arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}
