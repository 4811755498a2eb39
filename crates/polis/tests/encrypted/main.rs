//! Nodes whose data are encrypted by gocryptfs: nothing of it can be read or forged on the disk, whatever happens to the process
//! behind it, and every mistake with keys, mounts and directories is an error that destroys nothing.
//!
//! These run on encrypted data whatever the other suites are run for.

#![forbid(unsafe_code)]

mod host;
mod keys;
mod mount;
mod privacy;

use std::path::PathBuf;
use std::process::Command;

use polis_testkit::checks::{self, OnDisk};
use polis_testkit::{Host, NodeProcess, StorageSecurity};

/// A place for a node, and parameters for a cluster of its own on encrypted data.
struct Place {
    host: Host,
    parameters: PathBuf,
}

impl Place {
    fn new() -> Self {
        Self::on(StorageSecurity::Authenticated)
    }

    fn on(storage: StorageSecurity) -> Self {
        let host = Host::new(env!("CARGO_BIN_EXE_polis"));
        let parameters = host.bootstrap_parameters_for(storage);
        Self { host, parameters }
    }

    /// A place with a node that has run and was stopped.
    fn enrolled() -> Self {
        let place = Self::new();
        place.run(&OnDisk::default());
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

    /// Starts the node, checks it and stops it.
    fn run(&self, before: &OnDisk) {
        self.runs_well(self.host.start(&self.parameters), before);
    }

    /// Waits until the node runs and nothing is wrong any more, checks it, stops it, and checks that nothing is left.
    fn runs_well(&self, mut node: NodeProcess, before: &OnDisk) {
        let status = node.wait_running();
        checks::running(&self.root(), &status, before);
        assert!(node.stop().success());
        checks::stopped(&self.host);
    }
}
