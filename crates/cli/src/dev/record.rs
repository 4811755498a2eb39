//! What was made in a directory, and which processes run.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::process::ProcessIdentity;
use crate::arguments::StorageSecurityOfDev;
use crate::atomic_file::{self, Existing};
use crate::bounded_file;

/// Name of the record in the cluster's directory.
pub(super) const FILE: &str = "polis-dev.json";

/// Version of the record that this code writes; a later one is not read.
const VERSION: u32 = 1;

/// Most nodes of a cluster: all of them are consensus members, and there are at most 9 of these.
pub(super) const MAX_NODES: usize = 9;

/// Largest record that is read, in bytes: a node takes some two hundred. What is longer is cut, and so does not parse.
const MAX_SIZE: u64 = 1 << 20;

/// A cluster on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    /// Address of node 1.
    pub(super) base_address: IpAddr,
    /// Absolute path of the etcd binary that the nodes were last started with.
    pub(super) etcd: PathBuf,
    /// How the nodes protect their data.
    #[serde(default)]
    pub(super) storage_security: StorageSecurityOfDev,
    /// The nodes, from number 1.
    pub(super) nodes: Vec<NodeRecord>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeRecord {
    /// The process that was started last, unless it was ended since. It may have died.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) process: Option<ProcessIdentity>,
}

/// Why there is no usable record.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadRecordError {
    #[error("the cluster's record {} could not be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the cluster's record {} is damaged", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error(
        "the cluster's record {} has version {version} and was written by a later Polis; this one reads up to version {VERSION}",
        path.display()
    )]
    Future { path: PathBuf, version: u64 },
}

impl Record {
    /// A cluster of `nodes` nodes, none of which was started yet.
    pub(super) fn new(base_address: IpAddr, etcd: PathBuf, nodes: usize) -> Self {
        let (version, storage_security) = (VERSION, StorageSecurityOfDev::default());
        Self { version, base_address, etcd, storage_security, nodes: vec![NodeRecord::default(); nodes] }
    }

    /// Adds a node that was not started yet.
    pub(super) fn add_node(&mut self) {
        self.nodes.push(NodeRecord::default());
    }

    /// Node `number`, counted from 1.
    pub(super) fn node(&self, number: u32) -> Option<&NodeRecord> {
        self.nodes.get(index(number)?)
    }

    /// Node `number`, counted from 1.
    pub(super) fn node_mut(&mut self, number: u32) -> Option<&mut NodeRecord> {
        self.nodes.get_mut(index(number)?)
    }

    /// The numbers of all nodes.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        1..=u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }
}

fn index(number: u32) -> Option<usize> {
    usize::try_from(number.checked_sub(1)?).ok()
}

/// Whether there is a record in `directory`.
pub(super) fn exists(directory: &Path) -> io::Result<bool> {
    directory.join(FILE).try_exists()
}

/// Reads the record in `directory`; `None` when there is none.
///
/// # Errors
///
/// When it cannot be read, is damaged or of a later version.
pub(super) fn read(directory: &Path) -> Result<Option<Record>, ReadRecordError> {
    #[derive(Deserialize)]
    struct Version {
        version: u64,
    }

    let path = directory.join(FILE);
    let bytes = match bounded_file::read(&path, MAX_SIZE) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(source) => return Err(ReadRecordError::Read { path, source }),
    };
    let version = match serde_json::from_slice(&bytes) {
        Ok(Version { version }) => version,
        Err(source) => return Err(ReadRecordError::Damaged { path, source }),
    };
    if version > u64::from(VERSION) {
        return Err(ReadRecordError::Future { path, version });
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|source| ReadRecordError::Damaged { path, source })
}

/// Writes the record, in one step and durably.
///
/// # Errors
///
/// When the system refuses.
pub(super) fn write(directory: &Path, record: &Record) -> io::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(record)?;
    bytes.push(b'\n');
    atomic_file::write(&directory.join(FILE), &bytes, 0o600, Existing::Replace)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_record_comes_back_and_damage_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert!(!exists(path).unwrap());
        assert_eq!(read(path).unwrap(), None);

        let mut record = Record::new("127.1.0.1".parse().unwrap(), "/bin/etcd".into(), 1);
        record.node_mut(1).unwrap().process = Some(ProcessIdentity::of(std::process::id()).unwrap());
        write(path, &record).unwrap();
        assert_eq!(read(path).unwrap(), Some(record.clone()));
        assert_eq!(record.numbers().collect::<Vec<_>>(), [1]);
        assert!(record.node(0).is_none() && record.node(2).is_none());

        let whole = fs::read(path.join(FILE)).unwrap();
        fs::write(path.join(FILE), &whole[..whole.len() / 2]).unwrap();
        assert!(matches!(read(path), Err(ReadRecordError::Damaged { .. })));
        fs::write(path.join(FILE), r#"{"version":9}"#).unwrap();
        assert!(read(path).unwrap_err().to_string().contains("has version 9 and was written by a later Polis"));
    }
}
