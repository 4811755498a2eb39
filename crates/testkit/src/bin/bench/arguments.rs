//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Measures Polis beside raw etcd and prints a table.
#[derive(Debug, Parser)]
#[command(name = "bench")]
pub(crate) struct Arguments {
    /// How often each time is measured; the table shows the median. What takes long or repeats itself is measured less often
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Measure this only; may be repeated
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Subject>,
    /// Form of the result
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
    /// The polis binary; without it the one beside this program
    #[arg(long, value_name = "PATH")]
    pub(crate) polis: Option<PathBuf>,
    /// Keep the logs of all nodes in this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) logs: Option<PathBuf>,
    /// Print every single measurement on the standard error as it is made
    #[arg(long)]
    pub(crate) verbose: bool,
}

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    /// Exec to Running on an empty root
    Start,
    /// Restart after kill -9 to Running
    Restart,
    /// Start and restart on encrypted data, beside plain ones
    Encrypted,
    /// Memory of an idle node
    Memory,
    /// Context switches of an idle node
    Wakeups,
    /// Start and restart of many runnables
    Runnables,
    /// Throughput of the log tree
    Log,
    /// From one consensus member to three
    Grow,
    /// The leader killed -9, to the next write
    FailOver,
    /// Three nodes killed -9 and started, to a write
    ColdStart,
    /// The same on encrypted data, beside plain ones
    EncryptedColdStart,
    /// One member killed -9 and started, to its open data
    Reboot,
    /// `cluster recover` of 100 MiB
    Recover,
    /// Calls of strangers at the unlock port, and a member beside them
    Strangers,
    /// Orderly stop of three nodes
    Stop,
    /// Memory and context switches of an idle follower
    Follower,
    /// Raft terms that pass while all processors are busy
    Elections,
    /// GetNodes with a thousand nodes
    GetNodes,
    /// What a thousand connected nodes cost the leader
    ManyNodes,
    /// A role change on its way to one of a thousand nodes
    RoleChange,
}

/// Form of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A table for reading
    #[default]
    Table,
    /// One JSON object
    Json,
}

impl Arguments {
    /// Whether a subject is to be measured.
    pub(crate) fn wants(&self, subject: Subject) -> bool {
        self.only.is_empty() || self.only.contains(&subject)
    }

    /// Whether the result is for programs.
    pub(crate) fn is_json(&self) -> bool {
        self.output == Output::Json
    }

    /// Says what is being done, for who waits for it.
    pub(crate) fn progress(&self, text: &str) {
        if self.verbose {
            eprintln!("{text}");
        }
    }
}
