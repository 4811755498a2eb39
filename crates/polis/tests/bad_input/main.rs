//! Bad input: a clear error, and nothing lost. Each test runs the real binary, checks that the message says what failed, where,
//! why and what to do, and that every file is as it was; and where the node stays up, that it goes on when the fault is cured.
//!
//! | row | tests |
//! |---|---|
//! | parameters | `parameters`, and `../parameters_files.rs` for those made by another implementation |
//! | root that is a file, read-only, of another user, in use | `root` |
//! | etcd missing, of a wrong version | `etcd` |
//! | journal, data directory, credentials; a removal | `disk` |
//! | address not on this machine, a port that is taken | `network` |
//! | etcd dying at start or hanging | `etcd` |
//! | one generation torn, disk full, write permission lost | `healing`, `space`, `permission` |
//! | standard error that nobody reads; clients that stay | `output`, `clients` |

#![forbid(unsafe_code)]

mod clients;
mod disk;
mod etcd;
mod healing;
mod network;
mod output;
mod parameters;
mod permission;
mod root;
mod space;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use polis_control::{LAST_STATE_FILE, NodeState};
use polis_testkit::checks::{self, OnDisk};
use polis_testkit::host::PATIENCE;
use polis_testkit::scripted::ScriptedEtcd;
use polis_testkit::{Host, NodeProcess, etcd as etcd_for_tests, processes};

/// A place for a node, and good parameters.
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

    /// A place with a node that has run and was stopped.
    fn enrolled() -> Self {
        let place = Self::new();
        let mut node = place.host.start(&place.parameters);
        node.wait_state(NodeState::Running);
        assert!(node.stop().success());
        place
    }

    fn root(&self) -> PathBuf {
        self.host.root()
    }

    /// The node's command, with everything as it should be.
    fn command(&self) -> Command {
        let mut command = self.host.command();
        command.arg("--parameters").arg(&self.parameters);
        command
    }

    /// The node's command with another etcd.
    fn command_with(&self, etcd: &ScriptedEtcd) -> Command {
        let mut command = self.host.command_with_etcd(etcd.path());
        command.arg("--parameters").arg(&self.parameters);
        command
    }

    /// The node's command with another root.
    fn command_at(&self, root: &Path) -> Command {
        let mut command = processes::bound_to_test(&self.host.binary);
        command.args(["node", "run", "--root"]).arg(root).arg("--address").arg(self.host.ip().to_string());
        command.arg("--etcd").arg(etcd_for_tests::binary()).arg("--parameters").arg(&self.parameters);
        command
    }

    /// Waits until the node runs and nothing is wrong any more, checks it, stops it, and checks that nothing is left.
    fn runs_well(&self, mut node: NodeProcess, before: &OnDisk) {
        let status = node.wait_running();
        checks::running(&self.root(), &status, before);
        assert!(node.stop().success());
        checks::stopped(&self.host);
    }
}

/// Waits until the last state says this; a node writes it beside everything else.
fn wait_last_state(node: &NodeProcess, root: &Path, text: &str) {
    let patience = Instant::now() + PATIENCE;
    while !fs::read_to_string(root.join(LAST_STATE_FILE)).is_ok_and(|last| last.contains(text)) {
        assert!(Instant::now() < patience, "the last state does not say {text}: {}", node.log());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Ends the etcd of the node with this root, as the kernel does when memory is short.
fn kill_etcd(root: &Path) {
    let mut processes = processes::in_directory(root).into_iter();
    let etcd = processes.find(|process| process.command.contains(" --data-dir")).expect("the node has an etcd");
    let id = i32::try_from(etcd.id).ok().and_then(rustix::process::Pid::from_raw).expect("it has an id");
    rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("it can be ended");
}
