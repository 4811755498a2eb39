//! Data that etcd cannot read: really damaged, and recognised by what the real etcd says.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use polis_consensus::Phase;

use crate::node::Node;

/// What is done to the data of a member.
type Damage = fn(&Path);

/// Kinds of damage after which etcd does not start.
const FATAL: [(&str, Damage); 8] = [
    ("of the last record only the beginning was written", |member| {
        let (log, length) = log(member);
        let begin = [0x40, 0, 0, 0, 0, 0, 0, 0, 8, 2];
        OpenOptions::new().write(true).open(log).unwrap().write_all_at(&begin, length / 8 * 8 + 8).unwrap();
    }),
    ("a byte in the middle of the log is another", |member| {
        let (log, length) = log(member);
        let mut byte = [0];
        let file = OpenOptions::new().read(true).write(true).open(log).unwrap();
        file.read_exact_at(&mut byte, length / 2).unwrap();
        file.write_all_at(&[byte[0] ^ 0x55], length / 2).unwrap();
    }),
    ("the log begins with something else", |member| {
        OpenOptions::new().write(true).open(log(member).0).unwrap().write_all_at(&[0xff; 512], 0).unwrap();
    }),
    ("the log is an empty file", |member| {
        OpenOptions::new().write(true).open(log(member).0).unwrap().set_len(0).unwrap();
    }),
    ("the database is shorter", |member| {
        OpenOptions::new().write(true).open(database(member)).unwrap().set_len(16 << 10).unwrap();
    }),
    ("the database begins with something else", |member| {
        OpenOptions::new().write(true).open(database(member)).unwrap().write_all_at(&[0x5a; 16 << 10], 0).unwrap();
    }),
    ("pages of the database are something else", |member| {
        let file = OpenOptions::new().write(true).open(database(member)).unwrap();
        let length = file.metadata().unwrap().len() - (8 << 10);
        file.write_all_at(&vec![0x5a; length.try_into().unwrap()], 8 << 10).unwrap();
    }),
    ("pages of the database are zeros", |member| {
        let file = OpenOptions::new().write(true).open(database(member)).unwrap();
        let length = file.metadata().unwrap().len() - (8 << 10);
        file.write_all_at(&vec![0; length.try_into().unwrap()], 8 << 10).unwrap();
    }),
];

/// The first file of the log, and how much of it is written.
fn log(member: &Path) -> (PathBuf, u64) {
    let path = member.join("wal/0000000000000000-0000000000000000.wal");
    let bytes = fs::read(&path).unwrap();
    let length = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    (path, length.try_into().unwrap())
}

fn database(member: &Path) -> PathBuf {
    member.join("snap/db")
}

/// Name and content of every file below a directory.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(contents(&path)) } else { all.push((path.clone(), fs::read(&path).unwrap())) }
    }
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_data_cannot_be_read_says_so_and_leaves_them_as_they_are() {
    for (name, damage) in FATAL {
        let mut node = Node::new();
        node.found();
        node.ready().await;
        for number in 0..20 {
            node.consensus().kv_root().put("test/put", format!("{number}"), vec![7; 4096]).await.unwrap();
        }
        node.stop().await;
        let member = node.layout.data.etcd.data.full_path().join("member");
        damage(&member);
        let before = contents(&member);
        node.restart();
        let status = node.wait_for("known to be damaged", |status| status.damage.is_some()).await;
        assert_eq!((status.phase, status.process_id), (Phase::Down, None), "{name}");
        let message = node.wait_condition("consensus-data-damaged").await;
        println!("{name}: {}", status.damage.as_deref().unwrap_or_default());
        assert!(message.contains(&status.damage.unwrap()), "{name}: {message}");
        assert!(message.contains(&member.parent().unwrap().display().to_string()), "{name}: {message}");
        // The log is what has the votes and the last changes. etcd opens its database before it reads the log, and writes to it.
        let after = contents(&member);
        for (path, bytes) in before.iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "wal")) {
            assert!(after.iter().any(|(now, content)| now == path && content == bytes), "{name}: {path:?}");
        }
        assert!(database(&member).is_file(), "{name}");
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_power_cut_leaves_at_the_end_of_the_log_is_no_damage() {
    let mut node = Node::new();
    node.found();
    node.ready().await;
    let root = node.consensus().kv_root();
    root.put("test/put", "first", "one").await.unwrap();
    root.put("test/put", "last", "two").await.unwrap();
    node.stop().await;
    // The last record has not reached the disk whole.
    let (log, length) = log(&node.layout.data.etcd.data.full_path().join("member"));
    OpenOptions::new().write(true).open(log).unwrap().set_len(length - 4).unwrap();
    node.restart();
    node.ready().await;
    assert_eq!(node.consensus().kv_root().get("first").await.unwrap().unwrap().value, b"one");
    assert_eq!(node.harness().conditions().snapshot(), []);
    node.stop().await;
}
