//! Bringing one node up: `polis dev start`, and what `up` does for each node.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use polis_control::EnrolmentPhase;
use polis_identity::PublicKey;
use polis_parameters::{ClusterDomain, Labels, Parameters, StoragePolicy, TpmMode, read_file};

use super::address;
use super::directory::Directory;
use super::follow::{self, Subject};
use super::launch::{self, Waiting};
use super::listing;
use super::lock::Lock;
use super::node_root;
use super::record::Record;
use crate::arguments::{DevNodeArguments, OutputFormat, StorageSecurityOfDev};
use crate::atomic_file::Existing;
use crate::failure::Failure;
use crate::node_status::{LastStateSeen, read_last_state, runtime};
use crate::parameters::{BOOTSTRAP_MODE, bootstrap_file, write_output};
use crate::view::Progress;
use crate::{owner, view};

/// Longest time that `start` waits for the node to be Running.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Size of a log, in bytes, past which a start begins a new one and keeps the old one beside it: nobody rotates the logs
/// of a trial, and no disk shall fill because of one.
const MAX_LOG_SIZE: u64 = 16 << 20;

pub(super) fn run(arguments: &DevNodeArguments) -> Result<ExitCode, Failure> {
    let progress = Progress::start();
    let directory = Directory::resolve(&arguments.directory)?;
    let number = arguments.node;
    let _lock = Lock::existing(&directory, &progress)?;
    let mut record = directory.require_record()?;
    require_node(&record, number)?;
    let node = Node { directory: &directory, number, address: address_of(&record, number)? };
    if !node.has_begun() {
        return Err(Failure::usage(format!("node {number} was never started"))
            .because_of("the cluster was made only in part")
            .hint(format!("complete it: polis dev up{}", directory.option())));
    }
    if node.is_running(&record) {
        progress.line(&format!("node {number} runs already"));
    }
    let subject = node.launch(&mut record, None, &progress)?;
    let all = record.numbers().count();
    let running = record.numbers().filter(|number| Node { number: *number, ..node }.is_running(&record)).count();
    if running * 2 > all {
        runtime()?.block_on(follow::until_running(subject, START_TIMEOUT, true, &progress))?;
    } else {
        runtime()?.block_on(follow::until_answering(subject, START_TIMEOUT))?;
        progress.line(&format!(
            "{running} of {all} nodes run: the cluster has no quorum, and the node waits for the others; start them too: \
             polis dev up{}",
            directory.option()
        ));
    }
    let rows = listing::rows(&directory, &record)?;
    view::print_value(OutputFormat::Table, &rows, |wide| listing::render(&rows, wide))?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a number that no node has.
///
/// # Errors
///
/// When there is no such node.
pub(super) fn require_node(record: &Record, number: u32) -> Result<(), Failure> {
    if record.node(number).is_some() {
        return Ok(());
    }
    let known: Vec<String> = record.numbers().map(|number| number.to_string()).collect();
    Err(Failure::usage(format!("there is no node {number}"))
        .because_of(format!("the cluster has: {}", known.join(", "))))
}

/// Address of node `number` of the cluster.
///
/// # Errors
///
/// When the address space ends before it.
pub(super) fn address_of(record: &Record, number: u32) -> Result<IpAddr, Failure> {
    address::of_node(record.base_address, number).ok_or_else(|| {
        Failure::usage(format!("node {number} has no address"))
            .because_of(format!("{} is too high", record.base_address))
    })
}

/// A node of a cluster whose directory is locked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    pub(super) directory: &'a Directory,
    pub(super) number: u32,
    pub(super) address: IpAddr,
}

impl Node<'_> {
    pub(super) fn is_running(&self, record: &Record) -> bool {
        record.node(self.number).and_then(|node| node.process.as_ref()).is_some_and(|process| process.is_running())
    }

    /// Whether the node was started before with parameters that it has taken. Node 1 founds the cluster, so it needs none of it;
    /// but once there is a cluster, a node 1 that is no more is not founded again.
    pub(super) fn has_begun(&self) -> bool {
        self.number == 1 && !self.directory.is_owned() || self.directory.node_root(self.number).exists()
    }

    /// Its id once it has become a node of the cluster, as it has written down itself.
    pub(super) fn enrolled_as(&self) -> Option<String> {
        let last = read_last_state(&self.directory.node_root(self.number)).ok()??;
        if last.phase == EnrolmentPhase::Enrolled { last.node_id } else { None }
    }

    /// Whether the cluster has let the node go: then it never runs again.
    pub(super) fn is_removed(&self) -> bool {
        let last = read_last_state(&self.directory.node_root(self.number));
        last.is_ok_and(|last| last.is_some_and(|last| last.phase == EnrolmentPhase::Removed))
    }

    /// Forgets a node that the cluster has let go, so that a new one takes its place.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(super) fn forget(&self, progress: &Progress) -> Result<(), Failure> {
        let root = self.directory.node_root(self.number);
        node_root::remove(&root)
            .map_err(|error| Failure::failed(format!("{} could not be removed", root.display())).because(&error))?;
        progress.line(&format!("node {}           was let go by the cluster; a new one takes its place", self.number));
        Ok(())
    }

    /// Makes what is missing of the node and starts it unless it runs.
    ///
    /// # Errors
    ///
    /// When a step fails.
    pub(super) fn launch(
        &self,
        record: &mut Record,
        etcd: Option<&Path>,
        progress: &Progress,
    ) -> Result<Subject<'_>, Failure> {
        // One that still waits was recorded by a command that was killed right then, and ends by itself.
        let running = record
            .node(self.number)
            .and_then(|node| node.process.clone())
            .filter(|process| process.is_running() && !launch::is_waiting(process));
        let before = LastStateSeen::now(&self.directory.node_root(self.number));
        let subject =
            |identity, child| Subject { directory: self.directory, number: self.number, identity, child, before };
        if let Some(identity) = running {
            return Ok(subject(identity, None));
        }
        let waiting = self.prepare(record, etcd, progress)?;
        let identity = waiting.identity.clone();
        if let Some(node) = record.node_mut(self.number) {
            node.process = Some(identity.clone());
        }
        self.directory.write_record(record)?;
        let child = waiting.go().map_err(|error| self.not_started(&error))?;
        progress.line(&format!("node {}           started at {}, process {}", self.number, self.address, identity.pid));
        Ok(subject(identity, Some(child)))
    }

    /// Makes the owner key, the parameters and the log, and a process that waits to become the node.
    fn prepare(&self, record: &mut Record, etcd: Option<&Path>, progress: &Progress) -> Result<Waiting, Failure> {
        record.etcd = super::etcd::find(etcd, Some(&record.etcd))?;
        let key_path = self.directory.owner_key();
        let key = owner::create_key(&key_path).map_err(|error| owner::failure(&error, &key_path))?;
        if key.is_new {
            progress.line(&format!("owner key made: {}", key_path.display()));
        }
        self.make_directory()?;
        self.prepare_parameters(&key.key, record.storage_security)?;
        let log = self.open_log().map_err(|error| {
            let path = self.directory.node_log(self.number);
            self.not_started(&error).because_of(format!("its log would be {}", path.display()))
        })?;
        let binary = std::env::current_exe().map_err(|error| self.not_started(&error))?;
        Waiting::start(&binary, &self.arguments(record), &log)
            .map_err(|error| self.not_started(&error).because_of(format!("the binary is {}", binary.display())))
    }

    /// Makes the directory for everything of the node.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(super) fn make_directory(&self) -> Result<(), Failure> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(self.directory.node(self.number));
        made.map_err(|error| self.not_started(&error))
    }

    /// Parameters that a node can use stay as they are: a node reads them in its first start only. Those of other nodes than the
    /// first come from the cluster, and are there by now ([`super::complete`]).
    fn prepare_parameters(&self, owner: &PublicKey, security: StorageSecurityOfDev) -> Result<(), Failure> {
        if self.number > 1 {
            return Ok(());
        }
        let path = self.directory.node_parameters(self.number);
        if read_file(&path).is_ok_and(|bytes| Parameters::parse(&bytes).is_ok()) {
            return Ok(());
        }
        let storage = match security {
            StorageSecurityOfDev::Insecure => StoragePolicy::NeedsInsecure,
            StorageSecurityOfDev::Authenticated => StoragePolicy::NeedsEncryptionAndAuthentication,
        };
        let tpm = TpmMode::Disabled;
        let bytes = bootstrap_file(owner, storage, tpm, &ClusterDomain::default(), &Labels::default());
        write_output(&path, &bytes, BOOTSTRAP_MODE, Existing::Replace)
            .map(|_| ())
            .map_err(|error| self.not_started(&error))
    }

    #[expect(clippy::disallowed_methods, reason = "a log that is put aside need not be durable")]
    fn open_log(&self) -> io::Result<File> {
        let path = self.directory.node_log(self.number);
        if fs::metadata(&path).is_ok_and(|data| data.len() > MAX_LOG_SIZE) {
            fs::rename(&path, path.with_extension("log.1"))?;
        }
        OpenOptions::new().create(true).append(true).mode(0o600).open(&path)
    }

    fn arguments(&self, record: &Record) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["node".into(), "run".into()];
        let mut option = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        option("--root", self.directory.node_root(self.number).into());
        option("--parameters", self.directory.node_parameters(self.number).into());
        option("--address", self.address.to_string().into());
        option("--etcd", record.etcd.clone().into());
        arguments
    }

    fn not_started(&self, error: &dyn std::error::Error) -> Failure {
        Failure::failed(format!("node {} could not be started", self.number))
            .because(error)
            .hint(format!("cure it and run again: polis dev up{}", self.directory.option()))
    }
}
