//! Leaders die while writes of several clients are in flight: none that was acknowledged is lost, and each was acknowledged by the node
//! that led when it was carried out, so no two leaders ever both succeed.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::Cluster;
use polis_testkit::history::History;
use polis_testkit::host::PATIENCE;
use polis_testkit::owner_client::OwnerClient;

use crate::{all_healthy, binary, leader, rounds};

/// Longest time that a client waits for an answer: much longer than one takes on a loaded machine. A leader that is killed takes its
/// connections with it, so nobody waits for it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Pause of a client after a write that was not acknowledged.
const PAUSE: Duration = Duration::from_millis(5);

/// Clients of each node.
const CLIENTS: usize = 3;

/// Writes that are to be acknowledged before and after each death of a leader.
const WRITES: u64 = 20;

/// A write that a node has acknowledged.
pub(crate) struct Acknowledged {
    /// Number of the node.
    pub(crate) by: usize,
    /// The label and its value.
    pub(crate) key: String,
    pub(crate) value: String,
    /// When the client has asked, and when it had the answer.
    pub(crate) invoked: Instant,
    pub(crate) answered: Instant,
}

/// What the clients share.
#[derive(Default)]
pub(crate) struct Progress {
    is_over: AtomicBool,
    acknowledged: AtomicU64,
}

impl Progress {
    /// Waits until so many more writes were acknowledged.
    #[track_caller]
    pub(crate) fn wait_more(&self, writes: u64) {
        let (wanted, deadline) = (self.acknowledged.load(Ordering::Relaxed) + writes, Instant::now() + PATIENCE);
        while self.acknowledged.load(Ordering::Relaxed) < wanted {
            assert!(Instant::now() < deadline, "the clients cannot write");
            thread::sleep(PAUSE);
        }
    }

    /// Lets the clients come to their end.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// A client that writes a label of a node again and again, until the end. It asks one of the given nodes, each with its number, for
    /// as long as that acknowledges, and then the next.
    pub(crate) fn write(&self, mut asked: Vec<(usize, OwnerClient)>, key: &str, written: &str) -> Vec<Acknowledged> {
        let mut acknowledged = Vec::new();
        for number in 0_u64.. {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let (node, owner) = &mut asked[0];
            let (value, invoked) = (number.to_string(), Instant::now());
            if owner.set_label(written, key, &value) {
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
                let key = key.to_owned();
                acknowledged.push(Acknowledged { by: *node, key, value, invoked, answered: Instant::now() });
            } else {
                asked.rotate_left(1);
                thread::sleep(PAUSE);
            }
        }
        acknowledged
    }
}

/// Checks that each write is in the state's history, that it was carried out under the claim of the node that acknowledged it, and
/// that none was carried out before one that had been acknowledged when it was asked for.
#[track_caller]
pub(crate) fn check(history: &History, ids: &[String], written: &str, writes: Vec<Acknowledged>) {
    let mut by_revision: Vec<(u64, Acknowledged)> = writes
        .into_iter()
        .map(|write| {
            let (key, value) = (&write.key, &write.value);
            let revision = history.written(written, key, value);
            (revision.unwrap_or_else(|| panic!("{key}={value} was acknowledged and is lost")), write)
        })
        .collect();
    by_revision.sort_by_key(|(revision, _)| *revision);
    let mut last_invoked: Option<Instant> = None;
    for (revision, write) in by_revision {
        let claim = history.leader_at(revision).expect("somebody led");
        let (key, value, by) = (&write.key, &write.value, &ids[write.by]);
        assert_eq!(
            *by, claim.node_id,
            "{key}={value} was acknowledged by {by}, and written at {revision} under {claim:?}"
        );
        assert!(last_invoked.is_none_or(|last| last <= write.answered), "{key}={value} was overtaken");
        last_invoked = last_invoked.max(Some(write.invoked));
    }
}

#[test]
fn leaders_that_die_while_clients_write_lose_nothing_and_never_succeed_beside_each_other() {
    let mut cluster = Cluster::on_loopback(binary(), 3);
    cluster.grow();
    all_healthy(&cluster, 3);
    let ids: Vec<String> = (0..3).map(|number| cluster.id(number)).collect();
    let addresses: Vec<IpAddr> = cluster.hosts.iter().map(polis_testkit::Host::ip).collect();
    let (configuration, progress, deaths) = (cluster.configuration(), Progress::default(), rounds(2, 20));
    let writes = thread::scope(|scope| {
        let mut clients: Vec<ScopedJoinHandle<'_, Vec<Acknowledged>>> = Vec::new();
        for (node, address) in addresses.iter().copied().enumerate() {
            for client in 0..CLIENTS {
                let asked = vec![(node, OwnerClient::new(&configuration, address, TIMEOUT))];
                let (progress, key, written) = (&progress, format!("client-{node}-{client}"), &ids[0]);
                clients.push(scope.spawn(move || progress.write(asked, &key, written)));
            }
        }
        // Whatever goes wrong here, the clients have to end.
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..deaths {
                progress.wait_more(WRITES);
                let leads = leader(&mut cluster);
                cluster.kill(leads);
                progress.wait_more(WRITES);
                cluster.start(leads);
                let _ = cluster.node(leads).wait_state(NodeState::Running);
                all_healthy(&cluster, 3);
            }
        }));
        progress.end();
        let writes = clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>();
        killed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        writes
    });
    let history = History::of_member(&cluster.hosts[0].root());
    let (count, claims) = (writes.len(), history.claims().len());
    let of_each = ids.iter().enumerate().map(|(number, _)| writes.iter().filter(|write| write.by == number).count());
    println!(
        "{count} writes acknowledged, {:?} by each; {deaths} deaths, {claims} claims",
        of_each.collect::<Vec<_>>()
    );
    assert!(claims > deaths, "{:?}", history.claims());
    check(&history, &ids, &ids[0], writes);
}
