//! [`Scene`]: a cluster on encrypted data, of which members' keys are changed.

use std::cell::RefCell;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use polis_control::{NodeState, Status};
use polis_testkit::node_data::{NodeData, split_keys, unlock_keys};
use polis_testkit::{Cluster, StorageSecurity, processes};

use crate::points::OF_THE_LEADER;

/// SIGKILL.
const KILLED: Option<i32> = Some(9);

/// Longest time that the operator's command may try for.
const COMMAND_TIMEOUT: &str = "30s";

/// What a member of three is told by when its key is not in order.
const OUT_OF_ORDER: [&str; 4] =
    ["unlock-key-unsettled", "unlock-key-not-split", "cold-start-not-verified", "cold-start-drill-failed"];

/// A cluster on encrypted data.
pub(crate) struct Scene {
    cluster: Cluster,
}

impl Scene {
    /// A cluster of so many members, whose keys are in order.
    pub(crate) fn new(count: usize) -> Self {
        let mut cluster = Cluster::on_loopback(Path::new(env!("CARGO_BIN_EXE_polis")), count);
        cluster.storage = StorageSecurity::Authenticated;
        cluster.grow();
        let mut scene = Self { cluster };
        for number in 0..count {
            scene.wait_settled(number);
        }
        scene
    }

    /// Changes the key of a member; returns the points that it has passed.
    pub(crate) fn recorded(&mut self, number: usize) -> Vec<String> {
        let log = self.cluster.hosts[number].directory().join("fault-points");
        self.restart(number, "POLIS_FAULT_LOG", log.as_os_str().to_str().expect("the path is UTF-8"));
        let id = self.cluster.id(number);
        fs::write(&log, "").expect("the log of fault points can be emptied");
        let _ = self.cluster.polis(&format!("node rekey {id}")).succeeds();
        fs::read_to_string(log).expect("there is a log").lines().map(str::to_owned).collect()
    }

    /// Has a member die at this point of a change of its key, and come back.
    pub(crate) fn case(&mut self, number: usize, fault: &str) {
        self.restart(number, "POLIS_FAULT", fault);
        let root = self.root(number);
        let before = split_keys(&root);
        let id = self.cluster.id(number);
        let is_certain = self.cluster.hosts.len() == 1 || !fault.starts_with(OF_THE_LEADER);
        let command = RefCell::new(self.rekey(&id));
        // It fails when it loses the node that dies, perhaps a moment before the node is gone.
        let has_ended =
            || command.borrow_mut().try_wait().expect("a child can be waited for").is_some_and(|end| end.success());
        let end = self.cluster.node(number).wait_exit_or("death, or the end of the change", has_ended);
        let mut command = command.into_inner();
        let Some(end) = end else {
            command.wait().expect("a child can be waited for");
            assert!(!is_certain, "it did not die at {fault}: {}", self.cluster.node(number).log());
            // Its fault point is still armed: it would die in a later case, as soon as it leads while another member changes its key.
            self.stop(number);
            self.cluster.start(number);
            self.wait_settled(number);
            return;
        };
        // It may be waiting for the node that has died; it fails only if it has ended.
        let _ = command.kill();
        command.wait().expect("a child can be waited for");
        assert_eq!(end.signal(), KILLED, "{}", self.cluster.node(number).log());
        processes::wait_until_gone(&root).unwrap_or_else(|left| panic!("{left}"));

        // Where a change had begun, the journal has the present key and the next one, or the unlock file is about both.
        let keys = unlock_keys(&root);
        let has_begun = split_keys(&root) != before;
        self.cluster.start(number);
        self.wait_settled(number);
        self.stop(number);
        if let [old, new] = &keys[..] {
            assert!(NodeData::opened_with(&root, new).is_some(), "the new key does not open");
            assert!(NodeData::opened_with(&root, old).is_none(), "the old key still opens");
        }
        assert!(!has_begun || split_keys(&root) != before, "the change was not carried to its end");
        let is_alone = self.cluster.hosts.len() == 1;
        assert_eq!(NodeData::of(&root).is_locked(), !is_alone);
        assert_eq!(slots(&root), 1, "a slot is left");
        // Of three, the next one may only be stopped when this one is back; one that is alone is started by the next case.
        if !is_alone {
            self.cluster.start(number);
            self.wait_settled(number);
        }
    }

    fn root(&self, number: usize) -> PathBuf {
        self.cluster.hosts[number].root()
    }

    /// The command that changes the key.
    fn rekey(&self, id: &str) -> std::process::Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polis"));
        command.args(["node", "rekey", id, "--timeout", COMMAND_TIMEOUT]).stdin(Stdio::null()).stderr(Stdio::null());
        let endpoints: Vec<String> = self.cluster.hosts.iter().map(|host| host.ip().to_string()).collect();
        command.env("POLIS_CONFIG", self.cluster.configuration()).env("POLIS_ENDPOINTS", endpoints.join(","));
        command.spawn().expect("polis can be started")
    }

    /// Stops a member that runs.
    fn stop(&mut self, number: usize) {
        let node = self.cluster.nodes[number].take().expect("it runs");
        assert!(node.stop().success(), "member {number} had died before it was stopped");
    }

    /// Starts a member anew with a variable of fault points.
    fn restart(&mut self, number: usize, variable: &str, value: &str) {
        if self.cluster.nodes[number].is_some() {
            self.stop(number);
        }
        let mut command = self.cluster.hosts[number].command();
        command.env(variable, value);
        self.cluster.nodes[number] = Some(self.cluster.hosts[number].spawn(command));
        self.wait_settled(number);
    }

    /// Waits until a member runs, all are healthy, and its key is in order: where it belongs, and nowhere else.
    fn wait_settled(&mut self, number: usize) {
        let count = self.cluster.hosts.len();
        let is_settled = |status: &Status| {
            status.state == NodeState::Running
                && status.contact.as_ref().is_some_and(|contact| contact.in_contact)
                && status.conditions.iter().all(|condition| !OUT_OF_ORDER.contains(&&*condition.name))
        };
        let _ = self.cluster.node(number).wait("Running, in contact, with a key in order", is_settled);
        let _ = self.cluster.wait_nodes("all are healthy", |nodes| {
            nodes.iter().filter(|node| node["state"] == "UP" && node["health"] == "HEALTHY").count() == count
        });
        let root = self.root(number);
        // One that is alone has a copy of its key, and of three each has it split.
        let (copies, splits) = if count == 1 { (1, 0) } else { (0, 1) };
        let is_there = || (unlock_keys(&root).len(), split_keys(&root).len(), slots(&root)) == (copies, splits, 1);
        let ended = self.cluster.node(number).wait_exit_or("its key where it belongs", is_there);
        assert_eq!(ended, None, "{}", self.cluster.node(number).log());
    }
}

/// Key slots of the data below this root.
fn slots(root: &Path) -> usize {
    ["slot.0", "slot.1"].iter().filter(|slot| root.join("encrypted").join(slot).exists()).count()
}
