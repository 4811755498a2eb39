//! What whoever has the disk can read of it, and what he can forge.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::checks::{self, OnDisk};
use polis_testkit::store::Store;
use polis_testkit::{NodeData, NodeProcess, glance, scratch};

use crate::Place;

/// What is written into the store, and looked for.
const NEEDLE: &str = "a needle that is in no other place of the world";

/// Names below `data`, all of which would be there in the clear on a plain disk.
const NAMES: [&str; 6] = ["credentials", "etcd", "member", "roles", "wal", "revocations"];

/// What a file of gocryptfs begins with: a version and the file's own number. A block has a nonce of 16 bytes before its text.
const FILE_HEADER: u64 = 18;
const NONCE: u64 = 16;

/// Whether this text is in this file.
fn holds(file: &Path, text: &[u8]) -> bool {
    let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    bytes.windows(text.len()).any(|window| window == text)
}

#[test]
fn nothing_that_was_written_can_be_read_on_the_disk() {
    let place = Place::new();
    let mut node = place.host.start(&place.parameters);
    let status = node.wait_running();
    let _ = node.wait_contact();
    Store::of_node(&place.root()).put("test/needle", NEEDLE);
    // Killed, so that it could tidy nothing up.
    node.kill();
    polis_testkit::processes::wait_until_gone(&place.root()).unwrap_or_else(|left| panic!("{left}"));

    let id = status.node_id.expect("a running node has an id");
    // Sockets cannot be read.
    let files: Vec<PathBuf> = scratch::files(&place.root()).into_iter().filter(|file| file.is_file()).collect();
    let cipher = place.root().join("encrypted/cipher");
    let encrypted: Vec<&PathBuf> = files.iter().filter(|file| file.starts_with(&cipher)).collect();
    assert!(encrypted.len() >= 6, "{files:?}");
    for file in &files {
        assert!(!file.starts_with(place.root().join("data")), "{} is in the clear", file.display());
        assert!(!holds(file, NEEDLE.as_bytes()), "{NEEDLE:?} is in {}", file.display());
    }
    for file in &encrypted {
        for text in [id.as_str(), "namespaced:curator", "-----BEGIN", "wal-"] {
            assert!(!holds(file, text.as_bytes()), "{text:?} is in {}", file.display());
        }
        let path = file.strip_prefix(&cipher).unwrap().to_string_lossy();
        for part in path.split('/') {
            assert!(!NAMES.iter().any(|name| part == *name || part.starts_with("roles.")), "{path}");
        }
    }
    // The search finds all that where it is.
    let data = NodeData::of(&place.root());
    let clear = scratch::files(&data.path("data"));
    assert!(clear.iter().any(|file| holds(file, NEEDLE.as_bytes())), "{clear:?}");
    assert!(clear.iter().any(|file| holds(file, id.as_bytes())), "{clear:?}");
    for name in NAMES {
        assert!(clear.iter().any(|file| file.to_string_lossy().contains(name)), "{name}");
    }
}

/// Where the ciphertext of this file is: gocryptfs leaves files their numbers.
fn ciphertext(place: &Place, below_root: &str) -> PathBuf {
    let data = NodeData::of(&place.root());
    let number = fs::metadata(data.path(below_root)).unwrap_or_else(|error| panic!("{below_root}: {error}")).ino();
    let files = scratch::files(&place.root().join("encrypted/cipher"));
    files.into_iter().find(|file| fs::metadata(file).unwrap().ino() == number).expect("each file has a ciphertext")
}

/// Changes one bit of the text of the first block.
fn flip(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let position = usize::try_from(FILE_HEADER + NONCE + 3).unwrap();
    bytes[position] ^= 0x10;
    // In place, as a disk does it.
    fs::write(file, bytes).unwrap();
}

/// Waits until a node says that something is wrong, or ends. Returns what it said.
fn complaint(place: &Place, node: &mut NodeProcess) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if node.wait_exit_or("a look", || true).is_some() {
            return node.log();
        }
        if let Some(status) = glance::status(&place.root()) {
            assert!(
                status.state != NodeState::Running || !checks::faults(&status).is_empty(),
                "it runs as if nothing were wrong: {}",
                node.log()
            );
            let faults = checks::faults(&status);
            let found = status.conditions.iter().filter(|condition| faults.contains(&&*condition.name));
            let text: String = found.map(|found| format!("{}: {}\n", found.name, found.message)).collect();
            if !text.is_empty() {
                return text;
            }
        }
        assert!(Instant::now() < deadline, "nothing is said: {}", node.log());
    }
}

#[test]
fn a_flipped_bit_is_an_error_and_never_wrong_data() {
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    let wal = "data/etcd/data/member/wal/0000000000000000-0000000000000000.wal";
    // The file, and what must be in what is said of it.
    let table = [
        ("data/partition", "data/partition"),
        ("data/node/credentials", "data/node/credentials"),
        ("data/etcd/credentials", "data/etcd/credentials"),
        (wal, "etcd"),
    ];
    for (name, said) in table {
        let file = ciphertext(&place, name);
        let good = fs::read(&file).unwrap();
        flip(&file);
        let mut node = place.host.start(&place.parameters);
        let text = complaint(&place, &mut node);
        println!("{name}: {text}");
        assert!(text.contains(said), "{name}: {text}");
        node.kill();
        polis_testkit::processes::wait_until_gone(&place.root()).unwrap_or_else(|left| panic!("{left}"));
        // Nothing was thrown away because of it: with the right bit all is there.
        fs::write(&file, good).unwrap();
        place.run(&before);
    }
}

#[test]
fn a_record_of_which_a_copy_is_whole_is_mended() {
    let place = Place::enrolled();
    let before = checks::on_disk(&place.root());
    let file = ciphertext(&place, "data/node/roles.0");
    flip(&file);
    let mut node = place.host.start(&place.parameters);
    node.wait_running_with(&["roles-damaged"]);
    assert!(node.stop().success());
    place.run(&OnDisk { node_id: before.node_id, ..before });
}
