//! The standard streams of this process, led into the log: what a library prints, or a panic.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::thread;

use polis_logtree::{DistinguishedName, LogTree};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

/// Why the standard streams cannot be led into the log.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}")]
pub struct StreamsError {
    action: &'static str,
    #[source]
    source: io::Error,
}

/// Leads standard output and error into the log, as raw lines under `stdout` and `stderr`. Standard input is empty.
pub(crate) fn lead_into(tree: &LogTree) -> Result<(), StreamsError> {
    let failed = |action| move |error: io::Error| StreamsError { action, source: error };
    let nothing = File::open("/dev/null").map_err(failed("open /dev/null"))?;
    dup2_stdin(&nothing).map_err(|error| failed("take /dev/null as standard input")(error.into()))?;
    let output = reader(tree, "stdout").map_err(failed("read standard output"))?;
    dup2_stdout(&output).map_err(|error| failed("lead standard output into the log")(error.into()))?;
    let error = reader(tree, "stderr").map_err(failed("read standard error"))?;
    dup2_stderr(&error).map_err(|error| failed("lead standard error into the log")(error.into()))?;
    Ok(())
}

/// Makes a pipe whose lines go into the log under this name, read by a thread that lives as long as the process: whoever prints
/// must never wait for a runnable.
fn reader(tree: &LogTree, name: &'static str) -> io::Result<OwnedFd> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    let distinguished_name = DistinguishedName::parse(name).map_err(io::Error::other)?;
    let mut writer = tree.raw(&distinguished_name);
    thread::Builder::new().name(name.into()).spawn(move || {
        let (mut pipe, mut buffer) = (File::from(read), [0; 4096]);
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => writer.write(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })?;
    Ok(write)
}
