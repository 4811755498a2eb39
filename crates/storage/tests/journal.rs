//! The enrolment journal: what comes back, what is refused, and that nothing unreadable is ever taken for something else.

use std::sync::Arc;

use polis_proto::storage;
use polis_proto::storage::journal as proto;
use polis_secret::Secret32;
use polis_storage::envelope::Format;
use polis_storage::journal::{
    ClusterUnlockKey, Epoch, EpochFloor, Intent, JOURNAL_FORMAT, PARAMETERS_LIMIT, Phase, SealKind, SealTrouble, Seals,
    StorageSecurity,
};
use polis_storage::simulation::{Failure, SimulatedDisk, SimulatedTpm};
use polis_storage::{
    Disk as _, DiskPath, GenerationsError, Journal, JournalError, JournalStore, Layout, Metadata, SlotProblem,
};
use prost::Message as _;

fn disk() -> Arc<SimulatedDisk> {
    let disk = Arc::new(SimulatedDisk::default());
    Layout::new(disk.clone()).prepare_start().unwrap();
    disk
}

fn store_on(disk: &Arc<SimulatedDisk>) -> JournalStore {
    Layout::new(disk.clone()).journal_store(Seals::plain_only())
}

fn slot(number: u64) -> DiskPath {
    DiskPath::parse(&format!("esp/polis/journal.{number}")).unwrap()
}

fn put(disk: &SimulatedDisk, path: &DiskPath, bytes: &[u8]) {
    let _ = disk.remove_file(path);
    disk.create_exclusive(path, 0o600, bytes).unwrap();
}

fn journal() -> Journal {
    Journal::new(Intent {
        parameters: b"parameters".to_vec(),
        node_key: Secret32::new([1; 32]),
        node_public_key: [2; 32],
        join_key: Secret32::new([3; 32]),
        share_key: Secret32::new([4; 32]),
        storage_security: Some(StorageSecurity::Insecure),
    })
}

fn full_journal() -> Journal {
    let mut journal = journal();
    journal.storage_security = Some(StorageSecurity::AuthenticatedEncrypted);
    journal.node_unlock_key = Some(Secret32::new([5; 32]));
    journal.cluster_unlock_key =
        Some(ClusterUnlockKey { current: Secret32::new([6; 32]), pending: Some(Secret32::new([7; 32])) });
    journal.cluster_ca = Some(b"certificate".to_vec());
    journal.cluster_id = Some("00112233445566778899aabbccddeeff".to_owned());
    journal.highest_epoch = Some(Epoch { incarnation: 2, epoch: 9 });
    journal.epoch_floors =
        vec![EpochFloor { owner_node_id: "metropolis-0123".to_owned(), epoch: Epoch { incarnation: 1, epoch: 8 } }];
    journal
}

#[test]
fn a_journal_comes_back_as_it_was_in_each_phase() {
    let store = store_on(&disk());
    assert!(store.load().unwrap().is_none());
    let formatted = full_journal().advance(Phase::Formatted).unwrap();
    let mut enrolled = formatted.advance(Phase::Enrolled).unwrap();
    enrolled.node_key = None;
    enrolled.cluster_unlock_key = None;
    let removed = enrolled.advance(Phase::Removed { reason: "decommissioned".to_owned() }).unwrap();
    let mut undecided = journal();
    undecided.storage_security = None;
    for (generation, journal) in [undecided, journal(), full_journal(), formatted, enrolled, removed].iter().enumerate()
    {
        store.store(journal, "test").unwrap();
        let loaded = store.load().unwrap().unwrap();
        assert!(loaded.value == *journal, "generation {generation}");
        assert_eq!(loaded.generation, generation as u64);
        assert!(loaded.fault.is_none(), "generation {generation}");
    }
}

#[test]
fn files_are_for_the_node_alone() {
    let disk = disk();
    store_on(&disk).store(&journal(), "test").unwrap();
    let mode = match disk.metadata(&slot(0)).unwrap() {
        Some(Metadata::File { mode, .. }) => mode,
        other => panic!("{other:?}"),
    };
    assert_eq!(mode, 0o600);
}

/// The message of a valid journal, with one change.
fn message(change: impl FnOnce(&mut storage::Journal)) -> storage::Journal {
    let mut message = storage::Journal {
        phase: proto::Phase::Formatted.into(),
        parameters: b"parameters".to_vec(),
        node_key: None,
        join_key: vec![3; 32],
        share_key: vec![4; 32],
        node_unlock_key: None,
        cluster_unlock_key: None,
        cluster_ca: None,
        cluster_id: None,
        highest_epoch: None,
        storage_security: proto::StorageSecurity::Insecure.into(),
        epoch_floors: Vec::new(),
        node_public_key: vec![2; 32],
        removal_reason: None,
    };
    change(&mut message);
    message
}

#[test]
fn a_wrong_field_is_an_error_that_names_it() {
    type Change = Box<dyn FnOnce(&mut storage::Journal)>;
    fn change(change: impl FnOnce(&mut storage::Journal) + 'static) -> Change {
        Box::new(change)
    }
    let floor = |owner: &str, epoch| proto::EpochFloor { owner_node_id: owner.to_owned(), epoch };
    let table: Vec<(&str, Change)> = vec![
        ("phase", change(|journal| journal.phase = 0)),
        ("phase", change(|journal| journal.phase = 77)),
        ("parameters", change(|journal| journal.parameters.clear())),
        ("parameters", change(|journal| journal.parameters = vec![0; PARAMETERS_LIMIT + 1])),
        ("node_key", change(|journal| journal.node_key = Some(vec![1; 31]))),
        ("node_key", change(|journal| journal.phase = proto::Phase::Formattable.into())),
        ("node_public_key", change(|journal| journal.node_public_key.clear())),
        ("join_key", change(|journal| journal.join_key.clear())),
        ("share_key", change(|journal| journal.share_key.push(0))),
        ("storage_security", change(|journal| journal.storage_security = 0)),
        ("storage_security", change(|journal| journal.storage_security = 9)),
        ("node_unlock_key", change(|journal| journal.node_unlock_key = Some(vec![5; 32]))),
        ("node_unlock_key", change(|journal| journal.storage_security = proto::StorageSecurity::Encrypted.into())),
        (
            "cluster_unlock_key",
            change(|journal| {
                journal.cluster_unlock_key = Some(proto::ClusterUnlockKey { current: vec![6; 32], pending: None });
            }),
        ),
        (
            "cluster_unlock_key.current",
            change(|journal| {
                journal.cluster_unlock_key = Some(proto::ClusterUnlockKey { current: vec![6], pending: None });
            }),
        ),
        (
            "cluster_unlock_key.pending",
            change(|journal| {
                journal.cluster_unlock_key =
                    Some(proto::ClusterUnlockKey { current: vec![6; 32], pending: Some(Vec::new()) });
            }),
        ),
        ("cluster_ca", change(|journal| journal.cluster_ca = Some(Vec::new()))),
        ("cluster_id", change(|journal| journal.cluster_id = Some("00".to_owned()))),
        ("cluster_id", change(|journal| journal.cluster_id = Some("Z".repeat(32)))),
        ("removal_reason", change(|journal| journal.removal_reason = Some("why".to_owned()))),
        ("removal_reason", change(|journal| journal.phase = proto::Phase::Removed.into())),
        ("epoch_floors.epoch", change(move |journal| journal.epoch_floors = vec![floor("metropolis-0", None)])),
        (
            "epoch_floors.owner_node_id",
            change(move |journal| journal.epoch_floors = vec![floor("", Some(proto::Epoch::default()))]),
        ),
    ];
    for (field, change) in table {
        let disk = disk();
        let bytes = JOURNAL_FORMAT.encode(1, 0, &message(change).encode_to_vec()).unwrap();
        put(&disk, &slot(0), &bytes);
        let error = store_on(&disk).load().err().unwrap_or_else(|| panic!("{field} was accepted"));
        let JournalError::Invalid { source, .. } = error else { panic!("{field}: {error:?}") };
        assert!(source.to_string().contains(&format!("field {field} ")), "{field}: {source}");
    }
    let disk = disk();
    put(&disk, &slot(0), &JOURNAL_FORMAT.encode(1, 0, &message(|_| {}).encode_to_vec()).unwrap());
    assert!(store_on(&disk).load().unwrap().is_some(), "the message without a change is valid");
}

#[test]
fn a_journal_that_could_not_be_read_again_is_not_written() {
    let disk = disk();
    let mut wrong = journal();
    wrong.node_unlock_key = Some(Secret32::random());
    let error = store_on(&disk).store(&wrong, "test").unwrap_err();
    assert!(matches!(error, JournalError::Refused { .. }), "{error:?}");
    assert!(store_on(&disk).load().unwrap().is_none());
}

/// A disk with generations 0 (formattable) and 1 (formatted).
fn two_generations() -> (Arc<SimulatedDisk>, JournalStore) {
    let disk = disk();
    let store = store_on(&disk);
    store.store(&journal(), "test").unwrap();
    store.store(&journal().advance(Phase::Formatted).unwrap(), "test").unwrap();
    (disk, store)
}

#[test]
fn with_one_torn_generation_the_other_is_used_and_the_fault_is_told() {
    for (torn, phase) in [(0, Phase::Formatted), (1, Phase::Formattable)] {
        let (disk, store) = two_generations();
        let bytes = disk.read(&slot(torn), usize::MAX).unwrap();
        put(&disk, &slot(torn), &bytes[..bytes.len() / 2]);
        let loaded = store.load().unwrap().unwrap();
        assert_eq!(loaded.value.phase(), &phase);
        let fault = loaded.fault.unwrap();
        assert!(fault.path.ends_with(slot(torn).as_str()), "{fault}");
        assert!(fault.to_string().contains("damaged"), "{fault}");
        // The next write replaces the torn one.
        store.store(&loaded.value, "test").unwrap();
        assert!(store.load().unwrap().unwrap().fault.is_none());
    }
}

#[test]
fn a_missing_or_unreadable_generation_is_told_too() {
    let (disk, store) = two_generations();
    disk.remove_file(&slot(0)).unwrap();
    let loaded = store.load().unwrap().unwrap();
    assert_eq!(loaded.value.phase(), &Phase::Formatted);
    assert!(matches!(loaded.fault.unwrap().problem, SlotProblem::Missing));

    let (disk, store) = two_generations();
    disk.damage_medium(&slot(1));
    let loaded = store.load().unwrap().unwrap();
    assert_eq!(loaded.value.phase(), &Phase::Formattable);
    assert!(matches!(loaded.fault.unwrap().problem, SlotProblem::Medium(_)));

    let (disk, store) = two_generations();
    put(&disk, &slot(1), &vec![0; JOURNAL_FORMAT.file_limit() + 1]);
    let loaded = store.load().unwrap().unwrap();
    assert!(matches!(loaded.fault.unwrap().problem, SlotProblem::TooLong));
}

#[test]
fn two_torn_generations_are_an_error_and_stay_as_they_are() {
    for second in [&b"other bytes of no format"[..], b""] {
        let (disk, store) = two_generations();
        put(&disk, &slot(0), b"POLISJNL torn");
        put(&disk, &slot(1), second);
        let before = disk.image();
        for error in [store.load().err().unwrap(), store.store(&journal(), "test").unwrap_err()] {
            let JournalError::Files(error @ GenerationsError::BothUnusable { .. }) = error else {
                panic!("{error:?}");
            };
            let text = error.to_string();
            assert!(text.contains("esp/polis/journal.0: it is"), "{text}");
            assert!(text.contains("esp/polis/journal.1: it is"), "{text}");
        }
        assert!(disk.image() == before);
    }
}

#[test]
fn a_first_write_that_left_an_empty_file_has_stored_nothing_and_is_done_again() {
    let disk = disk();
    let store = store_on(&disk);
    put(&disk, &slot(0), b"");
    assert!(store.load().unwrap().is_none());
    store.store(&journal(), "test").unwrap();
    let loaded = store.load().unwrap().unwrap();
    assert_eq!((loaded.generation, loaded.fault.is_none()), (0, true));
    // Whatever else is left of a pair is no first write.
    for (left, bytes) in [(0, &b"P"[..]), (1, b"")] {
        let (disk, store) = two_generations();
        disk.remove_file(&slot(1 - left)).unwrap();
        put(&disk, &slot(left), bytes);
        assert!(matches!(store.load(), Err(JournalError::Files(GenerationsError::BothUnusable { .. }))), "{left}");
    }
}

#[test]
fn a_future_version_in_either_generation_is_an_error_and_never_the_older_one() {
    for future in [0, 1] {
        let (disk, store) = two_generations();
        let newer = Format { version: 2, ..JOURNAL_FORMAT };
        put(&disk, &slot(future), &newer.encode(1, 2, b"unknown").unwrap());
        let before = disk.image();
        for error in [store.load().err().unwrap(), store.store(&journal(), "test").unwrap_err()] {
            let JournalError::Files(error @ GenerationsError::FutureVersion { found: 2, known: 1, .. }) = error else {
                panic!("{error:?}");
            };
            assert!(error.to_string().contains(slot(future).as_str()), "{error}");
        }
        assert!(disk.image() == before);
    }
}

/// A journal in two generations, sealed by this TPM.
fn sealed_by(tpm: &SimulatedTpm) -> (Arc<SimulatedDisk>, JournalStore) {
    let disk = disk();
    let store = Layout::new(disk.clone()).journal_store(Seals::with_tpm(Arc::new(tpm.clone())));
    store.choose_seal(SealKind::Tpm);
    store.store(&journal(), "test").unwrap();
    store.store(&journal().advance(Phase::Formatted).unwrap(), "test").unwrap();
    (disk, store)
}

/// The same disk for a process that has not read it yet.
fn again(disk: &Arc<SimulatedDisk>, seals: Seals) -> JournalStore {
    Layout::new(disk.clone()).journal_store(seals)
}

fn kinds(disk: &SimulatedDisk) -> [u32; 2] {
    [0, 1].map(|number| {
        let bytes = disk.read(&slot(number), usize::MAX).unwrap();
        JOURNAL_FORMAT.decode(&bytes).unwrap().kind
    })
}

/// Whether either generation has these bytes in it.
fn holds(disk: &SimulatedDisk, secret: &[u8]) -> bool {
    (0..2).any(|number| {
        let bytes = disk.read(&slot(number), usize::MAX).unwrap();
        bytes.windows(secret.len()).any(|window| window == secret)
    })
}

#[test]
fn the_file_says_how_it_is_sealed() {
    let tpm = SimulatedTpm::new();
    let (disk, store) = sealed_by(&tpm);
    assert_eq!((kinds(&disk), holds(&disk, &[3; 32])), ([2, 2], false));
    // Nobody has to say it again.
    let store_again = again(&disk, store.seals().clone());
    assert_eq!(store_again.load().unwrap().unwrap().value.phase(), &Phase::Formatted);
    store_again.store(&journal().advance(Phase::Removed { reason: "gone".to_owned() }).unwrap(), "test").unwrap();
    assert_eq!(kinds(&disk), [2, 2]);
    // A machine with a TPM goes on with a plain file, too.
    let (disk, _) = two_generations();
    let store = again(&disk, Seals::with_tpm(Arc::new(tpm)));
    assert_eq!(store.load().unwrap().unwrap().value.phase(), &Phase::Formatted);
    assert_eq!(store.seal_kind(), Some(SealKind::Plain));
    store.store(&journal(), "test").unwrap();
    assert_eq!(kinds(&disk), [1, 1]);
}

#[test]
fn what_keeps_a_seal_from_opening_has_a_name_and_changes_nothing() {
    type Change = fn(&SimulatedTpm);
    let table: [(Change, SealTrouble); 6] = [
        (SimulatedTpm::remove, SealTrouble::NoDevice),
        (SimulatedTpm::clear, SealTrouble::OtherDevice),
        (|tpm| tpm.boot_into(7), SealTrouble::OtherBootState),
        (|tpm| tpm.answer(false), SealTrouble::NotAnswering),
        (|tpm| tpm.install_helper(false), SealTrouble::HelperMissing),
        (SimulatedTpm::damage, SealTrouble::Damaged),
    ];
    for (change, expected) in table {
        let tpm = SimulatedTpm::new();
        let (disk, store) = sealed_by(&tpm);
        change(&tpm);
        tpm.restart();
        let before = disk.image();
        let restarted = || again(&disk, store.seals().clone());
        for error in [restarted().load().err().unwrap(), restarted().check().unwrap_err()] {
            assert_eq!(error.seal_trouble(), Some(expected), "{error:?}");
            assert!(matches!(error, JournalError::Unseal { .. }), "{error:?}");
        }
        assert!(disk.image() == before, "{expected:?}");
    }
    let (disk, _) = sealed_by(&SimulatedTpm::new());
    let error = again(&disk, Seals::plain_only()).load().err().unwrap();
    assert_eq!(error.seal_trouble(), Some(SealTrouble::NoDevice), "a sealed file is never read as a plain one");
    put(&disk, &slot(1), &JOURNAL_FORMAT.encode(9, 7, b"sealed by the future").unwrap());
    let error = again(&disk, Seals::plain_only()).load().err().unwrap();
    assert!(matches!(error, JournalError::UnknownSeal { found: 9, .. }), "{error:?}");
}

#[test]
fn what_was_taken_out_is_in_neither_generation_and_an_interrupted_rewrite_is_finished() {
    let (disk, store) = two_generations();
    let mut newest = journal().advance(Phase::Formatted).unwrap().advance(Phase::Enrolled).unwrap();
    newest.node_key = None;
    store.store(&newest, "test").unwrap();
    assert!(holds(&disk, &[1; 32]), "the older generation has the node key still");
    // As after a kill between the two writes.
    let store = store_on(&disk);
    let found = store.load().unwrap().unwrap().value;
    assert!(store.unify(&found, "test").unwrap());
    assert!(!holds(&disk, &[1; 32]));
    assert!(!store.unify(&found, "test").unwrap(), "then there is nothing to do");
    // What was seen of the members is no secret, and is written often.
    let mut seen = found;
    seen.highest_epoch = Some(Epoch { incarnation: 9, epoch: 9 });
    store.store(&seen, "test").unwrap();
    assert!(!store.unify(&seen, "test").unwrap(), "nothing is to be forgotten");
    let (disk, store) = two_generations();
    store.store_both(&newest, "test").unwrap();
    assert!(!holds(&disk, &[1; 32]));
}

#[test]
fn the_kind_of_the_seal_changes_in_both_generations_or_can_be_changed_again() {
    for cut in 0..14 {
        let tpm = SimulatedTpm::new();
        let (disk, store) = sealed_by(&tpm);
        disk.fail_once(cut, Failure::Full);
        let changed = store.change_seal(SealKind::Plain, "test");
        disk.cure();
        let store = again(&disk, store.seals().clone());
        let found = store.load().unwrap().unwrap().value;
        assert_eq!(found.phase(), &Phase::Formatted, "cut {cut}");
        if changed.is_ok() {
            assert_eq!(kinds(&disk), [1, 1], "cut {cut}");
            continue;
        }
        store.change_seal(SealKind::Plain, "test").unwrap();
        assert_eq!(kinds(&disk), [1, 1], "cut {cut}");
        assert!(again(&disk, Seals::plain_only()).load().unwrap().is_some(), "the TPM is not needed any more");
    }
}

#[test]
fn a_renewed_seal_opens_in_the_present_state_of_the_machine() {
    let tpm = SimulatedTpm::new();
    let (disk, store) = sealed_by(&tpm);
    store.check().unwrap();
    // A running node has what it read; the machine would not start again like this.
    tpm.drift(2);
    store.load().unwrap().unwrap();
    assert_eq!(store.check().unwrap_err().seal_trouble(), Some(SealTrouble::OtherBootState));
    store.reseal("test").unwrap();
    tpm.boot_into(2);
    store.check().unwrap();
    assert_eq!(again(&disk, store.seals().clone()).load().unwrap().unwrap().value.phase(), &Phase::Formatted);
}

#[test]
fn a_journal_that_came_back_takes_the_place_of_what_does_not_open() {
    type Change = fn(&SimulatedTpm);
    let spoil = |disk: &SimulatedDisk| [0, 1].map(|number| put(disk, &slot(number), b"spoiled"));
    // Sealed in another boot state; by another TPM; spoiled, where the machine has a TPM and where it has none.
    let table: [(Change, bool, SealKind); 4] = [
        (|tpm| tpm.boot_into(2), false, SealKind::Tpm),
        (|tpm| tpm.clear(), false, SealKind::Tpm),
        (|tpm| tpm.restart(), true, SealKind::Tpm),
        (|tpm| tpm.restart(), true, SealKind::Plain),
    ];
    for (change, is_spoiled, kind) in table {
        let tpm = SimulatedTpm::new();
        let (disk, _) = sealed_by(&tpm);
        change(&tpm);
        if is_spoiled {
            spoil(&disk);
        }
        let seals = || Seals::with_tpm(Arc::new(tpm.clone()));
        let store = again(&disk, seals());
        assert!(store.load().is_err());
        let mut written = store.written();
        store.restore(&full_journal(), || Ok(kind), "test").unwrap();
        assert!(written.has_changed().unwrap());
        written.mark_unchanged();
        tpm.restart();
        let store = again(&disk, seals());
        let loaded = store.load().unwrap().unwrap();
        assert!(loaded.value == full_journal() && loaded.fault.is_none());
        assert_eq!(store.seal_kind(), Some(kind));
        assert_eq!(kinds(&disk), [kind.number(); 2], "nothing is left of the old one");
        store.check().unwrap();
    }
}

#[test]
fn a_journal_that_cannot_be_sealed_or_is_of_the_future_is_not_replaced() {
    let tpm = SimulatedTpm::new();
    let (disk, _) = sealed_by(&tpm);
    tpm.boot_into(2);
    tpm.remove();
    let before = disk.image();
    let store = again(&disk, Seals::with_tpm(Arc::new(tpm.clone())));
    // Whoever had a TPM gets nothing weaker.
    let error = store.restore(&full_journal(), || Ok(SealKind::Plain), "test").unwrap_err();
    assert_eq!(error.seal_trouble(), Some(SealTrouble::NoDevice));
    tpm.insert();
    tpm.answer(false);
    let error = store.restore(&full_journal(), || Ok(SealKind::Plain), "test").unwrap_err();
    assert_eq!(error.seal_trouble(), Some(SealTrouble::NotAnswering));
    assert!(disk.image() == before);

    let newer = Format { version: JOURNAL_FORMAT.version + 1, ..JOURNAL_FORMAT }.encode(1, 1, b"x").unwrap();
    put(&disk, &slot(0), b"spoiled");
    put(&disk, &slot(1), &newer);
    let before = disk.image();
    let error = store_on(&disk).restore(&full_journal(), || Ok(SealKind::Plain), "test").unwrap_err();
    assert!(matches!(error, JournalError::Files(GenerationsError::FutureVersion { .. })), "{error:?}");
    assert!(disk.image() == before);
}

#[test]
fn a_failed_write_leaves_the_earlier_journal() {
    for failing in 0..5 {
        let (disk, store) = two_generations();
        disk.fail_once(failing, Failure::Full);
        let enrolled = store.load();
        if failing < 2 {
            // Reading settles the file and its name, and that is what failed.
            assert!(enrolled.err().unwrap().disk_error().unwrap().is_full());
            continue;
        }
        let enrolled = enrolled.unwrap().unwrap().value.advance(Phase::Enrolled).unwrap();
        let error = store.store(&enrolled, "test").unwrap_err();
        assert!(error.disk_error().unwrap().is_full(), "{error}");
        assert_eq!(store.load().unwrap().unwrap().value.phase(), &Phase::Formatted);
        let names = disk.list(&DiskPath::parse("esp/polis").unwrap()).unwrap();
        assert_eq!(names, ["journal.0", "journal.1"], "temporaries are removed");
    }
}

#[test]
fn files_that_were_swapped_by_hand_fall_into_order_again() {
    let (disk, store) = two_generations();
    let [first, second] = [0, 1].map(|number| disk.read(&slot(number), usize::MAX).unwrap());
    put(&disk, &slot(0), &second);
    put(&disk, &slot(1), &first);
    for expected in [3, 4] {
        store.store(&journal(), "test").unwrap();
        let loaded = store.load().unwrap().unwrap();
        assert_eq!(loaded.generation, expected);
        assert!(loaded.path.ends_with(slot(expected % 2).as_str()), "{}", loaded.path.display());
    }
}
