//! What is known of the members survives whatever happens to the disk.

use std::sync::Arc;

use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority, NodeId, NodeKey};
use polis_storage::journal::{Phase, Seals};
use polis_storage::simulation::{Image, SimulatedDisk};
use polis_storage::{Disk, DiskPath, FILE_MODE, Layout};
use polis_unlock::MemberList;

use super::*;
use crate::enrolment::intent;
use crate::unlock::with_keys;

/// Ways in which each power cut goes.
const SEEDS: u64 = 4;

fn at(epoch: u64) -> Epoch {
    Epoch { incarnation: 1, epoch }
}

fn list(authority: &CertificateAuthority, epoch: u64) -> SignedMemberList {
    MemberList::new(authority.certificate().cluster_id(), at(epoch), Vec::new()).sign(authority)
}

/// The ESP of a member.
struct Esp {
    disk: Arc<SimulatedDisk>,
    layout: Layout,
    journal: JournalStore,
}

impl Esp {
    fn on(image: Image) -> Self {
        let fat = Layout::new(Arc::new(SimulatedDisk::default())).fat_directories();
        let disk = Arc::new(SimulatedDisk::new(image, fat));
        let layout = Layout::new(Arc::clone(&disk) as Arc<dyn Disk>);
        layout.prepare_start().unwrap();
        let journal = layout.journal_store(Seals::plain_only());
        Self { disk, layout, journal }
    }

    /// One that has a journal and nothing else.
    fn new() -> Self {
        let esp = Self::on(Image::default());
        let journal = with_keys(intent(b"parameters".to_vec()), journal::StorageSecurity::Encrypted);
        let journal = journal.advance(Phase::Formatted).and_then(|journal| journal.advance(Phase::Enrolled)).unwrap();
        esp.journal.store_both(&journal, "test").unwrap();
        esp
    }

    fn file(&self) -> &TwoGenerations<SignedMembers> {
        &self.layout.esp.polis.signed_members
    }

    fn keep(&self, list: &SignedMemberList) -> Result<(), KeepError> {
        keep_list(&self.journal, self.file(), list)
    }

    fn load(&self, authority: &CertificateAuthority) -> Kept {
        load(&self.journal, self.file(), &self.stored(), authority.certificate()).unwrap()
    }

    fn stored(&self) -> Journal {
        self.journal.load().unwrap().unwrap().value
    }

    fn spoil(&self, name: &str) {
        let path = DiskPath::parse(name).unwrap();
        self.disk.remove_file(&path).unwrap();
        self.disk.create_exclusive(&path, FILE_MODE, b"not a list").unwrap();
        self.disk.sync_file("test", &path).unwrap();
    }
}

#[test]
fn after_any_power_cut_no_epoch_was_seen_whose_list_is_not_there() {
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let before = Esp::new();
    before.keep(&list(&authority, 3)).unwrap();
    let esp = Esp::on(before.disk.image());
    esp.keep(&list(&authority, 4)).unwrap();
    let (mut seen, mut between) = (Vec::new(), 0);
    for cut in esp.disk.recording().cuts().unwrap() {
        for seed in 0..if cut.is_settled() { 1 } else { SEEDS } {
            let after = Esp::on(cut.power_cut(seed));
            let highest = after.stored().highest_epoch.map(of_journal);
            let Kept { known, .. } = after.load(&authority);
            let listed = known.list.as_ref().map(|list| list.list().epoch());
            let at_cut = format!("operation {}, seed {seed}: {highest:?}, {listed:?}", cut.prefix);
            assert!(listed == Some(at(3)) || listed == Some(at(4)), "{at_cut}");
            assert!(highest <= listed, "{at_cut}");
            between += u32::from(highest < listed);
            // It is seen from now on, also by whoever reads the journal alone.
            assert_eq!((known.highest, after.stored().highest_epoch.map(of_journal)), (listed, listed), "{at_cut}");
            seen.extend(listed);
        }
    }
    assert!(between > 0, "no cut was between the list and the journal");
    assert!(seen.contains(&at(3)) && seen.contains(&at(4)), "{seen:?}");
}

#[test]
fn a_list_that_cannot_be_used_is_none_and_the_next_one_is_written_over_it() {
    let (authority, other) = (
        CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME),
        CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME),
    );
    let names = ["esp/polis/members.0", "esp/polis/members.1"];
    for (spoiled, expect, is_damaged) in [
        (&[][..], Some(at(4)), false),
        // The newer one is the second that was written.
        (&names[..1], Some(at(4)), true),
        (&names[1..], Some(at(3)), true),
        (&names[..], None, true),
    ] {
        let esp = Esp::new();
        esp.keep(&list(&authority, 3)).unwrap();
        esp.keep(&list(&authority, 4)).unwrap();
        spoiled.iter().for_each(|name| esp.spoil(name));
        let Kept { known, damage } = esp.load(&authority);
        assert_eq!(known.list.map(|list| list.list().epoch()), expect, "{spoiled:?}");
        // What was seen is not forgotten with the list.
        assert_eq!((known.highest, damage.is_some()), (Some(at(4)), is_damaged), "{spoiled:?}: {damage:?}");
        esp.keep(&list(&authority, 5)).unwrap();
        assert_eq!(esp.load(&authority).known.highest, Some(at(5)), "{spoiled:?}");
        // Only lists of its own cluster are believed.
        assert_eq!(esp.load(&other).known.list, None);
    }
}

#[test]
fn floors_come_back_and_change_nothing_else() {
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let esp = Esp::new();
    esp.keep(&list(&authority, 3)).unwrap();
    let before = esp.stored();
    let owners = [(); 2].map(|()| NodeId::of(&NodeKey::generate().public()));
    let floors: Floors = [(owners[0], at(2)), (owners[1], at(3))].into_iter().collect();
    let kept = to_journal_floors(&floors);
    change(&esp.journal, "test", |journal| journal.epoch_floors = kept).unwrap();
    assert!(esp.load(&authority).known.floors == floors);
    let mut after = esp.stored();
    after.epoch_floors.clear();
    assert!(after == before);
}
