//! Where the measurements are made: a directory on the file system of the build, a binary, parameters.

use std::cell::Cell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use polis_testkit::{StorageSecurity, etcd, mounts, processes};
use rustix::fs::FlockOperation;
use tempfile::TempDir;

use crate::BenchError;
use crate::arguments::Arguments;

/// The directory of all measurements, in the directory of the build.
const DIRECTORY: &str = "bench";

/// A place for measurements.
pub(crate) struct Place {
    /// Every process that is measured works in here.
    pub(crate) directory: PathBuf,
    /// Two measurements at a time would measure each other.
    _lock: File,
    /// Where this program and its examples are.
    pub(crate) binaries: PathBuf,
    /// The polis binary.
    pub(crate) polis: PathBuf,
    /// The etcd binary.
    pub(crate) etcd: PathBuf,
    /// A parameters file for a new cluster.
    pub(crate) parameters: PathBuf,
    /// Key of the owner of that cluster, PEM.
    pub(crate) owner_key: PathBuf,
    /// Where logs of nodes are copied to.
    logs: Option<PathBuf>,
    /// How many logs there are.
    log_count: Cell<u32>,
    /// Kind of the file system, as /proc/self/mountinfo names it.
    pub(crate) file_system: String,
}

impl Place {
    /// Prepares the directory, and removes what an earlier measurement that was killed has left.
    pub(crate) fn new(arguments: &Arguments) -> Result<Self, BenchError> {
        let program = std::env::current_exe()?;
        let binaries = program.parent().ok_or("this program is in no directory")?.to_owned();
        let polis = arguments.polis.clone().unwrap_or_else(|| binaries.join("polis"));
        if !polis.is_file() {
            return Err(format!("there is no {}; run scripts/bench, which builds it", polis.display()).into());
        }
        let directory = binaries.parent().unwrap_or(&binaries).join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        let lock = File::open(&directory)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("another measurement is running in {}", directory.display()))?;
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            // Of a killed node whose data were encrypted.
            mounts::clear(&path);
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        let file_system = file_system(&directory)?;
        let owner_key = directory.join("owner").join("owner-key.pem");
        owner(&polis, &directory)?;
        let parameters = directory.join("parameters.pb");
        bootstrap(&polis, StorageSecurity::Insecure, &owner_key, &parameters)?;
        let logs = arguments.logs.clone();
        if let Some(logs) = &logs {
            fs::create_dir_all(logs)?;
        }
        Ok(Self {
            directory,
            _lock: lock,
            binaries,
            polis,
            etcd: etcd::binary(),
            parameters,
            owner_key,
            logs,
            log_count: Cell::new(0),
            file_system,
        })
    }

    /// A new file for the log of a process that is called `name`, if logs are wanted.
    pub(crate) fn log(&self, name: &str) -> Result<Option<File>, BenchError> {
        let Some(logs) = &self.logs else { return Ok(None) };
        let number = self.log_count.get();
        self.log_count.set(number + 1);
        Ok(Some(File::create(logs.join(format!("{number:04}-{name}.log")))?))
    }

    /// A parameters file for a new cluster of nodes that encrypt their data.
    pub(crate) fn encrypted_parameters(&self) -> Result<PathBuf, BenchError> {
        let parameters = self.directory.join("encrypted-parameters.pb");
        bootstrap(&self.polis, StorageSecurity::Authenticated, &self.owner_key, &parameters)?;
        Ok(parameters)
    }

    /// The same for a cluster with a recovery key. Returns the file with its words as well.
    pub(crate) fn recoverable_parameters(&self) -> Result<(PathBuf, PathBuf), BenchError> {
        // What parameters have no field for lies beside them, and is read with every parameters file there.
        let directory = self.directory.join("recoverable");
        fs::create_dir(&directory)?;
        let [words, public, parameters] = ["words", "recovery.pem", "parameters.pb"].map(|name| directory.join(name));
        let create = ["recovery-key", "create", "--words-to"];
        run(Command::new(&self.polis).args(create).arg(&words).arg("-o").arg(&public))?;
        let mut bootstrap =
            bootstrap_command(&self.polis, StorageSecurity::Authenticated, &self.owner_key, &parameters);
        run(bootstrap.arg("--recovery-key").arg(&public))?;
        Ok((parameters, words))
    }

    /// A directory for one process. Dropping it removes it.
    pub(crate) fn scratch(&self) -> Result<TempDir, BenchError> {
        Ok(tempfile::Builder::new().prefix("").tempdir_in(&self.directory)?)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What was just killed may still be writing. What cannot be removed now is removed by the next measurement.
        let _ = processes::wait_until_gone(&self.directory);
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Makes the key of an owner.
fn owner(polis: &Path, directory: &Path) -> Result<(), BenchError> {
    run(Command::new(polis).args(["owner", "create", "--config"]).arg(directory.join("owner")))
}

/// Makes parameters as the owner of a cluster would.
fn bootstrap(polis: &Path, storage: StorageSecurity, owner_key: &Path, output: &Path) -> Result<(), BenchError> {
    run(&mut bootstrap_command(polis, storage, owner_key, output))
}

fn bootstrap_command(polis: &Path, storage: StorageSecurity, owner_key: &Path, output: &Path) -> Command {
    let mut bootstrap = Command::new(polis);
    bootstrap.args(["parameters", "bootstrap"]).args(storage.bootstrap_arguments());
    bootstrap.arg("--owner-key").arg(owner_key).arg("-o").arg(output);
    bootstrap
}

fn run(command: &mut Command) -> Result<(), BenchError> {
    let output = command.stdin(Stdio::null()).output()?;
    let error = || format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(()) } else { Err(error().into()) }
}

/// Kind of the file system that holds `path`: of the mounts above it, the innermost.
fn file_system(path: &Path) -> Result<String, BenchError> {
    let path = path.canonicalize()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mounts = mounts.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let place = Path::new(place.split(' ').nth(4)?);
        path.starts_with(place).then(|| (place.components().count(), kind.split(' ').next().unwrap_or_default()))
    });
    Ok(mounts.max_by_key(|(depth, _)| *depth).map_or("unknown", |(_, kind)| kind).to_owned())
}
