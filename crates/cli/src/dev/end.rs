//! Ending nodes: `stop`, `kill` and `down`.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::Signal;

use super::directory::Directory;
use super::lock::{self, Lock};
use super::node_root;
use super::record::{self, Record};
use super::start::require_node;
use crate::arguments::{DevDirectory, DevNodeArguments};
use crate::failure::Failure;
use crate::view::Progress;

/// Longest time that a node has for an orderly stop before it is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Longest time that the kernel has for ending a killed process; it is long only when a disk hangs.
const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// How a node is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// SIGTERM, and SIGKILL after [`STOP_DEADLINE`].
    Orderly,
    /// The same, and SIGTERM was sent already.
    OrderlyAlready,
    /// SIGKILL at once.
    Crash,
}

pub(super) fn stop(arguments: &DevNodeArguments) -> Result<ExitCode, Failure> {
    end_one(arguments, Manner::Orderly)
}

pub(super) fn kill(arguments: &DevNodeArguments) -> Result<ExitCode, Failure> {
    end_one(arguments, Manner::Crash)
}

fn end_one(arguments: &DevNodeArguments, manner: Manner) -> Result<ExitCode, Failure> {
    let progress = Progress::start();
    let directory = Directory::resolve(&arguments.directory)?;
    let _lock = Lock::existing(&directory, &progress)?;
    let mut record = directory.require_record()?;
    require_node(&record, arguments.node)?;
    end_node(&directory, &mut record, arguments.node, manner, &progress)?;
    progress.line(&format!("start it again: polis dev start {}{}", arguments.node, directory.option()));
    Ok(ExitCode::SUCCESS)
}

pub(super) fn down(arguments: &DevDirectory, purge: bool) -> Result<ExitCode, Failure> {
    let progress = Progress::start();
    let directory = Directory::resolve(arguments)?;
    let path = directory.path().display();
    let lock = Lock::existing(&directory, &progress)?;
    if purge {
        lock::refuse_foreign(&directory)?;
    }
    let record = match &lock {
        Some(_) => directory.record()?,
        None => None,
    };
    let Some(mut record) = record else {
        progress.line(&format!("there is no cluster at {path}; nothing to do"));
        return Ok(ExitCode::SUCCESS);
    };
    let asked = ask_all_to_stop(&record);
    for number in record.numbers() {
        let manner = if asked.contains(&number) { Manner::OrderlyAlready } else { Manner::Orderly };
        end_node(&directory, &mut record, number, manner, &progress)?;
    }
    if purge {
        record.numbers().for_each(|number| node_root::clear_mount(&directory.node_root(number)));
        remove(directory.path()).map_err(|error| {
            Failure::failed(format!("{path} could not be removed"))
                .because(&error)
                .hint("cure it and run the command again")
        })?;
        progress.line(&format!("removed {path}"));
    } else {
        let option = directory.option();
        progress.line(&format!("its data stay at {path}; start it again: polis dev up{option}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks all nodes at once, so that they stop at the same time; gives those that were asked. What goes wrong here is met and
/// said again when each is ended.
fn ask_all_to_stop(record: &Record) -> Vec<u32> {
    let ask = |number: &u32| {
        let process = record.node(*number)?.process.as_ref()?.open().ok()??;
        process.signal(Signal::TERM).ok()
    };
    record.numbers().filter(|number| ask(number).is_some()).collect()
}

/// Ends the process that was recorded for node `number`, if it still runs, and only that one.
fn end_node(
    directory: &Directory,
    record: &mut Record,
    number: u32,
    manner: Manner,
    progress: &Progress,
) -> Result<(), Failure> {
    let Some(identity) = record.node(number).and_then(|node| node.process.clone()) else {
        progress.line(&format!("node {number} does not run"));
        return Ok(());
    };
    let pid = identity.pid;
    let failed = |error: io::Error| {
        Failure::failed(format!("node {number} could not be ended"))
            .because(&error)
            .because_of(format!("its process is {pid}"))
    };
    let process = identity.open().map_err(failed)?;
    let outcome = match (&process, manner) {
        (None, Manner::Orderly | Manner::Crash) => "had ended already",
        (None, Manner::OrderlyAlready) => "stopped",
        (Some(process), Manner::Orderly | Manner::OrderlyAlready) => {
            progress.waiting(&format!("node {number} is stopping (process {pid}) ..."));
            if manner == Manner::Orderly {
                process.signal(Signal::TERM).map_err(failed)?;
            }
            if process.wait(STOP_DEADLINE).map_err(failed)? {
                "stopped"
            } else {
                process.signal(Signal::KILL).map_err(failed)?;
                "did not stop within 10 s and was killed"
            }
        }
        (Some(process), Manner::Crash) => {
            process.signal(Signal::KILL).map_err(failed)?;
            "was killed"
        }
    };
    if let Some(process) = process
        && !process.wait(KILL_DEADLINE).map_err(failed)?
    {
        return Err(Failure::failed(format!("node {number} does not end, although it was killed"))
            .because_of(format!("its process {pid} hangs in the kernel, most likely on a disk")));
    }
    if let Some(node) = record.node_mut(number) {
        node.process = None;
    }
    directory.write_record(record)?;
    progress.line(&format!("node {number} {outcome} (process {pid})"));
    Ok(())
}

/// Removes everything in the directory, the mark that makes it ours last: a removal that is interrupted can be repeated.
fn remove(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() == record::FILE {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_file(directory.join(record::FILE))?;
    fs::remove_dir(directory)
}
