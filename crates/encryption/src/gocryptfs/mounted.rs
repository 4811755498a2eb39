//! [`Mounted`]: a running gocryptfs and its mount, watched by a thread of its own.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use polis_sys::{ChildProcess, Command, ExitStatus};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};

use super::place::Place;
use crate::child::{self, Reader, ToolError};
use crate::mounts::Mounts;

/// How long gocryptfs may take until it has mounted: it takes 30 ms, and much longer only on a machine that swaps.
const MOUNT_DEADLINE: Duration = Duration::from_secs(60);
/// How often the list of mounts is read even if the kernel has told nothing about it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Last lines of what gocryptfs said that are kept for an error message.
const LINES_KEPT: usize = 10;
/// How long the watching thread sleeps at most. It is woken by everything that it watches; this is for nothing else.
const WATCH_INTERVAL: Duration = Duration::from_secs(3600);

/// Called with the reason when the process has ended and nobody had asked for it.
pub(super) type OnLoss = Box<dyn FnOnce(String) + Send>;

/// A process that holds a mount, and what keeps that in use. Dropping it leaves both to themselves: the process unmounts and ends
/// when nobody uses the mount any more.
pub(super) struct Mounted {
    /// Left alone with the last reference, which is this one: the thread holds a weak one.
    child: Arc<Mutex<ChildProcess>>,
    shared: Arc<Shared>,
    /// Open as long as the mount is to stay: its root, and the socket pair that has a file of it.
    held: Vec<OwnedFd>,
}

/// What the thread finds out.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ended: Option<ExitStatus>,
    /// The end is wanted, or was never a loss because nothing was mounted yet.
    expected: bool,
    lines: Vec<String>,
}

impl Mounted {
    /// Starts the process, gives it the key, and waits until it has mounted.
    pub(super) fn start(command: Command, key: &[u8], place: &Place, on_loss: OnLoss) -> Result<Self, ToolError> {
        let program = command.program.clone();
        let mut mounts = Mounts::open()?;
        let mut child = child::start(command, key)?;
        let lost_pipe = |source| ToolError::Pipe { program: program.clone(), source };
        let complaint = Reader::new(child.take_standard_error()).map_err(lost_pipe)?;
        let ended = child.as_fd().try_clone_to_owned().map_err(lost_pipe)?;
        let child = Arc::new(Mutex::new(child));
        let shared =
            Arc::new(Shared { state: Mutex::new(State { expected: true, ..State::default() }), ..Shared::default() });
        let watch = Watch { child: Arc::downgrade(&child), shared: Arc::clone(&shared), ended, complaint };
        let span = tracing::Span::current();
        let builder = thread::Builder::new().name("gocryptfs-watch".into());
        builder.spawn(move || span.in_scope(|| watch.run(on_loss))).map_err(lost_pipe)?;
        let mut mounted = Self { child, shared, held: Vec::new() };
        match mounted.wait_for_mount(&program, place, &mut mounts) {
            Ok(root) => mounted.held.push(root),
            Err(error) => {
                // Nobody has written anything yet.
                mounted.kill();
                return Err(error);
            }
        }
        let mut state = mounted.shared.lock();
        state.expected = false;
        let ended = state.ended;
        drop(state);
        match ended {
            None => Ok(mounted),
            // Nobody was told of an end that came before this.
            Some(_) => Err(mounted.failure(&program)),
        }
    }

    /// Whether the process runs.
    pub(super) fn is_alive(&self) -> bool {
        self.shared.lock().ended.is_none()
    }

    /// Keeps this file of the mount open as long as that is to stay.
    ///
    /// Not as a file of this process: each child inherits those and closes them when its program begins, which asks gocryptfs, and
    /// where that hangs no program could be started any more. A file that is on its way through a socket is in no process.
    pub(super) fn hold_file(&mut self, file: OwnedFd) -> Result<(), ToolError> {
        let failed = |error: Errno| ToolError::Hold { source: error.into() };
        let pair = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        rights.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&pair.0, &[IoSlice::new(b"-")], &mut rights, SendFlags::empty()).map_err(failed)?;
        self.held.extend([pair.0, pair.1]);
        Ok(())
    }

    /// From now on the mount is not used any more, and the end of the process is no loss.
    pub(super) fn let_go(&mut self) {
        self.expect_end();
        self.held.clear();
    }

    fn expect_end(&self) {
        self.shared.lock().expected = true;
    }

    /// Waits for the end of the process; false if it runs on.
    pub(super) fn wait_for_end(&self, limit: Duration) -> bool {
        self.shared.wait_for_end(limit).is_some()
    }

    /// Kills the process, which may tear a block that it is writing.
    pub(super) fn kill(&self) {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).kill_group();
    }

    /// What is to be said of a process that has ended.
    fn failure(&self, program: &Path) -> ToolError {
        let state = self.shared.lock();
        let status = state.ended.unwrap_or(ExitStatus::KILLED);
        ToolError::Failed { program: program.to_owned(), status, complaint: state.lines.join("; ") }
    }

    /// Waits for the mount; returns its root, which keeps it in use.
    fn wait_for_mount(&self, program: &Path, place: &Place, mounts: &mut Mounts) -> Result<OwnedFd, ToolError> {
        let end = Instant::now() + MOUNT_DEADLINE;
        loop {
            if !self.is_alive() {
                return Err(self.failure(program));
            }
            if is_mounted(place, mounts)? {
                // This asks nothing of gocryptfs. What is still mounted afterwards was so when it was opened, and stays.
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let root = rustix::fs::open(&place.mount_point, flags, Mode::empty());
                if is_mounted(place, mounts)? {
                    let failed = |source| ToolError::Mounts { path: place.mount_point.clone(), source };
                    return root.map_err(|error| failed(error.into()));
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ToolError::Deadline { program: program.to_owned(), deadline: MOUNT_DEADLINE });
            }
            let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).as_fd().try_clone_to_owned();
            let lost_pipe = |source| ToolError::Pipe { program: program.to_owned(), source };
            let child = child.map_err(lost_pipe)?;
            let mut files = [PollFd::new(&child, PollFlags::IN), PollFd::new(mounts, PollFlags::PRI)];
            child::wait(&mut files, left.min(LOOK_AGAIN)).map_err(lost_pipe)?;
            if !files[0].revents().is_empty() {
                // The thread sees it too, and knows more.
                self.shared.wait_for_end(left);
            }
        }
    }
}

fn is_mounted(place: &Place, mounts: &mut Mounts) -> Result<bool, ToolError> {
    Ok(mounts.at(&place.mount_point)?.iter().any(|mount| mount.source == place.source_name()))
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.expect_end();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_end(&self, limit: Duration) -> Option<ExitStatus> {
        let waited = self.changed.wait_timeout_while(self.lock(), limit, |state| state.ended.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }
}

/// The thread that watches.
struct Watch {
    child: Weak<Mutex<ChildProcess>>,
    shared: Arc<Shared>,
    ended: OwnedFd,
    complaint: Reader,
}

impl Watch {
    fn run(mut self, on_loss: OnLoss) {
        let status = loop {
            let mut files = vec![PollFd::new(&self.ended, PollFlags::IN)];
            files.extend(self.complaint.poll());
            // An error would be one of memory; the thread looks again then, and no more often than it is woken.
            let waited = child::wait(&mut files, WATCH_INTERVAL);
            // The child was dropped: nobody wants to know.
            let Some(child) = self.child.upgrade() else { return };
            let ended = child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
            self.log();
            match (ended, waited) {
                (Ok(Some(status)), _) => break Ok(status),
                (Ok(None), Ok(())) => {}
                (Err(error), _) | (Ok(None), Err(error)) => break Err(error),
            }
        };
        self.end(status, on_loss);
    }

    /// Reads what the process says, so that it never waits for us.
    fn log(&mut self) {
        if self.complaint.read().is_err() {
            return;
        }
        for line in self.complaint.take_lines() {
            tracing::warn!("gocryptfs says: {line}");
            let mut state = self.shared.lock();
            if state.lines.len() == LINES_KEPT {
                state.lines.remove(0);
            }
            state.lines.push(line);
        }
    }

    fn end(self, status: io::Result<ExitStatus>, on_loss: OnLoss) {
        let mut state = self.shared.lock();
        let words = match &status {
            Ok(status) => status.to_string(),
            Err(error) => format!("nothing is known of it any more: {error}"),
        };
        // Who cannot be watched is as good as gone.
        state.ended = Some(status.unwrap_or(ExitStatus::KILLED));
        let lines =
            if state.lines.is_empty() { String::new() } else { format!("; it said: {}", state.lines.join("; ")) };
        let expected = state.expected;
        drop(state);
        self.shared.changed.notify_all();
        if !expected {
            on_loss(format!("the process gocryptfs, which holds the data partition, has ended ({words}){lines}"));
        }
    }
}
