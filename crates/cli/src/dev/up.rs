//! `polis dev up`.

use std::process::ExitCode;

use super::address::DEFAULT_BASE;
use super::directory::Directory;
use super::listing;
use super::lock::Lock;
use super::record::Record;
use super::start::{Node, address_of};
use crate::arguments::{DevUpArguments, OutputFormat, StorageSecurityOfDev};
use crate::failure::Failure;
use crate::shell;
use crate::view::{Paint, Progress, print, print_value};

/// Number of nodes of a cluster.
const NODES: u32 = 1;

pub(super) fn run(arguments: &DevUpArguments) -> Result<ExitCode, Failure> {
    refuse_what_is_not_here(arguments)?;
    let mut progress = Progress::start();
    let directory = Directory::resolve(&arguments.directory)?;
    if directory.record()?.is_none() {
        // Nothing is made when it could not lead anywhere.
        super::etcd::find(arguments.etcd.as_deref(), None)?;
    }
    let _lock = Lock::create(&directory, &mut progress)?;
    let mut record = open_record(&directory, arguments)?;
    for number in record.numbers() {
        let node = Node { directory: &directory, number, address: address_of(&record, number)? };
        node.bring_up(&mut record, arguments.etcd.as_deref(), arguments.timeout, &mut progress)?;
    }
    progress.clear();
    let rows = listing::rows(&directory, &record)?;
    print_value(arguments.output, &rows, |wide| listing::render(&rows, wide))?;
    match arguments.output {
        OutputFormat::Table | OutputFormat::Wide => print(&what_next(&directory, Paint::for_stdout())?)?,
        OutputFormat::Json | OutputFormat::Yaml => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn refuse_what_is_not_here(arguments: &DevUpArguments) -> Result<(), Failure> {
    if arguments.nodes != NODES {
        return Err(Failure::usage(format!("a cluster of {} nodes is not possible", arguments.nodes))
            .because_of("this build makes clusters of one node")
            .hint("polis dev up --nodes 1"));
    }
    match arguments.storage_security {
        StorageSecurityOfDev::Insecure => Ok(()),
        StorageSecurityOfDev::Authenticated => Err(Failure::usage("authenticated storage is not possible")
            .because_of("this build keeps data as they are")
            .hint("polis dev up --storage-security insecure")),
    }
}

/// The record of the cluster that is there, or of a new one, which is written at once: it marks the directory as ours.
fn open_record(directory: &Directory, arguments: &DevUpArguments) -> Result<Record, Failure> {
    if let Some(record) = directory.record()? {
        return match arguments.base_address {
            Some(base) if base != record.base_address => {
                let option = directory.option();
                Err(Failure::usage(format!(
                    "the cluster at {} has the base address {}",
                    directory.path().display(),
                    record.base_address
                ))
                .because_of(format!("{base} was asked for"))
                .hint(format!(
                    "leave --base-address out, name another --dir, or begin anew: polis dev down --purge{option}"
                )))
            }
            Some(_) | None => Ok(record),
        };
    }
    let etcd = super::etcd::find(arguments.etcd.as_deref(), None)?;
    let record = Record::new(arguments.base_address.unwrap_or(DEFAULT_BASE), etcd, usize::try_from(NODES).unwrap_or(1));
    directory.write_record(&record)?;
    Ok(record)
}

/// Commands to paste.
fn what_next(directory: &Directory, paint: Paint) -> Result<String, Failure> {
    let binary = std::env::current_exe()
        .map_err(|error| Failure::failed("the path of this binary is not known").because(&error))?;
    let (binary, option) = (shell::quote(&binary), directory.option());
    let root = shell::quote(&directory.node_root(1));
    let commands = [
        ("what the node says about itself", format!("{binary} node status --root {root}")),
        ("what it does", format!("{binary} dev logs 1 -f{option}")),
        (
            "crash it, and see the same node come back",
            format!("{binary} dev kill 1{option} && {binary} dev start 1{option}"),
        ),
        ("stop it; with --purge also remove it", format!("{binary} dev down{option}")),
    ];
    let mut text = format!("\n{}\n", paint.bold("Try next:"));
    for (what, command) in commands {
        text.push_str(&format!("  {}\n    {command}\n", paint.dim(&format!("# {what}"))));
    }
    Ok(text)
}
