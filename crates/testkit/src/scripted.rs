//! An etcd that does what a test wants.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::etcd;

/// A program that is given to nodes as their etcd, and whose behaviour can be changed while they run.
#[derive(Debug)]
pub struct ScriptedEtcd(PathBuf);

impl ScriptedEtcd {
    /// Makes the program in `directory`. When it is run, it does what `script` says, a line for the shell with the real etcd in
    /// `$etcd`. It tells the version of the real one.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    #[must_use]
    pub fn new(directory: &Path, script: &str) -> Self {
        let scripted = Self(directory.join("etcd"));
        scripted.behave(script);
        scripted
    }

    /// Changes what it does from the next time on that it is run.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn behave(&self, script: &str) {
        self.write(&format!("[ \"$1\" != --version ] || exec \"$etcd\" --version\n{script}"));
    }

    /// Behaves like the real etcd from the next time on that it is run.
    pub fn behave_well(&self) {
        self.behave("exec \"$etcd\" \"$@\"");
    }

    /// Tells another version, whatever it is asked.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn tell_version(&self, version: &str) {
        self.write(&format!("echo 'etcd Version: {version}'"));
    }

    /// Says nothing and does not end, whatever it is asked.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn tell_nothing(&self) {
        self.write("exec sleep 600");
    }

    /// The program.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn write(&self, body: &str) {
        let text = format!("#!/bin/sh\nPATH=/usr/bin:/bin\netcd='{}'\n{body}\n", etcd::binary().display());
        // Beside its place and renamed, because it may be run at any moment.
        let new = self.0.with_extension("new");
        fs::write(&new, text).expect("a script can be written");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("a script can be made executable");
        fs::rename(&new, &self.0).expect("a script can be put in place");
    }
}
