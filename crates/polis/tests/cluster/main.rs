//! Clusters of real nodes on hosts of their own: they form, lose nodes, links and addresses, and come back by themselves.

#![forbid(unsafe_code)]

mod addresses;
mod damaged;
mod deletion;
mod in_flight;
mod leader;
mod let_go;
mod partition;
mod replacement;
mod writer;

use std::path::Path;

use polis_testkit::Cluster;
use polis_testkit::seed::is_soak;

/// The binary that the nodes and the operator run.
fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_polis"))
}

/// Waits until every node that runs is up and healthy, and no other is.
#[track_caller]
fn all_healthy(cluster: &Cluster, count: usize) {
    let _ = cluster.wait_nodes(&format!("{count} healthy nodes"), |nodes| {
        nodes.iter().filter(|node| node["state"] == "UP" && node["health"] == "HEALTHY").count() == count
    });
}

/// The node that leads, by number.
#[track_caller]
fn leader(cluster: &mut Cluster) -> usize {
    let status = cluster.polis("cluster status -o json").succeeds().json();
    let id = status["leader"].as_str().expect("there is a leader").to_owned();
    (0..cluster.hosts.len())
        .find(|number| cluster.nodes[*number].is_some() && cluster.id(*number) == id)
        .expect("the leader is one of the nodes")
}

/// How often a test repeats what chance decides: `few` in continuous integration, `many` with POLIS_SOAK=1.
fn rounds(few: usize, many: usize) -> usize {
    if is_soak() { many } else { few }
}
