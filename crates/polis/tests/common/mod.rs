//! Running the real binary in an environment of its own.

#![allow(dead_code, reason = "each test binary uses a part of this")]

pub(crate) mod cluster;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A temporary home, and the binary run in it.
pub(crate) struct Home(TempDir);

/// What a run of the binary left.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The binary, to be run in the home, with an environment in which it finds nothing but that.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polis"));
        command.env_clear().env("HOME", self.path()).env("PATH", "/nonexistent").current_dir(self.path());
        command
    }

    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Run {
        self.command().args(arguments).output().unwrap().into()
    }

    /// Runs a line of words without spaces in them.
    pub(crate) fn polis(&self, line: &str) -> Run {
        self.run(line.split_ascii_whitespace())
    }

    /// Names of all files and directories below the home.
    pub(crate) fn listing(&self) -> Vec<String> {
        fn walk(directory: &Path, base: &Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                found.push(path.strip_prefix(base).unwrap().display().to_string());
                if path.is_dir() {
                    walk(&path, base, found);
                }
            }
        }
        let mut found = Vec::new();
        walk(self.path(), self.path(), &mut found);
        found.sort();
        found
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Run {
    /// Checks the exit code, and that all `parts` are in the error message.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is missing in {self:#?}");
        }
    }

    /// Checks that it went well, and gives the standard output.
    #[track_caller]
    pub(crate) fn succeeds(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:#?}");
        &self.stdout
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Where the parameters files made by another implementation lie.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../parameters/tests/data").join(name)
}
