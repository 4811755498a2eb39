//! Power cuts: at every point of a first and of a later start, with everything that was not synced lost, kept or torn, the
//! node comes back as the same node of the same cluster, with every write that was acknowledged. And each sync in the code
//! is needed for that: without any one of them, this test fails.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::{Life, ParametersFile, SIMULATED_ETCD, contents, live};
use polis_storage::Layout;
use polis_storage::journal::{Phase, PlainSeal};
use polis_storage::simulation::{Image, Operation, Recording, SimulatedDisk, SyncSite, SyncTarget};

/// Ways in which each power cut goes: the extremes, and some that mix.
const SEEDS: u64 = 12;

/// In a run that is no soak, one in this many kills is tried with every power cut after it.
const KILLS_TRIED_IN: usize = 8;

/// Syncs that a whole node could do without, as something that it does next happens to sync the same. The part that they
/// belong to promises them all the same, and its own test proves that they are needed for that.
///
/// Formatting a data partition promises that it is formatted; a node then opens it, which settles it again
/// (`crates/storage/tests/power_cut.rs`).
const PROVEN_BELOW: [&str; 1] = ["data/format/partition (directory)"];

/// Whether full counts are asked for.
fn soak() -> bool {
    std::env::var_os("POLIS_SOAK").is_some_and(|value| value == "1")
}

/// Everything that a life has promised, and from which operation on.
struct Promises<'a> {
    life: &'a Life,
    recording: &'a Recording,
    /// Operations that came before the life that made the promises: those of a process that was killed.
    offset: usize,
    /// Position from which on the identity of the node may not change.
    identity_from: Option<usize>,
}

impl<'a> Promises<'a> {
    fn new(life: &'a Life, recording: &'a Recording, offset: usize) -> Self {
        // The keys of an intent are used once it is durable: written by this life, or found and settled by it.
        let durable = [directory_sync("journal/intent"), directory_sync("journal/load")];
        let position = |wanted: SyncSite| {
            life.recording
                .operations
                .iter()
                .position(|operation| matches!(operation, Operation::Sync { site, .. } if *site == wanted))
        };
        let identity_from = durable.into_iter().find_map(position).map(|position| offset + position + 1);
        Self { life, recording, offset, identity_from }
    }

    /// Checks what a start finds after a power cut once `prefix` operations were done.
    fn check(&self, prefix: usize, after: &Life) -> Result<(), String> {
        if !after.runs() {
            return Err(format!("the next start does not come to Running: {}", after.describe()));
        }
        after.fits_together()?;
        if prefix == self.offset + self.life.recording.operations.len() {
            enrolled(&after.recording.initial)?;
        }
        if self.identity_from.is_some_and(|from| prefix >= from) && after.node_id != self.life.node_id {
            return Err(format!("the node was {:?} and is {:?}", self.life.node_id, after.node_id));
        }
        let promised = self.life.acknowledged.iter().rfind(|(position, _)| self.offset + position <= prefix);
        let held = &after.acknowledged.last().expect("a running node has written").1;
        for (key, value) in promised.into_iter().flat_map(|(_, contents)| contents) {
            let changes = key.ends_with("/last_start");
            if held.get(key).is_none_or(|held| held != value && !changes) {
                return Err(format!("{key} was acknowledged and is lost or changed"));
            }
        }
        Ok(())
    }
}

/// What a node that was Running has told others: it is a member, and only the cluster holds the key of the peers' CA.
fn enrolled(image: &Image) -> Result<(), String> {
    let layout = Layout::new(Arc::new(SimulatedDisk::new(image.clone(), Vec::new())));
    let journal = layout.journal_store(Arc::new(PlainSeal)).load().unwrap().map(|journal| journal.value);
    if journal.is_none_or(|journal| *journal.phase() != Phase::Enrolled) {
        return Err("a node that was Running is not a member".into());
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
fn check_all(promises: &Promises<'_>, known: Option<&Recording>, file: &ParametersFile) -> Result<usize, String> {
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
            let after = live(image.clone(), file.source());
            checked += 1;
            promises.check(cut.prefix, &after).map_err(|error| {
                let last = cut.prefix.checked_sub(1).and_then(|last| promises.recording.operations.get(last));
                format!("power cut after operation {} ({last:?}), seed {seed}: {error}", cut.prefix)
            })?;
            seen.push(image);
        }
    }
    Ok(checked)
}

/// A first start and a later one, neither of them disturbed.
fn whole_lives(file: &ParametersFile) -> [Life; 2] {
    let first = live(Image::default(), file.source());
    assert!(first.runs(), "{}", first.describe());
    let after_first = first.recording.cuts().unwrap().pop().unwrap().image();
    let later = live(after_first, file.source());
    assert!(later.runs(), "{}", later.describe());
    assert_eq!((&later.node_id, &later.cluster_id), (&first.node_id, &first.cluster_id));
    [first, later]
}

/// Second lives after a kill at each point of a first start: what the killed process left visible need not be durable.
fn lives_after_a_kill(first: &Life, file: &ParametersFile) -> Vec<(Life, Recording, usize)> {
    let cuts = first.recording.cuts().unwrap();
    let unsettled = cuts.iter().filter(|cut| !cut.is_settled());
    let second = unsettled.map(|cut| {
        let life = live(cut.image(), file.source());
        assert!(life.runs(), "kill after operation {}: {}", cut.prefix, life.describe());
        let mut operations = first.recording.operations[..cut.prefix].to_vec();
        operations.extend(life.recording.operations.iter().cloned());
        let recording = Recording { operations, ..first.recording.clone() };
        (life, recording, cut.prefix)
    });
    second.collect()
}

#[test]
fn a_node_comes_back_from_every_power_cut() {
    let file = ParametersFile::new();
    for (name, life) in ["first", "later"].into_iter().zip(whole_lives(&file)) {
        let promises = Promises::new(&life, &life.recording, 0);
        let checked = check_all(&promises, None, &file).unwrap_or_else(|error| panic!("{name} start: {error}"));
        let operations = life.recording.operations.len();
        println!("{name} start: {operations} operations, {checked} power cuts survived");
        assert!(operations > 10 && checked > operations, "{name} start was not tried: {checked} of {operations}");
    }
}

#[test]
fn a_power_cut_during_the_start_after_a_kill_takes_nothing_either() {
    let file = ParametersFile::new();
    let [first, _] = whole_lives(&file);
    let lives = lives_after_a_kill(&first, &file);
    // All of them take minutes: each run tries some, and a soak all.
    let (every, skipped) =
        if soak() { (1, 0) } else { (KILLS_TRIED_IN, usize::try_from(std::process::id()).unwrap() % KILLS_TRIED_IN) };
    println!("every {every}th kill of {}, from the {skipped}th on", lives.len());
    let mut checked = 0;
    for (life, recording, offset) in lives.into_iter().skip(skipped).step_by(every) {
        let promises = Promises::new(&life, &recording, offset);
        checked += check_all(&promises, None, &file).unwrap_or_else(|error| panic!("killed after {offset}: {error}"));
    }
    println!("{checked} power cuts after a kill survived");
    assert!(checked > 100, "only {checked} were tried");
}

#[test]
fn without_any_one_sync_a_node_does_not_come_back() {
    let file = ParametersFile::new();
    let [first, later] = whole_lives(&file);
    let killed = lives_after_a_kill(&first, &file);
    let mut lives = vec![(&first, &first.recording, 0), (&later, &later.recording, 0)];
    lives.extend(killed.iter().map(|(life, recording, offset)| (life, recording, *offset)));
    let sites: BTreeSet<SyncSite> = lives.iter().flat_map(|(_, recording, _)| recording.sync_sites()).collect();

    let mut unproven = Vec::new();
    for site in sites.into_iter().filter(|site| site.site != SIMULATED_ETCD) {
        let loss = lives.iter().filter(|(_, recording, _)| recording.sync_sites().contains(&site)).find_map(
            |(life, recording, offset)| {
                let forgotten = recording.without_sync(site);
                check_all(&Promises::new(life, &forgotten, *offset), Some(recording), &file).err()
            },
        );
        match loss {
            Some(loss) => println!("{site} is needed; without it: {loss}"),
            None => unproven.push(site.to_string()),
        }
    }
    assert_eq!(unproven, PROVEN_BELOW, "nothing fails without these syncs");
}

#[test]
fn a_running_node_has_nothing_in_the_air() {
    let file = ParametersFile::new();
    for life in whole_lives(&file) {
        let end = life.recording.cuts().unwrap().pop().unwrap();
        let acknowledged = &life.acknowledged.last().unwrap().1;
        for seed in 0..SEEDS {
            assert_eq!(contents(&end.power_cut(seed)), *acknowledged, "seed {seed}");
        }
    }
}
