//! [`Scene`]: a cluster on encrypted data, each node on a host of its own, that loses its power as a whole.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use polis_control::{LockState, NodeState, SharesStatus};
use polis_testkit::cluster::Run;
use polis_testkit::node_data::unlock_keys;
use polis_testkit::seed::Random;
use polis_testkit::world::World;
use polis_testkit::{Cluster, NodeProcess, StorageSecurity, glance, mounts, processes};
use serde_json::Value;

use crate::binary;
use crate::writer::Writer;

/// Longest time that a cluster may take to come back or to bring its keys into order. One of seven takes half a minute on two
/// processors that other tests use as well, seven etcds and as many gocryptfs included.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Longest time that a command waits for the leader.
const ANSWER: &str = "5s";

/// Longest time that a command may take which waits for more than that.
const COMMAND: &str = "60s";

/// Most members that keep a copy of their own key each, unless they are confirmed to stay so many.
const MOST_WITH_COPIES: usize = 2;

/// Name of the condition of a node that waits for others to open its data.
pub(crate) const LOCKED: &str = "data-locked";

/// A cluster and the world that it is in.
pub(crate) struct Scene {
    pub(crate) cluster: Cluster,
    pub(crate) world: Arc<World>,
    /// Number of the operator's host, where the writer is as well.
    operator: usize,
    /// How many of the nodes are members: the first ones.
    pub(crate) members: usize,
    /// Whether two members are confirmed to stay two.
    are_two_confirmed: bool,
}

impl Scene {
    /// Places for so many nodes, of which the first founds a cluster.
    pub(crate) fn founded(places: usize) -> Self {
        let (mut cluster, world) = Cluster::in_world(binary(), places);
        cluster.storage = StorageSecurity::Authenticated;
        cluster.found();
        Self { cluster, world, operator: places, members: 1, are_two_confirmed: false }
    }

    /// A cluster of so many members whose keys are in order.
    pub(crate) fn of(members: usize) -> Self {
        let mut scene = Self::founded(members);
        scene.grow_to(members);
        scene.wait_settled();
        scene
    }

    /// Lets nodes join, one after the other, until there are so many members.
    pub(crate) fn grow_to(&mut self, members: usize) {
        let new = self.members..members;
        self.join(new.clone());
        for number in new {
            self.wait_back(&[number]);
            let id = self.cluster.id(number);
            let _ = self.polis(&format!("node add role ConsensusMember {id} --timeout {COMMAND}"));
            self.members = number + 1;
            self.wait("it has a vote", Self::has_its_members);
        }
    }

    /// Lets the last member go, and stay as a node without a role.
    pub(crate) fn shrink(&mut self) {
        self.members -= 1;
        let id = self.cluster.id(self.members);
        let _ = self.polis(&format!("node remove role ConsensusMember {id} --timeout {COMMAND}"));
    }

    /// Confirms that two members are to stay two, for which the cluster gets a recovery key.
    pub(crate) fn confirm_two(&mut self) {
        let [words, public] = ["words", "recovery.pem"].map(|name| self.cluster.directory().join(name));
        let [words, public] = [&words, &public].map(|path| path.to_str().expect("the path is UTF-8"));
        let _ = self.polis(&format!("recovery-key create --words-to {words} -o {public}"));
        let _ = self.polis(&format!("cluster recovery-key set {public}"));
        let _ = self.polis("cluster confirm-two");
        self.are_two_confirmed = true;
    }

    /// Whether each member keeps a copy of its own key, as nobody else could give it.
    const fn keeps_copies(&self) -> bool {
        match self.members {
            0 | 1 => true,
            MOST_WITH_COPIES => !self.are_two_confirmed,
            _ => false,
        }
    }

    /// Lets nodes join, as nodes without a role.
    pub(crate) fn join(&mut self, new: Range<usize>) {
        for number in new.clone() {
            self.cluster.register(number);
        }
        for number in new {
            self.cluster.approve(number);
        }
    }

    /// All members, by number.
    pub(crate) fn all(&self) -> Vec<usize> {
        (0..self.members).collect()
    }

    /// All members, in any order.
    pub(crate) fn shuffled(&self, random: &mut Random) -> Vec<usize> {
        let mut numbers = self.all();
        for last in (1..numbers.len()).rev() {
            numbers.swap(last, random.below(last as u64 + 1) as usize);
        }
        numbers
    }

    pub(crate) fn root(&self, number: usize) -> PathBuf {
        self.cluster.hosts[number].root()
    }

    /// A writer of labels of the founder.
    pub(crate) fn writer(&mut self) -> Writer {
        let node = self.cluster.id(0);
        Writer::new(&node, self.cluster.configuration(), Arc::clone(&self.world), self.operator)
    }

    /// Addresses of these nodes.
    pub(crate) fn addresses(&self, numbers: &[usize]) -> Vec<std::net::IpAddr> {
        numbers.iter().map(|number| self.cluster.hosts[*number].ip()).collect()
    }

    /// All nodes lose their power at the same moment.
    pub(crate) fn power_cut(&mut self) {
        self.cluster.kill_all();
    }

    /// The same, and waits until nothing of the nodes is left: also the mounts of their data are gone.
    pub(crate) fn power_cut_and_rest(&mut self) {
        self.power_cut();
        for number in 0..self.cluster.hosts.len() {
            processes::wait_until_gone(&self.root(number)).unwrap_or_else(|left| panic!("{left}"));
            assert!(!self.is_open(number), "the data of node {number} are still mounted");
        }
    }

    /// Starts these nodes, one right after the other.
    pub(crate) fn power_on(&mut self, numbers: &[usize]) {
        for number in numbers {
            self.cluster.start(*number);
        }
    }

    /// The list of nodes, if all of these run in contact with their leader and are healthy; else what is not so.
    pub(crate) fn back(&self, numbers: &[usize]) -> Result<Vec<Value>, String> {
        let mut ids = Vec::new();
        for number in numbers {
            let status = glance::status(&self.root(*number)).ok_or_else(|| format!("node {number} says nothing"))?;
            let is_in_contact = status.contact.as_ref().is_some_and(|contact| contact.in_contact);
            if status.state != NodeState::Running || !is_in_contact {
                return Err(format!("node {number} is {} and not in contact: {:?}", status.state, status.conditions));
            }
            ids.extend(status.node_id);
        }
        let list = self.ask("node list -o json")?;
        let nodes = list.as_array().ok_or("there is no list")?;
        let is_healthy = |id: &str| {
            nodes.iter().any(|node| node["node_id"] == id && node["state"] == "UP" && node["health"] == "HEALTHY")
        };
        match ids.iter().find(|id| !is_healthy(id)) {
            Some(id) => Err(format!("{id} is not healthy: {list}")),
            None => Ok(nodes.clone()),
        }
    }

    /// Whether there are as many members as there should be, all of them with a vote; else what there is.
    fn has_its_members(&self) -> Result<(), String> {
        let members = self.ask("consensus members -o json")?;
        let voters =
            members.as_array().map(|members| members.iter().map(|member| member["learner"] == false).collect());
        if voters == Some(vec![true; self.members]) {
            Ok(())
        } else {
            Err(format!("there are not {} members: {members}", self.members))
        }
    }

    /// Whether all nodes are back, the members are those that they should be, and their keys are in order: where others can give it
    /// nobody keeps his own, all have tried that they get it, and whoever was removed gets it from nobody. Else what is not so.
    pub(crate) fn settled(&self) -> Result<(), String> {
        let running: Vec<usize> =
            (0..self.cluster.nodes.len()).filter(|number| self.cluster.nodes[*number].is_some()).collect();
        self.back(&running)?;
        self.has_its_members()?;
        for number in running {
            let copies = usize::from(self.keeps_copies() && number < self.members);
            let found = unlock_keys(&self.root(number)).len();
            if found != copies {
                return Err(format!("node {number} keeps {found} copies of its key, and not {copies}"));
            }
        }
        let status = self.ask("cluster status -o json")?;
        let unfinished = &status["unfinished_removals"];
        if !unfinished.is_null() {
            return Err(format!("a removal is not finished: {unfinished}"));
        }
        if !self.keeps_copies() {
            let behind = status["cold_start"]["behind"].as_array();
            if behind.is_none_or(|behind| !behind.is_empty()) {
                return Err(format!("somebody is behind with his key: {}", status["cold_start"]));
            }
        }
        Ok(())
    }

    /// Waits until these nodes run in contact with their leader, and are healthy. Returns the list of nodes.
    #[track_caller]
    pub(crate) fn wait_back(&mut self, numbers: &[usize]) -> Vec<Value> {
        self.wait("the nodes are back", |scene| scene.back(numbers))
    }

    /// Waits until all nodes that were started are back and their keys are in order ([`Scene::settled`]).
    #[track_caller]
    pub(crate) fn wait_settled(&mut self) {
        self.wait("the keys are in order", Self::settled);
    }

    /// Whether the data of a node are open. What a killed node has left open counts as well: see [`Scene::power_cut_and_rest`].
    pub(crate) fn is_open(&self, number: usize) -> bool {
        !mounts::below(&self.root(number).join("data")).is_empty()
    }

    /// Waits until the data of these nodes are open. Returns how long that took.
    #[track_caller]
    pub(crate) fn wait_open(&mut self, numbers: &[usize]) -> Duration {
        let began = Instant::now();
        self.wait("all are open", |scene| match numbers.iter().find(|number| !scene.is_open(**number)) {
            Some(number) => Err(format!("node {number} is not")),
            None => Ok(()),
        });
        began.elapsed()
    }

    /// Waits until a node says that it is locked, and that it has so many shares of so many.
    #[track_caller]
    pub(crate) fn wait_locked(&mut self, number: usize, have: u32, need: u32) {
        let (root, wanted) = (self.root(number), Some(SharesStatus { have, need }));
        self.wait(&format!("node {number} is locked and has {have} of {need} shares"), |_| {
            let status = glance::status(&root).ok_or("it says nothing")?;
            match status.lock {
                Some(lock) if lock.state == LockState::Locked && lock.shares == wanted => Ok(()),
                lock => Err(format!("{lock:?}, {:?}", status.conditions)),
            }
        });
    }

    /// What `polis node status` prints of a node, on its machine.
    pub(crate) fn node_status(&self, number: usize) -> String {
        let root = self.root(number);
        let arguments = ["node", "status", "--root", root.to_str().expect("the path is UTF-8")];
        let output = self.cluster.hosts[number].polis(arguments);
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    }

    /// Looks until something is so.
    ///
    /// # Panics
    ///
    /// When a node that was started has ended by itself, or [`PATIENCE`] has run out, with what is not so and the logs.
    #[track_caller]
    fn wait<T>(&self, what: &str, look: impl Fn(&Self) -> Result<T, String>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let missing = match look(self) {
                Ok(found) => return found,
                Err(missing) => missing,
            };
            let ended = self.ended();
            assert!(ended.is_none(), "node {ended:?} has ended by itself before {what}: {}", self.reports());
            assert!(Instant::now() < deadline, "it did not come to: {what}, as {missing}; {}", self.reports());
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// A node that was started and has ended.
    pub(crate) fn ended(&self) -> Option<usize> {
        self.cluster.nodes.iter().position(|node| node.as_ref().is_some_and(NodeProcess::has_ended))
    }

    /// The last lines of all that runs, and what each says of itself.
    pub(crate) fn reports(&self) -> String {
        /// Lines of each log that are shown.
        const LINES: usize = 60;
        let mut text = String::new();
        for (number, node) in self.cluster.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let log = node.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
            let status = self.node_status(number);
            text.push_str(&format!("\n--- node {number}, {}:\n{status}\n{last}\n", self.root(number).display()));
        }
        text
    }

    /// What the cluster answers; while it has no leader there is no answer yet.
    fn ask(&self, line: &str) -> Result<Value, String> {
        let run = self.cluster.polis(&format!("{line} --timeout {ANSWER}"));
        if run.code == Some(0) { Ok(run.json()) } else { Err(format!("{run:?}")) }
    }

    /// Runs a command of the operator to its success.
    #[track_caller]
    pub(crate) fn polis(&self, line: &str) -> Run {
        self.cluster.polis(line).succeeds()
    }
}

/// Copies a directory with all that is in it, over what is there.
pub(crate) fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let output =
        std::process::Command::new("cp").arg("-a").arg("--").arg(from).arg(to).output().expect("cp can be started");
    assert!(output.status.success(), "{output:?}");
}
