//! What a drill has shown, and of what.

use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority, NodeId, NodeKey};
use polis_unlock::{Epoch, NoDrill, Scheme};

use super::*;

fn split(number: u64) -> Split {
    let check_value = ClusterUnlockKey::new(Secret32::new([7; 32])).check_value();
    let epoch = Epoch { incarnation: 1, epoch: number };
    Split { epoch, scheme: Scheme::Copies, holders: Vec::new(), check_value }
}

fn file(current: Split) -> Option<UnlockFile> {
    let cluster = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME).certificate().cluster_id();
    let owner = NodeId::of(&NodeKey::from_secret(Secret32::new([1; 32])).public());
    Some(UnlockFile { cluster, owner, current, pending: None })
}

fn drilled(exercise: u64, outcome: DrillOutcome) -> Drilled {
    Drilled { exercise, outcome }
}

fn verified(epoch: u64) -> DrillOutcome {
    DrillOutcome::Verified(split(epoch).epoch)
}

#[test]
fn only_the_drill_of_this_very_split_verifies_it() {
    let mut memory = Memory::default();
    memory.set_file(file(split(1)));
    assert_eq!(memory.take_drilled(&drilled(0, DrillOutcome::NotYet)), Shown::Nothing);
    assert_eq!(memory.begin_drill(&split(1)), Some(1));
    assert_eq!(memory.begin_drill(&split(1)), None, "it is under way");
    // The list has changed meanwhile.
    memory.set_file(file(split(2)));
    assert_eq!(memory.begin_drill(&split(2)), Some(2));
    assert_eq!(memory.take_drilled(&drilled(1, verified(1))), Shown::Nothing, "that was the one before");
    assert_eq!(memory.take_drilled(&drilled(2, DrillOutcome::UnderWay)), Shown::Nothing);
    assert!(!memory.is_verified(&split(2)));
    assert_eq!(memory.take_drilled(&drilled(2, verified(2))), Shown::Verified);
    assert_eq!(memory.take_drilled(&drilled(2, verified(2))), Shown::Nothing, "it is said once");
    assert!(memory.is_verified(&split(2)) && !memory.is_verified(&split(1)));
    assert_eq!(memory.begin_drill(&split(2)), None);
    // What is not in the file any more is not verified any more.
    memory.set_file(file(split(3)));
    assert!(!memory.is_verified(&split(2)));
    memory.set_file(None);
    assert_eq!(memory.begin_drill(&split(2)), Some(3));
}

#[test]
fn a_drill_that_fails_makes_its_split_useless() {
    for (outcome, expected) in [
        (DrillOutcome::Failed { reason: "no key".to_owned() }, "no key"),
        (DrillOutcome::Nothing(NoDrill::OtherKey), "the unlock file does not know the key that opens the data"),
        (verified(9), "a split of epoch 1.9 was tried instead"),
    ] {
        let mut memory = Memory::default();
        memory.set_file(file(split(1)));
        memory.begin_drill(&split(1));
        assert!(!memory.is_useless(&split(1)));
        let shown = memory.take_drilled(&drilled(1, outcome.clone()));
        assert_eq!(shown, Shown::Failed { reason: expected.to_owned() });
        assert!(memory.is_useless(&split(1)) && !memory.is_useless(&split(2)) && !memory.is_verified(&split(1)));
        assert_eq!(memory.take_drilled(&drilled(1, outcome)), Shown::Nothing, "it is said once");
    }
}
