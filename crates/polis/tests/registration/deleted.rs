//! Window W22 in the middle of a registration: the node dies at a point, is deleted, and is started again.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::host::PATIENCE;
use polis_testkit::{Cluster, NodeProcess, processes};

/// Where the joiner dies, and whether it is to be a consensus member by then.
const POINTS: [(&str, bool); 7] = [
    ("journal/admitted/begin", false),
    ("journal/formatted/done", false),
    ("commit/call/before#2", false),
    ("commit/call/after#2", false),
    ("node/credentials/done", false),
    ("journal/enrolled/done", false),
    ("etcd/joining/begin/done", true),
];

/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// What a node that was deleted says.
const REMOVED: &str = "removed from the cluster";

#[test]
pub(crate) fn w22_a_node_that_is_deleted_while_it_commits_or_joins_stops() {
    let mut cluster = Cluster::on_loopback(Path::new(env!("CARGO_BIN_EXE_polis")), 1 + POINTS.len());
    cluster.grow_to(1);
    for (number, (point, is_member)) in (1..).zip(POINTS) {
        let parameters = cluster.register_parameters();
        let host = &cluster.hosts[number];
        let mut command = host.command();
        command.arg("--parameters").arg(parameters).env("POLIS_FAULT", point);
        cluster.nodes[number] = Some(host.spawn(command));
        let id = until_dead(&mut cluster, number, is_member);
        processes::wait_until_gone(&cluster.hosts[number].root()).unwrap_or_else(|left| panic!("{left}"));
        if is_member {
            // While it is on its way to become a member it has the role in all but name; taking it back ends that.
            let _ = cluster.polis(&format!("node remove role ConsensusMember {id}")).succeeds();
        }
        let _ = cluster.polis(&format!("node delete {id} --bypass-not-decommissioned --bypass-has-roles")).succeeds();
        for start in 0..2 {
            cluster.start(number);
            assert_eq!(cluster.node(number).wait_exit().code(), Some(1), "{point}, start {start}");
            let log = cluster.node(number).log();
            assert!(log.contains(REMOVED), "{point}, start {start}: {log}");
        }
        cluster.nodes[number] = None;
    }
    assert_eq!(cluster.wait_nodes("the founder alone", |_| true).len(), 1);
    let _ = cluster.wait_members("the founder alone", |members| members.len() == 1);
}

/// Does what the operator does until the joiner has died at its point. Returns its id.
fn until_dead(cluster: &mut Cluster, number: usize, is_member: bool) -> String {
    let root = cluster.hosts[number].root();
    let mut approved = false;
    let mut asked = false;
    let is_dead = |node: &mut NodeProcess| node.wait_exit_or("nothing", || true).is_some();
    let deadline = Instant::now() + PATIENCE;
    while !is_dead(cluster.node(number)) {
        assert!(Instant::now() < deadline, "it does not come to its point: {}", cluster.node(number).log());
        thread::sleep(LOOK_PAUSE);
        let Some(status) = polis_testkit::glance::status(&root) else { continue };
        let Some(id) = status.node_id else { continue };
        if !approved && status.conditions.iter().any(|condition| condition.name == "waiting-for-approval") {
            let _ = cluster.polis(&format!("node approve {id}")).succeeds();
            approved = true;
        }
        if is_member && !asked && status.state == NodeState::Running {
            let _ = cluster
                .wait_nodes("it is healthy", |nodes| polis_testkit::cluster::health(nodes, &id) == Some("HEALTHY"));
            let _ = cluster.polis(&format!("node add role ConsensusMember {id}")).succeeds();
            asked = true;
        }
    }
    polis_testkit::checks::on_disk(&root).node_id.expect("it has an intent")
}
