//! The spawner: what depends on which thread does what. Real processes.

use std::ffi::OsString;
use std::fs::read_to_string;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use polis_sys::{Bond, ChildProcess, Command, ExitStatus, Importance, Input, Output, Signal, SpawnError, spawn};

const DEADLINE: Duration = Duration::from_secs(20);

fn command(program: &str, arguments: &[&str]) -> Command {
    Command {
        program: program.into(),
        arguments: arguments.iter().map(OsString::from).collect(),
        environment: vec![("PATH".into(), "/bin:/usr/bin".into())],
        working_directory: None,
        standard_input: Input::Nothing,
        standard_output: Output::Discard,
        standard_error: Output::Discard,
        importance: Importance::default(),
        bond: Bond::default(),
    }
}

fn start(command: Command) -> Result<ChildProcess, SpawnError> {
    let (sender, receiver) = mpsc::channel();
    spawn(command, move |result| drop(sender.send(result)));
    receiver.recv_timeout(DEADLINE).expect("the spawner answers")
}

fn wait(child: &mut ChildProcess) -> ExitStatus {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "the child does not end");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_child_outlives_the_thread_that_asked_for_it() {
    // The first request makes the spawner; it comes from a thread that ends, and so does the second.
    let first = thread::spawn(|| start(command("/bin/sleep", &["1000"])).unwrap());
    let mut first = first.join().unwrap();
    let second = thread::spawn(|| start(command("/bin/sleep", &["1000"])).unwrap());
    let mut second = second.join().unwrap();
    // The parent-death signal would come at once, and the kernel would deliver it before this child has run.
    let mut third = start(command("/bin/sh", &["-c", "sleep 0.2"])).unwrap();
    assert!(wait(&mut third).is_success());
    assert_eq!(first.try_wait().unwrap(), None);
    assert_eq!(second.try_wait().unwrap(), None);
    first.signal(Signal::TERM).unwrap();
    let status = wait(&mut first);
    assert_eq!(status.to_string(), "ended by signal SIGTERM");
    assert_eq!(first.try_wait().unwrap(), Some(status), "a second wait is answered too");
    first.signal(Signal::TERM).unwrap();
}

#[test]
fn a_child_leads_a_group_of_its_own_and_dies_with_its_parent() {
    let child = start(command("/bin/sleep", &["1000"])).unwrap();
    let stat = read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    assert_eq!(fields[1], std::process::id().to_string(), "its parent is this process");
    assert_eq!(fields[2], child.id().to_string(), "it leads its group");
}

#[test]
fn a_dropped_child_is_killed_and_reaped() {
    let child = start(command("/bin/sleep", &["1000"])).unwrap();
    let path = format!("/proc/{}", child.id());
    assert!(Path::new(&path).exists());
    drop(child);
    let deadline = Instant::now() + DEADLINE;
    // A zombie would still have its directory.
    while Path::new(&path).exists() {
        assert!(Instant::now() < deadline, "the child was not reaped");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_reply_that_panics_does_not_end_the_spawner() {
    let mut before = start(command("/bin/sleep", &["1000"])).unwrap();
    let (sender, receiver) = mpsc::channel::<()>();
    spawn(command("/bin/true", &[]), move |_| {
        let _sender = sender;
        panic!("the reply of a test panics");
    });
    assert!(receiver.recv_timeout(DEADLINE).is_err());
    let mut after = start(command("/bin/true", &[])).unwrap();
    assert!(wait(&mut after).is_success());
    assert_eq!(before.try_wait().unwrap(), None, "the end of the spawner would have killed it");
}

#[test]
fn what_cannot_be_started_leaves_nothing() {
    assert!(matches!(start(command("true", &[])), Err(SpawnError::RelativeProgram { .. })));
    let error = start(command("/does/not/exist", &[])).unwrap_err();
    assert!(matches!(error, SpawnError::Execute { .. }), "{error}");
    assert_eq!(error.program(), Path::new("/does/not/exist"));
    let mut nowhere = command("/bin/true", &[]);
    nowhere.working_directory = Some("/does/not/exist".into());
    assert!(matches!(start(nowhere), Err(SpawnError::WorkingDirectory { .. })));
}

/// Signals that a process ignores, as the kernel lists them.
fn ignored(process: u32) -> u64 {
    let status = read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn a_child_ignores_no_signal_because_its_parent_was_told_to() {
    const IN_THE_BACKGROUND: &str = "POLIS_TEST_IN_THE_BACKGROUND";
    if std::env::var_os(IN_THE_BACKGROUND).is_some() {
        let interrupt = 1 << (Signal::INT.as_raw() - 1);
        assert_ne!(ignored(std::process::id()) & interrupt, 0, "this process was told to ignore SIGINT");
        let child = start(command("/bin/sleep", &["1000"])).unwrap();
        // Signals 32 and 33 are the C library's own: what somebody did about those cannot be taken back through it.
        assert_eq!(ignored(child.id()) & !(0b11 << 31), 0);
        return;
    }
    // This test again, as a shell that ignores signals starts it.
    let again = std::process::Command::new("/bin/sh")
        .args(["-c", "trap '' HUP INT QUIT; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_child_ignores_no_signal_because_its_parent_was_told_to"])
        .env(IN_THE_BACKGROUND, "1")
        .output()
        .unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stdout));
}

#[test]
fn a_child_and_its_threads_matter_as_much_as_is_said() {
    // `ionice` says what it has inherited from the child, as its threads do.
    let mut command = command("/bin/sh", &["-c", "cat /proc/self/oom_score_adj; ionice"]);
    command.standard_output = Output::Pipe;
    command.importance = Importance { out_of_memory_score: Some(700), disk_level: Some(1) };
    command.environment = vec![("PATH".into(), "/usr/bin:/bin".into())];
    let mut child = start(command).unwrap();
    let output = std::fs::File::from(child.take_standard_output().unwrap());
    let output = std::io::read_to_string(output).unwrap();
    assert!(wait(&mut child).is_success());
    assert_eq!(output, "700\nbest-effort: prio 1\n");
}

#[test]
fn a_child_of_a_process_that_is_not_dumpable_matters_as_much_as_is_said() {
    use std::os::fd::AsRawFd as _;
    const NOT_DUMPABLE: &str = "POLIS_TEST_NOT_DUMPABLE";
    if std::env::var_os(NOT_DUMPABLE).is_some() {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
        // It ends when it matters as little as was said.
        let mut command = command("/bin/sh", &["-c", "until grep -qx 700 /proc/self/oom_score_adj; do :; done"]);
        command.importance.out_of_memory_score = Some(700);
        assert!(wait(&mut start(command).unwrap()).is_success());
        return;
    }
    // As an ordinary user, since root may write to all files; through an open file, as the way to it may be closed to others.
    let program = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    rustix::io::fcntl_setfd(&program, rustix::io::FdFlags::empty()).unwrap();
    let mut again = if rustix::process::geteuid().is_root() {
        let mut again = std::process::Command::new("setpriv");
        again.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        again
    } else {
        std::process::Command::new("env")
    };
    let output = again
        .arg(format!("/proc/self/fd/{}", program.as_raw_fd()))
        .args(["--exact", "a_child_of_a_process_that_is_not_dumpable_matters_as_much_as_is_said"])
        .env(NOT_DUMPABLE, "1")
        .current_dir("/")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_child_reads_what_is_written_to_its_input_and_the_end_of_it() {
    use std::io::Write as _;
    let mut command = command("/bin/cat", &[]);
    command.standard_input = Input::Pipe;
    command.standard_output = Output::Pipe;
    let mut child = start(command).unwrap();
    let mut input = std::fs::File::from(child.take_standard_input().unwrap());
    assert!(child.take_standard_input().is_none());
    input.write_all(b"said\n").unwrap();
    drop(input);
    let output = std::fs::File::from(child.take_standard_output().unwrap());
    assert_eq!(std::io::read_to_string(output).unwrap(), "said\n");
    assert!(wait(&mut child).is_success());
}

#[test]
fn a_child_that_lives_on_is_ended_neither_by_its_parent_nor_by_what_it_says_then() {
    const SIGN_OF_LIFE: &str = "POLIS_TEST_SIGN_OF_LIFE";
    if let Some(file) = std::env::var_os(SIGN_OF_LIFE) {
        // With a pipe, the first of these words would be its last.
        let script = "while [ -d /proc/$0 ]; do sleep 0.02; done; echo one >&2; echo two >&2; echo alive >\"$1\"";
        let mut command = command("/bin/sh", &["-c", script]);
        command.arguments.extend([std::process::id().to_string().into(), file]);
        command.standard_error = Output::Datagrams;
        command.bond = Bond::LivesOn;
        let _child = start(command).unwrap();
        rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
    }
    let file = std::env::temp_dir().join(format!("polis-sys-{}", std::process::id()));
    let again = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_child_that_lives_on_is_ended_neither_by_its_parent_nor_by_what_it_says_then"])
        .env(SIGN_OF_LIFE, &file)
        .output()
        .unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&again.status), Some(Signal::KILL.as_raw()));
    let deadline = Instant::now() + DEADLINE;
    while read_to_string(&file).ok().as_deref() != Some("alive\n") {
        assert!(Instant::now() < deadline, "the child has ended with its parent");
        thread::sleep(Duration::from_millis(5));
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_dropped_child_that_lives_on_is_reaped_when_it_has_ended() {
    let mut command = command("/bin/sh", &["-c", "read line; echo read >&2"]);
    command.standard_input = Input::Pipe;
    command.standard_error = Output::Datagrams;
    command.bond = Bond::LivesOn;
    let mut child = start(command).unwrap();
    let path = format!("/proc/{}", child.id());
    let input = child.take_standard_input();
    let said = std::fs::File::from(child.take_standard_error().unwrap());
    drop(child);
    drop(input);
    let mut buffer = [0; 16];
    let count = std::io::Read::read(&mut &said, &mut buffer).unwrap();
    assert_eq!(&buffer[..count], b"read\n", "it was not killed");
    let deadline = Instant::now() + DEADLINE;
    while Path::new(&path).exists() {
        assert!(Instant::now() < deadline, "the child was not reaped");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_child_holds_what_it_was_given_open() {
    let place = std::env::current_exe().unwrap();
    let file = std::sync::Arc::new(std::os::fd::OwnedFd::from(std::fs::File::open(&place).unwrap()));
    let mut command = command("/bin/sleep", &["1000"]);
    command.standard_output = Output::Open(std::sync::Arc::clone(&file));
    let child = start(command).unwrap();
    assert_eq!(std::sync::Arc::strong_count(&file), 1, "it has an end of its own");
    assert_eq!(std::fs::read_link(format!("/proc/{}/fd/1", child.id())).unwrap(), place);
}
