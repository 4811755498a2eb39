//! A client that writes while the cluster loses its power, and what it knows to be written.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use polis_testkit::owner_client::OwnerClient;
use polis_testkit::world::World;
use serde_json::Value;

/// Labels that are written in turn, so that as many of the last writes are each seen again. A node has at most 128 labels.
const LABELS: usize = 32;

/// Longest time that a call may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Pause before another node is asked.
const PAUSE: Duration = Duration::from_millis(10);

/// How long the first acknowledged write is waited for. The cluster is healthy before the writer begins.
const FIRST_WRITE: Duration = Duration::from_secs(30);

/// What is known of one label.
#[derive(Clone, Copy, Default)]
struct Written {
    /// The last value of which the cluster has said that it is there; 0: none.
    acknowledged: u64,
    /// The last value that was sent.
    sent: u64,
}

/// The writes of one cluster.
pub(crate) struct Writer {
    /// The node whose labels are written.
    node: String,
    configuration: PathBuf,
    /// Where the writer is.
    world: Arc<World>,
    host: usize,
    labels: Arc<Mutex<Vec<Written>>>,
    next: u64,
}

/// A writer at work.
pub(crate) struct Writing {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Ended>,
}

/// What a writer has come to.
struct Ended {
    /// The number after the last.
    next: u64,
    acknowledged: usize,
}

impl Writer {
    /// A writer on a host of the world, with the owner's configuration.
    pub(crate) fn new(node: &str, configuration: PathBuf, world: Arc<World>, host: usize) -> Self {
        let labels = Arc::new(Mutex::new(vec![Written::default(); LABELS]));
        Self { node: node.to_owned(), configuration, world, host, labels, next: 1 }
    }

    /// Begins to write through these nodes, and returns once a write was acknowledged.
    pub(crate) fn begin(&self, nodes: Vec<IpAddr>) -> Writing {
        let is_over = Arc::new(AtomicBool::new(false));
        let work = Work {
            node: self.node.clone(),
            configuration: self.configuration.clone(),
            labels: Arc::clone(&self.labels),
            is_over: Arc::clone(&is_over),
            next: self.next,
        };
        let before = last_acknowledged(&self.labels);
        let (world, host) = (Arc::clone(&self.world), self.host);
        let thread = std::thread::spawn(move || world.host(host).inside(|| work.write(&nodes)));
        let deadline = Instant::now() + FIRST_WRITE;
        while last_acknowledged(&self.labels) == before {
            assert!(Instant::now() < deadline, "no write was acknowledged within {FIRST_WRITE:?}");
            std::thread::sleep(PAUSE);
        }
        Writing { is_over, thread }
    }

    /// Ends the writing. Returns how many writes were acknowledged in it.
    pub(crate) fn end(&mut self, writing: Writing) -> usize {
        writing.is_over.store(true, Ordering::SeqCst);
        let Ended { next, acknowledged } = writing.thread.join().expect("the writer does not panic");
        self.next = next;
        acknowledged
    }

    /// Asserts that of each label the last acknowledged value is there, or one that was sent after it.
    #[track_caller]
    pub(crate) fn check(&self, nodes: &[Value]) {
        let record =
            nodes.iter().find(|node| node["node_id"] == self.node.as_str()).expect("the written node is there");
        let mut labels = self.labels.lock().unwrap();
        for (number, written) in labels.iter_mut().enumerate() {
            let name = label(number);
            let found: u64 = record["labels"][&name].as_str().map_or(0, |value| value.parse().expect("it is a number"));
            let Written { acknowledged, sent } = *written;
            assert!(
                (acknowledged..=sent).contains(&found),
                "label {name}: {acknowledged} was acknowledged, {sent} was sent last, {found} is there"
            );
            // What was seen once stays.
            written.acknowledged = found;
        }
    }
}

/// The last acknowledged value of all labels.
fn last_acknowledged(labels: &Mutex<Vec<Written>>) -> u64 {
    labels.lock().unwrap().iter().map(|written| written.acknowledged).max().unwrap_or_default()
}

fn label(number: usize) -> String {
    format!("written-{number}")
}

/// What the thread of a writer has.
struct Work {
    node: String,
    configuration: PathBuf,
    labels: Arc<Mutex<Vec<Written>>>,
    is_over: Arc<AtomicBool>,
    next: u64,
}

impl Work {
    /// Writes one number after the other until it is told to end, through whichever node takes it.
    fn write(self, nodes: &[IpAddr]) -> Ended {
        let client = |address: &IpAddr| OwnerClient::new(&self.configuration, *address, TIMEOUT);
        let mut clients: Vec<OwnerClient> = nodes.iter().map(client).collect();
        let (mut next, mut turn, mut acknowledged) = (self.next, 0, 0);
        while !self.is_over.load(Ordering::SeqCst) {
            let place = (next % LABELS as u64) as usize;
            self.labels.lock().unwrap()[place].sent = next;
            let count = clients.len();
            if clients[turn % count].set_label(&self.node, &label(place), &next.to_string()) {
                self.labels.lock().unwrap()[place].acknowledged = next;
                acknowledged += 1;
            } else {
                turn += 1;
                std::thread::sleep(PAUSE);
            }
            next += 1;
        }
        Ended { next, acknowledged }
    }
}
