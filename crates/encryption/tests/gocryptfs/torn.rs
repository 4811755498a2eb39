//! SIGKILL of a node in the middle of its writes: whatever was synced can be read afterwards, always.
//!
//! gocryptfs that dies within a write tears a block of 4 KiB, and what had been synced in it is lost. Here lives of a node write,
//! are killed at random instants, and the next one, which comes at once, reads everything.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use polis_storage::data::DataPartition as _;

use crate::common::{DEADLINE, Home, World, can_run, is_mounted, keys, processes};

/// Names the root in which a child of this test does its work.
const ROOT: &str = "POLIS_ENCRYPTION_TEST_ROOT";
/// The number of the last record that was acknowledged to be synced.
const ACKNOWLEDGED: &str = "POLIS_ENCRYPTION_TEST_ACKNOWLEDGED";
/// Lives, in a run and in one with `POLIS_SOAK=1`. Killed with its node, gocryptfs tore a block in one of some fifty of them.
const LIVES: usize = 80;
const LIVES_OF_A_SOAK: usize = 3000;
/// Longest time that a life may write.
const LONGEST: u64 = 40;
/// Files whose blocks are overwritten, each by its own thread.
const FILES: usize = 3;
const LENGTH: u64 = 256 << 10;
const BLOCK: usize = 4096;
/// Lengths of writes: a record of a log, a block, and as much as the kernel passes on at once.
const WRITES: [usize; 3] = [200, BLOCK, 100_000];
/// Records of the log, which is written over and over: a number, and its complement.
const RECORD: usize = 16;
const RECORDS: u64 = (8 * BLOCK / RECORD) as u64;

/// Random numbers: a linear congruence.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What a life finds and does on its files, in the open partition.
struct Files(PathBuf);

impl Files {
    fn open(&self, name: &str) -> File {
        let path = self.0.join(name);
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    /// Blocks that cannot be read.
    fn torn(&self) -> usize {
        let names = (0..FILES).map(|number| number.to_string()).chain(["log".to_owned()]);
        let files = names.map(|name| self.open(&name));
        let mut block = [0; BLOCK];
        files.map(|file| (0..LENGTH).step_by(BLOCK).filter(|at| file.read_at(&mut block, *at).is_err()).count()).sum()
    }

    /// The number of the last record of the log.
    fn last(&self) -> u64 {
        let mut log = vec![0; RECORD * usize::try_from(RECORDS).unwrap()];
        let count = self.open("log").read_at(&mut log, 0).unwrap();
        let number = |record: &[u8]| u64::from_le_bytes(record.try_into().unwrap());
        let whole = |record: &&[u8]| number(&record[..8]) == !number(&record[8..]);
        log[..count].chunks_exact(RECORD).filter(whole).map(|record| number(&record[..8])).max().unwrap_or(0)
    }

    /// Makes the files anew, block by block in any order: so the kernel keeps them in single pages, between which a write can end.
    fn make(&self, random: &mut Random) {
        for name in 0..FILES {
            let file = self.open(&name.to_string());
            file.set_len(0).unwrap();
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, LENGTH).unwrap();
            let mut blocks: Vec<u64> = (0..LENGTH).step_by(BLOCK).collect();
            while !blocks.is_empty() {
                let index = usize::try_from(random.below(blocks.len() as u64)).unwrap();
                file.write_all_at(&[1; BLOCK], blocks.swap_remove(index)).unwrap();
            }
            file.sync_all().unwrap();
        }
    }

    /// Writes until the process is killed.
    fn write(&self, number: usize, mut random: Random) {
        let file = self.open(&number.to_string());
        let bytes = vec![0x5a; WRITES[WRITES.len() - 1]];
        loop {
            let length = WRITES[usize::try_from(random.below(WRITES.len() as u64)).unwrap()];
            file.write_all_at(&bytes[..length], random.below(LENGTH - length as u64)).unwrap();
        }
    }

    /// Appends to the log and says what is synced, until the process is killed.
    fn append(&self, first: u64) {
        let log = self.open("log");
        for number in first.. {
            let record = [number.to_le_bytes(), (!number).to_le_bytes()].concat();
            log.write_all_at(&record, number % RECORDS * RECORD as u64).unwrap();
            log.sync_data().unwrap();
            println!("acknowledged {number}");
        }
    }
}

/// A life of the node: says how many blocks it has found torn, and writes.
async fn life(root: &OsStr) {
    let world = World::at(Path::new(root));
    world.prepare().await.unwrap();
    world.open(&keys(1)).await.unwrap();
    let files = Files(Path::new(root).join("data/node"));
    let mut random = Random(u64::from(std::process::id()));
    let torn = files.torn();
    let last = if torn == 0 { files.last() } else { 0 };
    let acknowledged: u64 = std::env::var(ACKNOWLEDGED).unwrap().parse().unwrap();
    assert!(torn > 0 || last >= acknowledged, "{acknowledged} was acknowledged, and the last one is {last}");
    if torn > 0 || acknowledged == 0 {
        let _ = std::fs::remove_file(files.0.join("log"));
        files.make(&mut random);
    }
    println!("torn {torn}");
    thread::scope(|scope| {
        for number in 0..FILES {
            let random = Random(random.below(u64::MAX));
            let files = &files;
            scope.spawn(move || files.write(number, random));
        }
        // Processors that are busy interrupt gocryptfs within its writes.
        for _ in 0..thread::available_parallelism().map_or(1, std::num::NonZero::get) {
            scope.spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        files.append(last.max(acknowledged) + 1);
    });
}

/// What was seen of a life.
struct Seen {
    torn: usize,
    acknowledged: u64,
}

/// Has a life begin, and kills it this long after it has begun to write.
fn kill(root: &Path, acknowledged: u64, after: Duration) -> Seen {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "torn::a_node_that_is_killed_loses_nothing_that_was_synced", "--nocapture"]);
    child.env(ROOT, root).env(ACKNOWLEDGED, acknowledged.to_string()).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, receiver) = channel();
    let reader = thread::spawn(move || {
        let mut last = acknowledged;
        for line in output.lines().map_while(Result::ok) {
            if let Some(torn) = line.strip_prefix("torn ") {
                let _ = sender.send(torn.parse::<usize>().unwrap());
            } else if let Some(number) = line.strip_prefix("acknowledged ").and_then(|number| number.parse().ok()) {
                last = number;
            }
        }
        last
    });
    let torn = receiver.recv_timeout(DEADLINE);
    if torn.is_ok() {
        thread::sleep(after);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let acknowledged = reader.join().unwrap();
    Seen { torn: torn.expect("the life begins to write"), acknowledged }
}

#[tokio::test]
async fn a_node_that_is_killed_loses_nothing_that_was_synced() {
    if let Some(root) = std::env::var_os(ROOT) {
        return life(&root).await;
    }
    if !can_run() {
        return;
    }
    let home = Home::new();
    home.world().format(&keys(1)).await.unwrap();
    let lives = if std::env::var_os("POLIS_SOAK").is_some_and(|soak| soak == "1") { LIVES_OF_A_SOAK } else { LIVES };
    let mut random = Random(u64::from(std::process::id()));
    let (began, mut acknowledged, mut torn) = (Instant::now(), 0, 0);
    for _ in 0..lives {
        let seen = kill(home.path(), acknowledged, Duration::from_millis(random.below(LONGEST)));
        torn += usize::from(seen.torn > 0);
        acknowledged = seen.acknowledged;
    }
    let world = home.world();
    world.prepare().await.unwrap();
    world.open(&keys(1)).await.unwrap();
    let files = Files(home.path().join("data/node"));
    torn += usize::from(files.torn() > 0);
    println!("{lives} kills, {acknowledged} records synced, {torn} times torn, {:.0} s", began.elapsed().as_secs_f64());
    assert_eq!(torn, 0, "times that a block was torn, of {lives} kills");
    assert!(files.last() >= acknowledged && acknowledged > 0);
    world.data.close().await.unwrap();
    assert!(!is_mounted(&home.path().join("data")) && processes(home.path()).is_empty(), "nothing is left");
}
