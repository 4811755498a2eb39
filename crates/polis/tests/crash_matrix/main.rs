//! The crash matrix: a node that is killed at any point of a start comes back as the same node, with everything that was
//! acknowledged. See `tables` for the points.
//!
//! `POLIS_SOAK=1` asks for the full count of random kills, `POLIS_SEED` repeats those of an earlier run.

#![cfg(feature = "fault-points")]
#![forbid(unsafe_code)]

mod matrix;
mod points;
mod prepared;
mod random;
mod recorded;
mod tables;
mod traced;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use points::Start;
use polis_testkit::{Host, NodeProcess};

/// SIGKILL.
const KILLED: Option<i32> = Some(9);

/// A place for a node, and parameters for a cluster of its own.
struct Place {
    host: Host,
    parameters: PathBuf,
}

impl Place {
    fn new() -> Self {
        let host = Host::new(env!("CARGO_BIN_EXE_polis"));
        let parameters = host.bootstrap_parameters();
        Self { host, parameters }
    }

    fn root(&self) -> PathBuf {
        self.host.root()
    }

    /// The log of fault points, which a test empties before each start whose points it wants to know.
    fn fault_log(&self) -> PathBuf {
        self.host.directory().join("fault-points")
    }

    /// Points passed since the log was emptied.
    fn passed(&self) -> Vec<String> {
        read_lines(&self.fault_log())
    }

    /// Waits until a start whose points are logged has come to rest.
    fn wait_rest(&self, node: &mut NodeProcess, start: &Start) {
        let ended = node.wait_exit_or("rest", || start.is_at_rest(&self.passed()));
        assert_eq!(ended, None, "the node ended: {}", node.log());
    }

    /// A start whose points are logged.
    fn logged(&self, mut command: Command) -> Command {
        let log = self.fault_log();
        fs::write(&log, "").expect("the log of fault points can be emptied");
        command.arg("--parameters").arg(&self.parameters).env("POLIS_FAULT_LOG", log);
        command
    }
}

fn read_lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn was_killed(status: ExitStatus) -> bool {
    status.signal() == KILLED
}
