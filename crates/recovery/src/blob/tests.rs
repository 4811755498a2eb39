//! Blobs open for the right key, whole, and for nobody else.

use polis_identity::{JoinKey, NodeKey};
use polis_proto::api::NodeParameters;
use polis_proto::api::node_parameters::{Cluster, ClusterRegister};
use polis_proto::common::ClusterDirectory;
use polis_proto::common::cluster_directory::Node;
use polis_proto::common::cluster_directory::node::Address;
use polis_storage::Journal;
use polis_storage::journal::{Epoch, EpochFloor, Intent, StorageSecurity};
use proptest::prelude::*;

use super::*;

fn subject() -> BlobSubject {
    BlobSubject {
        cluster: ClusterId::from_bytes([3; 16]),
        node: NodeId::of(&NodeKey::generate().public()),
        join_key: JoinKey::generate().public(),
    }
}

fn content() -> BlobContent {
    BlobContent {
        record: Zeroizing::new(b"a record".to_vec()),
        cluster_unlock_key: Secret32::new([1; 32]),
        pending_cluster_unlock_key: None,
    }
}

#[test]
fn the_right_key_opens_what_was_sealed() {
    let (key, subject) = (RecoveryKey::generate(), subject());
    for pending in [None, Some(Secret32::new([2; 32]))] {
        let content = BlobContent { pending_cluster_unlock_key: pending, ..content() };
        let sealed = Blob::seal(&key.public(), subject, &content).unwrap();
        let blob = Blob::from_bytes(&sealed.to_bytes()).unwrap();
        assert!(blob == sealed);
        assert_eq!((*blob.subject(), blob.recipient()), (subject, key.fingerprint()));
        let content_key = blob.content_key(&key).unwrap();
        let sent = ContentKey::from_secret(content_key.secret().clone());
        assert!(blob.open(&sent).unwrap() == content);
        // As small as the record lets it be.
        assert!(blob.to_bytes().len() < 600, "{}", blob.to_bytes().len());
    }
}

#[test]
fn the_whole_content_is_hidden_and_each_blob_is_its_own() {
    let (key, subject, content) = (RecoveryKey::generate(), subject(), content());
    let [one, other] = [(); 2].map(|()| Blob::seal(&key.public(), subject, &content).unwrap());
    assert_ne!(one.digest(), other.digest());
    assert_eq!(one.digest(), one.clone().digest());
    assert!(one.open(&other.content_key(&key).unwrap()).is_err());
    for secret in [&content.record[..], content.cluster_unlock_key.expose()] {
        assert!(!one.to_bytes().windows(secret.len()).any(|window| window == secret));
    }
}

#[test]
fn the_key_of_another_cluster_is_told_by_name() {
    let (key, other) = (RecoveryKey::generate(), RecoveryKey::generate());
    let blob = Blob::seal(&key.public(), subject(), &content()).unwrap();
    let error = blob.content_key(&other).err().unwrap();
    assert_eq!(error, OpenBlobError::AnotherKey { found: other.fingerprint(), expected: key.fingerprint() });
    for fingerprint in [key.fingerprint(), other.fingerprint()] {
        assert!(error.to_string().contains(&fingerprint.to_string()));
    }
    assert_eq!(blob.open(&ContentKey::from_secret(Secret32::random())).err(), Some(OpenBlobError::Changed));
}

#[test]
fn one_nodes_content_is_not_another_nodes() {
    let (key, own, other) = (RecoveryKey::generate(), subject(), subject());
    let blob = Blob::seal(&key.public(), own, &content()).unwrap();
    let claimed = Blob::seal(&key.public(), other, &content()).unwrap();
    let forged = Blob { header: claimed.header, subject: other, ..blob };
    let forged = Blob::from_bytes(&forged.to_bytes()).unwrap();
    assert_eq!(forged.subject(), &other);
    assert_eq!(forged.content_key(&key).err(), Some(OpenBlobError::Changed));
}

#[test]
fn the_hash_tells_whether_the_same_would_be_sealed() {
    let (key, other, subject) = (RecoveryKey::generate().public(), RecoveryKey::generate().public(), subject());
    let hash = content().hash(&key, &subject);
    assert_eq!(content().hash(&key, &subject), hash);
    let pending = BlobContent { pending_cluster_unlock_key: Some(Secret32::new([2; 32])), ..content() };
    let record = BlobContent { record: Zeroizing::new(b"another".to_vec()), ..content() };
    let elsewhere = BlobSubject { cluster: ClusterId::from_bytes([4; 16]), ..subject };
    let others = [
        pending.hash(&key, &subject),
        record.hash(&key, &subject),
        content().hash(&other, &subject),
        content().hash(&key, &elsewhere),
    ];
    assert!(!others.contains(&hash));
}

#[test]
fn a_record_has_a_limit_and_a_blob_can_hold_it() {
    let key = RecoveryKey::generate();
    let with = |length| BlobContent { record: Zeroizing::new(vec![7; length]), ..content() };
    let longest = Blob::seal(&key.public(), subject(), &with(RECORD_LIMIT)).unwrap();
    assert!(longest.to_bytes().len() <= BLOB_LIMIT);
    assert!(Blob::from_bytes(&longest.to_bytes()).is_ok());
    assert_eq!(
        Blob::seal(&key.public(), subject(), &with(RECORD_LIMIT + 1)).err(),
        Some(SealBlobError::TooLong { length: RECORD_LIMIT + 1 })
    );
}

/// A member of a cluster of nine, whose parameters name all of them at two addresses each, and which keeps a floor for each.
#[test]
fn the_record_of_a_member_of_nine_is_a_small_part_of_what_is_taken() {
    let id = |number: u32| format!("metropolis-{number:032x}");
    let address = |number: u32| Address { host: format!("2001:db8:ffff:ffff:ffff:ffff:ffff:{number:x}") };
    let node = |number| Node { id: id(number), addresses: vec![address(number), address(number + 9)] };
    let register = ClusterRegister {
        cluster_directory: Some(ClusterDirectory { nodes: (1..=9).map(node).collect() }),
        register_ticket: vec![0; 36],
        ca_certificate: vec![7; 1024],
        labels: None,
    };
    let parameters = NodeParameters { cluster: Some(Cluster::ClusterRegister(register)), network_config: None };
    let mut journal = Journal::new(Intent {
        parameters: parameters.encode_to_vec(),
        node_key: Secret32::random(),
        node_public_key: [2; 32],
        join_key: Secret32::random(),
        share_key: Secret32::random(),
        storage_security: Some(StorageSecurity::AuthenticatedEncrypted),
    });
    journal.node_unlock_key = Some(Secret32::random());
    journal.cluster_ca = Some(vec![7; 1024]);
    journal.cluster_id = Some("0".repeat(32));
    let epoch = Epoch { incarnation: u64::MAX, epoch: u64::MAX };
    journal.highest_epoch = Some(epoch);
    journal.epoch_floors = (1..=9).map(|number| EpochFloor { owner_node_id: id(number), epoch }).collect();
    let content = BlobContent { record: journal.to_payload(), ..content() };
    let key = RecoveryKey::generate();
    let blob = Blob::seal(&key.public(), subject(), &content).unwrap();
    let length = blob.to_bytes().len();
    assert!(length * 16 < BLOB_LIMIT, "{length}");
    let opened = blob.open(&blob.content_key(&key).unwrap()).ok().unwrap();
    assert!(Journal::from_payload(&opened.record) == Ok(journal));
}

#[test]
fn impossible_fields_and_newer_versions_are_named() {
    let key = RecoveryKey::generate();
    let blob = Blob::seal(&key.public(), subject(), &content()).unwrap();
    let whole = proto::blob::Header::decode(&blob.header[..]).unwrap();
    let message = |header: &proto::blob::Header| proto::Blob {
        header: header.encode_to_vec(),
        encapsulated_key: blob.encapsulated.to_vec(),
        sealed_content: blob.sealed.clone(),
    };
    let read = |message: proto::Blob| Blob::from_bytes(&FORMAT.encode(0, 0, &message.encode_to_vec()).unwrap()).err();
    let good = message(&whole);
    let table = [
        ("cluster_id", message(&proto::blob::Header { cluster_id: "x".into(), ..whole.clone() })),
        ("node_id", message(&proto::blob::Header { node_id: String::new(), ..whole.clone() })),
        ("join_public_key", message(&proto::blob::Header { join_public_key: vec![0; 31], ..whole.clone() })),
        (
            "recovery_key_fingerprint",
            message(&proto::blob::Header { recovery_key_fingerprint: "0".into(), ..whole.clone() }),
        ),
        ("encapsulated_key", proto::Blob { encapsulated_key: vec![1; 33], ..good.clone() }),
        ("sealed_content", proto::Blob { sealed_content: vec![1; TAG_LENGTH - 1], ..good.clone() }),
    ];
    assert_eq!(read(good), None);
    for (field, message) in table {
        assert_eq!(read(message), Some(BlobError::Field { field }));
    }
    let newer = Format { version: 2, ..FORMAT }.encode(0, 0, b"").unwrap();
    let future = BlobError::NotWhole(DecodeError::FutureVersion { found: 2, known: 1 });
    assert_eq!(Blob::from_bytes(&newer).err(), Some(future));
}

#[test]
fn a_content_that_no_node_makes_is_refused() {
    let key = RecoveryKey::generate();
    let (encapsulated, context) = sender(&key.public(), PURPOSE, b"");
    let content_key = exported(|label, key| context.export(label, key));
    let short =
        proto::blob::Content { record: vec![], cluster_unlock_key: vec![1; 31], pending_cluster_unlock_key: None };
    for content in [short.encode_to_vec(), vec![0xff; 40]] {
        let sealed = content_key.cipher().encrypt(&NONCE.into(), Payload { msg: &content, aad: b"" }).unwrap();
        let blob = Blob { header: vec![], subject: subject(), recipient: key.fingerprint(), encapsulated, sealed };
        assert_eq!(blob.content_key(&key).err(), Some(OpenBlobError::Content));
    }
}

proptest! {
    #[test]
    fn any_flipped_bit_and_any_cut_is_refused(position: prop::sample::Index, bit in 0..8_u8) {
        let key = RecoveryKey::generate();
        let bytes = Blob::seal(&key.public(), subject(), &content()).unwrap().to_bytes();
        prop_assert!(Blob::from_bytes(&bytes[..position.index(bytes.len())]).is_err());
        let mut flipped = bytes;
        let position = position.index(flipped.len());
        flipped[position] ^= 1 << bit;
        prop_assert!(Blob::from_bytes(&flipped).is_err());
    }

    /// Who changes a blob can make its checksum right again. The cipher is not deceived.
    #[test]
    fn a_changed_blob_with_a_right_checksum_opens_nothing(position: prop::sample::Index, bit in 0..8_u8) {
        let key = RecoveryKey::generate();
        let blob = Blob::seal(&key.public(), subject(), &content()).unwrap();
        let mut payload = FORMAT.decode(&blob.to_bytes()).unwrap().payload;
        let position = position.index(payload.len());
        payload[position] ^= 1 << bit;
        if let Ok(changed) = Blob::from_bytes(&FORMAT.encode(0, 0, &payload).unwrap()) {
            prop_assert!(changed.content_key(&key).is_err());
        }
    }
}
