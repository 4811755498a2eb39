//! Running a program to its end: what it is given to read, what it says, and how long it may take.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use polis_sys::{Bond, ChildProcess, Command, ExitStatus, Importance, Input, Output, SpawnError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

/// Most bytes of each output that are kept; the rest is read and dropped, so that the child never waits for us.
const OUTPUT_LIMIT: usize = 16 * 1024;
/// The search path of the children: they look for their own helpers in it (gocryptfs for `fusermount3`).
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How a program that has ended did.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    /// The beginning of its standard output.
    pub(crate) output: String,
    /// The beginning of its standard error.
    pub(crate) complaint: String,
}

/// A program to be run, with its output in pipes and no environment but a search path.
pub(crate) fn command(program: &Path, arguments: Vec<std::ffi::OsString>) -> Command {
    Command {
        program: program.to_owned(),
        arguments,
        environment: vec![("PATH".into(), PATH.into())],
        working_directory: None,
        standard_input: Input::Pipe,
        standard_output: Output::Pipe,
        standard_error: Output::Pipe,
        importance: Importance::default(),
        bond: Bond::default(),
    }
}

/// Starts a child and gives it `input`, after which its input ends. The input is short enough for a pipe's buffer.
pub(crate) fn start(command: Command, input: &[u8]) -> Result<ChildProcess, ToolError> {
    let program = command.program.clone();
    let (sender, receiver) = sync_channel(1);
    polis_sys::spawn(command, move |started| {
        // Nobody listens when the caller has gone away; the child is killed by being dropped.
        let _ = sender.send(started);
    });
    // The spawner always replies.
    let started = receiver.recv().map_err(|_| ToolError::NoReply { program: program.clone() })?;
    let mut child = started?;
    if let Some(pipe) = child.take_standard_input() {
        match File::from(pipe).write_all(input) {
            // It has ended without reading: its exit status says why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written.map_err(|source| ToolError::Pipe { program, source })?,
        }
    }
    Ok(child)
}

/// Runs a program to its end. One that takes longer than `deadline` is killed.
pub(crate) fn run(command: Command, input: &[u8], deadline: Duration) -> Result<Finished, ToolError> {
    let program = command.program.clone();
    let mut child = start(command, input)?;
    let pipe = |source| ToolError::Pipe { program: program.clone(), source };
    let mut output = Reader::new(child.take_standard_output()).map_err(pipe)?;
    let mut complaint = Reader::new(child.take_standard_error()).map_err(pipe)?;
    let end = Instant::now() + deadline;
    loop {
        // The order matters: what the child wrote before it ended is read after its end was seen.
        let ended = child.try_wait().map_err(pipe)?;
        output.read().map_err(pipe)?;
        complaint.read().map_err(pipe)?;
        if let Some(status) = ended {
            return Ok(Finished { status, output: output.text(), complaint: complaint.text() });
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ToolError::Deadline { program, deadline });
        }
        let mut files = vec![PollFd::new(&child, PollFlags::IN)];
        files.extend([&output, &complaint].into_iter().filter_map(Reader::poll));
        wait(&mut files, left).map_err(pipe)?;
    }
}

/// Waits until something happens on one of the files, or until `limit` is over.
pub(crate) fn wait(files: &mut [PollFd<'_>], limit: Duration) -> io::Result<()> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    match poll(files, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The reading end of a pipe, read without waiting.
pub(crate) struct Reader {
    /// None once the end was read.
    pipe: Option<File>,
    kept: Vec<u8>,
}

impl Reader {
    pub(crate) fn new(pipe: Option<OwnedFd>) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            let flags = rustix::fs::fcntl_getfl(pipe)?;
            rustix::fs::fcntl_setfl(pipe, flags | OFlags::NONBLOCK)?;
        }
        Ok(Self { pipe: pipe.map(File::from), kept: Vec::new() })
    }

    /// Reads all that is there now.
    pub(crate) fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    let room = OUTPUT_LIMIT.saturating_sub(self.kept.len()).min(count);
                    self.kept.extend_from_slice(&buffer[..room]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What to wait for; none once the end was read.
    pub(crate) fn poll(&self) -> Option<PollFd<'_>> {
        self.pipe.as_ref().map(|pipe| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN))
    }

    /// Takes the whole lines that were read so far.
    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        let Some(end) = self.kept.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.kept.split_off(end + 1);
        let lines = text(&std::mem::replace(&mut self.kept, rest));
        lines.lines().map(str::to_owned).collect()
    }

    fn text(self) -> String {
        text(&self.kept)
    }
}

/// What a program said, fit for a message: colours of a terminal and other control characters are taken out.
fn text(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut characters = String::from_utf8_lossy(bytes).into_owned();
    while let Some(start) = characters.find("\u{1b}[") {
        let rest = &characters[start + 2..];
        let end = rest.find(|character: char| character.is_ascii_alphabetic()).map_or(rest.len(), |end| end + 1);
        text.push_str(&characters[..start]);
        characters = rest[end..].to_owned();
    }
    text.push_str(&characters);
    text.retain(|character| character == '\n' || !character.is_control());
    text.trim().to_owned()
}

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It could not be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The thread that starts processes is gone.
    #[error("cannot start {}: the thread that starts processes has ended", program.display())]
    NoReply {
        /// The program.
        program: PathBuf,
    },
    /// Nothing could be said to it or heard from it.
    #[error("lost the connection to {}", program.display())]
    Pipe {
        /// The program.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It took too long and was killed.
    #[error("{} did not end within {deadline:?} and was killed", program.display())]
    Deadline {
        /// The program.
        program: PathBuf,
        /// How long it may take.
        deadline: Duration,
    },
    /// It said that it failed.
    #[error("{} failed ({status}): {complaint}", program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        complaint: String,
    },
    /// Another file system is mounted where the data partition belongs.
    #[error(
        "at {} something else is mounted: {kind} from {source_name}; unmount it, or give the node another root",
        mount_point.display()
    )]
    ForeignMount {
        /// Where.
        mount_point: PathBuf,
        /// Type of the file system.
        kind: String,
        /// What is mounted.
        source_name: String,
    },
    /// It cannot be seen what is mounted.
    #[error("cannot read what is mounted, from {}", path.display())]
    Mounts {
        /// The file of the kernel.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// What would keep the mount in use could not be made.
    #[error("cannot hold a file of the mount open")]
    Hold {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The process of an earlier life of the node does not end.
    #[error(
        "a gocryptfs that an earlier run of this node has started still works on {}, and no second one may; `fuser -v {}` shows it: it \
         ends as soon as its disk answers and nobody uses its mount; if it is stopped, continue it with `kill -CONT`",
        directory.display(),
        directory.display()
    )]
    StillThere {
        /// The directory of the encrypted data.
        directory: PathBuf,
    },
    /// A mount did not go away.
    #[error(
        "{} stays mounted though it was unmounted; find who uses it with `fuser -vm {}`, end that, and try again",
        mount_point.display(),
        mount_point.display()
    )]
    StillMounted {
        /// Where.
        mount_point: PathBuf,
    },
}

impl Finished {
    /// Fails unless the program has succeeded.
    pub(crate) fn success(self, program: &Path) -> Result<Self, ToolError> {
        if self.status.is_success() {
            return Ok(self);
        }
        let complaint = if self.complaint.is_empty() { self.output } else { self.complaint };
        Err(ToolError::Failed { program: program.to_owned(), status: self.status, complaint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> Command {
        command(Path::new("/bin/sh"), vec!["-c".into(), script.into()])
    }

    #[test]
    fn a_program_reads_its_input_and_both_outputs_are_kept() {
        let finished =
            run(shell("read a; read b; echo \"$b\"; echo \"$a\" >&2; exit 3"), b"one\ntwo\n", DEADLINE).unwrap();
        assert_eq!((finished.status, &*finished.output), (ExitStatus::Exited { code: 3 }, "two"));
        let error = finished.success(Path::new("/bin/sh")).unwrap_err();
        assert_eq!(error.to_string(), "/bin/sh failed (exit code 3): one");
    }

    #[test]
    fn a_program_that_reads_nothing_or_says_much_is_no_trouble() {
        let finished = run(shell("head -c 1000000 /dev/zero | tr '\\0' x"), b"unread\n", DEADLINE).unwrap();
        assert!(finished.status.is_success());
        assert_eq!(finished.output.len(), OUTPUT_LIMIT);
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed() {
        let error = run(shell("exec sleep 1000"), b"", Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, ToolError::Deadline { .. }), "{error}");
    }

    #[test]
    fn who_holds_the_output_open_is_not_waited_for() {
        let finished = run(shell("setsid sleep 5 & echo done"), b"", DEADLINE).unwrap();
        assert_eq!(finished.output, "done");
    }

    #[test]
    fn colours_are_taken_out() {
        assert_eq!(text(b"\x1b[31mPassword incorrect.\x1b[0m\n"), "Password incorrect.");
        assert_eq!(text(b"a\x07\nb\x1b["), "a\nb");
    }
}
