//! A cluster of real nodes, made and run through the operator's own commands.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use polis_control::NodeState;
use serde_json::Value;

use crate::host::{Host, NodeProcess, PATIENCE};
use crate::scratch::Scratch;
use crate::storage_security::StorageSecurity;
use crate::world::World;

/// Pause between two looks at the cluster.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Nodes on hosts of their own, and the operator who owns them. Node 0 founds the cluster.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes that run now. They end before their hosts do.
    pub nodes: Vec<Option<NodeProcess>>,
    /// Where the nodes are.
    pub hosts: Vec<Host>,
    /// How a cluster that is founded has its nodes protect their data; what this run of the suites is for, unless it is changed.
    pub storage: StorageSecurity,
    operator: Operator,
    /// How many parameters files were made, so that each has a name of its own.
    made: Cell<u32>,
}

/// Who runs commands against the cluster, with a configuration directory of its own.
#[derive(Debug)]
struct Operator {
    binary: PathBuf,
    directory: Scratch,
    /// Host on which the commands run; absent on loopback.
    place: Option<(Arc<World>, usize)>,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Run {
    /// The command, for messages.
    pub line: String,
    /// Exit code; absent when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Run {
    fn new(line: String, output: Output) -> Self {
        Self {
            line,
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts that the command did what it was asked for.
    ///
    /// # Panics
    ///
    /// When it did not.
    #[track_caller]
    #[must_use]
    pub fn succeeds(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// What it printed, as JSON.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

impl Cluster {
    /// Places for `count` nodes on loopback addresses.
    #[must_use]
    pub fn on_loopback(binary: &Path, count: usize) -> Self {
        let hosts = (0..count).map(|_| Host::new(binary)).collect();
        Self::of(binary, hosts, None)
    }

    /// Places for a node on each host of a new world, and one more host for the operator, the last of them.
    #[must_use]
    pub fn in_world(binary: &Path, count: usize) -> (Self, Arc<World>) {
        let world = Arc::new(World::new(count + 1));
        let hosts = (0..count).map(|number| Host::in_world(binary, world.clone(), number)).collect();
        (Self::of(binary, hosts, Some((world.clone(), count))), world)
    }

    fn of(binary: &Path, hosts: Vec<Host>, place: Option<(Arc<World>, usize)>) -> Self {
        let nodes = hosts.iter().map(|_| None).collect();
        let made = Cell::new(0);
        let storage = StorageSecurity::of_this_run();
        Self {
            nodes,
            hosts,
            storage,
            made,
            operator: Operator { binary: binary.to_owned(), directory: Scratch::new(), place },
        }
    }

    /// The operator's configuration directory.
    #[must_use]
    pub fn configuration(&self) -> PathBuf {
        self.operator.directory.path().join("config")
    }

    /// A directory of the operator, for files of the test.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.operator.directory.path()
    }

    /// Runs `polis` with these arguments, separated by blanks, as the operator, with all running nodes as endpoints.
    pub fn polis(&self, line: &str) -> Run {
        self.polis_with(line, &[])
    }

    /// The same with more arguments, which may contain blanks.
    ///
    /// # Panics
    ///
    /// When the command cannot be started.
    pub fn polis_with(&self, line: &str, more: &[&str]) -> Run {
        let output = self.command(line).args(more).output().expect("polis can be started");
        Run::new(format!("polis {line} {}", more.join(" ")), output)
    }

    /// The command for `polis` with these arguments, as the operator, for who does not wait for its end.
    #[must_use]
    pub fn command(&self, line: &str) -> Command {
        let mut command = self.operator.command();
        command.args(line.split_ascii_whitespace()).stdin(Stdio::null());
        command.env("POLIS_CONFIG", self.configuration()).env("POLIS_ENDPOINTS", self.endpoints());
        command
    }

    /// Addresses of the nodes that run, separated by commas.
    fn endpoints(&self) -> String {
        let running = self.hosts.iter().zip(&self.nodes).filter(|(_, node)| node.is_some());
        running.map(|(host, _)| host.ip().to_string()).collect::<Vec<_>>().join(",")
    }

    /// Founds the cluster with node 0, as its owner would, and takes ownership.
    ///
    /// # Panics
    ///
    /// When a step does not succeed.
    pub fn found(&mut self) {
        self.found_unowned();
        let _ = self.polis("cluster takeownership --insecure-accept-and-persist-first-encountered-ca").succeeds();
    }

    /// Founds the cluster with node 0, and leaves the owner without a certificate.
    ///
    /// # Panics
    ///
    /// When a step does not succeed.
    pub fn found_unowned(&mut self) {
        let (keys, parameters) = (self.configuration(), self.directory().join("bootstrap.pb"));
        let _ = self.polis("owner create").succeeds();
        let key = keys.join("owner-key.pem");
        let mut arguments = self.storage.bootstrap_arguments().to_vec();
        arguments.extend(["--owner-key", text(&key), "-o", text(&parameters)]);
        let _ = self.polis_with("parameters bootstrap", &arguments).succeeds();
        self.nodes[0] = Some(self.hosts[0].start(&parameters));
        let _ = self.node(0).wait_state(NodeState::Running);
        // Then it can be asked over the network, too.
        let _ = self.node(0).wait_contact();
    }

    /// Makes parameters with which a node registers, and gives their path.
    ///
    /// # Panics
    ///
    /// When they cannot be made.
    pub fn register_parameters(&self) -> PathBuf {
        self.made.set(self.made.get() + 1);
        let path = self.directory().join(format!("register-{}.pb", self.made.get()));
        let endpoints = self.endpoints();
        let mut arguments = vec!["-o", text(&path)];
        for endpoint in endpoints.split(',') {
            arguments.extend(["--endpoints", endpoint]);
        }
        let _ = self.polis_with("parameters register", &arguments).succeeds();
        path
    }

    /// Starts node `number` for the first time: it asks for admission.
    pub fn register(&mut self, number: usize) {
        let parameters = self.register_parameters();
        self.nodes[number] = Some(self.hosts[number].start(&parameters));
    }

    /// Starts a node that was started before.
    pub fn start(&mut self, number: usize) {
        self.nodes[number] = Some(self.hosts[number].spawn(self.hosts[number].command()));
    }

    /// Waits until node `number`, which has registered, waits for approval, approves it and waits until it runs.
    ///
    /// # Panics
    ///
    /// When a step does not succeed.
    pub fn approve(&mut self, number: usize) {
        let id = self.id(number);
        let _ = self.node(number).wait_condition("waiting-for-approval");
        let _ = self.polis(&format!("node approve {id}")).succeeds();
        let _ = self.node(number).wait_state(NodeState::Running);
    }

    /// Gives node `number` the role of a consensus member and waits until it votes.
    ///
    /// # Panics
    ///
    /// When it does not come to that.
    pub fn make_member(&mut self, number: usize) {
        let id = self.id(number);
        self.wait_nodes("the node is healthy", |nodes| health(nodes, &id) == Some("HEALTHY"));
        let _ = self.polis(&format!("node add role ConsensusMember {id}")).succeeds();
        self.wait_members(&format!("{id} votes"), |members| {
            members.iter().any(|member| member["node_id"] == id.as_str() && member["learner"] == false)
        });
    }

    /// Founds a cluster of all nodes, all of them consensus members.
    pub fn grow(&mut self) {
        self.grow_to(self.hosts.len());
    }

    /// Founds a cluster of the first `count` nodes, all of them consensus members.
    pub fn grow_to(&mut self, count: usize) {
        self.found();
        for number in 1..count {
            self.register(number);
        }
        for number in 1..count {
            self.approve(number);
        }
        for number in 1..count {
            self.make_member(number);
        }
    }

    /// A running node.
    ///
    /// # Panics
    ///
    /// When it does not run.
    #[track_caller]
    pub fn node(&mut self, number: usize) -> &mut NodeProcess {
        self.nodes[number].as_mut().unwrap_or_else(|| panic!("node {number} does not run"))
    }

    /// Id of a node, once it has one.
    pub fn id(&mut self, number: usize) -> String {
        let status = self.node(number).wait("a node id", |status| status.node_id.is_some());
        status.node_id.expect("it was waited for")
    }

    /// Ends a node with SIGKILL.
    pub fn kill(&mut self, number: usize) {
        if let Some(node) = self.nodes[number].take() {
            node.kill();
        }
    }

    /// Ends all nodes that run with SIGKILL, at the same moment.
    pub fn kill_all(&mut self) {
        self.nodes.iter().flatten().for_each(|node| node.signal(rustix::process::Signal::KILL));
        (0..self.nodes.len()).for_each(|number| self.kill(number));
    }

    /// Waits until `node list` satisfies `wanted`, and returns it.
    ///
    /// # Panics
    ///
    /// When it does not within [`PATIENCE`], with the last list.
    #[track_caller]
    pub fn wait_nodes(&self, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        self.wait_list("node list -o json", what, wanted)
    }

    /// Waits until `consensus members` satisfies `wanted`, and returns it.
    ///
    /// # Panics
    ///
    /// When it does not within [`PATIENCE`], with the last list.
    #[track_caller]
    pub fn wait_members(&self, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        self.wait_list("consensus members -o json", what, wanted)
    }

    #[track_caller]
    fn wait_list(&self, line: &str, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let run = self.polis(line);
            // While the cluster has no leader the command fails, which is not an answer yet.
            if run.code == Some(0) {
                let list = run.json();
                let list = list.as_array().unwrap_or_else(|| panic!("`polis {line}` prints a list: {list}"));
                if wanted(list) {
                    return list.clone();
                }
            }
            if Instant::now() >= deadline {
                // A node that has died says nothing of it in any list, and looks there like one that is silent.
                let ended =
                    self.nodes.iter().enumerate().filter(|(_, node)| node.as_ref().is_some_and(NodeProcess::has_ended));
                let ended: Vec<usize> = ended.map(|(number, _)| number).collect();
                panic!(
                    "the cluster did not come to: {what}; nodes that have ended by themselves: {ended:?}; last {run:#?}"
                );
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }
}

impl Operator {
    fn command(&self) -> Command {
        match &self.place {
            None => Command::new(&self.binary),
            // Runs to its end while the test waits, so nothing of it is left.
            Some((world, number)) => world.host(*number).plain_command(&self.binary),
        }
    }
}

/// Health of the node with this id, as `node list` has it.
#[must_use]
pub fn health<'a>(nodes: &'a [Value], id: &str) -> Option<&'a str> {
    nodes.iter().find(|node| node["node_id"] == id)?["health"].as_str()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}
