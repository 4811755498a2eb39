//! The directory of a cluster on this machine.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::record::{self, ReadRecordError, Record};
use crate::arguments::DevDirectory;
use crate::configuration::{AUTHORITY_FILE, CERTIFICATE_FILE};
use crate::failure::Failure;
use crate::{atomic_file, owner, shell};

/// Names in a cluster's directory.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// The option that leads later commands here; empty for the default directory.
    option: String,
}

impl Directory {
    /// The directory that the arguments mean. Nothing is made yet.
    pub(super) fn resolve(arguments: &DevDirectory) -> Result<Self, Failure> {
        let unknown = || {
            Failure::usage("it is not known where the cluster's directory belongs")
                .because_of("neither XDG_STATE_HOME nor HOME is set")
                .hint("name a directory: polis dev up --dir DIR")
        };
        let default = default_path(|name| std::env::var_os(name));
        let given = arguments.dir.as_ref().or(default.as_ref()).ok_or_else(unknown)?;
        // What is there is named without symbolic links, as purging must not take a link for the directory.
        let path = fs::canonicalize(given)
            .or_else(|_| std::path::absolute(given))
            .map_err(|error| Failure::failed(format!("{} is not usable as a path", given.display())).because(&error))?;
        let is_default = arguments.dir.is_none() || arguments.dir == default;
        let option = if is_default { String::new() } else { format!(" --dir {}", shell::quote(&path)) };
        Ok(Self { path, option })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// ` --dir DIR` for commands that are to be pasted, or nothing for the default directory.
    pub(super) fn option(&self) -> &str {
        &self.option
    }

    /// The configuration directory with the owner key.
    pub(super) fn owner(&self) -> PathBuf {
        self.path.join("owner")
    }

    pub(super) fn owner_key(&self) -> PathBuf {
        self.owner().join(owner::OWNER_KEY_FILE)
    }

    /// Whether there is what makes commands those of the owner.
    pub(super) fn is_owned(&self) -> bool {
        [CERTIFICATE_FILE, AUTHORITY_FILE].iter().all(|name| self.owner().join(name).exists())
    }

    /// Holds everything of node `number`.
    pub(super) fn node(&self, number: u32) -> PathBuf {
        self.path.join(format!("node-{number}"))
    }

    pub(super) fn node_root(&self, number: u32) -> PathBuf {
        self.node(number).join("root")
    }

    pub(super) fn node_parameters(&self, number: u32) -> PathBuf {
        self.node(number).join("node.pb")
    }

    pub(super) fn node_log(&self, number: u32) -> PathBuf {
        self.node(number).join("polis.log")
    }

    /// The record of the cluster; `None` when there is no cluster here.
    pub(super) fn record(&self) -> Result<Option<Record>, Failure> {
        record::read(&self.path).map_err(|error| match error {
            ReadRecordError::Future { .. } => Failure::of(&error).hint("use the `polis` that made the cluster"),
            ReadRecordError::Read { .. } => Failure::of(&error),
            ReadRecordError::Damaged { .. } => Failure::of(&error).hint(format!(
                "which processes run is not known any more. End them by hand, then remove {} by hand",
                self.path.display()
            )),
        })
    }

    /// The record of a cluster that must be there.
    pub(super) fn require_record(&self) -> Result<Record, Failure> {
        let missing = || {
            Failure::usage(format!("there is no cluster at {}", self.path.display()))
                .hint(format!("start one: polis dev up{}", self.option))
        };
        self.record()?.ok_or_else(missing)
    }

    pub(super) fn write_record(&self, record: &Record) -> Result<(), Failure> {
        record::write(&self.path, record).map_err(|error| {
            let path = self.path.join(record::FILE);
            Failure::failed(format!("the cluster's record {} could not be written", path.display())).because(&error)
        })
    }

    /// Whether something is here that no `polis dev` made.
    pub(super) fn is_foreign(&self) -> io::Result<bool> {
        if record::exists(&self.path)? {
            return Ok(false);
        }
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        for entry in entries {
            if !atomic_file::is_leftover(&entry?.file_name()) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// `$XDG_STATE_HOME/polis/dev`, else `~/.local/state/polis/dev`.
fn default_path(environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| environment(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local/state")))
        .map(|base| base.join("polis/dev"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_follows_the_environment() {
        let check = |state: &str, home: &str, expect: Option<&str>| {
            let found = default_path(|name| {
                let value = if name == "HOME" { home } else { state };
                (!value.is_empty()).then(|| value.into())
            });
            assert_eq!(found, expect.map(PathBuf::from));
        };
        check("/s", "/h", Some("/s/polis/dev"));
        check("relative", "/h", Some("/h/.local/state/polis/dev"));
        check("", "/h", Some("/h/.local/state/polis/dev"));
        check("", "", None);
    }

    #[test]
    fn a_directory_with_things_of_others_is_foreign() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory { path: temporary.path().join("dev"), option: String::new() };
        assert!(!directory.is_foreign().unwrap(), "absent");
        fs::create_dir(directory.path()).unwrap();
        assert!(!directory.is_foreign().unwrap(), "empty");
        fs::write(directory.path().join(".polis-abcdef.new"), "").unwrap();
        assert!(!directory.is_foreign().unwrap(), "left by an interrupted start");
        fs::write(directory.path().join("thesis.tex"), "").unwrap();
        assert!(directory.is_foreign().unwrap());
    }
}
