//! A standard error that takes nothing: whoever reads it is slow, or has stopped reading. The node does not depend on them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use polis_testkit::host::PATIENCE;
use polis_testkit::processes;
use rustix::process::{Pid, Signal, kill_process};

use crate::Place;

/// What the standard error is full of.
const FILLING: u8 = b'.';

/// Whether a write to the full standard error waits or fails: any process that shares it can choose that for all of them.
const BLOCKING: [bool; 2] = [true, false];

/// Starts a node whose standard error is full; gives the end that nobody reads.
fn start_with_full_output(mut command: Command, blocking: bool) -> (Child, UnixStream) {
    let (reading, mut writing) = UnixStream::pair().unwrap();
    writing.set_nonblocking(true).unwrap();
    while match writing.write(&[FILLING; 256]) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) => panic!("{error}"),
    } {}
    writing.set_nonblocking(!blocking).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(OwnedFd::from(writing));
    (processes::spawn(command), reading)
}

/// Waits for the end of a node, and kills one that does not end.
fn wait_exit(node: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = node.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    node.kill().unwrap();
    node.wait().unwrap();
    panic!("the node did not end");
}

fn wait_running(place: &Place, node: &mut Child) {
    let root = place.root();
    let waited = place.host.polis(["node", "status", "--wait", "Running", "--root", root.to_str().unwrap()]);
    if !waited.status.success() {
        node.kill().unwrap();
        node.wait().unwrap();
        panic!("{}", String::from_utf8_lossy(&waited.stderr));
    }
}

#[test]
fn nobody_reads_the_log() {
    for blocking in BLOCKING {
        let place = Place::new();
        let (mut node, reading) = start_with_full_output(place.command(), blocking);
        wait_running(&place, &mut node);
        kill_process(Pid::from_child(&node), Signal::TERM).unwrap();
        assert!(wait_exit(&mut node).success(), "blocking: {blocking}");
        drop(reading);
        processes::wait_until_gone(place.host.directory()).unwrap();
    }
}

#[test]
fn nobody_reads_the_error() {
    for blocking in BLOCKING {
        let place = Place::new();
        std::fs::remove_file(&place.parameters).unwrap();
        let (mut node, _reading) = start_with_full_output(place.command(), blocking);
        assert_eq!(wait_exit(&mut node).code(), Some(1), "blocking: {blocking}");
    }
}

#[test]
fn the_log_is_read_late() {
    for blocking in BLOCKING {
        let place = Place::new();
        let (mut node, mut reading) = start_with_full_output(place.command(), blocking);
        wait_running(&place, &mut node);
        let reader = std::thread::spawn(move || {
            let mut log = Vec::new();
            reading.read_to_end(&mut log).unwrap();
            log
        });
        kill_process(Pid::from_child(&node), Signal::TERM).unwrap();
        assert!(wait_exit(&mut node).success(), "blocking: {blocking}");
        let log = String::from_utf8(reader.join().unwrap()).unwrap();
        let log = log.trim_start_matches(char::from(FILLING));
        for line in ["from=New to=CreatingCluster", "to=Running", "asked to stop by SIGTERM"] {
            assert!(log.contains(line), "blocking: {blocking}: {line:?} is not in:\n{log}");
        }
    }
}
