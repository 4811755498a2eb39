//! A process never outlives the daemon that started it, also when the daemon gets SIGKILL.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use polis_supervisor::{ProcessSpec, Supervisor, runnable};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Set in the process that plays the daemon.
const DAEMON: &str = "POLIS_SUPERVISOR_TEST_DAEMON";

/// How long the kernel may take to end a process. Much more than it needs.
const DEADLINE: Duration = Duration::from_secs(20);

/// What the daemon does: it starts a child that ignores every signal that can be ignored, tells its id and waits.
fn play_daemon() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let supervisor = Supervisor::builder().start(runnable(|context| async move {
            let spec = ProcessSpec::new("/bin/sh")
                .arguments(["-c", "trap '' TERM INT HUP; exec sleep 1000"])
                .variable("PATH", "/bin:/usr/bin");
            let process = context.process(spec).await?;
            println!("\nchild {}", process.id());
            context.healthy();
            process.supervise(&context).await
        }));
        std::future::pending::<()>().await;
        drop(supervisor);
    });
}

#[test]
fn a_child_is_gone_when_the_daemon_was_killed() {
    if std::env::var_os(DAEMON).is_some() {
        return play_daemon();
    }
    let mut daemon = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_child_is_gone_when_the_daemon_was_killed", "--nocapture"])
        .env(DAEMON, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
    let child = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("child ").map(str::to_string));
    let id = Pid::from_raw(child.expect("the daemon tells its child").parse().unwrap()).unwrap();
    let child = pidfd_open(id, PidfdFlags::empty()).unwrap();
    let ended = |deadline: Duration| {
        let deadline = Timespec::try_from(deadline).unwrap();
        poll(&mut [PollFd::new(&child, PollFlags::IN)], Some(&deadline)).unwrap() == 1
    };
    assert!(!ended(Duration::from_millis(300)), "the child ended before the daemon did");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let gone = ended(DEADLINE);
    if !gone {
        // It is not ours to reap, but ours to end: nothing is left behind, also when the test fails.
        let _ = pidfd_send_signal(&child, Signal::KILL);
    }
    assert!(gone, "the child lives on without its daemon");
}
