//! The watchdog: a device that resets the machine unless it is fed.
//!
//! It is fed by a runnable, which runs only while the runtime does, and only after the supervisor has answered. Whatever hangs, the
//! kernel, the runtime or the supervisor's loop, the machine starts again.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::time::Duration;

use polis_supervisor::{Context, RunnableResult};
use polis_sys::hardware::set_watchdog_timeout;
use tokio::time::sleep;

use crate::machine::Machine;

/// Where watchdogs are, the first that is there.
const DEVICES: [&str; 2] = ["/dev/watchdog0", "/dev/watchdog"];

/// After how many seconds without food the machine is reset. A machine that is merely slow, as one that is emulated or that swaps,
/// must not be taken for one that hangs.
const TIMEOUT_SECONDS: u32 = 60;

/// How often it is fed: several times within the shortest timeout that devices make of ours (about 16 s).
const INTERVAL: Duration = Duration::from_secs(5);

/// What a watchdog reads as: I stop on purpose, do not reset the machine.
const STOP: &[u8] = b"V";

/// Feeds the watchdog while the supervisor answers: a runnable. When it ends, the watchdog goes on and the machine has the timeout
/// to end in order.
pub(crate) async fn keep_fed(context: Context, machine: Machine) -> RunnableResult {
    let opened = machine.watchdog().is_some();
    if !opened && let Some((device, path)) = open() {
        match set_watchdog_timeout(&device, TIMEOUT_SECONDS) {
            Ok(seconds) => tracing::info!("the watchdog {path} resets this machine if it hangs for {seconds} s"),
            Err(error) => tracing::warn!("the watchdog {path} keeps the timeout that it has: {error}"),
        }
        *machine.watchdog() = Some(device);
    }
    context.healthy();
    if machine.watchdog().is_none() {
        tracing::info!("this machine has no watchdog: if it hangs, somebody has to reset it");
        return Err(context.cancelled().await.into());
    }
    let observer = context.observer();
    loop {
        // Asking takes the supervisor's lock: while somebody holds it for ever, this is the last that is heard of us.
        if !observer.dump().is_empty()
            && let Some(device) = &mut *machine.watchdog()
        {
            feed(device)?;
        }
        context.unless_cancelled(sleep(INTERVAL)).await?;
    }
}

fn open() -> Option<(File, &'static str)> {
    DEVICES.into_iter().find_map(|path| OpenOptions::new().write(true).open(path).ok().map(|device| (device, path)))
}

/// Feeds it.
pub(crate) fn feed(device: &mut File) -> io::Result<()> {
    // Anything but the letter of STOP does.
    device.write_all(b"\0")
}

/// Stops it, if it can be stopped.
pub(crate) fn stop(mut device: File) {
    // One that cannot be stopped resets a machine that is going down anyway.
    let _ = device.write_all(STOP);
}
