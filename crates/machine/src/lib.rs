//! What Polis does when it is the first process of a machine of its own: the kernel has started it from an initramfs that holds
//! it, etcd, a few tools and kernel modules, and there is nobody else.
//!
//! ```text
//! kernel -> polis (process 1) -> bring_up() -> Machine -> the node, with Machine::runnable() in its tree -> Machine::end()
//! ```
//!
//! - [`bring_up`] does what must be done before anything else can work, in order and on one thread: the file systems of the
//!   kernel, the environment, modules, the boot disk and its EFI system partition at [`ESP`], consoles, the standard streams into
//!   the log, the clock not before the last known time.
//! - [`Machine::runnable`] is what goes on beside the node, under its supervisor: reaping orphans, the log of the kernel, records
//!   of the last crash, the watchdog, the power button, time from the network, names and resolver, the log on the disk, the console.
//! - [`Machine::end`] is the orderly end: what is mounted is unmounted, buffers are flushed, and the machine starts again or is
//!   switched off. A machine whose node failed is held for [`HOLD`], so that a person can read why, and each further time in a row
//!   for longer, up to [`LONGEST_HOLD`].
//!
//! # What the image must hold
//!
//! This program as `/init`, etcd in `/bin`, `/dev/console`, and [`MODULE_LIST`]: one module a line, in the order in which they are
//! loaded, an absolute path and after it its parameters, if any; `#` begins a comment. Modules are loaded by this list only, as
//! nothing in the image resolves dependencies. That the hardware of a module is missing is no error; that a symbol is missing is
//! one (the order is wrong), and is told as the condition [`MODULES_FAILED`].
//!
//! # The kernel command line
//!
//! Only these are ours; all others are the kernel's. See [`KernelCommandLine`].
//!
//! | option | meaning |
//! |---|---|
//! | `polis.time-server=HOST` | a server of time, beside those that the network names; may be there several times |
//! | `polis.boot-entry=NAME` | by which entry of the boot loader this kernel was started, where another kernel has started it |
//! | `polis.volatile` | without disks: everything is in memory and gone at the end. For trying and for tests |
//! | `console=NAME` | the kernel's own: each serial one gets the log as well |
//!
//! This crate knows nothing of clusters and of what a node does: it is given values to follow ([`Inputs`]).

#![forbid(unsafe_code)]

mod boot_disk;
mod bring_up;
mod clock;
mod command_line;
mod console;
mod crash_records;
mod efi;
mod end;
mod esp;
mod failures;
mod inputs;
mod kept_log;
mod kernel_log;
mod machine;
mod modules;
mod mounts;
mod names;
mod orphans;
mod pause;
mod power_button;
mod runnables;
mod standard_streams;
mod watchdog;

pub use boot_disk::DATA_DOES_NOT_GROW;
pub use bring_up::{BringUpError, bring_up, is_init};
pub use clock::{CLOCK_NOT_SYNCHRONIZED, TIME_SERVERS_DISAGREE, TIME_TOO_EARLY};
pub use command_line::KernelCommandLine;
pub use console::{Overview, status_page};
pub use efi::has_firmware_menu;
pub use end::How;
pub use esp::{ESP, ESP_READ_ONLY, EspState};
pub use failures::{HOLD, LONGEST_HOLD};
pub use inputs::{Inputs, Names};
pub use kept_log::{KeptEntry, KeptLog, LOG_BYTES, LOG_NOT_KEPT, SEGMENT_BYTES, read as read_kept_log};
pub use machine::Machine;
pub use modules::{MODULE_LIST, MODULES_FAILED};
