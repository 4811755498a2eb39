//! What a module writes through the Manager's `consensus_kv` and what was acknowledged stays, whatever happens to the node.
//!
//! The writer is this program itself, started again with [`ROOT_VARIABLE`] set: a module lives inside a node, and no command
//! of `polis` is one.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::net::{IpAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use polis_testkit::address::TestAddress;
use polis_testkit::host::PATIENCE;
use polis_testkit::seed::Random;
use polis_testkit::store::Store;
use polis_testkit::{Host, processes, writer};

/// Root of the node that the writer is to be.
const ROOT_VARIABLE: &str = "POLIS_TEST_WRITER_ROOT";

/// Its parameters.
const PARAMETERS_VARIABLE: &str = "POLIS_TEST_WRITER_PARAMETERS";

/// How often it is killed.
const KILLS: u32 = 20;

/// Latest time of a kill after its first acknowledged write.
const LATEST: Duration = Duration::from_millis(150);

/// Port on which etcd listens for its peers.
const PEER_PORT: u16 = 7834;

/// Not a test but the writer: does nothing unless it is asked to be one.
#[test]
fn writer() {
    if let (Some(root), Some(parameters)) = (std::env::var_os(ROOT_VARIABLE), std::env::var_os(PARAMETERS_VARIABLE)) {
        // The test harness has begun a line.
        println!();
        writer::run(Path::new(&root), PathBuf::from(parameters));
    }
}

/// A writer that runs.
struct Writer {
    child: Child,
    addresses: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Writer {
    fn start(host: &Host, parameters: &Path) -> Self {
        let mut command = processes::bound_to_test(&std::env::current_exe().expect("this program has a path"));
        command.args(["writer", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(ROOT_VARIABLE, host.root()).env(PARAMETERS_VARIABLE, parameters);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = processes::spawn(command);
        let addresses = child.stdin.take().expect("its input is a pipe");
        let lines = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        let mut writer = Self { child, addresses, lines };
        writer.move_to(host.ip());
        writer
    }

    /// Gives the node an address.
    fn move_to(&mut self, address: IpAddr) {
        writeln!(self.addresses, "{address}").expect("the writer takes addresses");
    }

    /// The next number whose write was acknowledged; nothing after the writer's end. What the test harness prints is skipped.
    fn next(&mut self) -> Option<u64> {
        self.lines.by_ref().map_while(Result::ok).find_map(|line| line.trim().parse().ok())
    }

    /// Kills it; returns what was acknowledged until then.
    fn kill(mut self) -> Vec<u64> {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// Checks that everything acknowledged is there.
fn check(store: &Store, acknowledged: &[u64]) {
    let entries: BTreeMap<String, _> = store.read().entries;
    for number in acknowledged {
        let key = format!("{}{}", writer::KEY_PREFIX, writer::key(*number));
        let entry = entries.get(&key).unwrap_or_else(|| panic!("{key} was acknowledged and is gone"));
        assert_eq!(entry.value, writer::value(*number).into_bytes());
    }
}

#[test]
fn acknowledged_writes_survive_20_kills() {
    let mut random = Random::for_this_run();
    let host = Host::new(env!("CARGO_BIN_EXE_polis"));
    let parameters = host.bootstrap_parameters();
    let mut acknowledged = Vec::new();
    for _ in 0..KILLS {
        let mut writer = Writer::start(&host, &parameters);
        acknowledged.push(writer.next().expect("the writer begins to write"));
        std::thread::sleep(random.span(LATEST));
        acknowledged.extend(writer.kill());
        processes::wait_until_gone(&host.root()).unwrap_or_else(|left| panic!("{left}"));
    }
    let mut writer = Writer::start(&host, &parameters);
    acknowledged.push(writer.next().expect("the writer begins to write"));
    check(&Store::of_node(&host.root()), &acknowledged);
    acknowledged.extend(writer.kill());

    // Each life goes on after the last number that is there, so none is ever acknowledged twice.
    assert!(acknowledged.is_sorted_by(|one, next| one < next), "{acknowledged:?}");
    println!("{} writes were acknowledged, and all of them were there after {KILLS} kills", acknowledged.len());
}

#[test]
fn writes_go_on_when_the_address_changes_while_the_node_runs() {
    let host = Host::new(env!("CARGO_BIN_EXE_polis"));
    let parameters = host.bootstrap_parameters();
    let mut writer = Writer::start(&host, &parameters);
    let mut acknowledged = vec![writer.next().expect("the writer begins to write")];
    let store = Store::of_node(&host.root());
    let member = store.read().members;

    let other = TestAddress::claim();
    writer.move_to(other.ip);
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect((other.ip, PEER_PORT)).is_err() {
        assert!(Instant::now() < deadline, "etcd does not listen on the new address");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Written long before that may be still in the pipe; the last of them is read when the writer has ended.
    acknowledged.push(writer.next().expect("the writer goes on"));
    let deadline = Instant::now() + PATIENCE;
    let before = newest(&store);
    while newest(&store) == before {
        assert!(Instant::now() < deadline, "nothing more is written");
    }
    assert!(TcpStream::connect((host.ip(), PEER_PORT)).is_err(), "etcd still listens on the old address");
    assert_eq!(store.read().members, member);
    check(&store, &acknowledged);
    assert!(writer.kill().len() > 1);
    drop(other);
}

/// The newest number in the store; waits while etcd is just being started again.
fn newest(store: &Store) -> Option<String> {
    store.read().below(writer::KEY_PREFIX).last().map(|(key, _)| key.to_owned())
}
