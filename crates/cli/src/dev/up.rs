//! `polis dev up` and `polis dev add`.

use std::process::ExitCode;

use super::address::DEFAULT_BASE;
use super::directory::Directory;
use super::listing;
use super::lock::Lock;
use super::record::{MAX_NODES, Record};
use super::{access, complete};
use crate::arguments::{DevAddArguments, DevUpArguments, OutputFormat, StorageSecurityOfDev};
use crate::failure::Failure;
use crate::shell;
use crate::view::{Paint, Progress, print, print_value};

/// Number of nodes of a new cluster: the fewest that survive the loss of one.
const NODES: u32 = 3;

pub(super) fn run(arguments: &DevUpArguments) -> Result<ExitCode, Failure> {
    let progress = Progress::start();
    let directory = Directory::resolve(&arguments.directory)?;
    if directory.record()?.is_none() {
        // Nothing is made when it could not lead anywhere.
        super::etcd::find(arguments.etcd.as_deref(), None)?;
    }
    let _lock = Lock::create(&directory, &progress)?;
    let mut record = open_record(&directory, arguments)?;
    complete::run(&directory, &mut record, arguments.etcd.as_deref(), arguments.timeout, &progress)?;
    show(&directory, &record, arguments.output, &progress)
}

pub(super) fn add(arguments: &DevAddArguments) -> Result<ExitCode, Failure> {
    let progress = Progress::start();
    let directory = Directory::resolve(&arguments.directory)?;
    let _lock = Lock::existing(&directory, &progress)?;
    let mut record = directory.require_record()?;
    let unfinished = complete::unfinished(&directory, &record)?;
    if !unfinished.is_empty() {
        // As an earlier attempt has left it: it is the node more that was wanted.
        progress.line(&format!(
            "{} not complete from an earlier run: that is done now, and none is added",
            named(&unfinished)
        ));
    } else {
        let all = record.numbers().count();
        if all >= MAX_NODES {
            return Err(Failure::usage(format!("the cluster has {all} nodes already"))
                .because_of("all nodes of such a cluster are consensus members, and there are at most 9 of these"));
        }
        record.add_node();
        directory.write_record(&record)?;
    }
    let completed = complete::run(&directory, &mut record, None, arguments.timeout, &progress);
    completed.inspect_err(|_| {
        if let Ok(unfinished) = complete::unfinished(&directory, &record)
            && !unfinished.is_empty()
        {
            progress.line(&format!(
                "{} not complete; go on with: polis dev up{}",
                named(&unfinished),
                directory.option()
            ));
        }
    })?;
    show(&directory, &record, arguments.output, &progress)
}

/// `node 4 is` or `nodes 1, 4 are`.
fn named(numbers: &[u32]) -> String {
    match numbers {
        [one] => format!("node {one} is"),
        several => {
            format!("nodes {} are", several.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        }
    }
}

/// The final table, and for people what they may do next.
fn show(
    directory: &Directory,
    record: &Record,
    output: OutputFormat,
    progress: &Progress,
) -> Result<ExitCode, Failure> {
    progress.clear();
    let rows = listing::rows(directory, record)?;
    print_value(output, &rows, |wide| listing::render(&rows, wide))?;
    match output {
        OutputFormat::Table | OutputFormat::Wide => print(&what_next(directory, record, Paint::for_stdout())?)?,
        OutputFormat::Json | OutputFormat::Yaml => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// The record of the cluster that is there, or of a new one, which is written at once: it marks the directory as ours.
fn open_record(directory: &Directory, arguments: &DevUpArguments) -> Result<Record, Failure> {
    let Some(mut record) = directory.record()? else {
        let etcd = super::etcd::find(arguments.etcd.as_deref(), None)?;
        let nodes = usize::try_from(arguments.nodes.unwrap_or(NODES)).unwrap_or(MAX_NODES);
        let mut record = Record::new(arguments.base_address.unwrap_or(DEFAULT_BASE), etcd, nodes);
        record.storage_security = arguments.storage_security.unwrap_or_default();
        directory.write_record(&record)?;
        return Ok(record);
    };
    let option = directory.option();
    let path = directory.path().display();
    if let Some(base) = arguments.base_address.filter(|base| *base != record.base_address) {
        return Err(Failure::usage(format!("the cluster at {path} has the base address {}", record.base_address))
            .because_of(format!("{base} was asked for"))
            .hint(format!(
                "leave --base-address out, name another --dir, or begin anew: polis dev down --purge{option}"
            )));
    }
    if let Some(asked) = arguments.storage_security.filter(|asked| *asked != record.storage_security) {
        let name = |security| match security {
            StorageSecurityOfDev::Insecure => "insecure",
            StorageSecurityOfDev::Authenticated => "authenticated",
        };
        return Err(Failure::usage(format!("the data of the cluster at {path} are {}", name(record.storage_security)))
            .because_of(format!("{} was asked for, and that is decided when a cluster is made", name(asked)))
            .hint(format!(
                "leave --storage-security out, name another --dir, or begin anew: polis dev down --purge{option}"
            )));
    }
    let has = u32::try_from(record.numbers().count()).unwrap_or(u32::MAX);
    match arguments.nodes {
        Some(nodes) if nodes < has => {
            return Err(Failure::usage(format!("the cluster at {path} has {has} nodes"))
                .because_of(format!("{nodes} were asked for, and this command takes none away"))
                .hint(format!(
                    "leave --nodes out, name another --dir, or begin anew: polis dev down --purge{option}"
                )));
        }
        Some(nodes) if nodes > has => {
            (has..nodes).for_each(|_| record.add_node());
            directory.write_record(&record)?;
        }
        Some(_) | None => {}
    }
    Ok(record)
}

/// Commands to paste.
fn what_next(directory: &Directory, record: &Record, paint: Paint) -> Result<String, Failure> {
    let binary = std::env::current_exe()
        .map_err(|error| Failure::failed("the path of this binary is not known").because(&error))?;
    let (binary, option) = (shell::quote(&binary), directory.option());
    let cluster = access::options(directory, record)?;
    let root = shell::quote(&directory.node_root(1));
    let commands = [
        ("the nodes, as the cluster knows them", format!("{binary} node list{cluster}")),
        ("what is wrong with it", format!("{binary} cluster health{cluster}")),
        ("what a node says about itself", format!("{binary} node status --root {root}")),
        ("what it does", format!("{binary} dev logs 1 -f{option}")),
        (
            "crash it, and see the same node come back",
            format!("{binary} dev kill 1{option} && {binary} dev start 1{option}"),
        ),
        ("one node more", format!("{binary} dev add{option}")),
        ("stop all of it; with --purge also remove it", format!("{binary} dev down{option}")),
    ];
    let mut text = format!("\n{}\n", paint.bold("Try next:"));
    for (what, command) in commands {
        text.push_str(&format!("  {}\n    {command}\n", paint.dim(&format!("# {what}"))));
    }
    Ok(text)
}
