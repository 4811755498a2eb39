//! Saving against members in this process, some of which send what is no snapshot.

use std::io::Write as _;

use polis_proto::node_api::SaveSnapshotResponse;
use polis_recovery::RecoveryKey;
use polis_recovery::snapshot::{SnapshotHeader, SnapshotWriter};
use sha2::{Digest as _, Sha256};

use crate::fake::FakeCluster;

/// A snapshot file.
fn file(key: Option<&RecoveryKey>) -> Vec<u8> {
    let content: Vec<u8> = (0..200_000_u32).map(|index| (index % 251) as u8).collect();
    let header = SnapshotHeader {
        cluster: "00112233445566778899aabbccddeeff".parse().unwrap(),
        revision: 42,
        members: vec![],
        taken_at_seconds: 1_000,
        polis_version: "0.1.0".into(),
        etcd_version: "3.6.0".into(),
        content_length: content.len() as u64,
        content_sha256: Sha256::digest(&content).into(),
    };
    let mut writer = SnapshotWriter::new(Vec::new(), header, key.map(RecoveryKey::public).as_ref()).unwrap();
    writer.write_all(&content).unwrap();
    writer.finish().unwrap()
}

/// A file as a member sends it.
fn messages(file: &[u8]) -> Vec<SaveSnapshotResponse> {
    let mut messages: Vec<_> = file
        .chunks(64 << 10)
        .map(|data| SaveSnapshotResponse { data: data.to_vec(), ..SaveSnapshotResponse::default() })
        .collect();
    messages.first_mut().unwrap().file_length = file.len() as u64;
    messages.last_mut().unwrap().sha256 = Sha256::digest(file).to_vec();
    messages
}

#[test]
fn a_snapshot_is_saved_whole_or_not_at_all() {
    let cluster = FakeCluster::start(2);
    cluster.polis("polis cluster takeownership --insecure-accept-and-persist-first-encountered-ca", &[0]).succeeds();
    let path = cluster.path("saved");
    let save = |more: &str| cluster.polis(&format!("polis cluster snapshot save {}{more}", path.display()), &[0]);
    let key = RecoveryKey::generate();
    let (sealed, plain) = (file(Some(&key)), file(None));
    let mut cut = messages(&sealed);
    cut.pop();
    let mut changed = messages(&sealed);
    changed[1].data[5] ^= 1;
    let mut short = messages(&sealed);
    short.remove(1);
    let cases: [(&str, Vec<SaveSnapshotResponse>, &str, &[&str]); 7] = [
        ("refused", vec![], "", &["no recovery key"]),
        ("cut short", cut, "", &["cut short or changed"]),
        ("changed on its way", changed, "", &["cut short or changed"]),
        ("with a part that is missing", short, "", &["cut short or changed"]),
        ("no snapshot", messages(b"something else"), "", &["no snapshot file of Polis"]),
        ("plain, where that was not asked for", messages(&plain), "", &["another way"]),
        ("encrypted, where that was not asked for", messages(&sealed), " --plaintext", &["another way"]),
    ];
    for (name, messages, more, parts) in cases {
        cluster.state().snapshot = messages;
        save(more).fails(1, parts);
        assert!(!path.exists(), "{name}");
        let left = std::fs::read_dir(path.parent().unwrap()).unwrap();
        assert!(
            left.map(|entry| entry.unwrap().file_name()).all(|name| !crate::atomic_file::is_leftover(&name)),
            "{name}"
        );
    }
    for (bytes, more) in [(&sealed, ""), (&plain, " --plaintext")] {
        cluster.state().snapshot = messages(bytes);
        assert!(save(more).succeeds().contains("revision 42"));
        assert!(std::fs::read(&path).unwrap() == *bytes);
        save(more).fails(1, &["is there already"]);
        let shown = cluster.polis(&format!("polis cluster snapshot status {}", path.display()), &[0]);
        assert!(shown.succeeds().contains("00112233445566778899aabbccddeeff"), "{shown:?}");
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        cluster.polis(&format!("polis cluster snapshot status {}", path.display()), &[0]).fails(1, &["cut short"]);
        std::fs::remove_file(&path).unwrap();
    }
    let members = cluster.polis("polis cluster snapshot status -o json", &[0]).json();
    assert_eq!(members.as_array().unwrap().len(), 2);
    cluster.finish();
}
