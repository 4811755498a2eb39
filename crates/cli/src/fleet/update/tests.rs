//! `polis node update` and `polis node reboot` against a cluster in this process.

use polis_update::Digest;

use crate::fake::{FakeBoot, FakeCluster};

/// A cluster of machines.
fn machines(count: usize) -> FakeCluster {
    let cluster = FakeCluster::start(count);
    cluster.own();
    for boot in &mut cluster.state().boots {
        *boot = Some(FakeBoot { running: vec![1], next: vec![1], hangs: false });
    }
    cluster
}

fn changes(cluster: &FakeCluster) -> Vec<String> {
    cluster.state().changes.drain(..).collect()
}

fn reference() -> String {
    format!("--image-ref http://192.0.2.7/polis@{}", Digest::of(b"manifest"))
}

#[test]
fn all_nodes_are_updated_one_after_the_other_and_once() {
    let cluster = machines(3);
    let line = format!("polis node update all {}", reference());
    cluster.polis(&line, &[0, 1, 2]).succeeds();
    // In the order of their ids, but the leader comes last.
    let mut order = [1, 2];
    order.sort_by_key(|index| cluster.node_id(*index));
    let [one, other] = order;
    let expected = |index: usize| [format!("update {index}"), format!("reboot {index} 1")];
    assert_eq!(changes(&cluster), [expected(one), expected(other), expected(0)].concat());
    // Nothing is left to be done.
    cluster.polis(&line, &[0]).succeeds();
    assert_eq!(changes(&cluster), [one, other, 0].map(|index| format!("update {index}")));
    let excluded = format!("{line} --activation-mode none --exclude {}", cluster.node_id(1));
    cluster.polis(&excluded, &[0]).succeeds();
    assert_eq!(changes(&cluster), ["update 2", "update 0"]);
    cluster.finish();
}

#[test]
fn the_first_that_goes_back_ends_it() {
    let cluster = machines(3);
    for boot in cluster.state().boots.iter_mut().flatten() {
        boot.hangs = true;
    }
    let first = if cluster.node_id(1) < cluster.node_id(2) { 1 } else { 2 };
    let id = cluster.node_id(first);
    let line = format!("polis node update all --activation-mode kexec {}", reference());
    cluster.polis(&line, &[0, 1, 2]).fails(
        1,
        &[
            &format!("{id} has gone back to the image that it had before"),
            "0 of 3 nodes are done",
            &format!("polis node logs {id} --config"),
            &cluster.node_id(2),
        ],
    );
    assert_eq!(changes(&cluster), [format!("update {first}"), format!("reboot {first} 2")]);
    cluster.finish();
}

#[test]
fn what_would_cost_the_quorum_or_is_no_machine_is_refused_untouched() {
    let cluster = machines(3);
    let all = &[0, 1, 2];
    let line = format!("polis node update {} {}", cluster.node_id(1), reference());
    cluster.state().status.members[2].reachable = false;
    cluster.polis(&line, all).fails(3, &["1 of 3 members", "--bypass-quorum", "0 of 1 nodes are done"]);
    assert_eq!(changes(&cluster), [""; 0]);
    cluster.polis(&format!("{line} --bypass-quorum"), all).succeeds();
    assert_eq!(changes(&cluster), ["update 1", "reboot 1 1"]);
    cluster.state().status.members[2].reachable = true;

    cluster.state().nodes[2].health = polis_proto::api::node::Health::HeartbeatTimeout.into();
    cluster.polis(&line, all).fails(3, &["one node is down already", &cluster.node_id(2)]);
    cluster.polis(&format!("{line} --max-unavailable 2"), all).succeeds();
    assert_eq!(changes(&cluster), ["update 1"], "it runs the image already");

    cluster.state().boots[0] = None;
    let line = format!("polis node update {} {} --max-unavailable 2", cluster.node_id(0), reference());
    cluster.polis(&line, all).fails(1, &["was not updated", "runs as a daemon"]);
    cluster.polis(&format!("{line} --exclude {}", cluster.node_id(0)), all).fails(2, &["are excluded"]);
    cluster.polis(&format!("polis node update all {} {}", cluster.node_id(0), reference()), all).fails(2, &["`all`"]);
    cluster.finish();
}

#[test]
fn a_node_that_does_not_answer_is_not_waited_for_for_ever() {
    let cluster = machines(3);
    cluster.state().restarts_silently = true;
    let id = cluster.node_id(1);
    for line in [format!("polis node reboot {id}"), format!("polis node update {id} {}", reference())] {
        let silent = ["was not told to restart", "did not answer within 1.00 s", "polis cluster health"];
        cluster.polis(&format!("{line} --timeout 1s"), &[0]).fails(1, &silent);
    }
    cluster.finish();
}

#[test]
fn a_restart_can_be_of_each_kind() {
    let cluster = machines(3);
    let id = cluster.node_id(1);
    for (options, change) in [
        ("", "reboot 1 1"),
        (" --rollback", "reboot 1 1 1"),
        (" --firmware", "reboot 1 1 2"),
        (" --kexec", "reboot 1 2"),
        (" --kexec --rollback", "reboot 1 2 1"),
    ] {
        cluster.polis(&format!("polis node reboot {id}{options}"), &[0]).succeeds();
        assert_eq!(changes(&cluster), [change]);
    }
    cluster.finish();
}
