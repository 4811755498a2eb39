//! `make bench`: how fast a node starts and how little it takes, beside raw etcd.
//!
//! Raw etcd is the same binary, on the same file system, with fsync on, measured in turn with the node in the same run. Its
//! first answer is that to a client in this process, which tries every millisecond, as does the one that asks the node for its
//! state. The processor time that everything else on the machine took meanwhile stands beside each figure: with more than a
//! few percent, the figures say little.
//!
//! Nothing is left behind: children end with this process, and the directory is emptied when the next measurement begins,
//! should this one be killed.

#![forbid(unsafe_code)]

mod arguments;
mod child;
mod idle;
mod machine;
mod parts;
mod place;
mod polis_node;
mod raw_etcd;
mod report;
mod start;

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
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), BenchError> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let place = Place::new(arguments)?;
    let measured = tokio::select! {
        measured = measure(arguments, &place) => measured?,
        _ = interrupt.recv() => return Err("interrupted".into()),
        _ = terminate.recv() => return Err("interrupted".into()),
    };
    println!("{}", if arguments.is_json() { measured.json().to_string() } else { measured.table() });
    Ok(())
}

async fn measure(arguments: &Arguments, place: &Place) -> Result<Report, BenchError> {
    let mut report = Report::new(place, arguments.runs);
    if arguments.wants(Subject::Start) || arguments.wants(Subject::Restart) {
        start::measure(arguments, place, &mut report).await?;
    }
    if arguments.wants(Subject::Memory) || arguments.wants(Subject::Wakeups) {
        idle::measure(arguments, place, &mut report).await?;
    }
    if arguments.wants(Subject::Runnables) {
        parts::runnables(arguments, place, &mut report)?;
    }
    if arguments.wants(Subject::Log) {
        parts::log(arguments, place, &mut report)?;
    }
    Ok(report)
}
