//! A writer of labels through Management, and what it knows to be written.

use std::time::{Duration, Instant};

use polis_testkit::Cluster;

/// Label that is written.
const KEY: &str = "written";

/// Writes numbers, one after the other, as a label of one node, and remembers the last that was acknowledged.
pub(crate) struct Writer {
    node: String,
    next: u64,
    acknowledged: u64,
}

impl Writer {
    pub(crate) fn new(node: &str) -> Self {
        Self { node: node.to_owned(), next: 1, acknowledged: 0 }
    }

    /// Writes until a write is acknowledged, which must be within `patience`. Returns how long that took.
    #[track_caller]
    pub(crate) fn write(&mut self, cluster: &Cluster, patience: Duration) -> Duration {
        let start = Instant::now();
        loop {
            let number = self.next;
            self.next += 1;
            let run = cluster.polis(&format!("node set label {} {KEY}={number} --timeout 2s", self.node));
            if run.code == Some(0) {
                self.acknowledged = number;
                return start.elapsed();
            }
            assert!(start.elapsed() < patience, "no write was acknowledged within {patience:?}: {run:#?}");
        }
    }

    /// Asserts that what was acknowledged is there: it, or a later write whose answer was lost.
    #[track_caller]
    pub(crate) fn check(&self, cluster: &Cluster) {
        let nodes =
            cluster.wait_nodes("the written node", |nodes| nodes.iter().any(|node| node["node_id"] == self.node));
        let node = nodes.iter().find(|node| node["node_id"] == self.node).expect("it was waited for");
        let found: u64 = node["labels"][KEY].as_str().unwrap_or("0").parse().expect("it is a number");
        assert!(
            (self.acknowledged..self.next).contains(&found),
            "{} was acknowledged, {found} is there",
            self.acknowledged
        );
    }
}
