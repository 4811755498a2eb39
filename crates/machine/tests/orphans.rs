//! Orphans are reaped, and no exit status of a child is taken from whoever waits for it. In a process of its own: the whole process
//! becomes one that inherits orphans.

use std::time::{Duration, Instant};

use polis_sys::{Bond, Command, ExitStatus, Importance, Input, Orphan, Output, reap_orphan};
use tokio::sync::oneshot;

/// Children that end at the same time as the orphans.
const CHILDREN: i32 = 40;

fn shell(script: String) -> Command {
    Command {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
        environment: Vec::new(),
        working_directory: None,
        standard_input: Input::Nothing,
        standard_output: Output::Discard,
        standard_error: Output::Discard,
        importance: Importance::default(),
        bond: Bond::default(),
    }
}

async fn start(command: Command) -> polis_sys::ChildProcess {
    let (reply, started) = oneshot::channel();
    polis_sys::spawn(command, move |result| assert!(reply.send(result).is_ok()));
    started.await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_are_reaped_and_exit_codes_are_left_to_their_owners() {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    assert_eq!(reap_orphan().unwrap(), Orphan::None);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let reaped = std::thread::scope(|scope| {
        // Reaps all the time, in whatever moment a child is made, ends, or is waited for.
        let reaper = scope.spawn(|| {
            let mut reaped = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                match reap_orphan().unwrap() {
                    Orphan::Reaped { status, .. } => reaped.push(status),
                    Orphan::BehindOwnChild | Orphan::None => std::thread::yield_now(),
                }
            }
            reaped
        });
        let children = async {
            let mut children = Vec::new();
            for number in 0..CHILDREN {
                // What each leaves behind has a session of its own, so that it outlives its parent, and ends by itself.
                let script = format!("setsid sh -c 'exit {}' & exit {number}", 100 + number % 2);
                children.push((number, start(shell(script)).await.register().unwrap()));
            }
            for (number, mut child) in children {
                let status = loop {
                    let mut ready = child.readable_mut().await.unwrap();
                    if let Some(status) = ready.get_inner_mut().try_wait().unwrap() {
                        break status;
                    }
                    ready.clear_ready();
                };
                assert_eq!(status, ExitStatus::Exited { code: number }, "child {number}");
            }
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(children));
        // A child whose end nobody waits for is no orphan: it is killed and reaped by the thread for that.
        drop(tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(start(shell("sleep 100".into())))
        }));
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::fs::read_to_string(format!("/proc/self/task/{0}/children", std::process::id()))
            .is_ok_and(|left| !left.trim().is_empty())
        {
            assert!(Instant::now() < deadline, "children are left");
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        reaper.join().unwrap()
    });
    let of = |code| reaped.iter().filter(|status| **status == ExitStatus::Exited { code }).count();
    // What was still starting when its parent ended may have been killed with the parent's group before it had its own session.
    assert!(of(100) + of(101) > 0, "{reaped:?}");
    assert!(
        reaped
            .iter()
            .all(|status| matches!(status, ExitStatus::Exited { code: 100 | 101 }) || *status == ExitStatus::KILLED),
        "{reaped:?}"
    );
}
