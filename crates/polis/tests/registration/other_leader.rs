//! Window W26 with a cluster of several members: the leader dies at a point of a registration or of a change of members and stays
//! dead; another one leads on, and the joiner comes to its goal all the same.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::cluster::health;
use polis_testkit::host::PATIENCE;
use polis_testkit::seed::is_soak;
use polis_testkit::store::Store;
use polis_testkit::{Cluster, Host, processes};

/// Members that there are before.
const MEMBERS: usize = 3;

/// The node that joins.
const JOINER: usize = MEMBERS;

/// The member that dies.
const DIES: usize = 0;

/// SIGKILL.
const KILLED: i32 = 9;

/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Where the leader dies until the joiner is UP, and those of them that a short run has.
const OF_REGISTRATION: [&str; 3] = ["curator/node/register", "curator/node/approve", "curator/node/commit"];
const FEW_OF_REGISTRATION: [&str; 2] = ["curator/node/register/after", "curator/node/commit/after"];

/// Where it dies until the joiner votes, and those of them that a short run has.
const OF_MEMBERSHIP: [&str; 7] = [
    "membership/enqueue",
    "membership/begin",
    "membership/add-learner",
    "membership/certificate",
    "membership/grant-role",
    "membership/promote",
    "membership/complete",
];
const FEW_OF_MEMBERSHIP: [&str; 1] = ["membership/add-learner/after"];

#[test]
pub(crate) fn w26_another_leader_ends_what_one_that_stays_dead_has_begun() {
    let mut cluster = Cluster::on_loopback(Path::new(env!("CARGO_BIN_EXE_polis")), MEMBERS + 1);
    cluster.grow_to(MEMBERS);
    let each = |sites: &[&str]| {
        let sides = |site: &&str| ["before", "after"].map(|step| format!("{site}/{step}"));
        sites.iter().flat_map(sides).collect::<Vec<_>>()
    };
    let few = |points: &[&str]| points.iter().map(|point| (*point).to_owned()).collect::<Vec<_>>();
    let (registration, membership) = if is_soak() {
        (each(&OF_REGISTRATION), each(&OF_MEMBERSHIP))
    } else {
        (few(&FEW_OF_REGISTRATION), few(&FEW_OF_MEMBERSHIP))
    };
    let points = registration.into_iter().map(|point| (point, false));
    for (point, is_membership) in points.chain(membership.into_iter().map(|point| (point, true))) {
        let began = Instant::now();
        case(&mut cluster, &point, is_membership);
        println!("{point}: {:.1} s", began.elapsed().as_secs_f64());
    }
}

fn case(cluster: &mut Cluster, point: &str, is_membership: bool) {
    arm(cluster, point);
    let parameters = cluster.register_parameters();
    cluster.nodes[JOINER] = Some(cluster.hosts[JOINER].start(&parameters));
    let _ = cluster.node(JOINER).wait_condition("waiting-for-approval");
    let id = cluster.id(JOINER);
    let _ = cluster.polis(&format!("node approve {id} --timeout 40s")).succeeds();
    let _ = cluster.node(JOINER).wait_state(NodeState::Running);
    let is_up = |nodes: &[serde_json::Value]| health(nodes, &id) == Some("HEALTHY");
    if is_membership {
        let _ = cluster.wait_nodes("the joiner is healthy", is_up);
        let _ = cluster.polis(&format!("node add role ConsensusMember {id} --timeout 40s")).succeeds();
    }
    wait_death(cluster, point);
    let _ = cluster.wait_nodes("the joiner is healthy for another leader", is_up);
    let leads = leader(cluster);
    assert_ne!(leads, DIES, "{point}: the one that has died leads");
    if is_membership {
        let _ = cluster.wait_members("the joiner votes", |members| {
            let votes = |id: &str| members.iter().any(|member| member["node_id"] == id && member["learner"] == false);
            members.len() == MEMBERS + 1 && votes(&id)
        });
    }
    assert_eq!(cluster.id(JOINER), id, "{point}: it is another node than before");

    // As it was, for the next case.
    cluster.start(DIES);
    let _ = cluster.node(DIES).wait_state(NodeState::Running);
    let _ = cluster.wait_nodes("exactly one record of each, all of them healthy", |nodes| {
        nodes.len() == MEMBERS + 1 && nodes.iter().all(|node| node["state"] == "UP" && node["health"] == "HEALTHY")
    });
    let delete = format!("node delete {id} --bypass-has-roles --bypass-not-decommissioned");
    if is_membership {
        let _ = cluster.polis(&format!("node remove role ConsensusMember {id}")).succeeds();
    }
    let _ = cluster.polis(&delete).succeeds();
    assert_eq!(cluster.node(JOINER).wait_exit().code(), Some(1));
    cluster.nodes[JOINER] = None;
    cluster.hosts[JOINER] = Host::new(env!("CARGO_BIN_EXE_polis"));
    let _ = cluster.wait_members("the members of before", |members| members.len() == MEMBERS);
}

/// Starts the member that is to die anew, so that it dies at this point, and has it lead.
fn arm(cluster: &mut Cluster, point: &str) {
    assert!(cluster.nodes[DIES].take().expect("it runs").stop().success());
    let mut command = cluster.hosts[DIES].command();
    command.env("POLIS_FAULT", point);
    cluster.nodes[DIES] = Some(cluster.hosts[DIES].spawn(command));
    let _ = cluster.node(DIES).wait_contact();
    let id = cluster.id(DIES);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let leads = leader(cluster);
        if leads == DIES {
            break;
        }
        assert!(Instant::now() < deadline, "the leadership does not come to the one that is to die");
        let members = cluster.wait_members("all members", |members| members.len() == MEMBERS);
        let member = members.iter().find(|member| member["node_id"] == id.as_str()).expect("it is a member");
        let member =
            u64::from_str_radix(member["member_id"].as_str().expect("it has an id"), 16).expect("it is a number");
        // Refused where raft is led by another one already, whom the leadership follows in a moment.
        let _ = Store::of_node(&cluster.hosts[leads].root()).hand_over(member);
        thread::sleep(LOOK_PAUSE);
    }
    let _ = cluster.wait_nodes("all members are healthy", |nodes| {
        nodes.iter().filter(|node| node["health"] == "HEALTHY").count() == MEMBERS
    });
}

/// Waits until the armed member has died at its point, and nothing of it runs any more.
fn wait_death(cluster: &mut Cluster, point: &str) {
    let end = cluster.node(DIES).wait_exit();
    assert_eq!(end.signal(), Some(KILLED), "{point}: {}", cluster.node(DIES).log());
    cluster.nodes[DIES] = None;
    processes::wait_until_gone(&cluster.hosts[DIES].root()).unwrap_or_else(|left| panic!("{left}"));
}

/// The node that leads, by number. That may be the joiner, once it votes.
fn leader(cluster: &mut Cluster) -> usize {
    let status = cluster.polis("cluster status -o json --timeout 40s").succeeds().json();
    let id = status["leader"].as_str().expect("there is a leader").to_owned();
    (0..cluster.hosts.len())
        .find(|number| {
            cluster.nodes[*number].as_mut().is_some_and(|node| !node.has_ended()) && cluster.id(*number) == id
        })
        .expect("one of the nodes leads")
}
