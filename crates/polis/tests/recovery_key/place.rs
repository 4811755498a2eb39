//! A cluster on encrypted data with a recovery key, and the person who has the words.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polis_control::Status;
use polis_testkit::cluster::Run;
use polis_testkit::host::PATIENCE;
use polis_testkit::snapshot::Snapshot;
use polis_testkit::{Cluster, StorageSecurity};
use serde_json::Value;

/// Pause between two looks at the cluster.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// What a node keeps of itself, on its ESP and of its data.
const KEPT: [&str; 2] = ["esp/polis", "encrypted"];

/// A cluster, and files with the words of recovery keys.
pub(crate) struct Place {
    pub(crate) cluster: Cluster,
    /// How many keys were made.
    made: u32,
}

/// A recovery key of the test.
pub(crate) struct Key {
    /// The file with its words.
    pub(crate) words: String,
    /// The file with its public half.
    pub(crate) public: String,
    pub(crate) fingerprint: String,
}

impl Place {
    /// So many places for nodes. Nothing runs yet.
    pub(crate) fn of(count: usize) -> Self {
        let mut cluster = Cluster::on_loopback(Path::new(env!("CARGO_BIN_EXE_polis")), count);
        cluster.storage = StorageSecurity::Authenticated;
        Self { cluster, made: 0 }
    }

    /// Makes a recovery key.
    pub(crate) fn key(&mut self) -> Key {
        self.made += 1;
        let file = |name: String| self.cluster.directory().join(name).display().to_string();
        let [words, public] = [format!("words-{}", self.made), format!("recovery-{}.pem", self.made)].map(file);
        let _ = self.cluster.polis_with("recovery-key create", &["--words-to", &words, "-o", &public]).succeeds();
        let shown = self.cluster.polis_with("recovery-key show -o json", &[&public]).succeeds().json();
        Key { words, public, fingerprint: shown["fingerprint"].as_str().unwrap().to_owned() }
    }

    /// Has the cluster that is going to be founded know this key from its birth.
    pub(crate) fn found_with(&mut self, key: &Key) {
        let file = |name: &str| self.cluster.directory().join(name).display().to_string();
        let owner = self.cluster.configuration().join("owner-key.pem").display().to_string();
        let _ = self.cluster.polis("owner create").succeeds();
        // Leaves polis.pb where the parameters of the cluster are going to be.
        let arguments = ["--owner-key", owner.as_str(), "--recovery-key", &key.public, "-o", &file("other.pb")];
        let _ = self.cluster.polis_with("parameters bootstrap", &arguments).succeeds();
    }

    /// A cluster of one that has this key from its birth, once its node has sealed its keys to it.
    pub(crate) fn alone() -> (Self, Key) {
        let mut place = Self::of(1);
        let key = place.key();
        place.found_with(&key);
        place.cluster.found();
        place.wait_blobs();
        (place, key)
    }

    pub(crate) fn root(&self, number: usize) -> PathBuf {
        self.cluster.hosts[number].root()
    }

    /// Waits until every member has handed in what it has sealed to the present key, and returns what `cluster status` says.
    #[track_caller]
    pub(crate) fn wait_blobs(&self) -> Value {
        self.wait_status("every member has sealed its keys", |status| {
            let members = status["members"].as_array().unwrap();
            members.iter().all(|member| member["recovery_blob"] == true)
        })
    }

    #[track_caller]
    pub(crate) fn wait_status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let run = self.cluster.polis("cluster status -o json");
            if run.code == Some(0) && wanted(&run.json()) {
                return run.json();
            }
            assert!(Instant::now() < deadline, "the cluster did not come to: {what}; last {run:#?}");
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// Waits until this holds.
    #[track_caller]
    pub(crate) fn wait(&mut self, what: &str, wanted: impl Fn(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !wanted(self) {
            assert!(Instant::now() < deadline, "it did not come to: {what}");
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// Tries to open a node with the words in this file.
    pub(crate) fn unlock(&self, number: usize, words: &str, fingerprint: Option<&str>) -> Run {
        let address = self.cluster.hosts[number].ip().to_string();
        let mut arguments = vec!["--endpoints", &address, "--recovery", words];
        arguments.extend(fingerprint.iter().flat_map(|fingerprint| ["--fingerprint", fingerprint]));
        self.cluster.polis_with("unlock", &arguments)
    }

    /// What a node keeps, as it is now.
    pub(crate) fn kept(&self, number: usize) -> Vec<Snapshot> {
        KEPT.iter().map(|name| Snapshot::of(&self.root(number).join(name))).collect()
    }

    /// Writes the words of a key once more, with a change.
    pub(crate) fn changed_words(&self, key: &Key, change: impl Fn(&mut Vec<String>)) -> String {
        let text = fs::read_to_string(&key.words).unwrap();
        let mut words: Vec<String> = text.split_whitespace().skip(1).step_by(2).map(str::to_owned).collect();
        assert_eq!(words.len(), 24, "each word has its number before it");
        change(&mut words);
        let file = self.cluster.directory().join("changed").display().to_string();
        fs::write(&file, words.join(" ")).unwrap();
        file
    }
}

/// Asserts that a command has failed, and that it says all of this.
#[track_caller]
pub(crate) fn fails(run: &Run, code: i32, parts: &[&str]) {
    assert_eq!(run.code, Some(code), "{run:#?}");
    for part in parts {
        assert!(run.stderr.contains(part), "{part} is missing in {run:#?}");
    }
}

/// Asserts that nothing has changed since.
#[track_caller]
pub(crate) fn unchanged(before: &[Snapshot]) {
    for before in before {
        assert_eq!(before.changes(), Vec::<String>::new());
    }
}

/// The fingerprint that a node shows in this condition.
pub(crate) fn shown_fingerprint(status: &Status, condition: &str) -> String {
    let condition = status.conditions.iter().find(|found| found.name == condition).expect("it was waited for");
    let text = format!("{} {}", condition.message, condition.hint);
    let is_one = |word: &&str| word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let found = text.split(|character: char| !character.is_ascii_alphanumeric()).find(is_one);
    found.unwrap_or_else(|| panic!("it shows no fingerprint: {text}")).to_owned()
}
