//! `polis dev` with real nodes.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::cluster::Cluster;
use common::{Home, Run};
use rustix::process::{Pid, Signal};

/// Longest time that a test waits for something that takes far less.
const PATIENCE: Duration = Duration::from_secs(60);

/// A child that does not outlive the test.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Field `number` of `/proc/PID/stat`, counted from 1 and not before 3.
fn stat_field(pid: u64, number: usize) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(number - 3).unwrap().to_owned()
}

#[test]
fn the_life_of_a_cluster() {
    let cluster = Cluster::new();
    let up = cluster.up();
    up.succeeds();
    for part in ["owner key made", "started at", "CreatingCluster", " s  Running"] {
        assert!(up.stderr.contains(part), "{part:?} is missing in {up:#?}");
    }
    assert!(up.stdout.starts_with("NODE  STATE"), "{up:#?}");
    assert!(up.stdout.contains(&format!("{} node status --root ", env!("CARGO_BIN_EXE_polis"))), "{up:#?}");

    let first = cluster.node();
    assert_eq!(first["state"], "Running");
    assert_eq!(first["address"], cluster.address().to_string());
    assert!(first["node_id"].as_str().unwrap().starts_with("metropolis-"));
    let pid = first["pid"].as_u64().unwrap();
    assert_eq!(stat_field(pid, 6), pid.to_string(), "the node leads a session of its own");

    // Again: the same process.
    let again = cluster.polis("dev up -o json");
    again.succeeds();
    assert_eq!(again.json()[0]["pid"], pid);

    // A crash, and the same node comes back.
    cluster.polis("dev kill 1").succeeds();
    let killed = cluster.node();
    assert!(killed.get("pid").is_none() && killed["node_id"] == first["node_id"], "{killed}");
    let run = cluster.home().run(["node", "status", "--root", cluster.root().to_str().unwrap(), "-o", "json"]);
    run.fails(1, &["no node runs at"]);
    assert_eq!(run.json()["running"], false);
    cluster.polis("dev start 1").succeeds();
    let second = cluster.node();
    assert_eq!((&second["state"], &second["node_id"]), (&first["state"], &first["node_id"]));
    assert_ne!(second["pid"], first["pid"]);

    // An orderly stop, after which the node can still be asked how it was; `up` starts what is missing.
    let id = first["node_id"].as_str().unwrap();
    cluster.operator(&format!("node add role KubernetesWorker {id}")).succeeds();
    let status =
        || cluster.home().run(["node", "status", "--root", cluster.root().to_str().unwrap(), "-o", "json"]).json();
    let has_role = || status()["roles"].as_array().unwrap().contains(&"KubernetesWorker".into());
    let begin = Instant::now();
    while !has_role() {
        assert!(begin.elapsed() < PATIENCE, "it does not learn of its role");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(cluster.polis("dev stop 1").stderr.contains("node 1 stopped"));
    assert!(has_role() && status()["running"] == false, "{}", status());
    cluster.polis("dev up").succeeds();
    assert_eq!(cluster.node()["node_id"], first["node_id"]);
    cluster.polis("dev stop 2").fails(2, &["there is no node 2", "the cluster has: 1"]);
    cluster.polis("dev up --base-address 127.1.0.1").fails(2, &["has the base address", "--purge"]);

    let log = cluster.polis("dev logs 1 --lines 3");
    assert_eq!(log.succeeds().lines().count(), 3);
    assert!(cluster.polis("dev env").succeeds().contains("export POLIS_ROOT="));
    cluster.polis("dev down").succeeds();
    assert!(cluster.home().join("dev/polis-dev.json").is_file());
    cluster.polis("dev down --purge").succeeds();
    assert_eq!(cluster.home().listing(), Vec::<String>::new());
}

#[test]
fn up_can_be_killed_at_any_time_and_run_again() {
    let cluster = Cluster::new();
    let mut ids = Vec::new();
    for milliseconds in [0, 1, 2, 4, 8, 16, 32, 64, 128] {
        let mut child = Kept(cluster.up_command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        // The moment of the kill is the point of this test; whatever it hits, the next one must go on from there.
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.0.kill().unwrap();
        child.0.wait().unwrap();
    }
    cluster.up().succeeds();
    ids.push(cluster.node()["node_id"].clone());
    cluster.polis("dev kill 1").succeeds();
    for milliseconds in [0, 2, 8, 32] {
        let mut child = Kept(cluster.up_command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        // Here, too, the moment is the point.
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        cluster.up().succeeds();
        ids.push(cluster.node()["node_id"].clone());
        cluster.polis("dev kill 1").succeeds();
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(cluster.processes(), Vec::<String>::new(), "a process was forgotten");
}

#[test]
fn after_a_crash_or_a_reboot_the_same_node_starts() {
    let cluster = Cluster::new();
    cluster.up().succeeds();
    let before = cluster.node();
    let pid = Pid::from_raw(before["pid"].as_i64().unwrap().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let begin = Instant::now();
    while cluster.node().get("pid").is_some() {
        assert!(begin.elapsed() < PATIENCE, "a dead process is listed");
        std::thread::sleep(Duration::from_millis(5));
    }
    // What a reboot leaves: a process that was recorded in another boot, even if one with its id runs now.
    let path = cluster.home().join("dev/polis-dev.json");
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["nodes"][0]["process"]["pid"] = std::process::id().into();
    record["nodes"][0]["process"]["boot_id"] = "an earlier one".into();
    fs::write(&path, record.to_string()).unwrap();
    cluster.polis("dev up").succeeds();
    let after = cluster.node();
    assert_eq!((&after["node_id"], &after["state"]), (&before["node_id"], &before["state"]));
}

#[test]
fn two_at_once_make_one_cluster() {
    let cluster = Cluster::new();
    let spawn = || {
        let mut command = cluster.up_command();
        command.args(["-o", "json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let runs = [spawn(), spawn()].map(|child| Run::from(child.wait_with_output().unwrap()));
    for run in &runs {
        run.succeeds();
    }
    assert_eq!(runs[0].json(), runs[1].json());
}

#[test]
fn a_taken_port_is_shown_and_once_it_is_free_the_node_goes_on() {
    let cluster = Cluster::new();
    let port = TcpListener::bind((cluster.address(), 7834)).unwrap();
    let run = Run::from(cluster.up_command().args(["--timeout", "3s"]).output().unwrap());
    run.fails(1, &["node 1 is not Running after 3.00 s", "it stays and keeps trying", "consensus-port-taken", "7834"]);
    assert!(cluster.node()["pid"].is_u64());
    drop(port);
    cluster.up().succeeds();
}

#[test]
fn a_node_that_fails_is_shown_with_the_reason() {
    let cluster = Cluster::new();
    let address = cluster.address().to_string();
    let arguments = ["dev", "up", "--etcd", "/bin/false", "--base-address", &address];
    let run = Run::from(cluster.command().args(arguments).output().unwrap());
    run.fails(1, &["node 1 has failed", "exit status: 1", "the end of its log stands below", "/bin/false"]);
    // With a real etcd it is completed.
    cluster.polis("dev down --purge").succeeds();
    cluster.up().succeeds();
}

#[test]
fn who_waits_for_a_node_sees_it_come() {
    let cluster = Cluster::new();
    let root = cluster.root();
    let mut command = cluster.home().command();
    command.args(["node", "status", "--wait", "Running", "-o", "json", "--root"]).arg(&root);
    let waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    cluster.up().succeeds();
    let run = Run::from(waiting.wait_with_output().unwrap());
    run.succeeds();
    assert_eq!((&run.json()["state"], &run.json()["running"]), (&"Running".into(), &true.into()));
    // What lies behind a running node is reached, too; what does not is not.
    let wait = |state: &str, timeout: &str| {
        cluster.home().run(["node", "status", "--root", root.to_str().unwrap(), "--wait", state, "--timeout", timeout])
    };
    wait("New", "10s").succeeds();
    wait("Failed", "200ms").fails(1, &["has not reached Failed within 0.20 s", "it is in Running"]);
}

#[test]
fn a_log_is_followed_across_a_restart() {
    let cluster = Cluster::new();
    cluster.up().succeeds();
    let mut command = cluster.command();
    let mut child =
        Kept(command.args(["dev", "logs", "1", "-f", "--lines", "0"]).stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    cluster.polis("dev kill 1").succeeds();
    cluster.polis("dev start 1").succeeds();
    let begin = Instant::now();
    let found =
        lines.map_while(Result::ok).take_while(|_| begin.elapsed() < PATIENCE).any(|line| line.contains("to=Running"));
    assert!(found, "the log does not say that the node is Running");
}

#[test]
fn only_recorded_processes_are_ended() {
    let home = Home::new();
    let mut sleep = Kept(Command::new("sleep").arg("600").spawn().unwrap());
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::create_dir(home.join("dev")).unwrap();
    // The id is that of a living process, but not the start time: the recorded one has ended, and the id was used again.
    let process = serde_json::json!({"pid": sleep.0.id(), "start_time_ticks": 1, "boot_id": boot_id.trim_end()});
    let record = serde_json::json!({
        "version": 1, "base_address": "127.1.0.1", "etcd": "/nowhere/etcd", "nodes": [{"process": process}],
    });
    fs::write(home.join("dev/polis-dev.json"), record.to_string()).unwrap();
    let run = home.polis("dev down --dir dev");
    run.succeeds();
    assert!(run.stderr.contains("node 1 had ended already"), "{run:#?}");
    assert!(sleep.0.try_wait().unwrap().is_none(), "the process was ended");
    home.polis("dev up --dir dev").fails(2, &["etcd is missing", "it was at /nowhere/etcd and is gone"]);
}
