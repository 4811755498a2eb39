//! The one thread that makes child processes.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{self, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};

use crate::child::ChildProcess;
use crate::command::{Bond, Command, Importance, Input, Output, SpawnError};
use crate::own_children;

/// Requests that wait for the spawner. Making a process takes about a millisecond, and a node has a handful.
const QUEUE: usize = 256;

type Reply = Box<dyn FnOnce(Result<ChildProcess, SpawnError>) + Send>;

struct Request {
    command: Command,
    reply: Reply,
}

/// Starts a child process on the spawner's thread and calls `reply` there with the result.
///
/// Never blocks. `reply` must be quick: every other request waits for it. It is always called exactly once. A
/// [`ChildProcess`] that `reply` drops is killed.
pub fn spawn(command: Command, reply: impl FnOnce(Result<ChildProcess, SpawnError>) + Send + 'static) {
    static SPAWNER: OnceLock<Option<SyncSender<Request>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = sync_channel(QUEUE);
        thread::Builder::new().name("process-spawner".into()).spawn(move || run(&receiver)).ok().map(|_| sender)
    });
    let request = Request { command, reply: Box::new(reply) };
    let (request, reason) = match spawner {
        None => (request, "the thread that starts processes could not be made"),
        Some(sender) => match sender.try_send(request) {
            Ok(()) => return,
            Err(TrySendError::Full(request)) => (request, "too many processes are being started at this moment"),
            Err(TrySendError::Disconnected(request)) => (request, "the thread that starts processes has ended"),
        },
    };
    (request.reply)(Err(SpawnError::Spawner { program: request.command.program, reason }));
}

/// The spawner's thread. It must never end while the process lives: its end would kill all children.
fn run(receiver: &Receiver<Request>) {
    while let Ok(Request { command, reply }) = receiver.recv() {
        // A panic of the reply is the caller's fault and must not end this thread.
        let _ = catch_unwind(AssertUnwindSafe(|| reply(start(command))));
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that starts processes")]
fn start(command: Command) -> Result<ChildProcess, SpawnError> {
    let program = command.program;
    if !program.is_absolute() {
        return Err(SpawnError::RelativeProgram { program });
    }
    let directory = command.working_directory.unwrap_or_else(|| "/".into());
    let streams = stdio(command.standard_output).and_then(|output| Ok((output, stdio(command.standard_error)?)));
    let ((output, output_end), (complaint, complaint_end)) = match streams {
        Ok(streams) => streams,
        Err(source) => return Err(SpawnError::Execute { program, source }),
    };
    let mut builder = process::Command::new(&program);
    builder
        .args(command.arguments)
        .env_clear()
        .envs(command.environment)
        .current_dir(&directory)
        .process_group(0)
        .stdin(match command.standard_input {
            Input::Nothing => Stdio::null(),
            Input::Pipe => Stdio::piped(),
        })
        .stdout(output)
        .stderr(complaint);
    let bond = command.bond;
    let parent = process::id();
    let importance = command.importance;
    // Written before the fork, as what makes text may allocate.
    let score = importance.out_of_memory_score.map(|score| score.to_string());
    let score_from_outside = score.clone();
    // SAFETY: between fork and exec only async-signal-safe work is allowed. The closure makes system calls and builds
    // errors from numbers: it neither allocates nor takes a lock.
    unsafe {
        builder.pre_exec(move || {
            match bond {
                Bond::DiesWithUs => die_with_parent(parent)?,
                // The signal at the death of a parent is never inherited.
                Bond::LivesOn => {}
            }
            take_all_signals();
            matter(importance, score.as_deref());
            inherit_nothing()
        });
    }
    // Held until the child is known: whoever reaps orphans must not take it for one.
    let mut own_children = own_children::lock();
    let spawned = builder.spawn();
    // It holds the child's ends of the streams.
    drop(builder);
    let mut child = match spawned {
        Ok(child) => child,
        Err(source) => {
            // The system does not say whether it meant the program or the directory.
            return Err(match std::fs::read_dir(&directory) {
                Err(source) => SpawnError::WorkingDirectory { program, directory, source },
                Ok(_) => SpawnError::Execute { program, source },
            });
        }
    };
    let pidfd = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("the process id is out of range"))
        .and_then(|pid| Ok((pid, pidfd_open(pid, PidfdFlags::empty())?)));
    if let Some(score) = score_from_outside {
        // What was forked from a process that is not dumpable may not write to its own files, unless it is root's; what it has become
        // by now may be written to. What is not allowed stays as it was.
        write_score(format!("/proc/{}/oom_score_adj", child.id()), &score);
    }
    match pidfd {
        Ok((pid, pidfd)) => {
            own_children.insert(pid);
            Ok(ChildProcess::new(
                pid,
                pidfd,
                bond,
                child.stdin.take().map(OwnedFd::from),
                child.stdout.take().map(OwnedFd::from).or(output_end),
                child.stderr.take().map(OwnedFd::from).or(complaint_end),
            ))
        }
        Err(source) => {
            // It was made a moment ago and is not reaped, so it can be killed and waited for; errors leave nothing.
            let _ = child.kill();
            let _ = child.wait();
            Err(SpawnError::Watch { program, source })
        }
    }
}

/// Runs in the child before exec: asks for SIGKILL when the spawner's thread ends, then makes sure that it has not
/// ended already, because the signal is only sent for an end after the request.
fn die_with_parent(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let known = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if known == Some(parent) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()))
    }
}

/// Runs in the child before exec: no signal stays ignored because whoever started this process ignored it, as a shell does with
/// SIGINT for what it runs in the background, and `nohup` with SIGHUP. A child that ignores its stop signal would only end by
/// SIGKILL, and a shell cannot even take back what it has inherited so.
fn take_all_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: the default action is no pointer to code. The call fails for the signals whose action nobody can change, and
        // those that the C library keeps for itself; then all is as it should be.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Runs in the child before exec, as threads inherit it: how much the child matters. What is not allowed stays as it was.
fn matter(importance: Importance, score: Option<&str>) {
    if let Some(level) = importance.disk_level {
        // Constants of the kernel (ioprio_set(2)) that the C library does not name.
        const OF_PROCESS: libc::c_int = 1;
        const BEST_EFFORT: libc::c_int = 2;
        const CLASS_SHIFT: libc::c_int = 13;
        let this_process: libc::c_int = 0;
        let priority = BEST_EFFORT << CLASS_SHIFT | libc::c_int::from(level);
        // SAFETY: the call takes numbers only.
        unsafe { libc::syscall(libc::SYS_ioprio_set, OF_PROCESS, this_process, priority) };
    }
    if let Some(score) = score {
        write_score(c"/proc/self/oom_score_adj", score);
    }
}

/// Allocates nothing for a path that ends with zero already. What is not allowed stays as it was.
fn write_score(path: impl rustix::path::Arg, score: &str) {
    if let Ok(file) = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::io::write(&file, score.as_bytes());
    }
}

/// Runs in the child before exec: everything that this process was itself started with, or that a library has opened
/// without care, is closed when the program begins. Only the three standard streams stay.
fn inherit_nothing() -> io::Result<()> {
    let (first, last) = (3, libc::c_uint::MAX);
    // SAFETY: the call takes no pointers, and marking descriptors takes effect only at exec.
    let result = unsafe { libc::close_range(first, last, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The child's end of a stream, and ours where it is not made with the child.
fn stdio(output: Output) -> io::Result<(Stdio, Option<OwnedFd>)> {
    Ok(match output {
        Output::Discard => (Stdio::null(), None),
        Output::Pipe => (Stdio::piped(), None),
        Output::Datagrams => {
            let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            (theirs.into(), Some(ours))
        }
        Output::Open(file) => (file.try_clone()?.into(), None),
    })
}
