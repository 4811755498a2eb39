//! Whoever has the credentials of a deleted node is refused: by all who are in contact with the leader within a second, by the others
//! before they answer anything after contact. A minority neither deletes nodes nor gives out credentials.

use std::net::IpAddr;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::node_caller::{Answer, NodeCredentials};
use polis_testkit::owner_client::OwnerClient;
use polis_testkit::{Cluster, StorageSecurity, world};

use crate::writer::Writer;
use crate::{all_healthy, binary, leader};

/// Within what time everybody in contact refuses a deleted node (README, "within a second").
const AT_ONCE: Duration = Duration::from_secs(1);

/// How long anything else may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Pause between two calls. A connection on which more than a thousand were refused is closed.
const PAUSE: Duration = Duration::from_millis(10);

/// How often somebody who was refused asks again: once refused, refused for good.
const MORE: usize = 20;

/// How long the owner waits for the answer of a node that cannot do what it is asked for.
const VAIN: Duration = Duration::from_secs(3);

/// When somebody who asks again and again was refused first.
type Refusal<'scope> = ScopedJoinHandle<'scope, Instant>;

/// Asks a node again and again until it refuses. Returns when that was.
fn ask<'scope>(scope: &'scope Scope<'scope, '_>, who: &NodeCredentials, node: IpAddr) -> Refusal<'scope> {
    let mut caller = who.caller(node);
    assert_eq!(caller.read(), Answer::Served);
    scope.spawn(move || {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match (caller.read(), Instant::now()) {
                (Answer::LetGo, now) => {
                    assert!((0..MORE).all(|_| caller.read() == Answer::LetGo), "{node} has changed its mind");
                    return now;
                }
                (Answer::Served, now) => assert!(now < deadline, "{node} does not refuse"),
                (answer, _) => panic!("{node}: {answer:?}"),
            }
            thread::sleep(PAUSE);
        }
    })
}

/// Opens a stream at a curator and waits until it is ended. Returns when that was.
fn listen<'scope>(scope: &'scope Scope<'scope, '_>, who: &NodeCredentials, node: IpAddr) -> Refusal<'scope> {
    let mut caller = who.caller(node);
    let stream = caller.open().expect("it is served");
    scope.spawn(move || {
        assert_eq!(caller.end_of(stream, PATIENCE), Answer::LetGo, "{node}");
        let now = Instant::now();
        assert_eq!(caller.open().err(), Some(Answer::LetGo), "{node}");
        now
    })
}

/// Makes calls of both kinds to a node that is cut off, until they are refused. Returns how many reads were served before, and when
/// the first refusal came.
fn ask_cut_off<'scope>(
    scope: &'scope Scope<'scope, '_>,
    who: &NodeCredentials,
    node: IpAddr,
) -> ScopedJoinHandle<'scope, (usize, Instant)> {
    let mut caller = who.caller(node);
    let deadline = Instant::now() + PATIENCE;
    // It takes the node a moment to know.
    while caller.change() != Answer::NoContact {
        assert!(Instant::now() < deadline, "{node} does not notice that it is cut off");
        thread::sleep(PAUSE);
    }
    scope.spawn(move || {
        let mut served = 0;
        loop {
            // Whoever is in contact knows of the deletion before it lets anybody change anything.
            match caller.change() {
                Answer::NoContact => {}
                Answer::LetGo => break,
                answer @ (Answer::Served | Answer::Lost(_)) => panic!("{node}: {answer:?}"),
            }
            // Reading is allowed without contact, and not in the moment in which there is contact and the news are to come.
            match caller.read() {
                Answer::Served => served += 1,
                Answer::NoContact => {}
                Answer::LetGo => break,
                answer @ Answer::Lost(_) => panic!("{node}: {answer:?}"),
            }
            assert!(Instant::now() < deadline, "{node} does not come back");
            thread::sleep(PAUSE);
        }
        let first = Instant::now();
        for _ in 0..MORE {
            assert_eq!((caller.change(), caller.read()), (Answer::LetGo, Answer::LetGo), "{node} has changed its mind");
        }
        (served, first)
    })
}

#[test]
fn the_credentials_of_a_deleted_node_are_refused_at_once_or_with_the_first_answer_after_contact() {
    const MEMBERS: usize = 3;
    const IN_CONTACT: usize = 3;
    const CUT_OFF: usize = 4;
    const DELETED: usize = 5;
    const OPERATOR: usize = 6;
    if !world::available() {
        return;
    }
    let (mut cluster, world) = Cluster::in_world(binary(), OPERATOR);
    // A node that starts while it is cut off could not open encrypted data, and would answer nobody.
    cluster.storage = StorageSecurity::Insecure;
    cluster.grow_to(MEMBERS);
    (MEMBERS..OPERATOR).for_each(|number| cluster.register(number));
    (MEMBERS..OPERATOR).for_each(|number| cluster.approve(number));
    all_healthy(&cluster, OPERATOR);
    let leads = leader(&mut cluster);
    let followers: Vec<usize> = (0..MEMBERS).filter(|number| *number != leads).collect();
    let (follower, cut_off_member) = (followers[0], followers[1]);
    let (id, credentials) = (cluster.id(DELETED), NodeCredentials::of_running(&cluster.hosts[DELETED].root()));
    let configuration = cluster.configuration();

    // One of those who are cut off was there before, the other one starts like that, so it waits for its leader and serves meanwhile.
    cluster.kill(CUT_OFF);
    world.separate(&[cut_off_member, CUT_OFF], &[leads, follower, IN_CONTACT, DELETED]);
    cluster.start(CUT_OFF);
    let address = |number: usize| cluster.hosts[number].ip();
    world.host(OPERATOR).inside(|| {
        thread::scope(|scope| {
            let away = [cut_off_member, CUT_OFF].map(|number| ask_cut_off(scope, &credentials, address(number)));
            let mut near = vec![
                ("a stream of the leader", listen(scope, &credentials, address(leads))),
                ("a stream of a follower", listen(scope, &credentials, address(follower))),
                ("calls to a follower", ask(scope, &credentials, address(follower))),
                ("calls to a node that is no member", ask(scope, &credentials, address(IN_CONTACT))),
            ];
            let mut owner = OwnerClient::new(&configuration, address(leads), PATIENCE);
            owner.delete(&id).expect("there is a quorum");
            let deleted = Instant::now();
            for (what, refusal) in near.drain(..) {
                let took = refusal.join().unwrap().saturating_duration_since(deleted);
                println!("{what} ended {took:?} after the deletion");
                assert!(took <= AT_ONCE, "{what}");
            }
            assert!(away.iter().all(|thread| !thread.is_finished()), "who is cut off cannot know");
            let healing = Instant::now();
            world.heal();
            for thread in away {
                let (served, first) = thread.join().unwrap();
                println!("{served} reads were served, the first refusal came {:?} after it could be", first - healing);
            }
        });
    });
    assert_eq!(cluster.node(DELETED).wait_exit().code(), Some(1));
    all_healthy(&cluster, OPERATOR - 1);
}

#[test]
fn a_minority_neither_deletes_a_node_nor_gives_it_credentials() {
    const JOINER: usize = 3;
    const OPERATOR: usize = 4;
    if !world::available() {
        return;
    }
    let (mut cluster, world) = Cluster::in_world(binary(), OPERATOR);
    cluster.grow_to(3);
    all_healthy(&cluster, 3);
    cluster.register(JOINER);
    let _ = cluster.node(JOINER).wait_condition("waiting-for-approval");
    let id = cluster.id(JOINER);
    let leads = leader(&mut cluster);
    let others: Vec<usize> = (0..3).filter(|number| *number != leads).collect();
    let mut writer = Writer::new(&cluster.id(others[0]));
    // It is admitted while it does not run, so that all it wants of the cluster are its credentials.
    cluster.kill(JOINER);
    let _ = cluster.polis(&format!("node approve {id}")).succeeds();

    world.separate(&[leads, JOINER], &others);
    let (configuration, address) = (cluster.configuration(), cluster.hosts[leads].ip());
    cluster.start(JOINER);
    let refused = world.host(OPERATOR).inside(|| {
        let mut owner = OwnerClient::new(&configuration, address, VAIN);
        // The first call comes before the old leader knows that it is none.
        [owner.delete(&id), owner.delete(&id)]
    });
    for result in refused {
        let reason = result.expect_err("one of three acknowledged a deletion");
        println!("the deletion by a minority: {reason}");
    }
    writer.write(&cluster, PATIENCE);
    let status = cluster.node(JOINER).wait("it has asked in vain", |status| {
        status.conditions.iter().any(|condition| condition.name == "cluster-unreachable")
    });
    assert_ne!(status.state, NodeState::Running, "one of three gave out credentials");
    let is_there = |nodes: &[serde_json::Value]| {
        nodes.iter().any(|node| node["node_id"] == id.as_str() && node["state"] == "STANDBY")
    };
    let _ = cluster.wait_nodes("the majority has it as it was", is_there);
    world.heal();
    let _ = cluster.node(JOINER).wait_state(NodeState::Running);
    all_healthy(&cluster, 4);
    writer.check(&cluster);
}
