//! Virtual machines of tests: QEMU by software emulation, with firmware, a TPM, disks that can lose what was not flushed, and networks
//! that nobody else is in.
//!
//! What lasts from one start to the next is apart from what runs: [`Firmware`] holds the variables, [`Tpm`] the state of its chip,
//! [`Disk`] the bytes. [`Vm::builder`] takes them by reference and starts a machine, so that the same ones can be started again, or
//! together with others ("the disk in another machine").
//!
//! Emulation takes all of a processor, so one test at a time runs machines: each start needs the test's [`Turn`]. Whatever a machine
//! consists of ends with the test, however that ends. A machine that is dropped loses power, as with [`Vm::power_cut`].
//!
//! All waiting is for something on the serial console ([`Serial`]), with a deadline, and a miss shows the end of what was there. Emulated
//! machines are slow and not evenly so; [`BOOT`] is what a start may take on a loaded machine.

mod builder;
mod disk;
mod firmware;
mod fixed_network;
mod network;
mod qmp;
mod serial;
mod tools;
mod tpm;

use std::process::{Child, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use builder::{Boot, VmBuilder};
pub use disk::{Disk, Served};
pub use firmware::{Firmware, SecureBoot, SecureBootKeys};
pub use fixed_network::set_bond_with_vlan;
pub use network::VmNetwork;
pub use qmp::Qmp;
pub use serial::Serial;
pub use tools::{Need, available, find, kernel, program};
pub use tpm::Tpm;

use crate::scratch::Scratch;

/// How long a start may take, from the power button to a line of the first process: 5 to 50 s were seen on a quiet machine, depending
/// on firmware and TPM, and more than 240 s where ten others want the processor.
pub const BOOT: Duration = Duration::from_secs(420);

/// How long the end of a process may take that was killed.
const DEATH: Duration = Duration::from_secs(10);

/// The right to run machines.
#[derive(Debug)]
pub struct Turn {
    _guard: MutexGuard<'static, ()>,
}

/// Waits until no other test of this process runs machines.
#[must_use]
pub fn turn() -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed has ended its machines while it unwound.
    Turn { _guard: TURN.lock().unwrap_or_else(PoisonError::into_inner) }
}

/// A machine that runs. Dropping it cuts its power.
#[derive(Debug)]
pub struct Vm {
    name: String,
    qemu: Child,
    /// What serves its disks and its TPM, ended after it.
    helpers: Vec<Child>,
    serial: Serial,
    qmp: Qmp,
    /// Sockets of this run.
    _directory: Scratch,
}

impl Vm {
    /// Describes a machine. `name` is for messages.
    #[must_use]
    pub fn builder(name: &str) -> VmBuilder<'static> {
        VmBuilder::new(name)
    }

    /// Its first serial console.
    #[must_use]
    pub fn serial(&self) -> &Serial {
        &self.serial
    }

    /// Its control connection.
    pub fn qmp(&mut self) -> &mut Qmp {
        &mut self.qmp
    }

    /// Cuts its power: QEMU and what serves its disks are killed, and what was not flushed to a disk is lost if the disk is served so
    /// ([`Served`]).
    pub fn power_cut(mut self) {
        self.kill();
    }

    /// Presses the button of the case, and waits until it is off.
    ///
    /// # Panics
    ///
    /// When it is not off in time.
    pub fn power_off(mut self, deadline: Duration) {
        self.qmp.execute("system_powerdown");
        let status = self.wait(deadline);
        assert!(status.success(), "{}: QEMU ended with {status}", self.name);
    }

    /// Waits until it has switched itself off.
    ///
    /// # Panics
    ///
    /// When it has not in time.
    pub fn wait_for_end(mut self, deadline: Duration) -> ExitStatus {
        self.wait(deadline)
    }

    fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.qemu.try_wait().expect("a child can be waited for") {
                return status;
            }
            assert!(
                Instant::now() < end,
                "{} still runs after {deadline:?}; last on its console:\n{}",
                self.name,
                self.serial.tail()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&mut self) {
        // QEMU first, so that it cannot write to a disk that comes back. All fails only for what has ended already.
        for child in std::iter::once(&mut self.qemu).chain(&mut self.helpers) {
            let _ = child.kill();
        }
        let end = Instant::now() + DEATH;
        for child in std::iter::once(&mut self.qemu).chain(&mut self.helpers) {
            while Instant::now() < end && matches!(child.try_wait(), Ok(None)) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
    }
}
