//! The machine, once it is up.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polis_condition::Severity;
use polis_logtree::{DistinguishedName, LogTree};

use crate::command_line::KernelCommandLine;
use crate::console::serial::SerialConsole;
use crate::esp::EspState;

/// The machine, once it is up. Clones are the same.
#[derive(Clone, Debug)]
pub struct Machine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    parts: Parts,
    /// Open once and for all: a watchdog that is closed may stop, or not, as it likes.
    watchdog: Mutex<Option<File>>,
    /// Number of the next record of the kernel's log that nobody has read yet.
    kernel_sequence: AtomicU64,
    /// Whether what is in memory has been kept on the disk.
    kept_log_begun: Arc<AtomicBool>,
}

/// What bringing up has come to.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) command_line: KernelCommandLine,
    pub(crate) log_tree: LogTree,
    pub(crate) consoles: Vec<SerialConsole>,
    pub(crate) esp: EspState,
    pub(crate) data_device: Option<PathBuf>,
    pub(crate) troubles: Vec<Trouble>,
}

/// Something that went wrong before there were conditions.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) name: &'static str,
    pub(crate) severity: Severity,
    pub(crate) message: String,
    pub(crate) hint: &'static str,
}

/// The name in the log of what is said while there is no tree of runnables: that of the machine's own runnable.
pub(crate) fn own_name() -> DistinguishedName {
    DistinguishedName::parse("root.machine").expect("a constant, valid name")
}

impl Machine {
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(Inner {
            parts,
            watchdog: Mutex::new(None),
            kernel_sequence: AtomicU64::new(0),
            kept_log_begun: Arc::default(),
        }))
    }

    /// The log, which has what was said so far. The node has to go on with it.
    #[must_use]
    pub fn log_tree(&self) -> &LogTree {
        &self.0.parts.log_tree
    }

    /// What the kernel command line says to us.
    #[must_use]
    pub fn command_line(&self) -> &KernelCommandLine {
        &self.0.parts.command_line
    }

    /// How the EFI system partition is there.
    #[must_use]
    pub fn esp(&self) -> &EspState {
        &self.0.parts.esp
    }

    /// The data partition of the disk that was booted from: what `--data-device` says elsewhere.
    #[must_use]
    pub fn data_device(&self) -> Option<&Path> {
        self.0.parts.data_device.as_deref()
    }

    pub(crate) fn consoles(&self) -> &[SerialConsole] {
        &self.0.parts.consoles
    }

    pub(crate) fn troubles(&self) -> &[Trouble] {
        &self.0.parts.troubles
    }

    pub(crate) fn kernel_sequence(&self) -> &AtomicU64 {
        &self.0.kernel_sequence
    }

    pub(crate) fn kept_log_begun(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0.kept_log_begun)
    }

    /// The watchdog, if it has been opened.
    pub(crate) fn watchdog(&self) -> MutexGuard<'_, Option<File>> {
        self.0.watchdog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
