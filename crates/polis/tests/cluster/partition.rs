//! The network between the members is cut, in both directions or in one; it heals by itself.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use polis_testkit::seed::Random;
use polis_testkit::{Cluster, Host, world};

use crate::writer::Writer;
use crate::{all_healthy, binary, leader, rounds};

/// How long the majority may take to go on.
const PATIENCE: Duration = Duration::from_secs(30);

/// The network is cut within this time after a registration or a change of members has begun; on an idle machine each takes about as
/// long.
const MIDDLE: Duration = Duration::from_millis(800);

#[test]
fn the_majority_goes_on_and_the_rest_comes_back() {
    if !world::available() {
        return;
    }
    let (mut cluster, world) = Cluster::in_world(binary(), 3);
    cluster.grow();
    all_healthy(&cluster, 3);
    let written = cluster.id(0);
    let mut writer = Writer::new(&written);
    let operator = 3;
    for cut in 0..3 {
        let others: Vec<usize> = (0..3).filter(|number| *number != cut).collect();
        // One that is cut off from all, one that reaches the operator only, one that hears the others but is not heard.
        for how in 0..3 {
            match how {
                0 => world.unplug(cut),
                1 => world.separate(&[cut], &others),
                _ => others.iter().for_each(|other| world.block(cut, *other)),
            }
            let took = writer.write(&cluster, PATIENCE);
            println!("node {cut} cut off in way {how}: a write succeeded after {took:?}");
            writer.check(&cluster);
            world.heal();
            all_healthy(&cluster, 3);
            writer.write(&cluster, PATIENCE);
        }
    }
    writer.check(&cluster);
    world.unplug(operator);
    let run = cluster.polis("node list --timeout 2s");
    assert_eq!(run.code, Some(1), "{run:#?}");
    for host in &cluster.hosts {
        assert!(run.stderr.contains(&host.ip().to_string()), "every endpoint is named with its fault: {run:#?}");
    }
}

#[test]
fn a_registration_and_a_change_of_members_survive_a_cut_in_their_middle() {
    const JOINER: usize = 3;
    const OPERATOR: usize = 4;
    if !world::available() {
        return;
    }
    let mut random = Random::for_this_run();
    let (mut cluster, world) = Cluster::in_world(binary(), OPERATOR);
    cluster.grow_to(3);
    all_healthy(&cluster, 3);
    let mut writer = Writer::new(&cluster.id(0));
    for _ in 0..rounds(1, 20) {
        // The leader, and the joiner with it, lose the others; what the majority decides counts.
        let parameters = cluster.register_parameters();
        let (leads, others) = leader_and_others(&mut cluster);
        cluster.nodes[JOINER] = Some(cluster.hosts[JOINER].start(&parameters));
        let after = random.span(MIDDLE);
        thread::sleep(after);
        world.separate(&[leads, JOINER], &others);
        let took = writer.write(&cluster, PATIENCE);
        println!("cut {after:?} after the registration had begun: a write succeeded {took:?} later");
        world.heal();
        cluster.approve(JOINER);
        let id = cluster.id(JOINER);
        all_healthy(&cluster, 4);
        let nodes = cluster.wait_nodes("the nodes", |_| true);
        assert_eq!(nodes.len(), 4, "not exactly one record of each: {nodes:?}");

        // The leader that carries out the change is cut off from all.
        let (leads, mut others) = leader_and_others(&mut cluster);
        others.push(JOINER);
        let mut command = cluster.command(&format!("node add role ConsensusMember {id} --timeout 60s"));
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("polis can be started");
        let after = random.span(MIDDLE);
        thread::sleep(after);
        world.separate(&[leads], &others);
        let took = writer.write(&cluster, PATIENCE);
        println!("cut {after:?} after the change of members had begun: a write succeeded {took:?} later");
        world.heal();
        let output = command.wait_with_output().expect("it can be waited for");
        assert!(output.status.success(), "{output:?}");
        let _ = cluster.wait_members("four members with a vote", |members| {
            members.len() == 4 && members.iter().all(|member| member["learner"] == false)
        });
        all_healthy(&cluster, 4);
        writer.check(&cluster);

        // As it was, for the next round.
        let _ = cluster.polis(&format!("node remove role ConsensusMember {id}")).succeeds();
        let _ = cluster.polis(&format!("node delete {id} --bypass-not-decommissioned")).succeeds();
        assert_eq!(cluster.node(JOINER).wait_exit().code(), Some(1));
        cluster.nodes[JOINER] = None;
        cluster.hosts[JOINER] = Host::in_world(binary(), world.clone(), JOINER);
        all_healthy(&cluster, 3);
    }
}

/// The leader, and the other ones of the first three members.
fn leader_and_others(cluster: &mut Cluster) -> (usize, Vec<usize>) {
    let leads = leader(cluster);
    (leads, (0..3).filter(|number| *number != leads).collect())
}
