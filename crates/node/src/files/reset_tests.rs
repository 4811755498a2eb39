use std::sync::Arc;

use polis_control::EnrolmentPhase;
use polis_identity::NodeKey;
use polis_secret::Secret32;
use polis_storage::envelope::Format;
use polis_storage::journal::{Intent, JOURNAL_FORMAT, Phase, Seals, StorageSecurity};
use polis_storage::simulation::{Failure, SimulatedDisk};
use polis_storage::{
    Data, Disk, DiskPath, FILE_MODE, Journal, JournalError, Layout, LocalRoles, OperatorPeers, PartitionMarker,
    Revocations,
};

use super::reset::{NodeReset, REASON};

/// Seeds of power cuts at each point: the extremes, and some that mix.
const SEEDS: u64 = 10;

fn path(text: &str) -> DiskPath {
    DiskPath::parse(text).unwrap()
}

fn journal(phase: &Phase) -> Journal {
    let key = NodeKey::generate();
    let intent = Intent {
        parameters: vec![1],
        node_key: Secret32::random(),
        node_public_key: *key.public().as_bytes(),
        join_key: Secret32::random(),
        share_key: Secret32::random(),
        storage_security: Some(StorageSecurity::Insecure),
    };
    let mut journal = Journal::new(intent);
    let way = match phase {
        Phase::Formattable => vec![],
        Phase::Formatted => vec![Phase::Formatted],
        Phase::Enrolled => vec![Phase::Formatted, Phase::Enrolled],
        removed @ Phase::Removed { .. } => vec![Phase::Formatted, Phase::Enrolled, removed.clone()],
    };
    for phase in way {
        if phase == Phase::Enrolled {
            journal.cluster_ca = Some(vec![1]);
            journal.cluster_id = Some("21fe31dfa154a261626bf854046fd227".into());
            journal.node_key = None;
        }
        journal = journal.advance(phase).unwrap();
    }
    journal
}

/// A disk with a node in this phase, with a file in every place, and what others put there.
fn node(phase: &Phase) -> Arc<SimulatedDisk> {
    let disk = Arc::new(SimulatedDisk::default());
    let layout = Layout::new(disk.clone());
    layout.prepare_start().unwrap();
    let store = layout.journal_store(Seals::plain_only());
    store.store(&journal(phase), "test").unwrap();
    store.store(&journal(phase), "test").unwrap();
    let Data { directory: data, log, etcd, node, .. } = &layout.data;
    for directory in [data, log, &etcd.directory, &etcd.data, &node.directory] {
        directory.create("test").unwrap();
    }
    let marker = PartitionMarker { node_id: "metropolis-x".into(), backend: "plain".into() };
    layout.data.partition.store(&marker, "test").unwrap();
    layout.data.node.roles.store(&LocalRoles { consensus_member: true, ..LocalRoles::default() }, "test").unwrap();
    layout.data.node.revocations.store(&Revocations { revocation_list: vec![1] }, "test").unwrap();
    layout.esp.polis.operator_peers.store(&OperatorPeers::default(), "test").unwrap();
    layout.last_state.write(b"{}", "test").unwrap();
    disk.create_directory(&path("data/etcd/removed-1"), 0o700).unwrap();
    for (file, what) in [
        ("data/etcd/credentials", "secret"),
        ("data/etcd/data/wal", "etcd's"),
        ("data/etcd/removed-1/wal", "etcd's"),
        ("data/node/credentials", "secret"),
        ("data/node/.credentials.00112233445566778899aabbccddeeff.polis-tmp", "left"),
        ("ephemeral/consensus/peer-key.pem", "secret"),
        // What a machine keeps of itself.
        ("esp/polis/clock.0", "polis-clock"),
        ("esp/polis/clock.1", "polis-clock"),
        ("esp/polis/failures", "polis-failures"),
        ("data/log/segment-0000000007", "{}"),
        ("data/log/crash-dmesg-efi-1", "Oops"),
        ("esp/polis/parameters.pb", "somebody's"),
        ("notes.txt", "somebody's"),
        ("data/node/photo", "somebody's"),
        ("data/etcd/removed-by-hand", "somebody's"),
    ] {
        disk.create_exclusive(&path(file), FILE_MODE, what.as_bytes()).unwrap();
    }
    let directories =
        ["", "data", "data/etcd", "data/etcd/data", "data/etcd/removed-1", "data/log", "data/node", "esp/polis"];
    for directory in directories {
        disk.sync_directory("test", &path(directory)).unwrap();
    }
    for file in
        ["esp/polis/parameters.pb", "notes.txt", "data/node/photo", "data/etcd/removed-by-hand", "data/etcd/data/wal"]
    {
        disk.sync_file("test", &path(file)).unwrap();
    }
    disk
}

const STAYS: [&str; 4] = [
    "/simulated/data/etcd/removed-by-hand",
    "/simulated/data/node/photo",
    "/simulated/esp/polis/parameters.pb",
    "/simulated/notes.txt",
];

fn shown(paths: &[std::path::PathBuf]) -> Vec<String> {
    let mut paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.sort();
    paths
}

/// All ordinary files that a process sees on this disk.
fn files(disk: &dyn Disk, directory: &DiskPath, found: &mut Vec<String>) {
    for name in disk.list(directory).unwrap() {
        let path = directory.child(&name).unwrap();
        match disk.metadata(&path).unwrap() {
            Some(polis_storage::Metadata::Directory { .. }) => files(disk, &path, found),
            Some(_) | None => found.push(disk.full_path(&path).display().to_string()),
        }
    }
}

fn all_files(disk: &dyn Disk) -> Vec<String> {
    let mut found = Vec::new();
    files(disk, &DiskPath::root(), &mut found);
    found.sort();
    found
}

fn phases() -> [Phase; 4] {
    [Phase::Formattable, Phase::Formatted, Phase::Enrolled, Phase::Removed { reason: "sold".into() }]
}

#[test]
fn from_every_phase_all_of_the_node_goes_and_all_of_others_stays() {
    for phase in phases() {
        let disk = node(&phase);
        let reset = NodeReset::look(disk.clone()).unwrap();
        assert!(reset.plan.node_id.is_some() && reset.plan.consensus_member);
        assert_eq!(shown(&reset.plan.stays), STAYS);
        let last = reset.plan.items.last().unwrap();
        assert!(last.path.ends_with("journal.1"), "the journal goes last: {last:?}");
        let outcome = reset.run().unwrap();
        assert_eq!(shown(&outcome.stays), STAYS, "{phase}");
        assert_eq!(all_files(&*disk), STAYS, "{phase}");
    }
}

#[test]
fn what_has_the_place_of_the_machines_own_and_is_none_of_it_stays() {
    let disk = Arc::new(SimulatedDisk::default());
    let layout = Layout::new(disk.clone());
    layout.prepare_start().unwrap();
    layout.data.directory.create("test").unwrap();
    for directory in ["esp/polis/clock.0", "esp/EFI"] {
        disk.create_directory(&path(directory), 0o700).unwrap();
    }
    for file in ["esp/polis/clock.0/photo", "esp/EFI/loader.efi", "data/log", "data/clock.1"] {
        disk.create_exclusive(&path(file), FILE_MODE, b"somebody's").unwrap();
    }
    let reset = NodeReset::look(disk.clone()).unwrap();
    assert_eq!(
        shown(&reset.plan.stays),
        ["/simulated/data/clock.1", "/simulated/data/log", "/simulated/esp/EFI", "/simulated/esp/polis/clock.0",]
    );
    let before = all_files(&*disk);
    reset.run().unwrap();
    assert_eq!(all_files(&*disk), before);
}

/// What a start would find: a node that was not touched, one that does not start, or none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finds {
    Untouched,
    DoesNotStart,
    Nothing,
}

fn start_finds(disk: &Arc<SimulatedDisk>) -> Finds {
    let layout = Layout::new(disk.clone());
    match layout.journal_store(Seals::plain_only()).load() {
        Ok(Some(loaded)) => match loaded.value.phase() {
            Phase::Removed { reason } if reason == REASON => Finds::DoesNotStart,
            Phase::Removed { .. } => Finds::DoesNotStart,
            Phase::Formattable | Phase::Formatted | Phase::Enrolled => Finds::Untouched,
        },
        Ok(None) => Finds::Nothing,
        Err(JournalError::Disk(error)) => panic!("{error}"),
        Err(_) => Finds::DoesNotStart,
    }
}

/// Cuts the power at every point of the reset of `disk` and looks at what is left.
fn check_cuts(disk: &Arc<SimulatedDisk>, before: usize) -> usize {
    let image = disk.recording().cuts().unwrap()[before].image();
    let whole = all_files(&SimulatedDisk::new(image, Vec::new()));
    let mut checked = 0;
    for cut in &disk.recording().cuts().unwrap()[before..] {
        for seed in 0..SEEDS {
            let left = Arc::new(SimulatedDisk::new(cut.power_cut(seed), Vec::new()));
            let files = all_files(&*left);
            match start_finds(&left) {
                Finds::Untouched => {
                    let own = |files: &[String]| -> Vec<String> {
                        // Temporaries and what is in `ephemeral` are nothing that a start goes by.
                        let counts = |file: &&String| {
                            !["polis-tmp", "journal", "/ephemeral/"].iter().any(|part| file.contains(part))
                        };
                        files.iter().filter(counts).cloned().collect()
                    };
                    assert_eq!(own(&files), own(&whole), "cut {} seed {seed}: half a node starts", cut.prefix);
                }
                Finds::DoesNotStart => {}
                Finds::Nothing => assert_eq!(files, STAYS, "cut {} seed {seed}: a new node finds the old", cut.prefix),
            }
            NodeReset::look(left.clone()).unwrap().run().unwrap();
            assert_eq!(all_files(&*left), STAYS, "cut {} seed {seed}: it cannot be repeated", cut.prefix);
            checked += 1;
        }
    }
    checked
}

#[test]
fn a_power_cut_at_any_point_leaves_no_half_node() {
    for phase in phases() {
        let disk = node(&phase);
        let before = disk.position();
        NodeReset::look(disk.clone()).unwrap().run().unwrap();
        let checked = check_cuts(&disk, before);
        assert!(checked > 200, "{checked} cuts");
    }
}

/// Damages both or one of the journal's files, before the reset begins.
fn damage(disk: &SimulatedDisk, slot: &str, bytes: &[u8]) {
    disk.remove_file(&path(slot)).unwrap();
    disk.create_exclusive(&path(slot), FILE_MODE, bytes).unwrap();
    disk.sync_file("test", &path(slot)).unwrap();
    disk.sync_directory("test", &path("esp/polis")).unwrap();
}

#[test]
fn a_journal_that_cannot_be_read_is_no_obstacle_and_stays_unreadable_to_the_end() {
    let newer = Format { version: 99, ..JOURNAL_FORMAT }.encode(1, 7, b"of a later version").unwrap();
    /// Files and what stands in them instead, and whether the journal can still be read.
    type Row<'a> = (&'a [(&'a str, &'a [u8])], bool);
    let table: [Row<'_>; 3] = [
        (&[("esp/polis/journal.0", b"torn"), ("esp/polis/journal.1", b"")], false),
        (&[("esp/polis/journal.1", b"torn")], true),
        (&[("esp/polis/journal.1", &newer)], false),
    ];
    for (damages, readable) in table {
        let disk = node(&Phase::Enrolled);
        for (slot, bytes) in damages {
            damage(&disk, slot, bytes);
        }
        let before = disk.position();
        let reset = NodeReset::look(disk.clone()).unwrap();
        assert_eq!(reset.plan.phase, readable.then_some(EnrolmentPhase::Enrolled));
        assert_eq!(reset.plan.journal_problem.is_none(), readable);
        reset.run().unwrap();
        check_cuts(&disk, before);
    }
}

#[test]
fn a_full_disk_is_no_obstacle() {
    let disk = node(&Phase::Enrolled);
    // The mark is the only thing that is written. Its first file does not fit; when one is gone, it does.
    let reset = NodeReset::look(disk.clone()).unwrap();
    disk.fail_once(0, Failure::Full);
    let before = disk.position();
    reset.run().unwrap();
    assert!(check_cuts(&disk, before) > 0);
    assert_eq!(all_files(&*disk), STAYS);
}

#[test]
fn a_disk_that_fails_for_good_costs_nothing() {
    let disk = node(&Phase::Enrolled);
    let reset = NodeReset::look(disk.clone()).unwrap();
    disk.fail_from(0, Failure::Forbidden);
    reset.run().unwrap_err();
    disk.cure();
    assert_eq!(start_finds(&disk), Finds::Untouched);
    assert!(all_files(&*disk).iter().any(|file| file.ends_with("data/etcd/data/wal")));
}

#[test]
fn a_disk_without_a_node_has_nothing_to_delete() {
    let disk = Arc::new(SimulatedDisk::default());
    disk.create_exclusive(&path("notes.txt"), FILE_MODE, b"").unwrap();
    let reset = NodeReset::look(disk.clone()).unwrap();
    assert_eq!((reset.plan.items.len(), reset.plan.phase), (0, Some(EnrolmentPhase::None)));
    assert_eq!(shown(&reset.run().unwrap().stays), ["/simulated/notes.txt"]);
}
