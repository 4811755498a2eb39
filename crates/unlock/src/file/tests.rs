//! Which files are believed.

use polis_proto::storage::unlock_file;

use super::*;
use crate::scene::{Node, at, cluster, list};
use crate::{ClusterUnlockKey, Hpke, split};

const OWNER: Node = Node(1);

fn file(voters: u8, pending: bool) -> UnlockFile {
    let members = list(at(1, 7), &(1..=voters).collect::<Vec<_>>());
    let next = ClusterUnlockKey::new(Secret32::random());
    let pending = pending.then(|| split(&OWNER.id(), &next, members.list(), &Hpke, &mut rand::rng()).unwrap());
    UnlockFile { pending, ..OWNER.file(&members) }
}

fn open(sealed: &SealedUnlockFile) -> Result<UnlockFile, InvalidUnlockFile> {
    UnlockFile::open(sealed, &OWNER.node_unlock_key(), &cluster(), &OWNER.id())
}

#[test]
fn a_file_comes_back_as_it_was_for_every_number_of_voters() {
    for voters in 1..=9 {
        for pending in [false, true] {
            let file = file(voters, pending);
            assert_eq!(open(&file.seal(&OWNER.node_unlock_key())).unwrap(), file);
            let expected = if voters < 3 { 0 } else { usize::from(voters) - 1 };
            assert!(file.splits().all(|split| split.holders.len() == expected));
            // With a pending key, that is tried first.
            assert_eq!(file.splits().count(), if pending { 2 } else { 1 });
            assert_eq!(file.splits().next(), file.pending.as_ref().or(Some(&file.current)));
        }
    }
}

#[test]
fn a_damaged_file_or_that_of_another_is_not_believed() {
    let sealed = file(3, false).seal(&OWNER.node_unlock_key());
    for index in 0..sealed.content.len() {
        let mut changed = sealed.clone();
        changed.content[index] ^= 1;
        assert!(matches!(open(&changed), Err(InvalidUnlockFile::Mac)), "byte {index}");
    }
    for index in 0..sealed.mac.len() {
        let mut changed = sealed.clone();
        changed.mac[index] ^= 1;
        assert!(matches!(open(&changed), Err(InvalidUnlockFile::Mac)), "byte {index} of the MAC");
    }
    let torn = SealedUnlockFile { content: sealed.content[..sealed.content.len() / 2].to_vec(), ..sealed.clone() };
    let others = Node(2).file(&list(at(1, 7), &[1, 2, 3])).seal(&Node(2).node_unlock_key());
    for refused in [&torn, &others] {
        assert!(matches!(open(refused), Err(InvalidUnlockFile::Mac)));
    }
    // Right MAC key, but said to be of another node or cluster.
    let (key, other) = (OWNER.node_unlock_key(), ClusterId::from_bytes([7; 16]));
    assert!(matches!(UnlockFile::open(&sealed, &key, &other, &OWNER.id()), Err(InvalidUnlockFile::Mac)));
    assert!(matches!(UnlockFile::open(&sealed, &key, &cluster(), &Node(2).id()), Err(InvalidUnlockFile::Mac)));
}

#[test]
fn nonsense_that_the_node_has_written_itself_is_refused_with_its_field() {
    type Change = fn(&mut unlock_file::Content);
    fn split_of(content: &mut unlock_file::Content) -> &mut unlock_file::Split {
        content.current.as_mut().unwrap()
    }
    let cases: [(&str, Change); 14] = [
        ("it is about the key of \"x\"", |content| content.owner_node_id = "x".into()),
        ("it is about the cluster \"0\"", |content| content.cluster_id = "0".into()),
        ("its field current", |content| content.current = None),
        ("its field shares_needed", |content| split_of(content).shares_needed = 256),
        ("its field shares_needed", |content| split_of(content).shares_needed = 3),
        ("its field holders is", |content| split_of(content).holders.reverse()),
        ("its field holders is", |content| split_of(content).holders[1].node_id = Node(1).id().to_string()),
        ("its field holders is", |content| {
            let holders = &mut split_of(content).holders;
            holders[1].node_id = holders[0].node_id.clone();
        }),
        ("its field holders.x", |content| split_of(content).holders[0].x = 0),
        ("its field holders.x", |content| split_of(content).holders[0].x = 256),
        ("its field holders.ciphertext", |content| split_of(content).holders[0].ciphertext.clear()),
        ("its field holders.share_hash", |content| split_of(content).holders[0].share_hash.truncate(31)),
        ("its field holders.node_id", |content| split_of(content).holders[0].node_id.clear()),
        ("its field key_check_value", |content| split_of(content).key_check_value.clear()),
    ];
    for (expected, change) in cases {
        let mut content = message::content(&file(3, false));
        change(&mut content);
        let error = message::file(content, cluster(), OWNER.id()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error} instead of {expected}");
    }
}
