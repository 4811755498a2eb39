//! What the system does with the memory of this process, in which the keys of the node and of its cluster are.
//!
//! - Nobody reads it: the process is not dumpable, so a process of the same user can neither trace it nor open its memory, and
//!   there is no image of it after a crash ([`crate::core_files`] forbids that a second time, and for etcd too).
//! - It is not written to swap: all of it is locked, where that is safe ([`lock`]). Where it is not, and because etcd's memory is
//!   never locked, a condition tells of swap that is on and not encrypted ([`keep_watch`]).
//! - What was in use is wiped before it is used for something else, by the allocator of the program (`polis_sys`).
//!
//! The files of `/proc/self` belong to root while a process is not dumpable. A process may still look at itself, as the kernel
//! compares processes before it looks at owners; but what was forked and not yet executed is another process, so the spawner of
//! `polis_sys` writes to the files of a child from outside.

mod swap;

use std::fs;
use std::io;
use std::time::Duration;

use polis_condition::Severity;
use polis_supervisor::{Context, RunnableResult};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use swap::Places;

/// Name of the condition that memory may be written to a disk in the clear.
const SWAP_UNENCRYPTED: &str = "swap-unencrypted";

/// How often it is looked whether somebody has switched swap on.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// What was done for the memory of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protection {
    /// All memory stays in memory.
    locked: bool,
    /// The process that traces this one, if there is one.
    tracer: Option<u32>,
}

/// Protects the memory of this process as far as that is possible. To be called before there are keys in it.
pub(crate) fn protect() -> Protection {
    let tracer = fs::read_to_string("/proc/self/status").ok().and_then(|status| tracer(&status));
    // Who traces a process from its beginning is its master anyway. To hide its memory would only blind a debugger.
    if tracer.is_none() {
        // It can only fail for a behaviour that does not exist.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
    Protection { locked: lock().is_ok(), tracer }
}

/// Locks all memory, now and later, each page from its first use on: nothing is used up that would not be used anyway.
///
/// The system counts what *could* be used against the limit of locked memory, so a process that has locked all with a limit is refused
/// its next allocation, and dies of it. Therefore this locks only where no limit counts: where the limit can be lifted, or with the
/// privilege CAP_IPC_LOCK, and both are found out by trying, as in a container the privilege may be there in name only.
fn lock() -> io::Result<()> {
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    let before = getrlimit(Resource::Memlock);
    if setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None }).is_ok() {
        return Ok(mlockall(flags)?);
    }
    // With a limit of nothing the system lets only those lock whom no limit binds.
    setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: before.maximum })?;
    let locked = mlockall(flags);
    setrlimit(Resource::Memlock, before)?;
    Ok(locked?)
}

/// The process that traces the one whose `/proc/PID/status` this is.
fn tracer(status: &str) -> Option<u32> {
    let process = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()?;
    (process != 0).then_some(process)
}

/// Tells of memory that may be written to a disk in the clear, for as long as that is so: a runnable.
pub(crate) async fn keep_watch(context: Context, protection: Protection) -> RunnableResult {
    if let Some(process) = protection.tracer {
        tracing::warn!("process {process} traces this node, and may read the keys in its memory");
    }
    if !protection.locked {
        tracing::info!("the memory of this node is not locked, as this process may not do that without a limit");
    }
    context.healthy();
    loop {
        let areas = swap::unencrypted(&Places::default());
        if areas.is_empty() {
            context.conditions().clear(SWAP_UNENCRYPTED);
        } else {
            context.conditions().raise(SWAP_UNENCRYPTED, Severity::Warning, message(&areas, protection.locked), HINT);
        }
        context.unless_cancelled(tokio::time::sleep(LOOK_EVERY)).await?;
    }
}

const HINT: &str =
    "switch it off (swapoff), or encrypt it: a random key at each start is enough (crypttab(5), option swap)";

fn message(areas: &[String], locked: bool) -> String {
    let whose = if locked {
        "the memory of etcd, in which the unlock keys of all nodes and the certificates' keys are"
    } else {
        "the memory of this node and of its etcd, in which the keys of the node and of its cluster are, and which cannot be locked"
    };
    format!(
        "swap is on that is not known to be encrypted ({}), so {whose}, may be written to a disk in the clear",
        areas.join(", ")
    )
}

#[cfg(test)]
mod tests;
