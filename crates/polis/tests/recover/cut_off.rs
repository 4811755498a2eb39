//! A member that was only cut off is made a cluster of its own, and then the network heals: the majority lives on, and the smaller
//! side says what it is.

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use polis_testkit::{Cluster, StorageSecurity, world};

use crate::{REST, binary, ends_with};

/// How long both sides are watched together: longer than a heartbeat may be late, and than any pause of who looks for a leader.
const TOGETHER: Duration = Duration::from_secs(20);

/// The member that is cut off: the founder, which leads as a rule.
const CUT_OFF: usize = 0;

const MAJORITY: [usize; 2] = [1, 2];

/// Name of the condition that both sides have.
const DIVIDED: &str = "cluster-divided";

/// What `polis` needs to ask these nodes only.
fn at(cluster: &Cluster, nodes: &[usize]) -> String {
    let endpoints = nodes.iter().map(|node| format!(" --endpoints {}", cluster.hosts[*node].ip()));
    endpoints.collect()
}

/// Whether the node has been heard to be a consensus member, as these nodes say.
fn is_member(cluster: &Cluster, asked: &[usize], id: &str) -> bool {
    let listed = cluster.polis(&format!("node list -o json{}", at(cluster, asked))).succeeds().json();
    let node = listed.as_array().unwrap().iter().find(|node| node["node_id"] == id).expect("the node is listed");
    node["roles"].as_array().unwrap().iter().any(|role| role.as_str().unwrap().contains("Consensus"))
}

/// Directories of consensus data that were put away on a node.
fn put_away(cluster: &Cluster, node: usize) -> Vec<String> {
    let entries = fs::read_dir(cluster.hosts[node].root().join("data/etcd")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("removed-")).collect()
}

/// Whether `cluster health`, asked of these nodes, finds what both sides say.
fn both_say_it(cluster: &Cluster, asked: &[usize]) -> bool {
    let run = cluster.polis(&format!("cluster health{}", at(cluster, asked)));
    let said = ["This one goes on without it", "this node was made a cluster of its own"];
    run.code == Some(1) && said.iter().all(|text| run.stdout.contains(text))
}

#[test]
fn a_member_that_was_only_cut_off_and_is_recovered_leaves_the_majority_alone() {
    if !world::available() {
        return;
    }
    let (mut cluster, world) = Cluster::in_world(binary(), 3);
    cluster.storage = StorageSecurity::Insecure;
    cluster.grow_to(3);
    let ids = [0, 1, 2].map(|number| cluster.id(number));
    sleep(REST);
    world.unplug(CUT_OFF);
    cluster.kill(CUT_OFF);
    let mut recover = world.host(CUT_OFF).plain_command(binary());
    recover.args(["cluster", "recover", "--yes", "--others-are-gone", "--root"]).arg(cluster.hosts[CUT_OFF].root());
    recover.arg("--etcd").arg(polis_testkit::etcd::binary()).stdin(Stdio::null());
    ends_with(&recover.output().expect("polis can be started"), 0, &["incarnation 2"]);
    cluster.start(CUT_OFF);
    let _ = cluster.node(CUT_OFF).wait("a leader of its own", |status| {
        status
            .contact
            .as_ref()
            .is_some_and(|contact| contact.leader.map(|leader| leader.to_string()).as_ref() == Some(&ids[CUT_OFF]))
    });

    world.heal();
    let healed = Instant::now();
    let (ours, theirs) = (at(&cluster, &MAJORITY), at(&cluster, &[CUT_OFF]));
    let (mut writes, mut is_said) = (0, [false; 2]);
    while healed.elapsed() < TOGETHER {
        let _ = cluster.polis(&format!("node set label {} test=v{writes}{ours}", ids[1])).succeeds();
        writes += 1;
        for (is_said, asked) in is_said.iter_mut().zip([&MAJORITY[..], &[CUT_OFF]]) {
            *is_said = *is_said || both_say_it(&cluster, asked);
        }
    }
    println!("{writes} writes of the majority in {TOGETHER:?}");
    assert_eq!(is_said, [true; 2], "`cluster health` of each side says that there are two");
    let status = cluster.node(CUT_OFF).wait_condition(DIVIDED);
    let condition = status.conditions.iter().find(|condition| condition.name == DIVIDED).unwrap();
    assert!(condition.hint.contains("node delete"), "{condition:?}");

    // What the report of the recovery says is to be done with those that are gone. They must not believe it.
    let gone = &ids[MAJORITY[0]];
    let _ = cluster.polis(&format!("node delete {gone} --bypass-not-decommissioned{theirs}")).succeeds();
    // One of the two is started anew: the other has no quorum for a while, and the recovered one is there.
    cluster.kill(MAJORITY[1]);
    sleep(REST);
    cluster.start(MAJORITY[1]);
    let _ = cluster.node(MAJORITY[1]).wait_contact();
    let _ = cluster.polis(&format!("node set label {} test=after{ours}", ids[1])).succeeds();

    for node in MAJORITY {
        assert!(is_member(&cluster, &MAJORITY, &ids[node]), "{node}");
        assert_eq!(put_away(&cluster, node), [""; 0], "{node}");
        let status = cluster.node(node).wait("a role", |status| !status.roles.is_empty());
        assert!(status.roles.iter().any(|role| role.contains("Consensus")), "{node}: {status:?}");
        let leader = status.contact.and_then(|contact| contact.leader).map(|leader| leader.to_string());
        assert!(MAJORITY.iter().any(|node| leader.as_ref() == Some(&ids[*node])), "{leader:?}");
    }
    assert_eq!(put_away(&cluster, CUT_OFF), ["removed-1"]);
    assert!(!is_member(&cluster, &[CUT_OFF], &ids[MAJORITY[1]]));
}
