//! What is done before anything else can work.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polis_condition::Severity;
use polis_disks::BootDiskError;
use polis_logtree::{LogTree, Logger};
use polis_supervisor::with_causes;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::system::{RebootCommand, reboot, sethostname};
use rustix::time::{ClockId, clock_gettime};

use crate::boot_disk::{self, Partitions};
use crate::clock::floor;
use crate::command_line::KernelCommandLine;
use crate::console::serial::SerialConsole;
use crate::esp::{ESP, ESP_READ_ONLY, EspState, mount_esp};
use crate::machine::{Machine, Parts, Trouble, own_name};
use crate::modules::{self, MODULES_FAILED};
use crate::mounts::{self, MountError, mount_all};
use crate::names;
use crate::standard_streams::{self, StreamsError};

/// The name of a machine that has no identity yet.
const FIRST_HOST_NAME: &str = "polis";

/// Where programs of the image are.
const ENVIRONMENT: &[(&str, &str)] = &[("PATH", "/bin:/sbin:/usr/bin:/usr/sbin"), ("HOME", "/"), ("TERM", "linux")];

/// After how many seconds the machine starts again when the kernel itself has died, unless `panic=` says it.
const KERNEL_PANIC_SECONDS: &str = "10";

/// How many files may be open at a time: more than the servers of a node have seats, and less than what memory the kernel takes
/// for them could hurt. It begins with 4096.
const OPEN_FILES: u64 = 1 << 16;

/// Which messages the kernel still writes over the consoles by itself: critical ones. All are in the log.
const KERNEL_CONSOLE_LEVEL: &str = "3";

/// Why a machine does not come up. Nothing was written to a disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BringUpError {
    /// This is no machine's first process.
    #[error("the machine cannot be brought up by process {0}: that is the work of the first process of a machine")]
    NotInit(u32),
    /// A file system of the kernel is missing.
    #[error("the machine cannot be brought up: a file system of the kernel is missing")]
    Mount(#[from] MountError),
    /// The environment cannot be set.
    #[error("the machine cannot be brought up: its environment cannot be set")]
    Environment(#[source] io::Error),
    /// The standard streams cannot be led into the log.
    #[error("the machine cannot be brought up: its standard streams cannot be led into the log")]
    Streams(#[from] StreamsError),
    /// The disk that was booted from cannot be used.
    #[error(
        "the disk that this machine was booted from cannot be used (polis.volatile on the kernel command line runs without disks)"
    )]
    BootDisk(#[from] BootDiskError),
    /// The EFI system partition cannot be mounted. Without it the node could not keep who it is.
    #[error("the EFI system partition {} cannot be mounted; nothing on it was changed", device.display())]
    Esp {
        /// The partition.
        device: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// The name by which a kernel starts the first process of a machine.
const INIT: &str = "init";

/// Whether this process is the first one of a machine. The first process of a container is one too, as far as it can see; but only
/// a kernel starts it as `init`.
#[must_use]
pub fn is_init() -> bool {
    let name = std::env::args_os().next();
    std::process::id() == 1 && name.is_some_and(|name| Path::new(&name).file_name() == Some(INIT.as_ref()))
}

/// Brings the machine up. Call it once, at the very beginning, before there is a second thread.
///
/// # Errors
///
/// See [`BringUpError`]; pass it to [`Machine::give_up`].
pub fn bring_up() -> Result<Machine, BringUpError> {
    if !is_init() {
        return Err(BringUpError::NotInit(std::process::id()));
    }
    let without = mount_all(mounts::FIRST)?;
    let first_mount = since_boot();
    polis_sys::set_environment(ENVIRONMENT).map_err(BringUpError::Environment)?;
    let command_line = KernelCommandLine::parse(&fs::read_to_string("/proc/cmdline").unwrap_or_default());
    let log_tree = LogTree::default();
    let logger = log_tree.logger(&own_name());
    let consoles = command_line.serial_consoles().filter_map(|name| SerialConsole::start(&log_tree, name)).collect();
    standard_streams::lead_into(&log_tree)?;
    logger.info(format!(
        "the machine comes up; mounted the first file system {} s after the kernel's start",
        seconds(first_mount)
    ));
    for missing in without {
        logger.warning(format!("goes on without a file system of the kernel: {missing}"));
    }
    for option in &command_line.unknown {
        logger.warning(format!("the kernel command line has {option:?}, which is no option that is known"));
    }
    settle_kernel(&logger);
    settle_process(&logger);
    let mut troubles = Vec::new();
    load_modules(&logger, &mut troubles);
    for missing in mount_all(mounts::AFTER_MODULES)? {
        logger.info(format!("goes on without a file system of the kernel: {missing}"));
    }
    names::first_files(&logger);
    let (esp, data_device) = disks(&command_line, &logger, &mut troubles)?;
    if let EspState::ReadOnly { device, reason } = &esp {
        troubles.push(Trouble {
            name: ESP_READ_ONLY,
            severity: Severity::Error,
            message: format!("the EFI system partition {} can only be read: {reason}", device.display()),
            hint: "nothing that the node must keep over a restart can be written; check the disk, and whether it is write-protected",
        });
    }
    floor::raise_clock(&esp, &logger);
    logger.info(format!("the machine is up {} s after the kernel's start", seconds(since_boot())));
    Ok(Machine::new(Parts { command_line, log_tree, consoles, esp, data_device, troubles }))
}

/// Time since the kernel has started.
pub(crate) fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither is ever negative.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn seconds(duration: Duration) -> String {
    format!("{:.3}", duration.as_secs_f64())
}

/// Settings of the kernel that must hold whatever happens next. Each may be missing in some kernel.
fn settle_kernel(logger: &Logger) {
    // The keys Ctrl-Alt-Del become a signal to us instead of a restart at once.
    if let Err(error) = reboot(RebootCommand::CadOff) {
        logger.warning(format!("Ctrl-Alt-Del restarts this machine at once: {error}"));
    }
    if let Err(error) = sethostname(FIRST_HOST_NAME.as_bytes()) {
        logger.warning(format!("the host name cannot be set: {error}"));
    }
    if fs::read_to_string("/proc/sys/kernel/panic").is_ok_and(|seconds| seconds.trim() == "0") {
        set(logger, "/proc/sys/kernel/panic", KERNEL_PANIC_SECONDS);
    }
    set(logger, "/proc/sys/kernel/printk", KERNEL_CONSOLE_LEVEL);
}

/// What this process, and with it all others, may do.
fn settle_process(logger: &Logger) {
    let limit = Rlimit { current: Some(OPEN_FILES), maximum: Some(OPEN_FILES) };
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        logger.warning(format!("no more files can be open at a time than the kernel begins with: {error}"));
    }
}

#[expect(clippy::disallowed_methods, reason = "a setting of the kernel is no file: it is set by one write")]
fn set(logger: &Logger, path: &str, value: &str) {
    if let Err(error) = fs::write(path, value) {
        logger.warning(format!("cannot set {path} to {value}: {error}"));
    }
}

fn load_modules(logger: &Logger, troubles: &mut Vec<Trouble>) {
    let modules::Loaded { loaded, left_out, failures } = modules::load_all();
    logger.info(format!("loaded {loaded} kernel modules, left out {left_out} that are there or whose hardware is not"));
    for failure in &failures {
        logger.error(format!("cannot load a kernel module: {failure}"));
    }
    if !failures.is_empty() {
        troubles.push(Trouble {
            name: MODULES_FAILED,
            severity: Severity::Error,
            message: format!("modules of the kernel cannot be loaded: {}", failures.join("; ")),
            hint: "the image is not whole, or is not for this kernel: install it again, or another one",
        });
    }
}

/// Finds the boot disk and mounts its EFI system partition. Returns the data partition.
fn disks(
    command_line: &KernelCommandLine,
    logger: &Logger,
    troubles: &mut Vec<Trouble>,
) -> Result<(EspState, Option<PathBuf>), BringUpError> {
    if command_line.volatile {
        logger.warning("runs without disks, as the kernel command line says: all is gone when this machine ends");
        return Ok((EspState::Volatile, None));
    }
    let Partitions { esp: device, data } = boot_disk::find(logger, troubles)?;
    let esp = mount_esp(&device).map_err(|source| BringUpError::Esp { device: device.clone(), source })?;
    logger.info(format!("{} is at {ESP}, data are on {}", device.display(), data.display()));
    Ok((esp, Some(data)))
}

impl BringUpError {
    /// The error with all its causes, in one line.
    #[must_use]
    pub fn explained(&self) -> String {
        with_causes(self)
    }
}
