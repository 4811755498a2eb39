//! Processes as the system sees them: which ones a test has, and that none is left.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long a process that was killed may take to be gone. It takes milliseconds; on a loaded machine more.
const DEATH_DEADLINE: Duration = Duration::from_secs(10);

/// The unit of times in `/proc`: USER_HZ is 100 on every machine that there is.
const TICK: Duration = Duration::from_millis(10);

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub id: u32,
    /// Its command line.
    pub command: String,
}

/// The running processes that work in this directory or below, or were given a path in it: nodes are given their root, and
/// their etcd works in it. Processes that have ended and were not waited for yet are not running.
#[must_use]
pub fn in_directory(directory: &Path) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let text = directory.to_string_lossy();
    let ids = entries.filter_map(Result::ok).filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<Process> = ids
        .filter(|id| *id != std::process::id())
        .filter_map(|id| {
            // What ends while this looks is not there any more.
            let command = String::from_utf8_lossy(&fs::read(format!("/proc/{id}/cmdline")).ok()?).replace('\0', " ");
            // A node hides its memory, and where it works with it, from all but root.
            let works_here = fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|place| place.starts_with(directory));
            (works_here || command.contains(&*text)).then_some(Process { id, command })
        })
        .collect();
    found.sort_by_key(|process| process.id);
    found
}

/// Waits until no process works in this directory any more; returns how long that took. gocryptfs is not killed with its node: it takes
/// a second to unmount and to end by itself.
///
/// # Errors
///
/// The processes that stay.
pub fn wait_until_gone(directory: &Path) -> Result<Duration, String> {
    wait_until_none_is_left(directory, |_| true)
}

/// Waits until no process works in this directory any more but those that hold encrypted data; returns how long that took.
///
/// # Errors
///
/// The processes that stay.
pub fn wait_until_only_data_are_held(directory: &Path) -> Result<Duration, String> {
    wait_until_none_is_left(directory, |process| {
        !process.command.split(' ').next().is_some_and(|it| it.ends_with("/gocryptfs"))
    })
}

fn wait_until_none_is_left(directory: &Path, matters: impl Fn(&Process) -> bool) -> Result<Duration, String> {
    let start = Instant::now();
    loop {
        let mut left = in_directory(directory);
        left.retain(&matters);
        if left.is_empty() {
            return Ok(start.elapsed());
        }
        if start.elapsed() > DEATH_DEADLINE {
            return Err(format!("processes are left behind: {left:?}"));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// When a process was started, in clock ticks since the machine was (proc(5), field 22 of `stat`). With the id it names a
/// process for good.
#[must_use]
pub fn start_time(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in parentheses, may hold anything; the fields after it are numbered from 3.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// How long a process has had a processor, its system calls included (proc(5), fields 14 and 15 of `stat`).
#[must_use]
pub fn processor_time(process: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(14 - 3);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(TICK * u32::try_from(ticks).ok()?)
}

/// A command for `program` that the kernel ends as soon as the test process has ended, however that ended, if it is started
/// with [`spawn`].
#[must_use]
pub fn bound_to_test(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    // The kernel tells nobody of a death that came before it was asked to, so that is looked for afterwards.
    command.args(["--pdeathsig", "KILL", "--", "/bin/sh", "-c", "[ $PPID = \"$0\" ] && exec \"$@\""]);
    command.arg(std::process::id().to_string()).arg(program);
    command
}

/// Starts a command. The kernel ties a child to the *thread* that started it, so all are started by one thread that lives as
/// long as the test process.
///
/// # Panics
///
/// When it cannot be started.
pub fn spawn(command: Command) -> Child {
    type Request = (Command, Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<Sender<Request>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = channel::<Request>();
        thread::spawn(move || {
            for (mut command, reply) in receiver {
                // Who asked may have panicked meanwhile; then the child ends with the test process.
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    let program = format!("{command:?}");
    let (reply, answer) = channel();
    spawner.send((command, reply)).expect("the spawner lives as long as the process");
    answer.recv().expect("the spawner answers").unwrap_or_else(|error| panic!("{program} cannot be started: {error}"))
}
