//! Who comes to a port for the first time, while somebody else opens one connection after the other there and says nothing.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use polis_testkit::Cluster;

use crate::binary;

/// Silent connections that are held open at a time: as many as a node has seats for those who come for the first time.
const HELD: usize = 128;

/// Pause between two of them. A handshake takes longer, so that with one seat for all hardly one gets through; with those that one
/// place may have there is time for it on the slowest machine.
const PAUSE: Duration = Duration::from_millis(4);

/// Connections that come one after the other.
struct Flood {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Flood {
    fn start(to: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut open = VecDeque::new();
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                open.extend(TcpStream::connect(to));
                count += 1;
                if open.len() > HELD {
                    open.pop_front();
                }
                thread::sleep(PAUSE);
            }
            count
        });
        Self { stop, thread }
    }

    /// Ends it, and says how many connections there were.
    fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

#[test]
fn who_comes_first_is_served_beside_a_stranger_who_only_opens_connections() {
    let mut cluster = Cluster::on_loopback(binary(), 1);
    cluster.grow_to(1);
    let (id, address) = (cluster.id(0), cluster.hosts[0].ip());
    // Nobody has asked for its log and its metrics yet, so no place is familiar to these ports.
    for (port, command) in [(7839, format!("node logs {id}")), (7840, format!("node metrics {id} core"))] {
        let flood = Flood::start(SocketAddr::new(address, port));
        let run = cluster.polis(&command);
        println!("{command}: {} connections beside it", flood.stop());
        let _ = run.succeeds();
    }
}
