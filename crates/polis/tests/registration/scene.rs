//! [`Scene`]: a founder, somebody who joins it, and the operator. Whoever is killed by a fault point is started again.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use polis_control::{NodeState, Status};
use polis_testkit::host::PATIENCE;
use polis_testkit::{Cluster, Host, glance, processes};
use serde_json::Value;

/// The node that has founded the cluster, and leads it while it is alone.
pub(crate) const FOUNDER: usize = 0;

/// The node that joins.
pub(crate) const JOINER: usize = 1;

/// SIGKILL.
const KILLED: i32 = 9;

/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Longest time that the operator's commands may try for.
const COMMAND_TIMEOUT: &str = "40s";

/// How far a joiner is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// It runs.
    Up,
    /// It is a consensus member with a vote.
    Member,
}

/// A founder, a joiner, and what has happened to them.
pub(crate) struct Scene {
    pub(crate) cluster: Cluster,
    founder: String,
    parameters: PathBuf,
    /// Points at which the next starts of each are to die, one for each start.
    planned: [VecDeque<String>; 2],
    /// Whether each was started so that it dies at a point.
    is_armed: [bool; 2],
    /// How often each has died so in this case.
    deaths: [usize; 2],
    /// Whether both are killed when one of them dies.
    is_together: bool,
}

/// How a node is started.
enum Start<'a> {
    First(&'a Path),
    Again,
}

impl Scene {
    /// Founds a cluster whose founder runs.
    pub(crate) fn new() -> Self {
        let mut cluster = Cluster::on_loopback(Path::new(env!("CARGO_BIN_EXE_polis")), 1);
        cluster.found();
        let (founder, parameters) = (cluster.id(FOUNDER), cluster.register_parameters());
        cluster.hosts.push(Host::new(env!("CARGO_BIN_EXE_polis")));
        cluster.nodes.push(None);
        Self {
            cluster,
            founder,
            parameters,
            planned: Default::default(),
            is_armed: [false; 2],
            deaths: [0; 2],
            is_together: false,
        }
    }

    /// Plans that the next starts of a node die at these points, one for each start; and the other node with it, or not.
    pub(crate) fn plan(&mut self, number: usize, faults: &[String], is_together: bool) {
        self.planned[number] = faults.iter().cloned().collect();
        self.is_together = is_together;
        self.deaths = [0; 2];
    }

    /// Ends what was planned, so that nobody dies of it any more. Returns how often the node has died.
    pub(crate) fn end_plan(&mut self, number: usize) -> usize {
        self.planned = Default::default();
        if self.is_armed[FOUNDER] {
            self.restart_founder();
        }
        self.deaths[number]
    }

    /// Starts the founder anew, so that it dies where it is planned. Points are counted from here.
    pub(crate) fn restart_founder(&mut self) {
        if let Some(node) = self.cluster.nodes[FOUNDER].take() {
            assert!(node.stop().success());
        }
        fs::write(self.fault_log(FOUNDER), "").expect("the log of fault points can be emptied");
        self.start(FOUNDER, &Start::Again);
        self.wait_status(FOUNDER, "Running and in contact", |status| {
            status.state == NodeState::Running && status.contact.as_ref().is_some_and(|contact| contact.in_contact)
        });
    }

    /// Has a new machine join and come to its goal, whatever is planned to happen on the way. Returns its id.
    pub(crate) fn join(&mut self, goal: Goal) -> String {
        let parameters = self.parameters.clone();
        self.start(JOINER, &Start::First(&parameters));
        let waiting = self.wait_status(JOINER, "waiting for approval", |status| {
            status.conditions.iter().any(|condition| condition.name == "waiting-for-approval")
        });
        let id = waiting.node_id.expect("who waits has an id");
        self.command(&format!("node approve {id}"));
        self.wait_status(JOINER, "Running", |status| status.state == NodeState::Running);
        self.wait_node(&id, "UP and healthy", |node| node["state"] == "UP" && node["health"] == "HEALTHY");
        if goal == Goal::Member {
            self.command(&format!("node add role ConsensusMember {id}"));
            self.wait_list("consensus members", "a vote", |members| {
                members.iter().any(|member| member["node_id"] == id.as_str() && member["learner"] == false)
            });
            self.wait_status(JOINER, "the role", |status| status.roles.iter().any(|role| role == "ConsensusMember"));
        }
        id
    }

    /// Checks what must be true at the end of every case: the same node, once, and nobody else.
    pub(crate) fn check(&mut self, goal: Goal, id: &str) {
        let status = self.wait_status(JOINER, "Running, no fault", |status| {
            status.state == NodeState::Running && polis_testkit::checks::faults(status).is_empty()
        });
        assert_eq!(status.node_id.as_deref(), Some(id), "it is another node than before");
        let founder = self.founder.clone();
        let nodes = self.wait_list("node list", "the two that there are, healthy", |nodes| {
            nodes.iter().all(|node| node["state"] == "UP" && node["health"] == "HEALTHY")
        });
        let mut found: Vec<&str> = nodes.iter().filter_map(|node| node["node_id"].as_str()).collect();
        let mut wanted = [id, &founder];
        found.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(found, wanted, "not exactly one record of each");
        let members = self.wait_list("consensus members", "members", |members| !members.is_empty());
        let expected = if goal == Goal::Member { 2 } else { 1 };
        assert_eq!(members.len(), expected, "{members:?}");
    }

    /// Takes the joiner out of the cluster again, so that the next case finds the founder alone.
    pub(crate) fn clear(&mut self, goal: Goal, id: &str) {
        if goal == Goal::Member {
            self.command(&format!("node remove role ConsensusMember {id}"));
        }
        if let Some(node) = self.cluster.nodes[JOINER].take() {
            assert!(node.stop().success());
        }
        self.command(&format!("node delete {id} --bypass-has-roles --bypass-not-decommissioned"));
        self.cluster.hosts[JOINER] = Host::new(env!("CARGO_BIN_EXE_polis"));
    }

    /// Points that a node has passed since its log was emptied.
    pub(crate) fn passed(&self, number: usize) -> Vec<String> {
        fs::read_to_string(self.fault_log(number)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn fault_log(&self, number: usize) -> PathBuf {
        self.cluster.hosts[number].directory().join("fault-points")
    }

    fn start(&mut self, number: usize, start: &Start<'_>) {
        let host = &self.cluster.hosts[number];
        let mut command = host.command();
        if let Start::First(parameters) = start {
            command.arg("--parameters").arg(parameters);
        }
        command.env("POLIS_FAULT_LOG", self.fault_log(number));
        let fault = self.planned[number].pop_front();
        self.is_armed[number] = fault.is_some();
        if let Some(fault) = fault {
            command.env("POLIS_FAULT", fault);
        }
        self.cluster.nodes[number] = Some(host.spawn(command));
    }

    /// Waits until a node has died so often, and was started again.
    pub(crate) fn wait_deaths(&mut self, number: usize, deaths: usize) {
        self.until("death at the point", |scene| (scene.deaths[number] == deaths).then_some(()));
    }

    /// Starts again who was killed by a fault point; and, where both are to die together, the other one as well.
    fn tend(&mut self) {
        for number in [FOUNDER, JOINER] {
            let Some(node) = &mut self.cluster.nodes[number] else { continue };
            let Some(end) = node.wait_exit_or("nothing", || true) else { continue };
            let log = node.log();
            assert!(end.signal() == Some(KILLED) && self.is_armed[number], "node {number} ended with {end}: {log}");
            self.deaths[number] += 1;
            let other = if number == FOUNDER { JOINER } else { FOUNDER };
            let other_ran = self.is_together && self.cluster.nodes[other].is_some();
            if other_ran {
                self.cluster.kill(other);
                self.start_again(other);
            }
            self.start_again(number);
        }
    }

    fn start_again(&mut self, number: usize) {
        processes::wait_until_gone(&self.cluster.hosts[number].root()).unwrap_or_else(|left| panic!("{left}"));
        let parameters = self.parameters.clone();
        // The parameters of a joiner are still there, as a machine that starts anew finds them.
        self.start(number, &if number == JOINER { Start::First(&parameters) } else { Start::Again });
    }

    /// Looks until something is there, and tends the nodes meanwhile.
    fn until<T>(&mut self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.tend();
            if let Some(found) = look(self) {
                return found;
            }
            if Instant::now() > deadline {
                let logs: Vec<String> =
                    self.cluster.nodes.iter().flatten().map(polis_testkit::NodeProcess::log).collect();
                panic!("it did not come to: {what}; the logs:\n{}", logs.join("\n---\n"));
            }
            thread::sleep(LOOK_PAUSE);
        }
    }

    fn wait_status(&mut self, number: usize, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        let root = self.cluster.hosts[number].root();
        self.until(what, |_| glance::status(&root).filter(&wanted))
    }

    fn wait_node(&mut self, id: &str, what: &str, wanted: impl Fn(&Value) -> bool) {
        self.wait_list("node list", what, |nodes| nodes.iter().any(|node| node["node_id"] == id && wanted(node)));
    }

    fn wait_list(&mut self, line: &str, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let list: Value = serde_json::from_slice(&self.command(&format!("{line} -o json")).stdout).expect("JSON");
            let list = list.as_array().expect("a list").clone();
            if wanted(&list) {
                return list;
            }
            assert!(Instant::now() < deadline, "`{line}` did not come to: {what}; last {list:?}");
        }
    }

    /// Runs a command of the operator, once, to its success.
    fn command(&mut self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polis"));
        command.args(line.split_ascii_whitespace()).args(["--timeout", COMMAND_TIMEOUT]).stdin(Stdio::null());
        command.env("POLIS_CONFIG", self.cluster.configuration());
        command.env("POLIS_ENDPOINTS", self.cluster.hosts[FOUNDER].ip().to_string());
        let mut running = Some(thread::spawn(move || command.output().expect("polis can be started")));
        let output = self.until(line, |_| {
            let is_done = running.as_ref().is_some_and(thread::JoinHandle::is_finished);
            is_done.then(|| running.take()?.join().ok()).flatten()
        });
        assert!(output.status.success(), "polis {line}: {output:?}");
        output
    }
}
