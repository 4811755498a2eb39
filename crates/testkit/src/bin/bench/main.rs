//! `make bench`: how fast nodes and clusters do what they do and how little they take, beside raw etcd.
//!
//! Raw etcd is the same binary, on the same file system, with fsync on, measured in turn with the node in the same run. Its
//! first answer is that to a client in this process, which tries every millisecond, as does the one that asks the node for its
//! state; clusters are tried at all members every 5 ms ([`poll`]), over connections of a client that knows them all. The processor time that everything else on the machine took meanwhile stands beside each figure: with more than a
//! few percent, the figures say little.
//!
//! Nothing is left behind: children end with this process, and the directory is emptied when the next measurement begins,
//! should this one be killed.

#![forbid(unsafe_code)]

mod arguments;
mod child;
mod cold_start;
mod contestant;
mod encrypted;
mod follower;
mod grow;
mod idle;
mod life;
mod machine;
mod many_nodes;
mod owner;
mod parts;
mod peer_certificates;
mod place;
mod polis_cluster;
mod polis_node;
mod poll;
mod process;
mod raw_cluster;
mod raw_etcd;
mod reboot;
mod recover;
mod report;
mod simulated;
mod start;
mod statistics;
mod strangers;

use std::process::ExitCode;

use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::{Arguments, Subject};
use crate::place::Place;
use crate::report::Report;

/// A measurement that could not be made is the end of the program; there is nothing to be told apart.
type BenchError = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(BenchError::from).and_then(|runtime| runtime.block_on(run(&arguments))) {
        Ok(is_whole) => {
            if is_whole {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and prints; whether all could be measured. A target that is missed is said and is no failure: on a machine that is
/// busy or slow it says nothing.
async fn run(arguments: &Arguments) -> Result<bool, BenchError> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let place = Place::new(arguments)?;
    let mut report = Report::new(&place, arguments.runs);
    tokio::select! {
        () = measure(arguments, &place, &mut report) => {}
        _ = interrupt.recv() => return Err("interrupted".into()),
        _ = terminate.recv() => return Err("interrupted".into()),
    }
    println!("{}", if arguments.is_json() { report.json().to_string() } else { report.table() });
    for complaint in report.complaints() {
        eprintln!("bench: {complaint}");
    }
    Ok(report.is_whole())
}

/// Measures what is wanted, one part after the other. One that fails leaves the others as they are.
async fn measure(arguments: &Arguments, place: &Place, report: &mut Report) {
    macro_rules! part {
        ($name:literal, [$($subject:ident),*], $measured:expr) => {
            if [$(Subject::$subject),*].into_iter().any(|subject| arguments.wants(subject)) {
                if let Err(error) = $measured {
                    report.fail($name, &error);
                }
            }
        };
    }
    part!("start", [Start, Restart], start::measure(arguments, place, report).await);
    part!("encrypted data", [Encrypted], encrypted::measure(arguments, place, report).await);
    part!("idle node", [Memory, Wakeups], idle::measure(arguments, place, report).await);
    part!("runnables", [Runnables], parts::runnables(arguments, place, report));
    part!("log", [Log], parts::log(arguments, place, report));
    part!("1 to 3 members", [Grow], grow::measure(arguments, place, report).await);
    part!("life of a cluster", [ColdStart, FailOver, Stop], life::measure(arguments, place, report).await);
    part!("cold start of encrypted nodes", [EncryptedColdStart], cold_start::measure(arguments, place, report).await);
    part!("reboot of a member", [Reboot], reboot::measure(arguments, place, report).await);
    part!("recovery", [Recover], recover::measure(arguments, place, report).await);
    part!("thousand nodes", [GetNodes, ManyNodes, RoleChange], many_nodes::measure(arguments, place, report).await);
    part!("idle follower", [Follower], follower::idle(arguments, place, report).await);
    part!("needless elections", [Elections], follower::elections(arguments, place, report).await);
    // Last, as this thread is on another network meanwhile, and threads that begin then stay there.
    part!("strangers", [Strangers], strangers::measure(arguments, place, report).await);
}
