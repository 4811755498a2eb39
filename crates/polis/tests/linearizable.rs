//! Records of nodes are linearizable while leaders die and hang: what clients that write and read at the same time have seen could
//! have been seen one after the other.
//!
//! 20 s of it, with `POLIS_SOAK=1` ten minutes; `POLIS_SEED` chooses the same faults again.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::Cluster;
use polis_testkit::linearizability::{Action, Operation, check};
use polis_testkit::owner_client::OwnerClient;
use polis_testkit::seed::{Random, is_soak};
use rustix::process::Signal;

/// Label that is written and read: the register of each node.
const LABEL: &str = "register";

/// Longest time that a client waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Pause of a client after a call that was not answered well, so that it does not spend its time on those who do not lead.
const PAUSE: Duration = Duration::from_millis(20);

/// Clients of each kind, for each node that they may ask.
const CLIENTS: usize = 1;

/// Fewest reads and acknowledged writes in each round; with fewer, nothing is shown.
const LEAST: usize = 50;

/// What all clients share.
struct History {
    began: Instant,
    is_over: AtomicBool,
    next: AtomicU64,
    /// By the node whose register it is.
    operations: Vec<Mutex<Vec<Operation>>>,
}

impl History {
    fn note(&self, register: usize, invoked: Duration, is_answered: bool, action: Action) {
        let answered = is_answered.then(|| self.began.elapsed());
        self.operations[register].lock().unwrap().push(Operation { invoked, answered, action });
    }

    fn write(&self, client: &mut OwnerClient, ids: &[String], random: &mut Random) {
        while !self.is_over.load(Ordering::Relaxed) {
            let register = usize::try_from(random.below(ids.len() as u64)).unwrap();
            let value = self.next.fetch_add(1, Ordering::Relaxed);
            let invoked = self.began.elapsed();
            let is_answered = client.set_label(&ids[register], LABEL, &value.to_string());
            self.note(register, invoked, is_answered, Action::Write(value));
            if !is_answered {
                thread::sleep(PAUSE);
            }
        }
    }

    fn read(&self, client: &mut OwnerClient, ids: &[String]) {
        while !self.is_over.load(Ordering::Relaxed) {
            let invoked = self.began.elapsed();
            let Some(labels) = client.labels() else {
                thread::sleep(PAUSE);
                continue;
            };
            for (register, id) in ids.iter().enumerate() {
                let value = labels[id].get(LABEL).map(|value| value.parse().expect("it is a number"));
                self.note(register, invoked, true, Action::Read(value));
            }
        }
    }
}

/// The node that leads.
fn leader(cluster: &mut Cluster) -> Option<usize> {
    let run = cluster.polis("cluster status -o json --timeout 5s");
    let id = (run.code == Some(0)).then(|| run.json()["leader"].as_str().map(str::to_owned)).flatten()?;
    (0..cluster.hosts.len()).find(|number| cluster.nodes[*number].is_some() && cluster.id(*number) == id)
}

/// Kills the leader or lets it hang for a while, again and again.
fn disturb(cluster: &mut Cluster, random: &mut Random, until: Instant) -> usize {
    let mut faults = 0;
    while Instant::now() < until {
        let Some(leads) = leader(cluster) else { continue };
        if random.below(3) > 0 {
            cluster.kill(leads);
            thread::sleep(random.span(Duration::from_secs(2)));
            cluster.start(leads);
            let _ = cluster.node(leads).wait_state(NodeState::Running);
        } else {
            cluster.node(leads).signal(Signal::STOP);
            thread::sleep(random.span(Duration::from_secs(6)));
            cluster.node(leads).signal(Signal::CONT);
        }
        faults += 1;
        thread::sleep(random.span(Duration::from_secs(2)));
    }
    faults
}

#[test]
fn records_of_nodes_are_linearizable_while_leaders_die_and_hang() {
    let mut random = Random::for_this_run();
    let mut cluster = Cluster::on_loopback(Path::new(env!("CARGO_BIN_EXE_polis")), 3);
    cluster.grow();
    let ids: Vec<String> = (0..3).map(|number| cluster.id(number)).collect();
    let addresses: Vec<IpAddr> = cluster.hosts.iter().map(polis_testkit::Host::ip).collect();
    let configuration: PathBuf = cluster.configuration();
    let history = History {
        began: Instant::now(),
        is_over: AtomicBool::new(false),
        next: AtomicU64::new(1),
        operations: ids.iter().map(|_| Mutex::default()).collect(),
    };
    let until = Instant::now() + Duration::from_secs(if is_soak() { 600 } else { 20 });
    let faults = thread::scope(|scope| {
        for address in &addresses {
            for _ in 0..CLIENTS {
                let client = || OwnerClient::new(&configuration, *address, TIMEOUT);
                let (mut writer, mut reader, mut own) = (client(), client(), Random::new(random.number()));
                let (history, ids) = (&history, &ids);
                scope.spawn(move || history.write(&mut writer, ids, &mut own));
                scope.spawn(move || history.read(&mut reader, ids));
            }
        }
        // Whatever goes wrong here, the clients have to end.
        let disturbed =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| disturb(&mut cluster, &mut random, until)));
        history.is_over.store(true, Ordering::Relaxed);
        disturbed
    });
    let faults = faults.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let mut seen = [0; 3];
    for (id, operations) in ids.iter().zip(history.operations) {
        let operations = operations.into_inner().unwrap();
        for operation in &operations {
            let kind = match (&operation.action, operation.answered) {
                (Action::Read(_), _) => 0,
                (Action::Write(_), Some(_)) => 1,
                (Action::Write(_), None) => 2,
            };
            seen[kind] += 1;
        }
        assert_eq!(check(&operations), Ok(()), "the record of {id} was seen as no record can be");
    }
    let [reads, writes, unknown] = seen;
    println!("{faults} faults, {reads} reads, {writes} writes, {unknown} writes of unknown outcome");
    assert!(faults >= 2 && reads >= LEAST && writes >= LEAST, "too little has happened");
}
