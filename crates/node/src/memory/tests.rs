//! What is done for the memory of a process is for good, so each of these tests runs itself again as a process of its own. Most of it
//! holds for ordinary users only: root reads everything. So they run as one.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::os::fd::AsRawFd as _;
use std::process::{Child, Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::geteuid;

use super::*;
use crate::metrics::ProcessSample;

/// Tells a process that a test has started what it is.
const PART: &str = "POLIS_TEST_PART";

/// The process id that a part is about.
const PROCESS: &str = "POLIS_TEST_PROCESS";

/// What a part prints before what it has to say, which is then apart from what the test runner prints.
const SAYS: &str = "says: ";

/// A user who owns nothing.
const NOBODY: u32 = 65534;

/// What this process is to do, if it was started by a test.
fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// Runs the test `test` as another process, which does the part `part`. An ordinary user's process has a limit on locked memory.
fn start(test: &str, part: &str, as_ordinary_user: bool, about: Option<u32>) -> Child {
    // Through an open file, as the directories that lead to it may be closed to others.
    let program = File::open(std::env::current_exe().unwrap()).unwrap();
    fcntl_setfd(&program, FdFlags::empty()).unwrap();
    let mut command = if as_ordinary_user { Command::new("prlimit") } else { Command::new("env") };
    if as_ordinary_user {
        command.arg("--memlock=65536:65536");
        if geteuid().is_root() {
            let user = NOBODY.to_string();
            command.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "--bounding-set=-all"]);
        }
    }
    command.arg(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command.args(["--exact", "--nocapture", &format!("memory::tests::{test}")]).env(PART, part).current_dir("/");
    command.envs(about.map(|process| (PROCESS, process.to_string())));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// The next thing that a part says; none if it has ended.
fn next(output: &mut impl BufRead) -> Option<String> {
    output.lines().map(Result::unwrap).find_map(|line| Some(line.split_once(SAYS)?.1.to_owned()))
}

/// All that a part says. It must end well.
fn all(mut child: Child) -> Vec<String> {
    drop(child.stdin.take());
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let said = std::iter::from_fn(|| next(&mut output)).collect();
    assert!(child.wait().unwrap().success());
    said
}

fn say(what: impl std::fmt::Display) {
    println!("{SAYS}{what}");
}

/// What a part that is to be looked at does after it is ready: it waits until it is not needed any more.
fn ready() {
    say("ready");
    let _ = io::stdin().read(&mut [0]).unwrap();
}

/// A number of kibibytes in `/proc/self/status`.
fn kibibytes(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_process_of_the_same_user_cannot_read_the_memory() {
    const TEST: &str = "a_process_of_the_same_user_cannot_read_the_memory";
    match part().as_deref() {
        Some("protected") => {
            let _ = protect();
            return ready();
        }
        Some("unprotected") => return ready(),
        Some(_) => {
            let process = std::env::var(PROCESS).unwrap();
            // The system asks the same for these as for a tracer (proc(5), ptrace(2)).
            for file in ["environ", "maps", "auxv", "mem"] {
                let result = File::open(format!("/proc/{process}/{file}")).and_then(|mut file| file.read(&mut [0]));
                let result = match result {
                    // Nothing can be read at address 0, but it was let in.
                    Err(error) if error.raw_os_error() != Some(rustix::io::Errno::IO.raw_os_error()) => {
                        error.kind().to_string()
                    }
                    Ok(_) | Err(_) => "open".to_owned(),
                };
                say(format!("{file} {result}"));
            }
            return;
        }
        None => {}
    }
    for (part, expect) in [("unprotected", "open"), ("protected", "permission denied")] {
        let mut victim = start(TEST, part, true, None);
        let mut output = BufReader::new(victim.stdout.take().unwrap());
        assert_eq!(next(&mut output).as_deref(), Some("ready"));
        let found = all(start(TEST, "reader", true, Some(victim.id())));
        // Where only descendants may be traced, the memory of others is closed anyway.
        let traceable =
            fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").map_or(true, |scope| scope.trim() == "0");
        let mut files = vec!["environ", "maps", "auxv"];
        files.extend(traceable.then_some("mem"));
        for file in files {
            assert!(found.contains(&format!("{file} {expect}")), "{part}: {found:?}");
        }
        drop(victim.stdin.take());
        assert!(victim.wait().unwrap().success());
    }
}

#[test]
fn a_protected_process_of_an_ordinary_user_still_sees_itself() {
    if part().is_none() {
        let said = all(start("a_protected_process_of_an_ordinary_user_still_sees_itself", "self", true, None));
        assert_eq!(said, ["seen"]);
        return;
    }
    let _ = protect();
    let sample = ProcessSample::take();
    let ProcessSample { resident_bytes, open_files, open_files_limit, processor_seconds, threads } = sample;
    assert!(resident_bytes.is_some() && open_files.is_some() && open_files_limit.is_some());
    assert!(processor_seconds.is_some() && threads.is_some());
    // Sockets with long paths are reached through open directories.
    let directory = File::open("/proc").unwrap();
    assert!(fs::metadata(format!("/proc/self/fd/{}/self/status", directory.as_raw_fd())).is_ok());
    assert!(fs::read_link("/proc/self/ns/net").is_ok());
    assert!(
        fs::read_to_string("/proc/self/net/if_inet6").is_ok()
            || !std::path::Path::new("/proc/self/net/if_inet6").exists()
    );
    say("seen");
}

#[test]
fn memory_is_locked_only_where_no_limit_counts() {
    const TEST: &str = "memory_is_locked_only_where_no_limit_counts";
    if part().is_some() {
        let limit = getrlimit(Resource::Memlock);
        let resident = kibibytes("VmRSS:");
        let Protection { locked, .. } = protect();
        let after = getrlimit(Resource::Memlock);
        assert!(locked && after.current.is_none() || (after.current, after.maximum) == (limit.current, limit.maximum));
        // Nothing is brought into memory for it.
        let grown = kibibytes("VmRSS:").saturating_sub(resident);
        assert!(grown < 4096, "{grown} KiB");
        // What is allocated afterwards is locked once it is used, and may be as much as one likes.
        let much = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert_eq!(kibibytes("VmLck:") >= 64 << 10, locked);
        drop(much);
        // A child is as it was.
        let status = Command::new("cat").arg("/proc/self/status").output().unwrap();
        assert!(String::from_utf8_lossy(&status.stdout).contains("VmLck:\t       0 kB\n"));
        return say(locked);
    }
    assert_eq!(all(start(TEST, "without privilege", true, None)), ["false"]);
    let unlimited = Command::new("prlimit").args(["--memlock=unlimited:unlimited", "true"]).output().unwrap();
    let may = unlimited.status.success() || has_the_privilege();
    assert_eq!(all(start(TEST, "as it is", false, None)), [may.to_string()]);
}

/// Whether this process has CAP_IPC_LOCK (capabilities(7): number 14) and is in no user namespace of its own.
fn has_the_privilege() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let all_users = fs::read_to_string("/proc/self/uid_map").unwrap();
    u64::from_str_radix(effective.trim(), 16).unwrap() & 1 << 14 != 0
        && all_users.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

#[test]
fn a_tracer_is_known_by_its_number() {
    assert_eq!(tracer("Name:\tpolis\nTracerPid:\t0\nUid:\t0\n"), None);
    assert_eq!(tracer("Name:\tpolis\nTracerPid:\t4711\n"), Some(4711));
    assert_eq!(tracer(""), None);
}

#[test]
fn the_message_says_whose_memory_it_is() {
    let areas = ["/dev/sda2".to_owned(), "/swap file".to_owned()];
    let (locked, unlocked) = (message(&areas, true), message(&areas, false));
    assert!(locked.contains("/dev/sda2, /swap file") && unlocked.contains("/dev/sda2, /swap file"));
    assert!(!locked.contains("this node and") && unlocked.contains("this node and"));
}
