//! A snapshot file comes back as it was written, or not at all.

use std::io::{Read as _, Write as _};

use polis_identity::{ClusterId, NodeId, NodeKey};
use polis_storage::envelope::DecodeError;
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};

use super::*;
use crate::{RecoveryKey, RecoveryPublicKey};

fn header(content: &[u8]) -> SnapshotHeader {
    let member = |address: &str| SnapshotMember {
        node: NodeId::of(&NodeKey::generate().public()),
        address: (!address.is_empty()).then(|| address.parse().unwrap()),
    };
    SnapshotHeader {
        cluster: ClusterId::from_bytes([3; 16]),
        revision: 4711,
        members: vec![member("192.0.2.1"), member("2001:db8::1"), member("")],
        taken_at_seconds: 1_800_000_000,
        polis_version: "0.1.0".into(),
        etcd_version: "3.4.23".into(),
        content_length: content.len() as u64,
        content_sha256: Sha256::digest(content).into(),
    }
}

fn written(content: &[u8], recipient: Option<&RecoveryPublicKey>, part: usize) -> Vec<u8> {
    let mut writer = SnapshotWriter::new(Vec::new(), header(content), recipient).unwrap();
    for part in content.chunks(part) {
        writer.write_all(part).unwrap();
    }
    writer.finish().unwrap()
}

/// The content of a file, as whoever reads it to the end gets it.
fn read(file: &[u8], key: Option<&RecoveryKey>) -> Result<Vec<u8>, ReadSnapshotError> {
    let mut content = SnapshotReader::new(file)?.open(key)?;
    let mut bytes = Vec::new();
    match content.read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => {
            // An error stays one.
            assert!(content.read(&mut [0; 8]).is_err());
            assert_ne!(bytes.len() as u64, SnapshotReader::new(file)?.header().content_length.max(1), "{error}");
            Err(*error.into_inner().unwrap().downcast().unwrap())
        }
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

#[test]
fn what_was_written_is_read_again() {
    let key = RecoveryKey::generate();
    let lengths = [0, 1, CHUNK_LENGTH - 1, CHUNK_LENGTH, CHUNK_LENGTH + 1, 3 * CHUNK_LENGTH, 3 * CHUNK_LENGTH + 7];
    for length in lengths {
        let content = content(length);
        for recipient in [None, Some(key.public())] {
            for part in [1000, CHUNK_LENGTH, usize::MAX] {
                let file = written(&content, recipient.as_ref(), part);
                assert!(read(&file, Some(&key)).unwrap() == content, "{length} {recipient:?} {part}");
                let reader = SnapshotReader::new(&file[..]).unwrap();
                assert_eq!(reader.file_length(), file.len() as u64, "{length} {recipient:?}");
            }
        }
    }
}

#[test]
fn the_header_is_read_without_a_key_and_the_content_is_not() {
    let (key, other) = (RecoveryKey::generate(), RecoveryKey::generate());
    let content = b"the state of a cluster";
    let header = header(content);
    let mut writer = SnapshotWriter::new(Vec::new(), header.clone(), Some(&key.public())).unwrap();
    writer.write_all(content).unwrap();
    let file = writer.finish().unwrap();
    let reader = SnapshotReader::new(&file[..]).unwrap();
    assert_eq!((reader.header(), reader.protection()), (&header, Protection::Sealed(key.fingerprint())));
    assert!(!file.windows(content.len()).any(|window| window == content));

    let error = read(&file, None).unwrap_err();
    assert!(matches!(error, ReadSnapshotError::NeedsKey { expected } if expected == key.fingerprint()), "{error}");
    let error = read(&file, Some(&other)).unwrap_err();
    for fingerprint in [key.fingerprint(), other.fingerprint()] {
        assert!(error.to_string().contains(&fingerprint.to_string()), "{error}");
    }
    let plain = written(content, None, 7);
    assert_eq!(SnapshotReader::new(&plain[..]).unwrap().protection(), Protection::Plaintext);
    assert_eq!(read(&plain, None).unwrap(), content);
}

#[test]
fn a_content_that_is_not_the_announced_one_makes_no_file() {
    let announced = content(CHUNK_LENGTH + 1);
    let write = |content: &[u8]| {
        let mut writer = SnapshotWriter::new(Vec::new(), header(&announced), None).unwrap();
        writer.write_all(content).map(|()| writer.finish())
    };
    assert!(matches!(write(&announced[..10]).unwrap(), Err(WriteSnapshotError::Short { missing }) if missing > 10));
    assert!(matches!(write(&announced[..CHUNK_LENGTH]).unwrap(), Err(WriteSnapshotError::Short { missing: 1 })));
    let mut other = announced.clone();
    other[0] ^= 1;
    assert!(matches!(write(&other).unwrap(), Err(WriteSnapshotError::OtherContent)));
    other.push(0);
    assert_eq!(write(&other).err().unwrap().kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn other_files_and_newer_versions_are_named() {
    for other in [&b""[..], b"POLIS", b"POLISSN", b"ELF and so on, longer than a magic"] {
        assert!(matches!(SnapshotReader::new(other).err(), Some(ReadSnapshotError::NotASnapshot)));
    }
    let file = |format: Format, payload: &[u8]| {
        let envelope = format.encode(0, 0, payload).unwrap();
        [&MAGIC[..], &u32::try_from(envelope.len()).unwrap().to_be_bytes(), &envelope].concat()
    };
    let newer = file(Format { version: 2, ..HEADER_FORMAT }, b"anything");
    let error = SnapshotReader::new(&newer[..]).unwrap_err();
    assert!(matches!(error, ReadSnapshotError::Header(DecodeError::FutureVersion { found: 2, known: 1 })), "{error:?}");
    let none = file(HEADER_FORMAT, b"");
    let error = SnapshotReader::new(&none[..]).unwrap_err();
    let field = InvalidHeader::Field { field: "cluster_id" };
    assert!(matches!(error, ReadSnapshotError::InvalidHeader(found) if found == field));
    let huge = [&MAGIC[..], &u32::MAX.to_be_bytes()].concat();
    assert!(matches!(SnapshotReader::new(&huge[..]).unwrap_err(), ReadSnapshotError::Header(_)));
}

#[test]
fn chunks_of_other_places_and_files_do_not_fit() {
    let key = RecoveryKey::generate();
    let content = content(3 * CHUNK_LENGTH);
    let [one, other] = [(); 2].map(|()| written(&content, Some(&key.public()), CHUNK_LENGTH));
    let sealed = CHUNK_LENGTH + crate::cipher::TAG_LENGTH;
    let start = one.len() - 3 * sealed;
    let chunk = |file: &[u8], number: usize| file[start + number * sealed..][..sealed].to_vec();
    let head = &one[..start];
    let put = |chunks: [Vec<u8>; 3]| read(&[head, &chunks.concat()].concat(), Some(&key));
    assert!(put([chunk(&one, 0), chunk(&one, 1), chunk(&one, 2)]).is_ok());
    for chunks in [
        [chunk(&one, 1), chunk(&one, 0), chunk(&one, 2)],
        [chunk(&one, 0), chunk(&one, 1), chunk(&one, 1)],
        [chunk(&one, 0), chunk(&other, 1), chunk(&one, 2)],
    ] {
        assert!(matches!(put(chunks), Err(ReadSnapshotError::Changed)));
    }
}

#[test]
fn a_shorter_length_in_the_header_does_not_hide_a_cut() {
    let key = RecoveryKey::generate();
    let content = content(2 * CHUNK_LENGTH);
    let file = written(&content, Some(&key.public()), CHUNK_LENGTH);
    let sealed = CHUNK_LENGTH + crate::cipher::TAG_LENGTH;
    let shorter = SnapshotHeader {
        content_length: CHUNK_LENGTH as u64,
        content_sha256: Sha256::digest(&content[..CHUNK_LENGTH]).into(),
        ..header(&content)
    };
    let forged = HEADER_FORMAT.encode(0, 0, &shorter.to_payload(Protection::Sealed(key.fingerprint()))).unwrap();
    let behind = file.len() - 2 * sealed - crate::cipher::ENCAPSULATED_LENGTH;
    let length = u32::try_from(forged.len()).unwrap().to_be_bytes();
    let forged = [&MAGIC[..], &length, &forged, &file[behind..file.len() - sealed]].concat();
    assert!(matches!(read(&forged, Some(&key)), Err(ReadSnapshotError::Changed)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_flipped_bit_any_cut_and_any_addition_is_refused(
        length in prop::sample::select(vec![0, 9, CHUNK_LENGTH + 9]),
        sealed: bool, position: prop::sample::Index, near: bool, bit in 0..8_u8
    ) {
        let key = RecoveryKey::generate();
        let file = written(&content(length), sealed.then(|| key.public()).as_ref(), CHUNK_LENGTH);
        // Half of them where the header and the keys are.
        let position = position.index(if near { file.len().min(600) } else { file.len() });
        prop_assert!(read(&file[..position], Some(&key)).is_err());
        let mut flipped = file.clone();
        flipped[position] ^= 1 << bit;
        prop_assert!(read(&flipped, Some(&key)).is_err());
        prop_assert!(matches!(read(&[&file[..], &[bit]].concat(), Some(&key)), Err(ReadSnapshotError::Longer)));
    }

    #[test]
    fn noise_is_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(read(&bytes, None).is_err());
        prop_assert!(read(&[&MAGIC[..], &bytes].concat(), None).is_err());
    }
}
