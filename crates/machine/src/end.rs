//! The end of a machine: in order where that is possible, and in any case within a bounded time.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use polis_supervisor::with_causes;
use rustix::fs::sync;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};
use rustix::system::{RebootCommand, reboot};

use crate::bring_up::{BringUpError, since_boot};
use crate::console::{say_on, say_on_screen};
use crate::failures::{self, HOLD};
use crate::machine::Machine;
use crate::mounts::{Mounted, is_on_disk, parse_mountinfo};
use crate::pause::pause;
use crate::{ESP, efi, is_init, watchdog};

/// How long a mount may stay busy. Processes that were killed take a moment to let go of their files.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(5);

/// How often unmounting is tried until then, and how often the watchdog is fed while the machine is held.
const STEP: Duration = Duration::from_millis(50);

/// How long the consoles get to write what is in the log. A serial line takes about 10,000 characters a second.
const CONSOLE_DEADLINE: Duration = Duration::from_secs(1);

/// Clears a screen, so that what is said stands alone.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// How a machine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It starts again, through its firmware.
    Restart,
    /// It starts again and stops in the menu of its firmware.
    FirmwareMenu,
    /// The kernel that was loaded for it takes over, without the firmware; a restart if none was loaded.
    LoadedKernel,
    /// It is switched off.
    PowerOff,
}

/// One step of the end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// All processes but this one are killed.
    KillOthers,
    /// This directory is unmounted.
    Unmount(PathBuf),
    /// What lies between file systems and disks is closed: mappings of encrypted partitions.
    CloseMappings,
    /// Buffers are written.
    Flush,
}

/// The steps of the end of a machine on which this is mounted. The EFI system partition is last: it has the journal, and who
/// closes mappings may still want to say something there.
fn plan(mounted: &[Mounted]) -> Vec<Step> {
    let on_disk = mounted.iter().rev().filter(|mounted| is_on_disk(mounted)).map(|mounted| mounted.target.clone());
    let (esp, others): (Vec<_>, Vec<_>) = on_disk.partition(|target| target.starts_with(ESP));
    let mut steps = vec![Step::KillOthers, Step::Flush];
    steps.extend(others.into_iter().map(Step::Unmount));
    steps.push(Step::CloseMappings);
    steps.extend(esp.into_iter().map(Step::Unmount));
    steps.push(Step::Flush);
    steps
}

impl Machine {
    /// Ends the machine. The supervisor has stopped by now, and with it all that writes. `failure` is why the node has failed, if
    /// it has: then it is told on the consoles, and the machine is held before it ends, the longer the more often that has happened
    /// in a row ([`HOLD`], [`LONGEST_HOLD`](crate::LONGEST_HOLD)). `close_mappings` is called once nothing is mounted any more but the EFI system partition, and returns what went wrong.
    pub fn end(&self, how: How, failure: Option<&str>, close_mappings: impl FnOnce() -> Result<(), String>) -> ! {
        self.write_out();
        let failed = failure.map(|failure| (failure, self.count_failure(failure)));
        if failed.is_none()
            && let Err(error) = failures::forget(self.esp())
        {
            self.say(&with_causes(&error));
        }
        let mut close_mappings = Some(close_mappings);
        let mounted = parse_mountinfo(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
        for step in plan(&mounted) {
            self.feed_watchdog();
            let done = match &step {
                Step::KillOthers => polis_sys::kill_all_others().map_err(|error| error.to_string()),
                Step::Unmount(target) => take_down(target),
                Step::CloseMappings => close_mappings.take().map_or(Ok(()), |close| close()),
                Step::Flush => {
                    sync();
                    Ok(())
                }
            };
            if let Err(reason) = done {
                self.say(&format!("{}: {reason}", describe(&step)));
            }
        }
        if let Some((failure, failures)) = failed {
            let hold = failures::hold(failures);
            say_on_screen(CLEAR);
            self.say(&format!("this node has failed: {failure}"));
            if failures > 1 {
                self.say(&format!("that was the failure number {failures} in a row, each soon after a start"));
            }
            self.say(&format!("the machine starts again in {} s, or at once with Ctrl-Alt-Del", hold.as_secs()));
            // Everything is unmounted, so those keys may do what a kernel does with them by itself.
            let _ = reboot(RebootCommand::CadOn);
            self.hold(hold);
        }
        self.leave(how)
    }

    /// Counts a failure, and leaves it where the next start finds it. Returns how many there are in a row.
    fn count_failure(&self, failure: &str) -> u32 {
        leave_in_crash_store(failure);
        let (failures, counted) = failures::count(self.esp(), since_boot());
        if let Err(error) = counted {
            self.say(&format!("this failure cannot be counted: {}", with_causes(&error)));
        }
        failures
    }

    /// Ends a machine that did not come up: tells why on whatever console there is, holds for [`HOLD`], and starts it again.
    pub fn give_up(error: &BringUpError) -> ! {
        let text = format!("polis: {}\npolis: the machine starts again in {} s\n", error.explained(), HOLD.as_secs());
        // The streams lead into the log, if they lead anywhere; the console is what a person sees.
        say_on("console", &text);
        say_on_screen(&text);
        leave_in_crash_store(&text);
        pause(HOLD);
        sync();
        if is_init() {
            let _ = reboot(RebootCommand::Restart);
        }
        loop {
            pause(HOLD);
        }
    }

    /// Tells people at this machine something, whether or not anything else still works.
    fn say(&self, text: &str) {
        for line in text.lines() {
            let line = format!("polis: {line}\n");
            self.consoles().iter().for_each(|console| say_on(console.device(), &line));
            say_on_screen(&line);
            say_to_kernel(&line);
        }
    }

    fn hold(&self, long: Duration) {
        let start = Instant::now();
        while start.elapsed() < long {
            self.feed_watchdog();
            pause(Duration::from_secs(1));
        }
    }

    /// Gives the consoles time to write what was logged last.
    fn write_out(&self) {
        let start = Instant::now();
        while start.elapsed() < CONSOLE_DEADLINE && !self.consoles().iter().all(|console| console.has_written_all()) {
            self.feed_watchdog();
            pause(STEP);
        }
    }

    fn feed_watchdog(&self) {
        if let Some(device) = &mut *self.watchdog() {
            // One that cannot be fed will reset the machine, which is what happens next anyway.
            let _ = watchdog::feed(device);
        }
    }

    fn leave(&self, how: How) -> ! {
        let command = match how {
            How::Restart => RebootCommand::Restart,
            How::FirmwareMenu => {
                if let Err(error) = efi::ask_for_menu() {
                    self.say(&with_causes(&error));
                }
                RebootCommand::Restart
            }
            How::LoadedKernel if is_kernel_loaded() => RebootCommand::Kexec,
            How::LoadedKernel => {
                self.say("no kernel is loaded to take over; goes through the firmware instead");
                RebootCommand::Restart
            }
            How::PowerOff => RebootCommand::PowerOff,
        };
        if let Some(device) = self.watchdog().take() {
            watchdog::stop(device);
        }
        self.say(match how {
            How::Restart | How::FirmwareMenu | How::LoadedKernel => "starts again",
            How::PowerOff => "switches off",
        });
        let refused = reboot(command);
        // Power off may be refused by a machine that cannot; a restart never is.
        self.say(&format!("the kernel does not do that: {:?}; starts again", refused.err()));
        loop {
            let _ = reboot(RebootCommand::Restart);
            pause(HOLD);
        }
    }
}

fn describe(step: &Step) -> String {
    match step {
        Step::KillOthers => "cannot end the processes that are left".into(),
        Step::Unmount(target) => format!("cannot unmount {}", target.display()),
        Step::CloseMappings => "cannot close the mappings of disks".into(),
        Step::Flush => "cannot flush".into(),
    }
}

/// Unmounts; what stays busy is made read only, so that it is whole on the disk.
fn take_down(target: &PathBuf) -> Result<(), String> {
    let start = Instant::now();
    loop {
        match unmount(target, UnmountFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) if start.elapsed() < UNMOUNT_DEADLINE => pause(STEP),
            // Unmounted by somebody else meanwhile.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => {
                let read_only = mount_remount(target, MountFlags::RDONLY, c"");
                return Err(match read_only {
                    Ok(()) => format!("{error}; it was made read only instead"),
                    Err(second) => format!("{error}, and it cannot be made read only: {second}"),
                });
            }
        }
    }
}

fn is_kernel_loaded() -> bool {
    fs::read_to_string("/sys/kernel/kexec_loaded").is_ok_and(|text| text.trim() == "1")
}

/// Into the log of the kernel, which may survive.
fn say_to_kernel(line: &str) {
    let _ = fs::OpenOptions::new().write(true).open("/dev/kmsg").and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Into the memory that survives a restart, if this machine has such (pstore's frontend for messages of programs).
fn leave_in_crash_store(text: &str) {
    let written: io::Result<()> =
        fs::OpenOptions::new().write(true).open("/dev/pmsg0").and_then(|mut file| file.write_all(text.as_bytes()));
    // Most machines have none.
    drop(written);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(target: &str, kind: &str, source: &str) -> Mounted {
        Mounted { target: target.into(), kind: kind.into(), source: source.into() }
    }

    #[test]
    fn the_last_mounted_goes_first_and_the_esp_goes_last() {
        let unmount = |target: &str| Step::Unmount(target.into());
        let kernel = [
            mounted("/", "rootfs", "rootfs"),
            mounted("/proc", "proc", "proc"),
            mounted("/dev", "devtmpfs", "devtmpfs"),
        ];
        let esp = mounted("/esp", "vfat", "/dev/vda1");
        let data = mounted("/data", "xfs", "/dev/mapper/polis-data");
        let inner = mounted("/data/inner", "fuse.gocryptfs", "/encrypted");
        for (disks, expected) in [
            (vec![], vec![Step::KillOthers, Step::Flush, Step::CloseMappings, Step::Flush]),
            (vec![esp.clone()], vec![Step::KillOthers, Step::Flush, Step::CloseMappings, unmount("/esp"), Step::Flush]),
            (
                vec![esp, data, inner],
                vec![
                    Step::KillOthers,
                    Step::Flush,
                    unmount("/data/inner"),
                    unmount("/data"),
                    Step::CloseMappings,
                    unmount("/esp"),
                    Step::Flush,
                ],
            ),
        ] {
            assert_eq!(plan(&[kernel.to_vec(), disks].concat()), expected);
        }
    }
}
