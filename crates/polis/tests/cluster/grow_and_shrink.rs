//! From one node to five members and back to one, while a client writes.

use std::net::IpAddr;
use std::thread;

use polis_testkit::history::History;
use polis_testkit::owner_client::OwnerClient;
use polis_testkit::{Cluster, Host};

use crate::in_flight::{Acknowledged, Progress, TIMEOUT, check};
use crate::{all_healthy, binary, leader, rounds};

/// Members that there are at the most.
const MEMBERS: usize = 5;

/// Writes that are to be acknowledged between two changes.
const WRITES: u64 = 5;

#[test]
fn five_members_grown_from_one_and_shrunk_to_one_lose_no_write() {
    let mut cluster = Cluster::on_loopback(binary(), MEMBERS);
    cluster.found();
    (1..MEMBERS).for_each(|number| cluster.register(number));
    (1..MEMBERS).for_each(|number| cluster.approve(number));
    all_healthy(&cluster, MEMBERS);
    let ids: Vec<String> = (0..MEMBERS).map(|number| cluster.id(number)).collect();
    let addresses: Vec<IpAddr> = cluster.hosts.iter().map(Host::ip).collect();
    let (configuration, progress) = (cluster.configuration(), Progress::default());
    let writes = thread::scope(|scope| {
        let client = scope.spawn(|| {
            let asked = addresses.iter().map(|address| OwnerClient::new(&configuration, *address, TIMEOUT));
            progress.write(asked.enumerate().collect(), "client", &ids[0])
        });
        // Whatever goes wrong here, the client has to end.
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..rounds(1, 5)).for_each(|_| grow_and_shrink(&mut cluster, &progress));
        }));
        progress.end();
        let writes = client.join().unwrap();
        changed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        writes
    });
    let last = leader(&mut cluster);
    let history = History::of_member(&cluster.hosts[last].root());
    let mut by: Vec<usize> = writes.iter().map(|write: &Acknowledged| write.by).collect();
    by.dedup();
    println!("{} writes acknowledged, by {by:?} one after the other; {} claims", writes.len(), history.claims().len());
    check(&history, &ids, &ids[0], writes);
}

/// Gives all the role of a member, one after the other, and takes it from whoever leads until one is left.
fn grow_and_shrink(cluster: &mut Cluster, progress: &Progress) {
    let start = leader(cluster);
    for number in (0..MEMBERS).filter(|number| *number != start) {
        cluster.make_member(number);
        progress.wait_more(WRITES);
    }
    all_healthy(cluster, MEMBERS);
    for left in (1..MEMBERS).rev() {
        // Each change is made by the one that is to go.
        let goes = leader(cluster);
        let id = cluster.id(goes);
        let _ = cluster.polis(&format!("node remove role KubernetesController {id}")).succeeds();
        let _ = cluster.polis(&format!("node remove role ConsensusMember {id}")).succeeds();
        let _ = cluster.wait_members(&format!("{left} members are left"), |members| {
            members.len() == left && members.iter().all(|member| member["node_id"] != id.as_str())
        });
        progress.wait_more(WRITES);
    }
    all_healthy(cluster, MEMBERS);
}
