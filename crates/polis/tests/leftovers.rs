//! Nothing is left by a test, also when it is interrupted.
//!
//! The test that is interrupted is this program itself, started again with [`VICTIM_VARIABLE`] set.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use polis_control::NodeState;
use polis_testkit::scratch::Scratch;
use polis_testkit::{Host, processes};
use rustix::process::{Pid, Signal};

/// Asks the program to be the test that is interrupted.
const VICTIM_VARIABLE: &str = "POLIS_TEST_VICTIM";

/// Not a test but the victim: starts a node, says where, and waits to be ended.
#[test]
fn victim() {
    if std::env::var_os(VICTIM_VARIABLE).is_none() {
        return;
    }
    let host = Host::new(env!("CARGO_BIN_EXE_polis"));
    let parameters = host.bootstrap_parameters();
    let mut node = host.start(&parameters);
    node.wait_state(NodeState::Running);
    println!("\nplace {}", host.directory().display());
    node.wait("never", |_| false);
}

/// Mounts and loop devices below a directory, by the system's own lists.
fn mounts(directory: &Path) -> Vec<String> {
    let text = directory.to_string_lossy();
    let lines = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut found: Vec<String> =
        lines("/proc/self/mountinfo").lines().filter(|line| line.contains(&*text)).map(str::to_owned).collect();
    let devices = fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok);
    let backing = devices.map(|device| lines(&device.path().join("loop/backing_file").to_string_lossy()));
    found.extend(backing.filter(|file| file.contains(&*text)));
    found
}

#[test]
fn an_interrupted_test_leaves_no_process_and_its_directory_goes_with_the_next() {
    // SIGINT is no choice: it is ignored by whatever a shell has started in the background, and by what that starts.
    for signal in [Signal::TERM, Signal::KILL] {
        let temporary = Scratch::new();
        let run = || {
            let mut command = processes::bound_to_test(&std::env::current_exe().expect("this program has a path"));
            command.args(["victim", "--exact", "--nocapture", "--test-threads=1"]).env("TMPDIR", temporary.path());
            command.env(VICTIM_VARIABLE, "1").stdout(Stdio::piped());
            processes::spawn(command)
        };
        let mut victim = run();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
        let place =
            lines.find_map(|line| Some(PathBuf::from(line.strip_prefix("place ")?))).expect("the victim says where");
        assert!(place.starts_with(temporary.path()));
        let running = processes::in_directory(&place);
        assert!(running.len() >= 2, "a node and its etcd: {running:?}");

        rustix::process::kill_process(Pid::from_child(&victim), signal).unwrap();
        victim.wait().unwrap();
        processes::wait_until_gone(&place).unwrap_or_else(|left| panic!("{left}"));
        assert_eq!(mounts(&place), Vec::<String>::new());

        // Nobody could remove the directory, so the next test process does.
        assert!(place.is_dir());
        let mut next = run();
        let mut lines = BufReader::new(next.stdout.take().unwrap()).lines().map_while(Result::ok);
        lines.find(|line| line.starts_with("place ")).expect("the next one starts");
        assert!(!place.exists());
        next.kill().unwrap();
        next.wait().unwrap();
    }
}

#[test]
fn a_test_that_ends_leaves_nothing() {
    let host = Host::new(env!("CARGO_BIN_EXE_polis"));
    let parameters = host.bootstrap_parameters();
    let mut node = host.start(&parameters);
    node.wait_state(NodeState::Running);
    let place = host.directory().to_owned();
    assert!(processes::in_directory(&place).len() >= 2);
    drop(node);
    drop(host);
    assert_eq!(processes::in_directory(&place), Vec::new());
    assert!(!place.exists());
    assert_eq!(mounts(&place), Vec::<String>::new());
}
