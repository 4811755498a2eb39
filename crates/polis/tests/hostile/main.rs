//! What an attacker or a careless hand does to nodes of a real cluster: copies of a node, garbage on its ports, and keys that
//! are looked for on the disk of a machine that was let go. The cluster says what is wrong, and goes on.

#![forbid(unsafe_code)]

mod flood;
mod newcomer;

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use polis_testkit::{Cluster, NodeData, processes};

/// Ports that a member listens on: consensus, curator, management, metrics.
const PORTS: [u16; 4] = [7834, 7835, 7839, 7840];

/// Connections with garbage for each port: nearly as many as a process may have open by default, such as this test.
const CONNECTIONS: usize = 900;

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_polis"))
}

/// All files below a directory, which may be absent.
fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Copies a directory with all that is in it, sockets left out.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (kind, target) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &target);
        } else if kind.is_file() {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn the_copy_of_a_node_is_told_that_it_is_one() {
    let mut cluster = Cluster::on_loopback(binary(), 3);
    cluster.grow_to(1);
    cluster.register(1);
    cluster.approve(1);
    let _ = cluster.node(1).wait_contact();
    cluster.kill(1);
    // Of encrypted data a killed node leaves a mount, which ends by itself.
    processes::wait_until_gone(&cluster.hosts[1].root()).unwrap_or_else(|left| panic!("{left}"));
    copy(&cluster.hosts[1].root(), &cluster.hosts[2].root());

    cluster.start(1);
    let _ = cluster.node(1).wait_contact();
    cluster.start(2);
    let status = cluster.node(2).wait_condition("node-runs-twice");
    let condition = status.conditions.iter().find(|condition| condition.name == "node-runs-twice").unwrap();
    assert!(condition.message.contains("root directory was copied"), "{condition:?}");
    // Whoever looks at the cluster sees it, although the node that is listed is well.
    let health = cluster.polis("cluster health");
    assert!(health.stdout.contains("runs twice: another process with its key is at "), "{health:#?}");
    // The one that was there first is not disturbed.
    let _ = cluster.node(1).wait_contact();

    // When it is gone, the other may be the node.
    cluster.kill(1);
    let _ = cluster.node(2).wait("no copy any more", |status| {
        status.conditions.iter().all(|condition| condition.name != "node-runs-twice")
            && status.contact.as_ref().is_some_and(|contact| contact.in_contact)
    });
}

#[test]
fn nothing_of_the_consensus_stays_on_a_member_that_is_decommissioned_at_once() {
    let mut cluster = Cluster::on_loopback(binary(), 3);
    cluster.grow_to(3);
    let id = cluster.id(2);
    let _ = cluster.polis(&format!("node remove role ConsensusMember {id}")).succeeds();
    let _ = cluster.polis(&format!("node decommission {id} --wait")).succeeds();
    assert_eq!(cluster.node(2).wait_exit().code(), Some(1));
    let root = cluster.hosts[2].root();
    let data = NodeData::of(&root);
    // The database of the consensus has the key of the cluster's CA in it. What is encrypted, and of which nobody has the key any
    // more, is gone as well.
    if !data.is_locked() {
        let left: Vec<_> =
            files(&data.path("data/etcd")).into_iter().filter(|file| fs::metadata(file).unwrap().len() > 0).collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "{}", cluster.node(2).log());
        assert!(!data.path("data/node/credentials").exists());
    }
    assert!(!root.join("ephemeral/consensus/peer-key.pem").exists());
}

#[test]
fn garbage_on_every_port_disturbs_nobody() {
    let mut cluster = Cluster::on_loopback(binary(), 3);
    cluster.grow_to(3);
    let address = cluster.hosts[0].ip();
    let id = cluster.id(0);
    let before = cluster.node(0).wait_contact();
    for port in PORTS {
        let mut open = Vec::new();
        for number in 0..CONNECTIONS {
            let Ok(mut stream) = TcpStream::connect_timeout(&SocketAddr::new(address, port), Duration::from_secs(5))
            else {
                panic!("{address}:{port} takes no connection any more after {number}");
            };
            // Half of them say nothing, the others something that is no TLS; who is refused at once is so.
            if number % 2 == 0 {
                let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: polis\r\n\r\n\xff\x00\xff");
            }
            open.push(stream);
        }
        // An operator is served meanwhile, at each port that is for people.
        for command in ["node list", &format!("node logs {id}"), &format!("node metrics {id} core")] {
            let _ = cluster.polis(command).succeeds();
        }
        drop(open);
    }
    let after = cluster.node(0).wait_contact();
    assert_eq!(after.node_id, before.node_id);
    assert!(!cluster.node(0).log().contains("panicked"));
    let _ = cluster.polis("cluster health").succeeds();
}
