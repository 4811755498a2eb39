//! A recovery that is killed at any of its fault points: the node is as it was, or recovered, and what it had is there in either case.
//!
//! `POLIS_SOAK=1` asks for every point; otherwise there are some, chosen by the seed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use polis_control::NodeState;
use polis_testkit::node_data::NodeData;
use polis_testkit::seed::{Random, is_soak};
use polis_testkit::{Cluster, StorageSecurity, processes};

use crate::encrypted::lose;
use crate::{binary, contents, ends_with, recover, recover_command, write, written};

/// Points that are died at in an ordinary run.
const IN_AN_ORDINARY_RUN: usize = 4;

/// SIGKILL.
const KILLED: Option<i32> = Some(9);

/// The member that is left of two.
const SURVIVOR: usize = 1;

const GONE: &[&str] = &["--others-are-gone"];

/// What is left of a cluster of two, as often as it is needed.
struct Scene {
    cluster: Cluster,
    id: String,
    /// A copy of the survivor's files.
    saved: PathBuf,
    /// What its member had.
    before: Files,
}

/// Content of each file below a directory, by its name there.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn files(directory: &Path) -> Files {
    let all = contents(directory).into_iter();
    all.map(|(path, bytes)| (path.strip_prefix(directory).unwrap().to_owned(), bytes)).collect()
}

impl Scene {
    fn new(storage: StorageSecurity) -> Self {
        let mut cluster = Cluster::on_loopback(binary(), 2);
        cluster.storage = storage;
        cluster.grow();
        let id = cluster.id(SURVIVOR);
        write(&cluster, &id, "kept");
        lose(&mut cluster, &[0]);
        let root = cluster.hosts[SURVIVOR].root();
        let saved = cluster.directory().join("saved");
        copy(&root, &saved);
        let before = files(&NodeData::of(&root).path("data/etcd/data"));
        Self { cluster, id, saved, before }
    }

    fn root(&self) -> PathBuf {
        self.cluster.hosts[SURVIVOR].root()
    }

    fn wait_gone(&self) {
        let directory = self.cluster.hosts[SURVIVOR].directory();
        processes::wait_until_gone(directory).unwrap_or_else(|left| panic!("{left}"));
    }

    fn restore(&mut self) {
        self.cluster.kill(SURVIVOR);
        self.wait_gone();
        fs::remove_dir_all(self.root()).unwrap();
        copy(&self.saved, &self.root());
    }

    /// The points of a recovery that nobody disturbs, in their order, each with how often it was passed until then.
    fn points(&mut self) -> Vec<String> {
        let log = self.cluster.directory().join("points");
        let mut command = recover_command(&self.cluster, SURVIVOR, GONE);
        ends_with(&command.env("POLIS_FAULT_LOG", &log).output().unwrap(), 0, &[]);
        let mut passes = BTreeMap::<String, usize>::new();
        let passed = fs::read_to_string(log).unwrap();
        let numbered = passed.lines().map(|point| {
            let pass = passes.entry(point.to_owned()).or_default();
            *pass += 1;
            format!("{point}#{pass}")
        });
        numbered.collect()
    }

    /// Kills a recovery there, looks at what is left, and repeats it.
    fn die_at(&mut self, point: &str) {
        self.restore();
        let mut command = recover_command(&self.cluster, SURVIVOR, GONE);
        let output = command.env("POLIS_FAULT", point).output().unwrap();
        assert_eq!(output.status.signal(), KILLED, "{point}: {output:?}");
        self.wait_gone();
        let is_recovered = self.look(point);
        println!("{point}: {}", if is_recovered { "recovered" } else { "as it was" });
        if is_recovered {
            // The next start needs no repetition.
            self.runs(point);
            self.cluster.kill(SURVIVOR);
            self.wait_gone();
        }
        ends_with(&recover(&self.cluster, SURVIVOR, GONE), 0, &[]);
        self.runs(point);
    }

    /// Whether the node is recovered: then what its member had is kept, and else it is where it was.
    fn look(&self, point: &str) -> bool {
        let data = NodeData::of(&self.root());
        let etcd = data.path("data/etcd");
        if files(&etcd.join("data")) == self.before {
            return false;
        }
        let names = fs::read_dir(&etcd).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut kept = names.filter(|name| name.starts_with("removed-"));
        assert!(kept.any(|name| files(&etcd.join(name)) == self.before), "{point}: what there was is gone");
        true
    }

    fn runs(&mut self, point: &str) {
        self.cluster.start(SURVIVOR);
        let _ = self.cluster.node(SURVIVOR).wait_state(NodeState::Running);
        let members = self.cluster.wait_members("one member", |members| members.len() == 1);
        assert_eq!(members[0]["node_id"], self.id.as_str(), "{point}");
        assert_eq!(written(&self.cluster, &self.id).as_deref(), Some("kept"), "{point}");
    }
}

/// Copies a directory with all that it has of a node that does not run.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg("--").args([from, to]).status().unwrap();
    assert!(copied.success());
}

fn matrix(storage: StorageSecurity) {
    let mut scene = Scene::new(storage);
    let mut points = scene.points();
    for site in ["recover/copy/", "recover/swap/exchanged", "recover/alone/after", "recover/list/"] {
        let is_due = site != "recover/copy/";
        assert_eq!(points.iter().any(|point| point.starts_with(site)), is_due, "{site}: {points:?}");
    }
    println!("{} points", points.len());
    if !is_soak() {
        let mut random = Random::for_this_run();
        while points.len() > IN_AN_ORDINARY_RUN {
            let index = random.below(points.len() as u64) as usize;
            points.remove(index);
        }
    }
    for point in points {
        scene.die_at(&point);
    }
}

#[test]
fn a_killed_recovery_leaves_the_node_as_it_was_or_recovered() {
    matrix(StorageSecurity::Insecure);
}

#[test]
fn a_killed_recovery_of_encrypted_data_leaves_the_node_as_it_was_or_recovered() {
    matrix(StorageSecurity::Authenticated);
}
