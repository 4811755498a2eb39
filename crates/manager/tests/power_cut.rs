//! Power cuts: at every point of a first and of a later start, with everything that was not synced lost, kept or torn, the
//! node comes back as the same node of the same cluster, with every write that was acknowledged. And each sync in the code
//! is needed for that: without any one of them, this test fails.

mod common;

use std::collections::BTreeSet;

use common::{Life, ParametersFile, SIMULATED_ETCD, contents, live};
use polis_storage::simulation::{Image, Operation, Recording, SyncSite};

/// Ways in which each power cut goes: the extremes, and some that mix.
const SEEDS: u64 = 12;

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
            life.recording.operations.iter().position(
                |operation| matches!(operation, Operation::Sync { site, .. } if *site == wanted),
            )
        };
        let identity_from = durable.into_iter().find_map(position).map(|position| offset + position + 1);
        Self { life, recording, offset, identity_from }
    }

    /// Checks what a start finds after a power cut once `prefix` operations were done.
    fn check(&self, prefix: usize, after: &Life) -> Result<(), String> {
        if !after.runs() {
            return Err(format!("the next start does not come to Running: {}", after.describe()));
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

fn directory_sync(site: &'static str) -> SyncSite {
    SyncSite { site, target: polis_storage::simulation::SyncTarget::Directory }
}

/// Tries every power cut of a recording. Returns how many different disks were tried.
fn check_all(promises: &Promises<'_>, file: &ParametersFile) -> Result<usize, String> {
    let mut checked = 0;
    for cut in promises.recording.cuts().unwrap().into_iter().skip(promises.offset) {
        let mut seen: Vec<Image> = Vec::new();
        for seed in 0..if cut.is_settled() { 1 } else { SEEDS } {
            let image = cut.power_cut(seed);
            if seen.contains(&image) {
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
        let checked = check_all(&promises, &file).unwrap_or_else(|error| panic!("{name} start: {error}"));
        let operations = life.recording.operations.len();
        println!("{name} start: {operations} operations, {checked} power cuts survived");
        assert!(operations > 10 && checked > operations, "{name} start was not tried: {checked} of {operations}");
    }
}

#[test]
fn a_power_cut_during_the_start_after_a_kill_takes_nothing_either() {
    let file = ParametersFile::new();
    let [first, _] = whole_lives(&file);
    let mut checked = 0;
    for (life, recording, offset) in lives_after_a_kill(&first, &file) {
        let promises = Promises::new(&life, &recording, offset);
        checked += check_all(&promises, &file).unwrap_or_else(|error| panic!("killed after {offset}: {error}"));
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
                check_all(&Promises::new(life, &forgotten, *offset), &file).err()
            },
        );
        match loss {
            Some(loss) => println!("{site} is needed; without it: {loss}"),
            None => unproven.push(site.to_string()),
        }
    }
    assert_eq!(unproven, Vec::<String>::new(), "nothing fails without these syncs");
}

#[test]
fn the_store_of_the_simulation_is_what_was_acknowledged() {
    let file = ParametersFile::new();
    let [first, _] = whole_lives(&file);
    let end = first.recording.cuts().unwrap().pop().unwrap();
    assert!(end.is_settled(), "a running node has nothing in the air");
    assert_eq!(contents(&end.power_cut(0)), first.acknowledged.last().unwrap().1);
}
