//! Power cuts: at every point of a first and of a later start, with everything that was not synced lost, kept or torn, the
//! node comes back as the same node of the same cluster, with every write that was acknowledged. And each sync in the code
//! is needed for that: without any one of them, this test fails.
//!
//! All of it for a node that makes a cluster, and for one that others let into theirs.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::{Cluster, Script};
use crate::common::{Life, ParametersFile, SIMULATED_ETCD, contents, live_beside, register_parameters};
use polis_storage::Layout;
use polis_storage::journal::{Phase, Seals};
use polis_storage::simulation::{Image, Operation, Recording, SimulatedDisk, SyncSite, SyncTarget};

/// Ways in which each power cut goes: the extremes, and some that mix.
const SEEDS: u64 = 12;

/// In a run that is no soak, one in this many kills is tried with every power cut after it.
const KILLS_TRIED_IN: usize = 8;

/// Syncs that a whole node could do without, as something that it does next happens to sync the same. The part that they
/// belong to promises them all the same, and its own test proves that they are needed for that.
///
/// Formatting a data partition promises that it is formatted; a node then opens it, which settles it again
/// (`crates/storage/tests/power_cut.rs`). Whether a consensus member is about to join lies beside its credentials, whose loading
/// settles the same directory. That the older generation of a member's journal holds nothing of an earlier one is seen to at every
/// start. The member list is looked for right after the journal, whose loading settles the same directory. The roles are not on FAT, so
/// that their file was durable before it had its name; those on FAT are read by the same code.
const PROVEN_BELOW: [&str; 6] = [
    "data/format/partition (directory)",
    "etcd/joining/load (directory)",
    "journal/unify (file)",
    "journal/unify (directory)",
    "members/load (directory)",
    "node/roles/load (file)",
];

/// The same for a node that is let into a cluster. It has no use yet for etcd's directory. What it looks for a directory of nodes in,
/// and what holds the journal that says that the data are formatted, is synced again by the directory of nodes, before there is
/// anything that could be lost.
const PROVEN_BELOW_AS_GUEST: [&str; 8] = [
    "data/format/etcd/data (directory)",
    "data/format/partition (directory)",
    "directory/load (directory)",
    "journal/formatted (directory)",
    "journal/unify (file)",
    "journal/unify (directory)",
    "members/load (directory)",
    "node/roles/load (file)",
];

/// How a node comes into a cluster, and the cluster that others run.
struct Way {
    file: ParametersFile,
    cluster: Cluster,
    /// Whether it is let in by others.
    guest: bool,
}

impl Way {
    fn founder() -> Self {
        Self { file: ParametersFile::new(), cluster: Cluster::new(), guest: false }
    }

    fn guest() -> Self {
        let cluster = Cluster::new();
        let file = ParametersFile::with(&register_parameters(&cluster, &cluster.ticket(), "192.0.2.1"));
        Self { file, cluster, guest: true }
    }

    fn live(&self, image: Image, cluster: &Cluster) -> Life {
        live_beside(image, self.file.source(), cluster.clone(), Script::default())
    }

    fn fits(&self, life: &Life) -> Result<(), String> {
        if self.guest { life.fits_as_guest() } else { life.fits_together() }
    }
}

/// Whether full counts are asked for.
fn soak() -> bool {
    std::env::var_os("POLIS_SOAK").is_some_and(|value| value == "1")
}

/// Everything that a life has promised, and from which operation on.
struct Promises<'a> {
    way: &'a Way,
    life: &'a Life,
    recording: &'a Recording,
    /// Operations that came before the life that made the promises: those of a process that was killed.
    offset: usize,
    /// Position from which on the identity of the node may not change.
    identity_from: Option<usize>,
}

impl<'a> Promises<'a> {
    fn new(way: &'a Way, life: &'a Life, recording: &'a Recording, offset: usize) -> Self {
        // The keys of an intent are used once it is durable: written by this life, or found and settled by it.
        let durable = [directory_sync("journal/intent"), directory_sync("journal/load")];
        let position = |wanted: SyncSite| {
            life.recording
                .operations
                .iter()
                .position(|operation| matches!(operation, Operation::Sync { site, .. } if *site == wanted))
        };
        let identity_from = durable.into_iter().find_map(position).map(|position| offset + position + 1);
        Self { way, life, recording, offset, identity_from }
    }

    /// Position from which on the journal says that the data partition is formatted.
    fn formatted_from(&self) -> Option<usize> {
        let wanted = directory_sync("journal/formatted");
        let position = self
            .recording
            .operations
            .iter()
            .position(|operation| matches!(operation, Operation::Sync { site, .. } if *site == wanted));
        position.map(|position| position + 1)
    }

    /// The clusters that a start may find after a power cut once `prefix` operations were done: what was asked of it at just that
    /// moment may have been asked, and may not.
    fn clusters(&self, prefix: usize) -> Vec<&Cluster> {
        let position = prefix - self.offset;
        let with = self.life.cluster_at(position);
        let without = position.checked_sub(1).map(|before| self.life.cluster_at(before));
        let without = without.filter(|without| (without.made, without.approvals) != (with.made, with.approvals));
        [Some(with), without].into_iter().flatten().collect()
    }

    /// Checks what a start finds after a power cut once `prefix` operations were done.
    fn check(&self, prefix: usize, after: &Life) -> Result<(), String> {
        if !after.runs() {
            return Err(format!("the next start does not come to Running: {}", after.describe()));
        }
        self.way.fits(after)?;
        if prefix == self.offset + self.life.recording.operations.len() {
            enrolled(&after.recording.initial, self.way.guest)?;
        }
        // What was formatted is never formatted again.
        if self.formatted_from().is_some_and(|from| prefix >= from) && formats(after) {
            return Err("the data partition is formatted a second time".into());
        }
        if self.identity_from.is_some_and(|from| prefix >= from) && after.node_id != self.life.node_id {
            return Err(format!("the node was {:?} and is {:?}", self.life.node_id, after.node_id));
        }
        let promised = self.life.acknowledged.iter().rfind(|(position, _)| self.offset + position <= prefix);
        let held = after.acknowledged.last().map(|(_, contents)| contents);
        for (key, value) in promised.into_iter().flat_map(|(_, contents)| contents) {
            let changes = key.ends_with("/last_start");
            if held.and_then(|held| held.get(key)).is_none_or(|held| held != value && !changes) {
                return Err(format!("{key} was acknowledged and is lost or changed"));
            }
        }
        Ok(())
    }
}

/// Whether a life has written anything of a format.
fn formats(life: &Life) -> bool {
    life.recording.sync_sites().iter().any(|site| site.site.starts_with("data/format"))
}

/// What a node that was Running has told others: it is a member, and only the cluster holds the key of the peers' CA.
fn enrolled(image: &Image, guest: bool) -> Result<(), String> {
    let layout = Layout::new(Arc::new(SimulatedDisk::new(image.clone(), Vec::new())));
    let journal = layout.journal_store(Seals::plain_only()).load().unwrap().map(|journal| journal.value);
    if journal.is_none_or(|journal| *journal.phase() != Phase::Enrolled) {
        return Err("a node that was Running is not a member".into());
    }
    if guest {
        return Ok(());
    }
    let peers = layout.data.etcd.credentials.load().unwrap();
    if peers.is_none_or(|peers| peers.ca_key.is_some()) {
        return Err("a node that was Running has the key of the peers' CA on its disk".into());
    }
    Ok(())
}

fn directory_sync(site: &'static str) -> SyncSite {
    SyncSite { site, target: SyncTarget::Directory }
}

/// Tries every power cut of a recording, but those that `known` leaves the same disk after: they were tried there. Returns how
/// many were tried.
fn check_all(promises: &Promises<'_>, known: Option<&Recording>) -> Result<usize, String> {
    let mut checked = 0;
    let known = known.map(|known| known.cuts().unwrap());
    for cut in promises.recording.cuts().unwrap().into_iter().skip(promises.offset) {
        let known = known.as_ref().map(|known| &known[cut.prefix]);
        let mut seen: Vec<Image> = Vec::new();
        for seed in 0..if cut.is_settled() { 1 } else { SEEDS } {
            let image = cut.power_cut(seed);
            if seen.contains(&image) || known.is_some_and(|known| known.power_cut(seed) == image) {
                continue;
            }
            for cluster in promises.clusters(cut.prefix) {
                let after = promises.way.live(image.clone(), cluster);
                checked += 1;
                promises.check(cut.prefix, &after).map_err(|error| {
                    let last = cut.prefix.checked_sub(1).and_then(|last| promises.recording.operations.get(last));
                    format!("power cut after operation {} ({last:?}), seed {seed}: {error}", cut.prefix)
                })?;
            }
            seen.push(image);
        }
    }
    Ok(checked)
}

/// A first start and a later one, neither of them disturbed.
fn whole_lives(way: &Way) -> [Life; 2] {
    let first = way.live(Image::default(), &way.cluster);
    assert!(first.runs(), "{}", first.describe());
    let later = way.live(first.end(), first.cluster());
    assert!(later.runs(), "{}", later.describe());
    assert_eq!((&later.node_id, &later.cluster_id), (&first.node_id, &first.cluster_id));
    [first, later]
}

/// Second lives after a kill at each point of a first start: what the killed process left visible need not be durable.
fn lives_after_a_kill(way: &Way, first: &Life) -> Vec<(Life, Recording, usize)> {
    let cuts = first.recording.cuts().unwrap();
    let unsettled = cuts.iter().filter(|cut| !cut.is_settled());
    let second = unsettled.map(|cut| {
        let life = way.live(cut.image(), first.cluster_at(cut.prefix));
        assert!(life.runs(), "kill after operation {}: {}", cut.prefix, life.describe());
        let mut operations = first.recording.operations[..cut.prefix].to_vec();
        operations.extend(life.recording.operations.iter().cloned());
        let recording = Recording { operations, ..first.recording.clone() };
        (life, recording, cut.prefix)
    });
    second.collect()
}

fn comes_back_from_every_power_cut(way: &Way) {
    for (name, life) in ["first", "later"].into_iter().zip(whole_lives(way)) {
        let promises = Promises::new(way, &life, &life.recording, 0);
        let checked = check_all(&promises, None).unwrap_or_else(|error| panic!("{name} start: {error}"));
        let operations = life.recording.operations.len();
        println!("{name} start: {operations} operations, {checked} power cuts survived");
        let least = if way.guest { 5 } else { 10 };
        assert!(operations > least && checked > operations, "{name} start was not tried: {checked} of {operations}");
    }
}

#[test]
fn a_node_comes_back_from_every_power_cut() {
    comes_back_from_every_power_cut(&Way::founder());
}

#[test]
fn a_node_that_registers_comes_back_from_every_power_cut() {
    comes_back_from_every_power_cut(&Way::guest());
}

fn comes_back_from_a_power_cut_after_a_kill(way: &Way) {
    let [first, _] = whole_lives(way);
    let lives = lives_after_a_kill(way, &first);
    // All of them take minutes: each run tries some, and a soak all.
    let (every, skipped) =
        if soak() { (1, 0) } else { (KILLS_TRIED_IN, usize::try_from(std::process::id()).unwrap() % KILLS_TRIED_IN) };
    println!("every {every}th kill of {}, from the {skipped}th on", lives.len());
    let mut checked = 0;
    for (life, recording, offset) in lives.into_iter().skip(skipped).step_by(every) {
        let promises = Promises::new(way, &life, &recording, offset);
        checked += check_all(&promises, None).unwrap_or_else(|error| panic!("killed after {offset}: {error}"));
    }
    println!("{checked} power cuts after a kill survived");
    assert!(checked > 100, "only {checked} were tried");
}

#[test]
fn a_power_cut_during_the_start_after_a_kill_takes_nothing_either() {
    comes_back_from_a_power_cut_after_a_kill(&Way::founder());
}

#[test]
fn a_power_cut_after_a_kill_while_registering_takes_nothing_either() {
    comes_back_from_a_power_cut_after_a_kill(&Way::guest());
}

fn needs_every_sync(way: &Way, proven_below: &[&str]) {
    let [first, later] = whole_lives(way);
    let killed = lives_after_a_kill(way, &first);
    let mut lives = vec![(&first, &first.recording, 0), (&later, &later.recording, 0)];
    lives.extend(killed.iter().map(|(life, recording, offset)| (life, recording, *offset)));
    let sites: BTreeSet<SyncSite> = lives.iter().flat_map(|(_, recording, _)| recording.sync_sites()).collect();

    let mut unproven = Vec::new();
    for site in sites.into_iter().filter(|site| site.site != SIMULATED_ETCD) {
        let loss = lives.iter().filter(|(_, recording, _)| recording.sync_sites().contains(&site)).find_map(
            |(life, recording, offset)| {
                let forgotten = recording.without_sync(site);
                check_all(&Promises::new(way, life, &forgotten, *offset), Some(recording)).err()
            },
        );
        match loss {
            Some(loss) => println!("{site} is needed; without it: {loss}"),
            None => unproven.push(site.to_string()),
        }
    }
    assert_eq!(unproven, proven_below, "nothing fails without these syncs");
}

#[test]
fn without_any_one_sync_a_node_does_not_come_back() {
    needs_every_sync(&Way::founder(), &PROVEN_BELOW);
}

#[test]
fn without_any_one_sync_a_node_that_registers_does_not_come_back() {
    needs_every_sync(&Way::guest(), &PROVEN_BELOW_AS_GUEST);
}

#[test]
fn a_running_node_has_nothing_in_the_air() {
    for life in whole_lives(&Way::founder()) {
        let end = life.recording.cuts().unwrap().pop().unwrap();
        let acknowledged = &life.acknowledged.last().unwrap().1;
        for seed in 0..SEEDS {
            assert_eq!(contents(&end.power_cut(seed)), *acknowledged, "seed {seed}");
        }
    }
}
