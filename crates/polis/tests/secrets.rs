//! No secret gets out: the life of a cluster, after which everything that was logged, reported or printed is searched for every key
//! and ticket that the cluster has. And no memory image gets out either.

#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use polis_control::NodeState;
use polis_testkit::cluster::{Run, health};
use polis_testkit::secrets::Secrets;
use polis_testkit::{Cluster, Host, processes};
use rustix::process::Signal;

/// Fewest secrets that such a cluster has: two owner keys, two tickets, the keys of two authorities, and for each of three nodes its
/// own, its join key and its share key. To their peers in the consensus nodes show themselves with their own keys.
const LEAST_SECRETS: usize = 2 + 2 + 2 + 3 * 3;

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_polis"))
}

/// A cluster of which all texts are kept, and all secrets.
struct Life {
    cluster: Cluster,
    secrets: Secrets,
    texts: Vec<(String, Vec<u8>)>,
}

impl Life {
    /// Runs a command of the operator, which is to print no secret.
    fn polis(&mut self, line: &str) -> Run {
        let run = self.cluster.polis(line);
        self.texts.push((run.line.clone(), [run.stdout.as_bytes(), run.stderr.as_bytes()].concat()));
        run
    }

    fn owner_key(&mut self) {
        self.secrets.add_pem("owner key", &self.cluster.configuration().join("owner-key.pem"));
    }

    fn disks(&mut self) {
        for host in self.cluster.hosts.iter().filter(|host| host.root().is_dir()) {
            self.secrets.add_disk(&host.root());
        }
        let members = self.secrets.add_store(&self.cluster.hosts[0].root());
        assert!(members >= 2, "the keys of two authorities are in etcd");
    }

    /// Keeps what a node, which may have ended, has logged and left, and what a report of it says.
    fn keep(&mut self, number: usize) {
        let log = self.cluster.node(number).log();
        assert!(!log.is_empty());
        self.texts.push((format!("the log of node {number}"), log.into_bytes()));
        let root = self.cluster.hosts[number].root();
        let last = fs::read(root.join(polis_control::LAST_STATE_FILE)).expect("it has a last state");
        self.texts.push((format!("the last state of node {number}"), last));
        let report = self.file(&format!("report-{number}.json"));
        let root = root.display().to_string();
        let line = format!("node report --root {root} -o {}", report.display());
        let run = self.cluster.hosts[number].polis(line.split_ascii_whitespace());
        assert!(run.status.success(), "{run:?}");
        self.texts.push((format!("the report of node {number}"), fs::read(report).expect("it was written")));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.cluster.directory().join(format!("{name}-{}", self.texts.len()))
    }
}

#[test]
fn nothing_that_is_logged_reported_or_printed_has_a_secret_in_it() {
    let mut life = Life { cluster: Cluster::on_loopback(binary(), 3), secrets: Secrets::default(), texts: Vec::new() };
    life.cluster.found();
    life.owner_key();
    let old_ticket = life.cluster.register_parameters();
    let id = life.cluster.id(0);
    life.disks();

    // One joins, and becomes a member.
    life.cluster.register(1);
    let _ = life.cluster.node(1).wait_condition("waiting-for-approval");
    let joiner = life.cluster.id(1);
    life.disks();
    life.keep(1);
    let _ = life.polis(&format!("node approve {joiner}")).succeeds();
    let _ = life.cluster.node(1).wait_state(NodeState::Running);
    let _ = life.cluster.wait_nodes("it is healthy", |nodes| health(nodes, &joiner) == Some("HEALTHY"));
    let _ = life.polis(&format!("node add role ConsensusMember {joiner}")).succeeds();
    let _ = life.cluster.wait_members("two members", |members| {
        members.len() == 2 && members.iter().all(|member| member["learner"] == false)
    });
    life.disks();

    // What rotates, what is asked, and what is refused.
    let _ = life.polis(&format!("node set label {joiner} site=lab")).succeeds();
    let _ = life.cluster.polis("cluster ticket rotate").succeeds();
    let _ = life.polis("owner rotate").succeeds();
    life.owner_key();
    life.disks();
    life.cluster.nodes[2] = Some(life.cluster.hosts[2].start(&old_ticket));
    let _ = life.cluster.node(2).wait_condition("register-ticket-refused");
    for line in ["node list", "node list -o json", "cluster info", "cluster status -o json"] {
        let _ = life.polis(line).succeeds();
    }
    for line in ["consensus members", "node describe", &format!("node logs {joiner}")] {
        let _ = life.polis(line).succeeds();
    }
    let asked = life.polis(&format!("node logs {id}")).succeeds();
    for about in [format!("node {joiner}: labels +site"), "register ticket, rotated".to_owned()] {
        assert!(asked.stdout.contains(&about), "{about} is not in the log of the leader: {asked:#?}");
    }
    for (exporter, series) in
        [("core", "polis_node_state"), ("node", "polis_node_state"), ("etcd", "etcd_server_has_leader")]
    {
        let page = life.polis(&format!("node metrics {id} {exporter}")).succeeds();
        assert!(page.stdout.contains(series), "{series} is not on the page of {exporter}: {page:#?}");
    }
    // Its exit code tells what it has found.
    assert!(!life.polis("cluster health").stdout.is_empty());
    assert_eq!(life.polis("node no-such-command").code, Some(2));
    life.disks();
    for number in 0..3 {
        life.keep(number);
    }

    // One goes.
    let _ = life.polis(&format!("node remove role ConsensusMember {joiner}")).succeeds();
    let _ = life.polis(&format!("node decommission {joiner} --wait")).succeeds();
    let _ = life.cluster.node(1).wait_exit();
    let _ = life.polis(&format!("node delete {joiner}")).succeeds();
    life.keep(1);
    // A node that is killed and comes back has other things to say.
    life.cluster.kill(0);
    life.cluster.start(0);
    let _ = life.cluster.node(0).wait_state(NodeState::Running);
    life.keep(0);

    let Life { secrets, mut texts, .. } = life;
    assert!(secrets.count() >= LEAST_SECRETS, "too few secrets to search for: {:?}", secrets.names());
    let size: usize = texts.iter().map(|(_, text)| text.len()).sum();
    println!("{} secrets, {} texts, {size} bytes", secrets.count(), texts.len());
    let leaks = |texts: &[(String, Vec<u8>)]| -> Vec<String> {
        let found = |(name, text): &(String, Vec<u8>)| {
            secrets.found_in(text).into_iter().map(|what| format!("{what} is in {name}")).collect::<Vec<_>>()
        };
        texts.iter().flat_map(found).collect()
    };
    assert_eq!(leaks(&texts), Vec::<String>::new());
    // The search does see them: the file of the old ticket is full of it.
    texts.push(("what is planted".into(), fs::read(old_ticket).expect("it is there")));
    assert!(!leaks(&texts).is_empty());
}

#[test]
fn a_crash_leaves_no_image_of_the_memory() {
    let host = Host::new(binary());
    let mut node = host.start(&host.bootstrap_parameters());
    let _ = node.wait_state(NodeState::Running);
    let running = processes::in_directory(&host.root());
    assert!(running.len() >= 2, "a node and its etcd: {running:?}");
    for process in running {
        let limits = fs::read_to_string(format!("/proc/{}/limits", process.id)).expect("it runs");
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("there is such a limit");
        // One byte is too little for a file, and forbids to pipe an image to a program, too; what is zero only forbids files.
        let [.., soft, hard, _] = core.split_ascii_whitespace().collect::<Vec<_>>()[..] else { panic!("{core}") };
        assert!(["0", "1"].contains(&soft) && soft == hard, "{process:?}: {core}");
    }
    node.signal(Signal::ABORT);
    let end = node.wait_exit();
    assert!(end.signal() == Some(6) && !end.core_dumped(), "{end}");
}
