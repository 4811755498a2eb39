//! The `polis` binary: a node, and the commands to look after nodes.
//!
//! The commands know nothing of a node's inside and the node nothing of the command line; this is the one place that knows
//! both.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use polis_cli::{Exit, Invocation, LogFormat, NodeRunOptions};
use polis_sys::WipingAllocator;

/// Messages with keys in them go through libraries that do not wipe their buffers: the allocator does it for all of them.
#[global_allocator]
static ALLOCATOR: WipingAllocator = WipingAllocator::new();

fn main() -> ExitCode {
    if polis_node::is_machine() {
        polis_node::run_machine();
    }
    match Invocation::parse() {
        Invocation::RunNode(options) => match polis_node::run(node_options(options)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let exit = if error.is_missing_prerequisite() { Exit::Usage } else { Exit::Failed };
                polis_cli::show_error(&error, error.hint(), exit)
            }
        },
        Invocation::Command(command) => polis_cli::run(command, &polis_node::FilesOnDisk),
    }
}

fn node_options(options: NodeRunOptions) -> polis_node::Options {
    let NodeRunOptions { root, parameters, address, etcd, etcd_unsafe_version, data_device, tpm_helper, peers, log } =
        options;
    let log = match log {
        LogFormat::Console => polis_node::LogFormat::Console,
        LogFormat::Json => polis_node::LogFormat::Json,
    };
    polis_node::Options { root, parameters, address, etcd, etcd_unsafe_version, data_device, tpm_helper, peers, log }
}
