//! Three machines form a cluster.

use polis_testkit::seed::is_soak;
use polis_testkit::vm::turn;

use crate::site::{END, Image, Machine, START, Site, image, running, word_after};

/// Memory of each of three machines that run together, in MiB.
const MEMORY: u32 = 512;

fn machine(image: &Image, port: usize) -> Machine {
    Machine { port, memory: MEMORY, ..Machine::without_tpm(image) }
}

#[test]
fn three_machines_form_a_cluster_and_one_that_was_off_is_unlocked_by_the_others() {
    // Three machines at a time take the time of nine.
    if !is_soak() {
        eprintln!("left out of the short form: POLIS_SOAK=1 runs it");
        return;
    }
    let Some(image) = image(&[]) else { return };
    let turn = turn();
    let site = Site::new(3);
    let machines: Vec<Machine> = (0..3).map(|port| machine(&image, port)).collect();
    let parameters = site.bootstrap("authenticated", "disabled");
    let founder = machines[0].start(&site, &turn, Some(&parameters));
    let founder_id = running(&founder);
    site.take_ownership();

    let registration = site.register();
    let mut others: Vec<_> =
        machines[1..].iter().map(|machine| machine.start(&site, &turn, Some(&registration))).collect();
    let mut ids = vec![founder_id];
    for vm in &others {
        vm.serial().wait_for("waiting-for-approval", START);
        let id = word_after(&vm.serial().text(), crate::site::DURABLE).expect("who waits has an identity");
        site.asks(&format!("node approve {id}"));
        assert_eq!(running(vm), id, "{}", vm.serial().tail());
        ids.push(id);
    }
    for id in &ids[1..] {
        site.wait("node list -o json", &format!("{id} is healthy"), |nodes| {
            nodes.iter().any(|node| node["node_id"] == id.as_str() && node["health"] == "HEALTHY")
        });
        site.asks(&format!("node add role ConsensusMember {id}"));
        site.wait("consensus members -o json", &format!("{id} votes"), |members| {
            members.iter().any(|member| member["node_id"] == id.as_str() && member["learner"] == false)
        });
    }

    // The last one is off, and its half of the key is with the others.
    let off = others.pop().expect("there are two");
    off.power_off(END);
    let again = machines[2].start(&site, &turn, None);
    assert_eq!(running(&again), ids[2], "{}", again.serial().tail());
    site.wait("consensus members -o json", "all three vote", |members| {
        members.iter().filter(|member| member["learner"] == false).count() == 3
    });
    site.wait("node list -o json", "all are healthy", |nodes| {
        nodes.len() == 3 && nodes.iter().all(|node| node["health"] == "HEALTHY")
    });
}
