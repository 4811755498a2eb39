//! Encrypted data: whatever is cut off, some key opens, and the keys come into order again. And what keeps a node from its keys is a
//! named condition that changes nothing on the disk.

use std::sync::Arc;

use polis_manager::{Failure, ParameterSource, Place, Standing, preflight};
use polis_proto::common::NodeTpmUsage;
use polis_proto::common::cluster_configuration::{StorageSecurityPolicy, TpmMode};
use polis_secret::Secret32;
use polis_storage::journal::{Phase, SealKind, Seals, StorageSecurity};
use polis_storage::simulation::{Image, SimulatedDisk, SimulatedTpm};
use polis_storage::{DataGate, Disk as _, DiskPath, Journal, Layout};

use crate::cluster::{Called, Cluster, Fate, Script};
use crate::common::{Host, Life, ParametersFile, Then, live_on, parameters_of, register_parameters};
use crate::partition::{Backends, Encrypted};

/// Ways in which each power cut goes.
const SEEDS: u64 = 4;

const ALONE: Standing = Standing { voters: 1, place: Place::Voter };
const ONE_OF_TWO: Standing = Standing { voters: 2, place: Place::Voter };
const ONE_OF_THREE: Standing = Standing { voters: 3, place: Place::Voter };
const GUEST: Standing = Standing { voters: 3, place: Place::None };
const GUEST_OF_ONE: Standing = Standing { voters: 1, place: Place::None };
const LEARNER_OF_ONE: Standing = Standing { voters: 1, place: Place::Learner };

/// A node with encrypted data, its machine and its cluster.
struct World {
    file: ParametersFile,
    tpm: SimulatedTpm,
    cluster: Cluster,
}

impl World {
    fn founder(tpm: TpmMode) -> Self {
        let parameters = parameters_of(tpm, StorageSecurityPolicy::NeedsEncryptionAndAuthentication);
        let cluster = Cluster::new().changed(|cluster| cluster.standing = Some(ALONE));
        Self { file: ParametersFile::with(&parameters), tpm: SimulatedTpm::new(), cluster }
    }

    fn guest() -> Self {
        Self::guest_of(GUEST)
    }

    fn guest_of(standing: Standing) -> Self {
        let cluster = Cluster::new().changed(|cluster| {
            cluster.standing = Some(standing);
            cluster.recommended = StorageSecurity::AuthenticatedEncrypted;
            cluster.tpm_usage = NodeTpmUsage::PresentAndUsed;
        });
        let file = ParametersFile::with(&register_parameters(&cluster, &cluster.ticket(), "192.0.2.1"));
        Self { file, tpm: SimulatedTpm::new(), cluster }
    }

    fn seals(&self) -> Seals {
        Seals::with_tpm(Arc::new(self.tpm.clone()))
    }

    fn host(&self, then: Then) -> Host {
        Host { seals: self.seals(), then, ..Host::default() }
    }

    fn source(&self) -> ParameterSource {
        self.file.source()
    }

    /// A start of the process on this disk, beside this cluster.
    fn start(&self, image: Image, cluster: &Cluster, then: Then) -> Life {
        self.tpm.restart();
        live_on(&self.host(then), image, self.source(), cluster.clone(), Script::default())
    }

    /// A first start that comes to its end.
    fn first(&self) -> Life {
        let life = self.start(Image::default(), &self.cluster, Then::Settle);
        assert!(life.runs(), "{}", life.describe());
        life
    }

    fn journal(&self, image: &Image) -> (Journal, SealKind) {
        let store = Layout::new(on(image)).journal_store(self.seals());
        let journal = store.load().unwrap().expect("there is a journal").value;
        (journal, store.seal_kind().unwrap())
    }

    /// Tries every power cut of a life: the next start runs, as the same node, and brings the keys into order.
    fn check_all(&self, life: &Life) -> usize {
        let mut checked = 0;
        for cut in life.recording.cuts().unwrap() {
            let mut seen: Vec<Image> = Vec::new();
            for seed in 0..if cut.is_settled() { 1 } else { SEEDS } {
                let image = cut.power_cut(seed);
                if seen.contains(&image) {
                    continue;
                }
                let with = life.cluster_at(cut.prefix);
                let without = cut.prefix.checked_sub(1).map(|before| life.cluster_at(before));
                let without = without.filter(|without| {
                    without.kept != with.kept || (without.made, without.approvals) != (with.made, with.approvals)
                });
                for cluster in [Some(with), without].into_iter().flatten() {
                    let after = self.start(image.clone(), cluster, Then::Settle);
                    let at = format!("power cut after operation {}, seed {seed}", cut.prefix);
                    assert!(after.runs(), "{at}: {}", after.describe());
                    self.check_order(&after).unwrap_or_else(|problem| panic!("{at}: {problem}"));
                    checked += 1;
                }
                seen.push(image);
            }
        }
        assert!(checked > life.recording.operations.len());
        checked
    }

    /// Whether the keys of a running node are in order.
    fn check_order(&self, life: &Life) -> Result<(), String> {
        let end = life.end();
        let (journal, kind) = self.journal(&end);
        let kept = life.cluster().kept.clone().ok_or("the cluster keeps no key")?;
        match &journal.cluster_unlock_key {
            Some(key) if key.pending.is_some() => return Err("a change of the key is not finished".into()),
            Some(key) if key.current != kept => return Err("the cluster and the node have different keys".into()),
            Some(_) | None => {}
        }
        if Encrypted::slots(&on(&end)) != 1 {
            return Err("there are other keys that open the data".into());
        }
        if kind != SealKind::Tpm {
            return Err("the journal is not sealed".into());
        }
        Ok(())
    }
}

fn on(image: &Image) -> Arc<SimulatedDisk> {
    Arc::new(SimulatedDisk::new(image.clone(), Vec::new()))
}

#[test]
fn a_founder_comes_back_from_every_power_cut() {
    let world = World::founder(TpmMode::Required);
    let first = world.first();
    println!("{} power cuts of a first start survived", world.check_all(&first));
    let (journal, _) = world.journal(&first.end());
    assert!(journal.cluster_unlock_key.is_some(), "alone it needs its key");
    let rekeyed = world.start(first.end(), first.cluster(), Then::Rekey);
    assert!(rekeyed.runs(), "{}", rekeyed.describe());
    assert!(rekeyed.cluster().kept != first.cluster().kept, "the key is another");
    world.check_order(&rekeyed).unwrap();
    println!("{} power cuts of a change of the key survived", world.check_all(&rekeyed));
    // Nobody else is needed.
    let alone = rekeyed.cluster().changed(|cluster| cluster.standing = None);
    let later = world.start(rekeyed.end(), &alone, Then::Nothing);
    assert!(later.runs(), "{}", later.describe());
    assert_eq!(later.node_id, first.node_id);
}

#[test]
fn a_member_of_three_keeps_its_key_until_somebody_says_who_is_to_hold_its_shares() {
    let world = World::founder(TpmMode::BestEffort);
    let first = world.first();
    let grown = first.cluster().changed(|cluster| cluster.standing = Some(ONE_OF_THREE));
    let second = world.start(first.end(), &grown, Then::Settle);
    assert!(second.runs(), "{}", second.describe());
    let (journal, _) = world.journal(&second.end());
    let kept = second.cluster().kept.clone();
    assert!(journal.cluster_unlock_key.is_some_and(|key| Some(key.current) == kept), "nothing opens it but its copy");
    assert!(kept.is_some() && kept == first.cluster().kept, "no key was replaced");
    let third = world.start(second.end(), second.cluster(), Then::Rekey);
    assert!(third.runs(), "{}", third.describe());
    assert!(third.cluster().kept != kept);
    println!("{} power cuts of a change of the key survived", world.check_all(&third));
}

#[test]
fn a_node_that_has_given_its_key_away_waits_for_the_cluster_and_gets_it_back_where_it_needs_it() {
    let world = World::guest();
    let first = world.first();
    assert!(world.journal(&first.end()).0.cluster_unlock_key.is_none(), "the cluster has it");
    let second = world.start(first.end(), first.cluster(), Then::Rekey);
    assert!(second.runs(), "{}", second.describe());
    assert!(second.cluster().kept != first.cluster().kept);
    assert!(world.journal(&second.end()).0.cluster_unlock_key.is_none());
    println!("{} power cuts of a change of a key that the cluster has survived", world.check_all(&second));

    // Without the cluster it waits, says so, and changes nothing.
    let gone = second.cluster().changed(|cluster| cluster.standing = None);
    let waits = world.start(second.end(), &gone, Then::Nothing);
    assert!(waits.outcome.is_none() && !waits.identified, "{}", waits.describe());
    let condition = waits.condition("waiting-for-unlock").expect("it says what it waits for");
    assert!(condition.hint.contains("cold start"), "{condition:?}");
    let same = |life: &Life, name| life.end().get(&DiskPath::parse(name).unwrap()).cloned();
    for name in ["esp/polis/journal.0", "esp/polis/journal.1", "data/partition", "vault/slot.0", "vault/slot.1"] {
        assert!(same(&waits, name) == same(&second, name), "{name} has changed");
    }

    // One of two has to come back alone.
    let member = second.cluster().changed(|cluster| cluster.standing = Some(ONE_OF_TWO));
    let third = world.start(second.end(), &member, Then::Settle);
    assert!(
        world.journal(&third.end()).0.cluster_unlock_key.is_some_and(|key| Some(key.current) == third.cluster().kept)
    );
}

/// As after a restore of the cluster from an older state.
#[test]
fn a_running_node_tells_a_cluster_that_forgets_its_key_or_knows_another() {
    let founder = World::founder(TpmMode::Required);
    let guest = World::guest();
    for (name, world) in [("a founder", &founder), ("a guest", &guest)] {
        let first = world.first();
        let kept = first.cluster().kept.clone();
        for (change, what) in [
            ((|cluster| cluster.kept = Some(Secret32::new([9; 32]))) as fn(&mut Cluster), "another"),
            (|cluster| cluster.kept = None, "none"),
        ] {
            let after = world.start(first.end(), first.cluster(), Then::Change(change));
            assert!(after.runs(), "{name}, {what}: {}", after.describe());
            assert!(after.cluster().kept == kept, "{name}, {what}: the key that opens the data was not sent");
            world.check_order(&after).unwrap();
        }
    }
}

#[test]
fn a_node_that_becomes_the_second_member_has_its_key_before_it_has_a_vote() {
    let world = World::guest_of(GUEST_OF_ONE);
    let first = world.first();
    assert!(world.journal(&first.end()).0.cluster_unlock_key.is_none(), "a guest has no use for its key");
    let learner =
        world.start(first.end(), first.cluster(), Then::Change(|cluster| cluster.standing = Some(LEARNER_OF_ONE)));
    assert!(learner.runs(), "{}", learner.describe());
    // Both members lose their power as soon as there are two: no leader is left that could give the key.
    let gone = learner.cluster().changed(|cluster| cluster.standing = None);
    let cut = learner.recording.cuts().unwrap().pop().unwrap();
    for seed in 0..SEEDS {
        let after = world.start(cut.power_cut(seed), &gone, Then::Nothing);
        assert!(after.runs(), "seed {seed}: {}", after.describe());
        assert_eq!(after.node_id, first.node_id);
    }
}

#[test]
fn a_node_that_registers_comes_back_from_every_power_cut() {
    let world = World::guest();
    let first = world.first();
    let (journal, kind) = world.journal(&first.end());
    assert!(journal.cluster_unlock_key.is_none() && kind == SealKind::Tpm);
    println!("{} power cuts of a registration survived", world.check_all(&first));
    let later = world.start(first.end(), first.cluster(), Then::Nothing);
    assert!(later.runs(), "{}", later.describe());
    assert_eq!(later.node_id, first.node_id);
}

#[test]
fn the_seal_becomes_plain_only_when_the_cluster_says_that_its_tpm_is_unused() {
    for (usage, expected) in [
        (NodeTpmUsage::PresentAndUsed, SealKind::Tpm),
        (NodeTpmUsage::PresentButUnused, SealKind::Plain),
        (NodeTpmUsage::NotPresent, SealKind::Plain),
    ] {
        let mut world = World::guest();
        world.cluster.tpm_usage = usage;
        let life = world.start(Image::default(), &world.cluster, Then::Settle);
        assert!(life.runs(), "{usage:?}: {}", life.describe());
        assert_eq!(world.journal(&life.end()).1, expected, "{usage:?}");
        // Until it was admitted it was sealed.
        let refused = Script::new(|called, _| if called == Called::Register { Fate::Lost } else { Fate::Answered });
        let waits =
            live_on(&world.host(Then::Nothing), Image::default(), world.source(), world.cluster.clone(), refused);
        assert_eq!(world.journal(&waits.end()).1, SealKind::Tpm, "{usage:?}");
    }
}

#[test]
fn a_seal_that_does_not_open_is_waited_for_and_nothing_changes() {
    type Change = fn(&SimulatedTpm);
    let cases: [(&str, Change, Option<Change>); 5] = [
        ("seal-no-tpm", SimulatedTpm::remove, Some(SimulatedTpm::insert)),
        ("seal-other-tpm", SimulatedTpm::clear, None),
        ("seal-other-boot-state", |tpm| tpm.boot_into(7), Some(|tpm| tpm.boot_into(1))),
        ("seal-tpm-not-answering", |tpm| tpm.answer(false), Some(|tpm| tpm.answer(true))),
        ("seal-helper-missing", |tpm| tpm.install_helper(false), Some(|tpm| tpm.install_helper(true))),
    ];
    for (name, change, cure) in cases {
        let world = World::founder(TpmMode::Required);
        let first = world.first();
        change(&world.tpm);
        let waits = world.start(first.end(), first.cluster(), Then::Nothing);
        assert!(waits.outcome.is_none(), "{name}: {}", waits.describe());
        let condition = waits.condition(name).unwrap_or_else(|| panic!("{name}: {}", waits.describe()));
        assert!(!condition.hint.is_empty());
        assert!(waits.end() == first.end(), "{name}: something has changed");
        // Whoever looks before a start lets it wait.
        let backends = Backends::new(&on(&first.end()), &DataGate::open(), true);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(preflight(on(&first.end()), &world.seals(), &backends, &world.source())).unwrap();
        if let Some(cure) = cure {
            cure(&world.tpm);
            let after = world.start(waits.end(), first.cluster(), Then::Settle);
            assert!(after.runs(), "{name}: {}", after.describe());
            assert_eq!(after.node_id, first.node_id, "{name}");
        }
    }
    let world = World::founder(TpmMode::Required);
    let first = world.first();
    world.tpm.damage();
    let failed = world.start(first.end(), first.cluster(), Then::Nothing);
    assert!(failed.describe().starts_with("Failed"), "damage is no condition: {}", failed.describe());
    assert!(failed.end() == first.end());
}

#[test]
fn what_the_host_lacks_is_refused_before_a_first_start_and_waited_for_in_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let look = |world: &World, can_encrypt| {
        let disk = on(&Image::default());
        let backends = Backends::new(&disk, &DataGate::open(), can_encrypt);
        runtime.block_on(preflight(disk, &world.seals(), &backends, &world.source()))
    };
    let nothing_made = |life: &Life| {
        assert!(life.outcome.is_none(), "{}", life.describe());
        for name in ["data", "vault", "esp/polis/journal.0"] {
            assert!(life.end().get(&DiskPath::parse(name).unwrap()).is_none(), "{name} was made");
        }
    };
    let world = World::founder(TpmMode::Required);
    look(&world, true).unwrap();
    let refused = look(&world, false).unwrap_err();
    assert!(matches!(refused, Failure::StorageUnavailable { .. }) && refused.is_missing_prerequisite(), "{refused}");
    assert!(refused.to_string().contains("install the simulated tool"), "{refused}");
    let host = Host { can_encrypt: false, ..world.host(Then::Nothing) };
    let life = live_on(&host, Image::default(), world.source(), world.cluster.clone(), Script::default());
    assert!(life.condition("storage-not-available").is_some(), "{}", life.describe());
    nothing_made(&life);

    world.tpm.remove();
    let refused = look(&world, true).unwrap_err();
    assert!(matches!(refused, Failure::TpmUnavailable { .. }), "{refused}");
    let life = world.start(Image::default(), &world.cluster, Then::Nothing);
    assert!(life.condition("seal-no-tpm").is_some(), "{}", life.describe());
    nothing_made(&life);
    look(&World::founder(TpmMode::BestEffort), true).unwrap();

    // A node that registers learns later what is asked of it.
    let world = World::guest();
    look(&world, false).unwrap();
    let host = Host { can_encrypt: false, ..world.host(Then::Nothing) };
    let life = live_on(&host, Image::default(), world.source(), world.cluster.clone(), Script::default());
    assert!(life.condition("storage-not-available").is_some(), "{}", life.describe());
    assert_eq!(*world.journal(&life.end()).0.phase(), Phase::Formattable);
    assert!(life.end().get(&DiskPath::parse("vault").unwrap()).is_none());
}

#[test]
fn a_data_partition_that_is_lost_is_opened_again_under_the_running_node() {
    let world = World::founder(TpmMode::Disabled);
    let first = world.start(Image::default(), &world.cluster, Then::LoseData);
    assert!(first.runs(), "{}", first.describe());
    assert!(first.condition("data-partition-lost").is_none(), "it is over");
    assert!(first.acknowledged.len() > 2, "the member writes again");
}

#[test]
fn what_a_cluster_forgot_it_is_told_again() {
    let world = World::founder(TpmMode::Required);
    let first = world.first();
    for kept in [None, Some(Secret32::new([9; 32]))] {
        let restored = first.cluster().changed(|cluster| cluster.kept = kept);
        let later = world.start(first.end(), &restored, Then::Settle);
        assert!(later.runs(), "{}", later.describe());
        assert!(later.cluster().kept == first.cluster().kept);
    }
}

#[test]
fn no_generation_of_a_members_journal_has_the_node_key() {
    let world = World::founder(TpmMode::Disabled);
    let life = world.start(Image::default(), &world.cluster, Then::Settle);
    let end = on(&life.end());
    let node_key = Layout::new(end.clone()).data.node.credentials.load().unwrap().unwrap().node_key;
    for name in ["esp/polis/journal.0", "esp/polis/journal.1"] {
        let bytes = end.read(&DiskPath::parse(name).unwrap(), usize::MAX).unwrap();
        assert!(!bytes.windows(32).any(|window| window == node_key.expose()), "{name}");
    }
}
