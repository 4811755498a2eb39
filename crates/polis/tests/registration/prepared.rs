//! Windows that need more than a kill: a disk that is full, a leader that is away, roles that come and go.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::checks::faults;
use polis_testkit::cluster::health;
use polis_testkit::confined::{Namespace, in_namespace, seen_by};
use polis_testkit::{Cluster, StorageSecurity};

/// Exit code of what the cluster refuses.
const REFUSED: Option<i32> = Some(3);

/// A file that takes all the room. An ext file system has such a directory, and it is in the way of nobody.
const FILLER: &str = "lost+found/filler";

/// Longest time in which a role is taken from a node that runs.
const ROLE_CHANGE: Duration = Duration::from_secs(5);

/// A founder that runs, and room for one who joins.
fn founded() -> Cluster {
    let mut cluster = Cluster::on_loopback(Path::new(env!("CARGO_BIN_EXE_polis")), 2);
    cluster.found();
    cluster
}

#[test]
pub(crate) fn w19_a_full_esp_after_the_commit_is_waited_for() {
    let mut cluster = founded();
    let parameters = cluster.register_parameters();
    let host = &cluster.hosts[1];
    let esp = host.root().join("esp");
    fs::create_dir_all(&esp).unwrap();
    let mut command = host.command();
    command.arg("--parameters").arg(parameters);
    let mount = "mount -t tmpfs -o size=256k,mode=700 polis-test \"$1\"; mkdir \"$1/lost+found\"";
    cluster.nodes[1] = Some(host.spawn(in_namespace(Namespace::Mounts, mount, &[&esp], command)));
    // Of encrypted data the mount is in the node's namespace.
    let marker = match StorageSecurity::of_this_run() {
        StorageSecurity::Insecure => "data/partition",
        StorageSecurity::Authenticated => "encrypted/partition",
    };
    let partition = host.root().join(marker);
    let id = cluster.id(1);
    let _ = cluster.node(1).wait_condition("waiting-for-approval");
    let filler = seen_by(cluster.node(1).id(), &esp.join(FILLER));
    // It ends when there is no more room.
    fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    let formatted = fs::read(&partition).unwrap();

    let _ = cluster.polis(&format!("node approve {id}")).succeeds();
    let status = cluster.node(1).wait_condition("disk-full");
    assert_ne!(status.state, NodeState::Running);
    // The cluster has let it in; what it says of that is not on its disk.
    let _ = cluster.wait_nodes("the node is UP", |nodes| {
        nodes.iter().any(|node| node["node_id"] == id.as_str() && node["state"] == "UP")
    });
    fs::remove_file(&filler).unwrap();
    let status = cluster.node(1).wait_running();
    assert_eq!(status.node_id, Some(id));
    assert_eq!(fs::read(&partition).unwrap(), formatted, "it was formatted again");
    assert_eq!(cluster.wait_nodes("the nodes", |_| true).len(), 2);
}

#[test]
pub(crate) fn w21_a_leader_that_is_away_is_asked_again_and_again() {
    let mut cluster = founded();
    let parameters = cluster.register_parameters();
    let founder = cluster.hosts[0].ip().to_string();
    cluster.kill(0);
    cluster.nodes[1] = Some(cluster.hosts[1].start(&parameters));
    let status = cluster.node(1).wait_condition("cluster-unreachable");
    let condition = status.conditions.iter().find(|condition| condition.name == "cluster-unreachable").unwrap();
    assert!(condition.message.contains(&founder) && condition.message.contains("refused"), "{condition:?}");
    let id = status.node_id.expect("it has an intent");

    cluster.start(0);
    let _ = cluster.node(0).wait_state(NodeState::Running);
    let waiting = cluster.node(1).wait_condition("waiting-for-approval");
    assert!(!waiting.conditions.iter().any(|condition| condition.name == "cluster-unreachable"), "{waiting:?}");
    // The leader goes away once more between the registration and the approval.
    cluster.kill(0);
    let _ = cluster.node(1).wait_condition("cluster-unreachable");
    cluster.start(0);
    let _ = cluster.node(0).wait_state(NodeState::Running);
    cluster.approve(1);
    assert_eq!(cluster.id(1), id);
    assert_eq!(cluster.wait_nodes("the nodes", |_| true).len(), 2);
}

#[test]
pub(crate) fn w23_a_role_that_is_given_back_starts_clean() {
    let mut cluster = founded();
    cluster.register(1);
    cluster.approve(1);
    let id = cluster.id(1);
    let etcd = cluster.hosts[1].root().join("data/etcd");
    for removed in 0..3 {
        cluster.make_member(1);
        let set_aside = |number: usize| etcd.join(format!("removed-{number}"));
        assert!((1..=removed).all(|number| set_aside(number).is_dir()) && !set_aside(removed + 1).exists());
        let _ = cluster.polis(&format!("node remove role ConsensusMember {id}")).succeeds();
        let _ = cluster.wait_members("the founder alone", |members| members.len() == 1);
        let _ = cluster.node(1).wait("no consensus role", |status| !status.roles.iter().any(is_consensus));
        // The data are moved after the etcd that used them has ended.
        assert_eq!(cluster.node(1).wait_exit_or("data set aside", || set_aside(removed + 1).is_dir()), None);
    }
    let status = cluster.node(1).wait("no fault", |status| faults(status).is_empty());
    assert_eq!((status.state, status.node_id), (NodeState::Running, Some(id)));
}

#[test]
pub(crate) fn w24_a_node_that_is_not_up_gets_no_consensus_role() {
    let mut cluster = founded();
    cluster.register(1);
    let _ = cluster.node(1).wait_condition("waiting-for-approval");
    let id = cluster.id(1);
    let refused = |cluster: &Cluster, reason: &str| {
        let run = cluster.polis(&format!("node add role ConsensusMember {id}"));
        assert!(run.code == REFUSED && run.stderr.contains(reason), "{reason} is not the reason: {run:#?}");
        let _ = cluster.wait_members("the founder alone", |members| members.len() == 1);
    };
    refused(&cluster, "NEW");
    cluster.kill(1);
    let _ = cluster.polis(&format!("node approve {id}")).succeeds();
    refused(&cluster, "STANDBY");
    cluster.start(1);
    let _ = cluster.node(1).wait_state(NodeState::Running);
    let _ = cluster.wait_nodes("it is healthy", |nodes| health(nodes, &id) == Some("HEALTHY"));
    cluster.kill(1);
    let _ = cluster.wait_nodes("it is missed", |nodes| health(nodes, &id) == Some("HEARTBEAT_TIMEOUT"));
    refused(&cluster, "HEARTBEAT_TIMEOUT");
    cluster.start(1);
    cluster.make_member(1);
}

#[test]
pub(crate) fn w25_the_founder_gives_its_role_up_in_the_same_boot() {
    let mut cluster = founded();
    cluster.register(1);
    cluster.approve(1);
    cluster.make_member(1);
    let (founder, process) = (cluster.id(0), cluster.node(0).id());
    let _ = cluster.polis(&format!("node remove role KubernetesController {founder}")).succeeds();
    let begun = Instant::now();
    let _ = cluster.polis(&format!("node remove role ConsensusMember {founder}")).succeeds();
    let _ = cluster.node(0).wait("no consensus role", |status| !status.roles.iter().any(is_consensus));
    assert!(begun.elapsed() < ROLE_CHANGE, "{:?}", begun.elapsed());
    assert_eq!(cluster.node(0).id(), process);
    let joiner = cluster.id(1);
    let members = cluster.wait_members("the joiner alone", |members| members.len() == 1);
    assert_eq!(members[0]["node_id"], joiner.as_str());
    // It is a node like any other now, and can come back.
    cluster.make_member(0);
}

fn is_consensus(role: &String) -> bool {
    role == "ConsensusMember"
}
