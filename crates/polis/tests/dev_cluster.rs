//! `polis dev` with several real nodes, and the commands of an operator on them.

mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::cluster::Cluster;
use serde_json::Value;

/// Longest time that a test waits for something that takes far less.
const PATIENCE: Duration = Duration::from_secs(60);

/// The values of one field of all nodes.
fn each(nodes: &[Value], field: &str) -> Vec<String> {
    nodes.iter().map(|node| node[field].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_life_of_a_cluster_of_three() {
    let cluster = Cluster::of(3);
    let up = cluster.up();
    up.succeeds();
    for part in ["node 1 ", "is yours", "node 3           approved", "node 2           is a consensus member"] {
        assert!(up.stderr.contains(part), "{part:?} is missing in {up:#?}");
    }
    for part in ["node list --config ", "cluster health --config ", "dev add"] {
        assert!(up.stdout.contains(part), "{part:?} is missing in {up:#?}");
    }
    let first = cluster.all();
    assert_eq!(each(&first, "state"), ["Running"; 3]);
    assert_eq!(each(&first, "health"), ["HEALTHY"; 3]);
    assert!(first.iter().all(|node| node["roles"].to_string().contains("ConsensusMember")), "{first:#?}");

    let list = cluster.operator("node list -o json").json();
    assert_eq!(list.as_array().unwrap().len(), 3);
    assert_eq!(each(list.as_array().unwrap(), "health"), ["HEALTHY"; 3]);
    cluster.operator("cluster health").succeeds();
    let status = cluster.operator("cluster status -o json").json();
    assert_eq!((&status["quorum"], &status["margin"]), (&2.into(), &1.into()));

    // Each node can be asked itself.
    let second = first[1]["node_id"].as_str().unwrap();
    let logs = cluster.operator(&format!("node logs {second} --backlog all"));
    assert!(logs.succeeds().lines().count() > 10, "{logs:#?}");
    assert!(cluster.operator(&format!("node metrics {second} core")).succeeds().contains("polis_node_state"));
    cluster.operator(&format!("node metrics {second} nothing")).fails(2, &["there is no exporter nothing"]);
    let before = cluster.all()[1].clone();
    cluster.operator(&format!("node reboot {second}")).succeeds();
    let begin = Instant::now();
    while cluster.operator(&format!("node list {second} -o json")).json()[0]["health"] != "HEALTHY"
        || cluster.all()[1]["state"] != "Running"
    {
        assert!(begin.elapsed() < PATIENCE, "a node that was restarted does not come back");
    }
    assert_eq!(cluster.all()[1]["pid"], before["pid"], "the node restarts in its place");

    // The one that leads dies, and the others go on.
    let leader = first.iter().position(|node| node["node_id"] == status["leader"]).unwrap() + 1;
    cluster.polis(&format!("dev kill {leader}")).succeeds();
    let id = first[leader % 3]["node_id"].as_str().unwrap();
    cluster.operator(&format!("node set label {id} site=lab")).succeeds();
    let health = cluster.operator("cluster health");
    assert_eq!(health.code, Some(1), "{health:#?}");
    assert!(health.stdout.contains("one more failure stops all changes"), "{health:#?}");
    cluster.operator(&format!("node remove role ConsensusMember {id}")).fails(3, &["no flag overrides this"]);

    // What is missing is started; all that were stopped are.
    cluster.polis("dev up").succeeds();
    assert_eq!(each(&cluster.all(), "node_id"), each(&first, "node_id"));
    cluster.polis("dev down").succeeds();
    assert!(cluster.all().iter().all(|node| node.get("pid").is_none()));
    let alone = cluster.polis("dev start 2");
    alone.succeeds();
    assert!(alone.stderr.contains("1 of 3 nodes run: the cluster has no quorum"), "{alone:#?}");
    cluster.polis("dev up").succeeds();
    let again = cluster.all();
    assert_eq!(each(&again, "node_id"), each(&first, "node_id"));
    assert_eq!(each(&again, "health"), ["HEALTHY"; 3]);

    cluster.polis("dev up --nodes 2").fails(2, &["has 3 nodes", "takes none away"]);
    cluster.polis("dev add").succeeds();
    let four = cluster.all();
    assert_eq!(each(&four, "health"), ["HEALTHY"; 4]);

    // A node that was let go is replaced by a new one.
    let last = four[3]["node_id"].as_str().unwrap();
    cluster.operator(&format!("node delete {last}")).fails(3, &["--bypass-has-roles"]);
    cluster.operator(&format!("node remove role ConsensusMember {last}")).succeeds();
    cluster.operator(&format!("node decommission {last} --wait")).succeeds();
    cluster.operator(&format!("node delete {last}")).succeeds();
    cluster.polis("dev up").succeeds();
    let replaced = cluster.all();
    assert_eq!(each(&replaced, "health"), ["HEALTHY"; 4]);
    assert_ne!(replaced[3]["node_id"], four[3]["node_id"]);
}

#[test]
fn nodes_that_were_down_when_they_were_deleted_are_replaced() {
    let cluster = Cluster::of(3);
    let up = cluster.up();
    up.succeeds();
    assert!(!up.stderr.contains("the leader was replaced"), "a new leader is no news: {up:#?}");
    let first = each(&cluster.all(), "node_id");
    let delete_dead = |number: usize, id: &str| {
        cluster.polis(&format!("dev kill {number}")).succeeds();
        cluster.operator(&format!("node delete {id} --bypass-has-roles --bypass-not-decommissioned")).succeeds();
    };
    // The others say that it was deleted; it is not started once more for that.
    delete_dead(3, &first[2]);
    let up = cluster.polis("dev up");
    up.succeeds();
    assert!(up.stderr.contains("node 3           was let go by the cluster"), "{up:#?}");
    assert!(!up.stderr.contains("Failed"), "{up:#?}");
    let second = cluster.all();
    assert_eq!(each(&second, "health"), ["HEALTHY"; 3]);
    let second = each(&second, "node_id");
    assert_eq!((&second[..2], second[2] == first[2]), (&first[..2], false));

    // Nobody can be asked, so it is told when it starts; the founder is a node like any other.
    delete_dead(1, &first[0]);
    cluster.polis("dev down").succeeds();
    // What an earlier `dev add` could not do is done by the next, and not twice.
    let obstacle = cluster.home().join("dev/node-4");
    std::fs::write(&obstacle, "in the way").unwrap();
    let failed = cluster.polis("dev add");
    assert_eq!(failed.code, Some(1), "{failed:#?}");
    assert!(failed.stderr.contains("nodes 1, 4 are not complete; go on with: polis dev up"), "{failed:#?}");
    std::fs::remove_file(&obstacle).unwrap();
    let added = cluster.polis("dev add");
    added.succeeds();
    assert!(added.stderr.contains("nodes 1, 4 are not complete from an earlier run"), "{added:#?}");
    let third = cluster.all();
    assert_eq!(each(&third, "health"), ["HEALTHY"; 4]);
    assert_ne!(each(&third, "node_id")[0], first[0]);
    assert_eq!(each(&third, "node_id")[1..3], second[1..]);
}

#[test]
fn a_cluster_that_was_made_in_part_is_completed() {
    let cluster = Cluster::of(3);
    for milliseconds in [100, 300, 600, 900, 1_200, 1_500] {
        let mut child = cluster.up_command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The moment of the kill is the point of this test; whatever it hits, the next one must go on from there.
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let begin = Instant::now();
    cluster.up().succeeds();
    assert!(begin.elapsed() < PATIENCE);
    let nodes = cluster.all();
    assert_eq!(each(&nodes, "health"), ["HEALTHY"; 3]);
    // Each machine asked for admission once.
    assert_eq!(cluster.operator("node list -o json").json().as_array().unwrap().len(), 3);
}

#[test]
fn a_lost_owner_key_is_replaced_by_a_quorum() {
    let cluster = Cluster::of(3);
    cluster.up().succeeds();
    let new = cluster.home().join("new");
    let new = new.to_str().unwrap();
    cluster.polis(&format!("owner create --config {new}")).succeeds();
    let replace = |node: u32| {
        let root = cluster.home().join(&format!("dev/node-{node}/root"));
        cluster.polis(&format!("owner replace --root {} --owner-key {new}/owner-key.pem", root.display()))
    };
    assert!(replace(1).succeeds().contains("1 of 2 consensus members"));
    assert!(replace(1).succeeds().contains("1 of 2 consensus members"), "one node has one voice");
    cluster.operator("node list").succeeds();
    assert!(replace(3).succeeds().contains("the cluster belongs to the key"));
    cluster.operator("node list").fails(1, &["UNAUTHENTICATED"]);
    let endpoint = cluster.address();
    let accept = "--insecure-accept-and-persist-first-encountered-ca";
    cluster.polis(&format!("cluster takeownership --config {new} --endpoints {endpoint} {accept}")).succeeds();
    cluster.polis(&format!("node list --config {new} --endpoints {endpoint}")).succeeds();
    cluster.polis(&format!("owner rotate --config {new} --endpoints {endpoint}")).succeeds();
    cluster.polis(&format!("node list --config {new} --endpoints {endpoint}")).succeeds();
}

#[test]
fn three_nodes_on_encrypted_data_lose_one_and_get_it_back() {
    let cluster = Cluster::of(3);
    let up = cluster.up_command().args(["--storage-security", "authenticated"]).output().unwrap();
    common::Run::from(up).succeeds();
    let first = cluster.all();
    assert_eq!(each(&first, "health"), ["HEALTHY"; 3]);
    // In order, and by force.
    for stop in ["stop", "kill"] {
        cluster.polis(&format!("dev {stop} 2")).succeeds();
        cluster.polis("dev start 2").succeeds();
        let begin = Instant::now();
        while each(&cluster.all(), "health") != ["HEALTHY"; 3] {
            assert!(begin.elapsed() < PATIENCE, "{:#?}", cluster.all());
        }
        assert_eq!(each(&cluster.all(), "node_id"), each(&first, "node_id"));
    }
    // What a killed node leaves mounted goes with everything else.
    cluster.polis("dev kill 3").succeeds();
    cluster.polis("dev down --purge").succeeds();
    assert!(!cluster.home().join("dev").exists());
}
