//! One conversation with a helper process: what it is told, what it answers, what it complains about, and a limit on its time.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use polis_sys::{ChildProcess, Command, ExitStatus, SpawnError, spawn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use zeroize::{Zeroize as _, Zeroizing};

use crate::protocol::{LENGTH_BYTES, MESSAGE_LIMIT};

/// Most bytes that are kept of what a helper prints on its standard error. A failing call prints one line in each of five layers.
const COMPLAINTS_LIMIT: usize = 2 * 1024;

/// How long a process that has closed its output without an answer may take to end. It is gone within milliseconds; its end is only
/// wanted for the message.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Bytes that are read at a time: a pipe gives no more than a page at once to who waits for it.
const CHUNK: usize = 4 * 1024;

/// What a helper said.
pub(crate) struct Heard {
    /// Its answer, without the length before it.
    pub(crate) answer: Zeroizing<Vec<u8>>,
    /// What it printed on its standard error before it answered, on one line; empty if nothing.
    pub(crate) complaints: String,
}

/// Why there is no answer. The process is gone in all cases.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConversationError {
    #[error(transparent)]
    Start(#[from] SpawnError),
    #[error("the time is over, so the helper was killed")]
    TooSlow,
    #[error("the helper {status}{}{complaints}", if complaints.is_empty() { "" } else { ": " })]
    Ended {
        /// How, in words.
        status: String,
        complaints: String,
    },
    #[error("the helper answers more than {MESSAGE_LIMIT} bytes")]
    TooLong,
    #[error("the pipes to the helper failed")]
    Pipe(#[source] io::Error),
}

/// Starts `command`, writes `input` to it and reads one message. Blocks for at most `limit`; the process is killed when this
/// returns, if it has not ended by itself.
pub(crate) fn converse(command: Command, input: &[u8], limit: Duration) -> Result<Heard, ConversationError> {
    let deadline = Instant::now() + limit;
    let (reply, spawned) = sync_channel(1);
    // A caller that has given up is no longer there; the child is then dropped, and so killed.
    spawn(command, move |child| drop(reply.send(child)));
    let child = spawned.recv_timeout(limit).map_err(|_| ConversationError::TooSlow)??;
    Talk::new(child, input).and_then(|mut talk| talk.run(deadline))
}

/// A conversation in progress. Dropping it kills the helper.
struct Talk<'a> {
    child: ChildProcess,
    /// What is not written yet.
    left: &'a [u8],
    input: Option<OwnedFd>,
    output: Option<OwnedFd>,
    errors: Option<OwnedFd>,
    answer: Zeroizing<Vec<u8>>,
    complaints: Vec<u8>,
}

impl<'a> Talk<'a> {
    fn new(mut child: ChildProcess, input: &'a [u8]) -> Result<Self, ConversationError> {
        let pipes = [child.take_standard_input(), child.take_standard_output(), child.take_standard_error()];
        for pipe in pipes.iter().flatten() {
            let flags = fcntl_getfl(pipe).map_err(|error| ConversationError::Pipe(error.into()))?;
            fcntl_setfl(pipe, flags | OFlags::NONBLOCK).map_err(|error| ConversationError::Pipe(error.into()))?;
        }
        let [input_pipe, output, errors] = pipes;
        Ok(Self {
            child,
            left: input,
            input: input_pipe,
            output,
            errors,
            // As much as there can be, so that nothing secret is left where it was moved away from.
            answer: Zeroizing::new(Vec::with_capacity(LENGTH_BYTES + MESSAGE_LIMIT + CHUNK)),
            complaints: Vec::new(),
        })
    }

    fn run(&mut self, deadline: Instant) -> Result<Heard, ConversationError> {
        loop {
            if let Some(answer) = self.whole_answer()? {
                return Ok(Heard { answer, complaints: one_line(&self.complaints) });
            }
            if self.output.is_none() {
                return Err(self.ended());
            }
            self.wait(deadline)?;
            self.write()?;
            if let Some(output) = &self.output
                && read(output.as_fd(), &mut self.answer).map_err(ConversationError::Pipe)?
            {
                self.output = None;
            }
            self.hear_complaints()?;
        }
    }

    /// The answer, once all of it was read.
    fn whole_answer(&self) -> Result<Option<Zeroizing<Vec<u8>>>, ConversationError> {
        let Some((length, message)) = self.answer.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > MESSAGE_LIMIT {
            return Err(ConversationError::TooLong);
        }
        Ok(message.get(..length).map(|message| Zeroizing::new(message.to_vec())))
    }

    /// Waits until something can be written or read.
    fn wait(&self, deadline: Instant) -> Result<(), ConversationError> {
        let left = deadline.checked_duration_since(Instant::now()).ok_or(ConversationError::TooSlow)?;
        let mut files: Vec<PollFd<'_>> = Vec::with_capacity(3);
        files.extend(self.input.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        files.extend(self.output.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        files.extend(self.errors.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 });
        match poll(&mut files, Some(&timeout)) {
            Ok(0) => Err(ConversationError::TooSlow),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(ConversationError::Pipe(error.into())),
        }
    }

    /// Writes what can be written; at the end of it the helper sees the end of its input.
    fn write(&mut self) -> Result<(), ConversationError> {
        while let Some(pipe) = &self.input {
            if self.left.is_empty() {
                self.input = None;
                break;
            }
            match rustix::io::write(pipe, self.left) {
                Ok(count) => self.left = self.left.get(count..).unwrap_or_default(),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => break,
                // It reads no more: it has ended, or it knows already what it will say.
                Err(rustix::io::Errno::PIPE) => self.input = None,
                Err(error) => return Err(ConversationError::Pipe(error.into())),
            }
        }
        Ok(())
    }

    fn hear_complaints(&mut self) -> Result<(), ConversationError> {
        if let Some(errors) = &self.errors
            && read(errors.as_fd(), &mut self.complaints).map_err(ConversationError::Pipe)?
        {
            self.errors = None;
        }
        self.complaints.truncate(COMPLAINTS_LIMIT);
        Ok(())
    }

    /// It has closed its output and not answered: how did it end?
    fn ended(&mut self) -> ConversationError {
        let timeout = Timespec::try_from(END_LIMIT).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        // Whether this is interrupted or fails, the status says whether it has ended.
        let _ = poll(&mut [PollFd::new(&self.child, PollFlags::IN)], Some(&timeout));
        let status = match self.child.try_wait() {
            Ok(Some(status @ ExitStatus::Exited { .. })) => format!("ended without an answer ({status})"),
            Ok(Some(status @ ExitStatus::Signaled { .. })) => format!("was {status}"),
            Ok(None) | Err(_) => "closed its output without an answer".to_owned(),
        };
        // What it printed last.
        let _ = self.hear_complaints();
        ConversationError::Ended { status, complaints: one_line(&self.complaints) }
    }
}

/// Reads what is there. True at the end.
fn read(pipe: BorrowedFd<'_>, into: &mut Vec<u8>) -> io::Result<bool> {
    let mut chunk = [0; CHUNK];
    let result = match rustix::io::read(pipe, &mut chunk) {
        Ok(0) => Ok(true),
        Ok(count) => {
            into.extend_from_slice(chunk.get(..count).unwrap_or_default());
            Ok(false)
        }
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    };
    chunk.zeroize();
    result
}

/// Lines for people, as the cause of an error: on one line, nothing but text.
fn one_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ").replace(|letter: char| letter.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use polis_sys::{Bond, Importance, Input, Output};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn helper(script: &str) -> Command {
        Command {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
            working_directory: None,
            standard_input: Input::Pipe,
            standard_output: Output::Pipe,
            standard_error: Output::Pipe,
            importance: Importance::default(),
            bond: Bond::default(),
        }
    }

    #[test]
    fn the_answer_is_what_the_length_says_and_complaints_are_kept_apart() {
        let heard =
            converse(helper("echo 'ERROR:esys: no' >&2; echo >&2; printf '\\0\\0\\0\\3'; cat"), b"abcdef", LIMIT);
        let Heard { answer, complaints } = heard.unwrap();
        assert_eq!((&**answer, &*complaints), (&b"abc"[..], "ERROR:esys: no"));
    }

    #[test]
    fn an_answer_counts_though_the_helper_does_not_end() {
        let start = Instant::now();
        let heard = converse(helper("printf '\\0\\0\\0\\1x'; exec sleep 1000"), b"", LIMIT).unwrap();
        assert_eq!(&**heard.answer, b"x");
        assert!(start.elapsed() < LIMIT);
    }

    #[test]
    fn one_that_does_not_read_what_it_is_told_may_answer() {
        // More than a pipe holds.
        let heard = converse(helper("printf '\\0\\0\\0\\1x'"), &vec![0; 1 << 20], LIMIT).unwrap();
        assert_eq!(&**heard.answer, b"x");
    }

    #[test]
    fn one_that_says_nothing_is_killed_when_its_time_is_over() {
        let start = Instant::now();
        let error = converse(helper("exec sleep 1000"), b"", Duration::from_millis(200)).err().unwrap();
        assert!(matches!(error, ConversationError::TooSlow), "{error}");
        assert!(start.elapsed() >= Duration::from_millis(200) && start.elapsed() < LIMIT);
    }

    #[test]
    fn one_that_trickles_is_killed_when_its_time_is_over() {
        let trickle = "while :; do printf '\\0' >&2; sleep 0.01; done";
        let error = converse(helper(trickle), b"", Duration::from_millis(300)).err().unwrap();
        assert!(matches!(error, ConversationError::TooSlow), "{error}");
    }

    #[test]
    fn how_it_ended_without_an_answer_is_said() {
        let table = [
            ("exit 3", "ended without an answer (exit code 3)"),
            ("printf '\\0\\0\\0\\2x'; echo 'no library' >&2; exit 127", "(exit code 127): no library"),
            ("kill -9 $$", "was ended by signal SIGKILL"),
        ];
        for (script, expect) in table {
            let error = converse(helper(script), b"", LIMIT).err().unwrap();
            assert!(error.to_string().contains(expect), "{script}: {error}");
        }
    }

    #[test]
    fn an_answer_without_end_is_refused_and_complaints_are_bounded() {
        let error = converse(helper("printf '\\377\\377\\377\\377'; exec cat /dev/zero"), b"", LIMIT).err().unwrap();
        assert!(matches!(error, ConversationError::TooLong), "{error}");
        let script = "yes >&2 & sleep 0.1; kill $!; printf '\\0\\0\\0\\0'";
        assert!(converse(helper(script), b"", LIMIT).unwrap().complaints.len() <= 2 * COMPLAINTS_LIMIT);
    }

    #[test]
    fn what_cannot_be_started_is_told_apart() {
        let command = Command { program: "/does/not/exist".into(), ..helper("") };
        assert!(matches!(converse(command, b"", LIMIT).err(), Some(ConversationError::Start(_))));
    }
}
