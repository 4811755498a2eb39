//! A start of a member without a key of its own: what it finds of its unlock file, and whom it asks. What the others answer is tried in
//! the tests of the unlock service; here nobody else is there but the running cluster.

use std::sync::Arc;

use polis_identity::{JoinKey, NodeId, NodeKey, PublicKey, ShareKey};
use polis_manager::{ParameterSource, Place, Standing as Part};
use polis_secret::Secret32;
use polis_storage::journal::{Seals, StorageSecurity};
use polis_storage::simulation::{Image, SimulatedDisk};
use polis_storage::{Disk as _, DiskPath, FILE_MODE, Journal, Layout, SignedMembers, UnlockShares};
use polis_unlock::{
    ClusterUnlockKey, Epoch, Hpke, MemberEntry, MemberList, SealedUnlockFile, SignedMemberList, Standing, UnlockFile,
    split,
};

use crate::cluster::{Cluster, Script};
use crate::common::{Host, Life, ParametersFile, disk_with, live_on, register_parameters};

/// Both generations of the unlock file.
const UNLOCK_FILES: [&str; 2] = ["esp/polis/unlock.0", "esp/polis/unlock.1"];

/// How the node stands while the cluster runs: what the others make of that is not tried here.
const GUEST: Part = Part { voters: 3, place: Place::None };

/// A member whose key the cluster keeps, and that has no copy of it.
struct Member {
    file: ParametersFile,
    cluster: Cluster,
    image: Image,
    journal: Journal,
    key: Secret32,
}

impl Member {
    fn new() -> Self {
        let cluster = Cluster::new().changed(|cluster| {
            cluster.recommended = StorageSecurity::AuthenticatedEncrypted;
            cluster.standing = Some(GUEST);
        });
        let file = ParametersFile::with(&register_parameters(&cluster, &cluster.ticket(), "192.0.2.1"));
        let first = live_on(&Host::default(), Image::default(), file.source(), cluster, Script::default());
        assert!(first.runs(), "{}", first.describe());
        let disk = disk_with(first.end());
        let store = Layout::new(disk.clone()).journal_store(Seals::plain_only());
        let mut journal = store.load().unwrap().unwrap().value;
        let key = journal.cluster_unlock_key.take().expect("it has made one").current;
        store.store_both(&journal, "test").unwrap();
        Self { file, cluster: first.cluster().clone(), image: disk.image(), journal, key }
    }

    fn source(&self) -> ParameterSource {
        self.file.source()
    }

    fn id(&self) -> NodeId {
        NodeId::of(&PublicKey::new(self.journal.node_public_key).unwrap())
    }

    /// A start with this on the disk, beside a cluster that runs or is away.
    fn start(&self, image: Image, cluster_runs: bool) -> Life {
        let cluster = self.cluster.changed(|cluster| cluster.standing = cluster_runs.then_some(GUEST));
        live_on(&Host::default(), image, self.source(), cluster, Script::default())
    }

    /// A list of it and two others, of whom nobody knows where they are.
    fn list(&self) -> SignedMemberList {
        let entry = |public_key: PublicKey, join_key: PublicKey, share_key: &ShareKey| MemberEntry {
            node_id: NodeId::of(&public_key),
            public_key,
            join_key,
            share_key: Some(share_key.public()),
            addresses: Vec::new(),
            standing: Standing::Stays,
        };
        let own = entry(
            PublicKey::new(self.journal.node_public_key).unwrap(),
            JoinKey::from_secret(self.journal.join_key.clone()).public(),
            &ShareKey::from_secret(self.journal.share_key.clone()),
        );
        let others =
            [(); 2].map(|()| entry(NodeKey::generate().public(), JoinKey::generate().public(), &ShareKey::generate()));
        let members = [own].into_iter().chain(others).collect();
        MemberList::new(self.cluster.authority().cluster_id(), Epoch::FIRST, members).sign(self.cluster.signs())
    }

    /// The disk with a list, and an unlock file for it that was made with this half of the key.
    fn with_unlock_file(&self, half: &Secret32) -> Image {
        let (disk, list) = (disk_with(self.image.clone()), self.list());
        let layout = Layout::new(disk.clone());
        layout.esp.polis.signed_members.store(&SignedMembers { signed_list: list.encode() }, "test").unwrap();
        let key = ClusterUnlockKey::new(self.key.clone());
        let current = split(&self.id(), &key, list.list(), &Hpke, &mut rand::rng()).unwrap();
        let file = UnlockFile { cluster: *list.list().cluster_id(), owner: self.id(), current, pending: None };
        let SealedUnlockFile { content, mac } = file.seal(half);
        layout.esp.polis.unlock.store(&UnlockShares { content, mac }, "test").unwrap();
        disk.image()
    }

    fn half(&self) -> &Secret32 {
        self.journal.node_unlock_key.as_ref().expect("its data are encrypted")
    }
}

/// The disk with half a file in the place of each of these.
fn torn(image: &Image, names: &[&str]) -> Image {
    let disk = Arc::new(SimulatedDisk::new(image.clone(), Vec::new()));
    for path in names.iter().map(|name| DiskPath::parse(name).unwrap()) {
        if disk.metadata(&path).unwrap().is_some() {
            disk.remove_file(&path).unwrap();
        }
        disk.create_exclusive(&path, FILE_MODE, b"POLISULK and no more").unwrap();
    }
    disk.image()
}

#[test]
fn an_unlock_file_that_cannot_be_used_is_said_to_be_and_the_cluster_is_asked() {
    let member = Member::new();
    let whole = member.with_unlock_file(member.half());
    let of_another = member.with_unlock_file(&Secret32::random());
    for (what, image, is_unusable) in [
        ("none", member.image.clone(), false),
        ("whole", whole.clone(), false),
        ("torn", torn(&member.image, &UNLOCK_FILES[..1]), true),
        ("torn in both", torn(&whole, &UNLOCK_FILES), true),
        ("of another node", of_another, true),
    ] {
        let life = member.start(image.clone(), true);
        assert!(life.runs(), "{what}: {}", life.describe());
        assert_eq!(life.condition("unlock-file-unusable").is_some(), is_unusable, "{what}: {:?}", life.conditions);
        for name in ["data-locked", "waiting-for-unlock", "data-keys-wrong"] {
            assert!(life.condition(name).is_none(), "{what}: {name} is not over");
        }
        for path in UNLOCK_FILES.map(|name| DiskPath::parse(name).unwrap()) {
            assert!(life.end().get(&path) == image.get(&path), "{what}: {path:?} has changed");
        }
    }
}

#[test]
fn a_member_that_nobody_answers_says_what_it_needs_and_changes_nothing() {
    let member = Member::new();
    let image = member.with_unlock_file(member.half());
    let life = member.start(image.clone(), false);
    assert!(life.outcome.is_none() && !life.identified, "{}", life.describe());
    let locked = life.condition("data-locked").expect("it says that it is locked");
    assert!(locked.message.contains("unlocked by 0 of 1 peers"), "{locked:?}");
    assert!(locked.hint.contains("polis unlock --recovery"), "{locked:?}");
    assert!(life.condition("waiting-for-unlock").is_some(), "the running cluster is asked as well");
    for name in ["data/partition", "vault/slot.0", "vault/slot.1"].iter().chain(&UNLOCK_FILES) {
        let path = DiskPath::parse(name).unwrap();
        assert!(life.end().get(&path) == image.get(&path), "{name} has changed");
    }
    // As soon as a cluster is there, it is open.
    let later = member.start(life.end(), true);
    assert!(later.runs(), "{}", later.describe());
}
