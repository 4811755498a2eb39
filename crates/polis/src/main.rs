//! The `polis` binary: a node, and the commands to look after nodes.
//!
//! The commands know nothing of a node's inside and the node nothing of the command line; this is the one place that knows
//! both.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use polis_cli::{Invocation, LogFormat, NodeRunOptions};

fn main() -> ExitCode {
    match Invocation::parse() {
        Invocation::RunNode(options) => polis_node::run(node_options(options)),
        Invocation::Command(command) => polis_cli::run(command),
    }
}

fn node_options(options: NodeRunOptions) -> polis_node::Options {
    let NodeRunOptions { root, parameters, address, etcd, etcd_unsafe_version, log } = options;
    let log = match log {
        LogFormat::Console => polis_node::LogFormat::Console,
        LogFormat::Json => polis_node::LogFormat::Json,
    };
    polis_node::Options { root, parameters, address, etcd, etcd_unsafe_version, log }
}
