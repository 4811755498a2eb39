//! The power fails at every point of a change of members: when the first node has come to it, that node dies, alone or with all others.
//! All come back by themselves, with every write that was acknowledged, and the change is carried out in the end.
//!
//! Which points there are is recorded first, for 1 to 2, 2 to 3, 3 to 4 and 4 to 5 members and back. A short run has two of the four
//! sizes; in it nodes die once at each site that makes a change of members, and at some of the others, at steps that the seed chooses.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use polis_testkit::seed::{Random, is_soak};
use polis_testkit::world;

use crate::recording::{Change, Direction, NAMED, Place, Who, record};
use crate::scene::Scene;
use crate::writer::Writer;

/// Members of the smaller cluster of each size that there is.
const SIZES: [usize; 4] = [1, 2, 3, 4];

/// The size that is in every run: from three members on nobody keeps a copy of his key.
const ALWAYS: usize = 2;

/// Clusters that are worked on at a time: as many as there are processors of a small machine.
const WORKERS: usize = 2;

/// Longest time for a case to end well.
const PATIENCE: Duration = Duration::from_secs(120);

/// An operator who sees that nothing has come of a command gives it again after this time. A change that was cut off is gone on with
/// by itself, or was never written down, or was withdrawn because a member did not answer.
const COMMAND_AGAIN: Duration = Duration::from_secs(10);

/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Both changes of a size, in the order in which they are made.
const DIRECTIONS: [Direction; 2] = [Direction::Grows, Direction::Shrinks];

/// Sites that are not named and are died at in a short run.
const SHORT_OTHERS: usize = 5;

/// SIGKILL.
const KILLED: Option<i32> = Some(9);

/// What has come of a case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Outcome {
    /// A node died there, and all ended well.
    Died,
    /// Nobody came by, which is not certain: another leader, or a start that was faster.
    NotPassed,
    Failed,
}

#[test]
fn a_power_failure_at_any_point_of_a_change_of_members_ends_well() {
    if !world::available() {
        return;
    }
    let mut random = Random::for_this_run();
    let sizes = sizes_of_this_run(&mut random);
    let began = Instant::now();
    let recorded = Mutex::new(Vec::new());
    in_parallel(sizes, |size| {
        let mut stage = Stage::new(size);
        let change = |direction| Change { smaller: size, direction };
        let places = DIRECTIONS.map(|direction| record(&mut stage.scene, change(direction)));
        println!("{size} to {}: {} places, and back: {}", size + 1, places[0].len(), places[1].len());
        recorded.lock().unwrap().push((stage, places));
    });
    let mut recorded = recorded.into_inner().unwrap();
    recorded.sort_by_key(|(stage, _)| stage.size);
    let all: BTreeSet<Place> = recorded.iter().flat_map(|(_, places)| places.iter().flatten().cloned()).collect();
    let missing: Vec<&str> = NAMED.into_iter().filter(|site| all.iter().all(|place| place.site() != *site)).collect();
    assert!(missing.is_empty(), "no change passed {missing:?}: {all:?}");
    let chosen = choose(all, &mut random);
    println!("recorded after {:.1} s; {} places are died at", began.elapsed().as_secs_f64(), chosen.len());
    let outcomes = Mutex::new(BTreeMap::<Outcome, Vec<String>>::new());
    let note = |outcome, name: String| {
        println!("{name:<90} {outcome:?}");
        outcomes.lock().unwrap().entry(outcome).or_default().push(name);
    };
    let work = recorded.into_iter().map(|(stage, _)| (stage, Random::new(random.number()))).collect();
    in_parallel(work, |(stage, mut random)| {
        let own = |direction| {
            let is_own = |place: &&Place| place.change == Change { smaller: stage.size, direction };
            chosen.iter().filter(is_own).cloned().collect()
        };
        let places = DIRECTIONS.map(own);
        stage.die_at(places, &mut random, &note);
    });
    let outcomes = outcomes.into_inner().unwrap();
    let count = |outcome| outcomes.get(&outcome).map_or(0, Vec::len);
    let (died, not_passed) = (count(Outcome::Died), count(Outcome::NotPassed));
    println!(
        "changes of members: {died} power failures, {not_passed} points not passed, {:.1} s",
        began.elapsed().as_secs_f64()
    );
    assert_eq!(outcomes.get(&Outcome::Failed), None);
    assert!(died > 2 * not_passed, "too few nodes died: {outcomes:?}");
}

/// Does this with each of them, some at a time.
fn in_parallel<T: Send>(items: Vec<T>, work: impl Fn(T) + Sync) {
    let queue = Mutex::new(items.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let Some(item) = queue.lock().unwrap().next() else { return };
                    work(item);
                }
            });
        }
    });
}

/// All sizes in a long run, two in a short one.
fn sizes_of_this_run(random: &mut Random) -> Vec<usize> {
    if is_soak() {
        return SIZES.to_vec();
    }
    let others: Vec<usize> = SIZES.into_iter().filter(|size| *size != ALWAYS).collect();
    let other = others[random.below(others.len() as u64) as usize];
    vec![ALWAYS.min(other), ALWAYS.max(other)]
}

/// Every place in a long run; in a short one each named site at one of its places, and some of the others.
fn choose(all: BTreeSet<Place>, random: &mut Random) -> Vec<Place> {
    if is_soak() {
        return all.into_iter().collect();
    }
    let mut sites = BTreeMap::<String, Vec<Place>>::new();
    for place in all {
        sites.entry(place.site().to_owned()).or_default().push(place);
    }
    let mut one_of = |places: &[Place]| places[random.below(places.len() as u64) as usize].clone();
    let mut chosen: Vec<Place> = NAMED.into_iter().map(|site| one_of(&sites[site])).collect();
    sites.retain(|site, _| !NAMED.contains(&site.as_str()));
    let mut others: Vec<Place> = sites.values().map(|places| one_of(places)).collect();
    while chosen.len() < NAMED.len() + SHORT_OTHERS && !others.is_empty() {
        chosen.push(others.swap_remove(random.below(others.len() as u64) as usize));
    }
    chosen
}

/// A cluster whose last node comes and goes, and a client of it.
struct Stage {
    /// Members of the smaller cluster.
    size: usize,
    scene: Scene,
    writer: Writer,
    /// Id of the node that comes and goes.
    moving: String,
}

impl Stage {
    /// A cluster of so many members and one more node.
    fn new(size: usize) -> Self {
        let mut scene = Scene::founded(size + 1);
        scene.grow_to(size);
        scene.join(size..size + 1);
        scene.wait_settled();
        let (writer, moving) = (scene.writer(), scene.cluster.id(size));
        Self { size, scene, writer, moving }
    }

    /// Changes the members there and back until nodes have died at each of these places, those of each direction.
    fn die_at(mut self, mut places: [Vec<Place>; 2], random: &mut Random, note: &dyn Fn(Outcome, String)) {
        while !places.iter().all(Vec::is_empty) {
            for (direction, places) in DIRECTIONS.into_iter().zip(&mut places) {
                let change = Change { smaller: self.size, direction };
                // Where one has more than the other, the way back is an ordinary one.
                let Some(place) = places.pop() else {
                    self.ordinary(change);
                    continue;
                };
                let are_all = random.below(2) == 0;
                let began = Instant::now();
                let case = catch_unwind(AssertUnwindSafe(|| self.case(&place, are_all, random)));
                let outcome = case.unwrap_or(Outcome::Failed);
                let who = if are_all { "all die" } else { "one dies" };
                let (fault, took) = (place.fault(), began.elapsed().as_secs_f64());
                let sizes = format!("{} to {}", change.before(), change.after());
                note(outcome, format!("{sizes}, {:?}, {who}: {fault} ({took:.1} s)", place.who));
                if outcome == Outcome::Failed {
                    // What a failed case leaves is no ground for the next.
                    self = Self::new(self.size);
                    if direction == Direction::Grows {
                        self.ordinary(change);
                    }
                }
            }
        }
    }

    /// Carries out a change in which nobody dies, also not of what an earlier case was to die of.
    fn ordinary(&mut self, change: Change) {
        self.scene.power_cut();
        (0..=change.smaller).for_each(|number| self.start(number, None));
        self.scene.wait_settled();
        let _ = self.scene.polis(&change.command(&self.moving));
        self.scene.members = change.after();
        self.scene.wait_settled();
    }

    /// A change in which the first node that comes to this place dies, alone or with all others.
    fn case(&mut self, place: &Place, are_all: bool, random: &mut Random) -> Outcome {
        let change = place.change;
        let nodes: Vec<usize> = (0..=change.smaller).collect();
        self.scene.power_cut();
        for number in &nodes {
            let who = if *number == change.smaller { Who::Moving } else { Who::Staying };
            self.start(*number, (who == place.who).then(|| place.fault()));
        }
        let mut outcome = Outcome::NotPassed;
        // Each that is to die there does so once; where the power of all fails, the others are started again without it.
        let mut dead_already = BTreeSet::new();
        let mut tend = |stage: &mut Self| {
            let Some(dead) = stage.scene.ended() else { return };
            let is_first = dead_already.insert(dead) && !(are_all && outcome == Outcome::Died);
            assert!(is_first, "node {dead} has died again: {}", stage.scene.reports());
            outcome = Outcome::Died;
            stage.bury(dead, are_all, random);
        };
        // It may come to the place already while it starts.
        self.until("the start", &mut tend, |stage| stage.scene.settled());
        let writing = self.writer.begin(self.scene.addresses(&nodes));
        self.scene.members = change.after();
        let mut command = None;
        self.until("the change", &mut tend, |stage| {
            stage.keep_asking(change, &mut command);
            stage.scene.settled()
        });
        if let Some((mut command, _)) = command {
            // It may wait for a node that has died; the change is there.
            let _ = command.kill();
            command.wait().expect("a child can be waited for");
        }
        self.writer.end(writing);
        // Something of the change may be done after it is settled.
        let mut found = Vec::new();
        self.until("the end", &mut tend, |stage| {
            found = stage.scene.back(&nodes)?;
            Ok(())
        });
        self.writer.check(&found);
        outcome
    }

    fn start(&mut self, number: usize, fault: Option<String>) {
        let mut command = self.scene.cluster.hosts[number].command();
        command.envs(fault.map(|fault| ("POLIS_FAULT", fault)));
        self.scene.cluster.nodes[number] = Some(self.scene.cluster.hosts[number].spawn(command));
    }

    /// Starts the node that has died again, or all.
    fn bury(&mut self, dead: usize, are_all: bool, random: &mut Random) {
        if are_all {
            self.scene.power_cut();
            let mut nodes: Vec<usize> = (0..self.scene.cluster.hosts.len()).collect();
            while !nodes.is_empty() {
                let number = nodes.swap_remove(random.below(nodes.len() as u64) as usize);
                self.start(number, None);
            }
        } else {
            let mut node = self.scene.cluster.nodes[dead].take().expect("it was started");
            let (end, log) = (node.wait_exit(), node.log());
            assert_eq!(end.signal(), KILLED, "node {dead} has not died of the fault: {log}");
            self.start(dead, None);
        }
    }

    /// Gives the command, and gives it again when it has failed, or when nothing has come of it for long.
    fn keep_asking(&self, change: Change, command: &mut Option<(Child, Instant)>) {
        if let Some((running, since)) = command {
            match running.try_wait().expect("a child can be waited for") {
                None => return,
                Some(end) if end.success() && since.elapsed() < COMMAND_AGAIN => return,
                Some(_) => {}
            }
        }
        let mut again = self.scene.cluster.command(&change.command(&self.moving));
        let child = again.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("polis can be started");
        *command = Some((child, Instant::now()));
    }

    /// Looks until something is so, and tends the dead meanwhile.
    fn until(
        &mut self,
        what: &str,
        tend: &mut dyn FnMut(&mut Self),
        mut look: impl FnMut(&mut Self) -> Result<(), String>,
    ) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            tend(self);
            let Err(missing) = look(self) else { return };
            assert!(Instant::now() < deadline, "{what} does not end: {missing}; {}", self.scene.reports());
            std::thread::sleep(LOOK_PAUSE);
        }
    }
}
