//! What a recovery is made of: the data of the node's own member, or a snapshot.

use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use polis_consensus::{RECOVERY_DIRECTORIES, set_aside_directories};
use polis_recovery::RecoveryKey;
use polis_recovery::snapshot::{Protection, ReadSnapshotError, SnapshotContent, SnapshotHeader, SnapshotReader};
use polis_snapshots::{Checker, RestoreTool, check_file};
use polis_storage::{Disk, DiskPath, FILE_MODE, Layout};
use polis_supervisor::{BoxError, with_causes};

use super::supervised::supervised;
use super::{runtime, since};

/// Directory in etcd's data directory in which it keeps everything.
pub(super) const MEMBER: &str = "member";

/// How much of a snapshot is read at a time.
const PIECE: usize = 256 << 10;

/// What is used.
#[derive(Clone)]
pub(super) enum Source {
    /// The data directory of a member.
    Data {
        /// Where.
        directory: PathBuf,
        /// When something in it was written last.
        written: Option<SystemTime>,
        /// Bytes of its database and log.
        bytes: u64,
    },
    /// A snapshot.
    Snapshot {
        /// Where.
        file: PathBuf,
        /// In what form it is.
        form: Form,
        /// What it says of itself, and whether it is encrypted, in the form in which it leaves a node.
        header: Option<Box<(SnapshotHeader, Protection)>>,
        /// When it was written.
        written: Option<SystemTime>,
        /// Its bytes.
        bytes: u64,
    },
}

/// The form of a snapshot.
#[derive(Clone)]
pub(super) enum Form {
    /// That of etcd, as the members keep theirs.
    Etcd,
    /// That in which a snapshot leaves a node; with the key that opens it, unless it is plain.
    OfPolis(Option<RecoveryKey>),
}

/// A snapshot that is of no use here.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnfitSnapshot {
    /// It is damaged, or encrypted to another key, or of a newer version.
    #[error(transparent)]
    Unreadable(#[from] ReadSnapshotError),
    /// It is of another cluster.
    #[error("the snapshot is of the cluster {found}, and the node belongs to {expected}")]
    OtherCluster {
        /// Whose it is.
        found: String,
        /// Whose the node is.
        expected: String,
    },
    /// What it was taken by may have written what this version does not understand.
    #[error("the snapshot was taken by Polis {found}, which is newer than this {own}")]
    NewerPolis {
        /// What has taken it.
        found: String,
        /// What this is.
        own: String,
    },
}

impl Source {
    /// Finds it and looks whether it can be read; a snapshot is checked by its hash. Changes nothing. Blocks.
    pub(super) fn find(
        disk: &Arc<dyn Disk>,
        snapshot: Option<&Path>,
        key: Option<&RecoveryKey>,
        cluster: &str,
    ) -> Result<Self, BoxError> {
        if let Some(file) = snapshot {
            return Self::of_snapshot(file, key, Some(cluster));
        }
        let etcd = Layout::new(Arc::clone(disk)).data.etcd;
        let mut candidates = vec![etcd.data.path().clone()];
        // Where a swap in two steps was cut off between them, the data are beside.
        let is_attempt = |path: &DiskPath| path.name().is_some_and(|name| RECOVERY_DIRECTORIES.contains(&name));
        candidates.extend(set_aside_directories(&**disk, &etcd)?.into_iter().rev().filter(|path| !is_attempt(path)));
        let found =
            candidates.iter().map(|path| disk.full_path(path)).find(|path| path.join(MEMBER).join("wal").is_dir());
        let directory = found
            .ok_or_else(|| format!("there are no data of a consensus member in {}", etcd.data.full_path().display()))?;
        let (mut written, mut bytes) = (None, 0);
        for part in ["wal", "snap"] {
            for entry in fs::read_dir(directory.join(MEMBER).join(part))? {
                let data = entry?.metadata()?;
                bytes += data.len();
                written = written.max(data.modified().ok());
            }
        }
        Ok(Self::Data { directory: std::path::absolute(directory)?, written, bytes })
    }

    /// A snapshot in either form, of this cluster if one is expected. It is read once to its end. Blocks.
    pub(super) fn of_snapshot(file: &Path, key: Option<&RecoveryKey>, cluster: Option<&str>) -> Result<Self, BoxError> {
        if let Some(found) = of_polis(file, key, cluster)? {
            return Ok(found);
        }
        let read = |error: io::Error| format!("the snapshot {} cannot be read: {error}", file.display());
        let bytes = check_file(file).map_err(read)?.map_err(|damaged| format!("{}: {damaged}", file.display()))?;
        let file = std::path::absolute(file)?;
        let written = fs::metadata(&file).and_then(|data| data.modified()).ok();
        Ok(Self::Snapshot { file, form: Form::Etcd, header: None, written, bytes })
    }

    /// How long ago it was written last.
    pub(super) fn age(&self) -> Option<Duration> {
        match self {
            Self::Data { written, .. } | Self::Snapshot { written, .. } => written.and_then(since),
        }
    }

    pub(super) const fn bytes(&self) -> u64 {
        match self {
            Self::Data { bytes, .. } | Self::Snapshot { bytes, .. } => *bytes,
        }
    }

    /// Revision of the state: of a snapshot the one that it has, of a member's data the least that they have. `None` when it cannot be
    /// read, which whoever uses the source finds out the reason of. Changes nothing. Blocks.
    pub(super) fn revision(&self, tool: &RestoreTool) -> Option<i64> {
        let database = match self {
            Self::Snapshot { header: Some(header), .. } => return i64::try_from(header.0.revision).ok(),
            Self::Snapshot { form: Form::Etcd, file, .. } => file.clone(),
            Self::Snapshot { form: Form::OfPolis(_), .. } => return None,
            Self::Data { directory, .. } => directory.join(MEMBER).join("snap").join("db"),
        };
        let (tool, runtime) = (tool.clone(), runtime().ok()?);
        let revision = supervised(&runtime, &|_| (), move |context, _| {
            let (tool, database) = (tool.clone(), database.clone());
            async move { Ok(tool.revision(&context, &database).await?) }
        });
        revision
            .inspect_err(|error| tracing::warn!("the revision of the data cannot be read: {}", with_causes(&**error)))
            .ok()
    }

    pub(super) fn snapshot(&self) -> Option<&Path> {
        match self {
            Self::Data { .. } => None,
            Self::Snapshot { file, .. } => Some(file),
        }
    }
}

/// A snapshot file of Polis, after all of it was read once; `None` for a file that is none.
fn of_polis(file: &Path, key: Option<&RecoveryKey>, cluster: Option<&str>) -> Result<Option<Source>, BoxError> {
    let unfit = |error: UnfitSnapshot| -> BoxError {
        format!("the snapshot {} cannot be used: {}", file.display(), with_causes(&error)).into()
    };
    let reader = match open(file)? {
        Ok(reader) => reader,
        Err(ReadSnapshotError::NotASnapshot) => return Ok(None),
        Err(error) => return Err(unfit(error.into())),
    };
    let (header, protection) = (reader.header().clone(), reader.protection());
    let found = header.cluster.to_string();
    if let Some(expected) = cluster.filter(|expected| found != *expected) {
        return Err(unfit(UnfitSnapshot::OtherCluster { found, expected: expected.to_owned() }));
    }
    if is_newer(&header.polis_version) {
        let own = polis_version::text().to_owned();
        return Err(unfit(UnfitSnapshot::NewerPolis { found: header.polis_version, own }));
    }
    let mut content = reader.open(key).map_err(|error| unfit(error.into()))?;
    copy_content(&mut content, &mut io::sink()).map_err(|error| format!("{}: {error}", file.display()))?;
    let written = u64::try_from(header.taken_at_seconds).ok().filter(|seconds| *seconds > 0);
    Ok(Some(Source::Snapshot {
        file: std::path::absolute(file)?,
        form: Form::OfPolis(key.cloned()),
        written: written.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds)),
        bytes: header.content_length,
        header: Some(Box::new((header, protection))),
    }))
}

fn open(file: &Path) -> Result<Result<SnapshotReader<BufReader<fs::File>>, ReadSnapshotError>, BoxError> {
    let opened = fs::File::open(file);
    let opened = opened.map_err(|error| format!("the snapshot {} cannot be read: {error}", file.display()))?;
    Ok(SnapshotReader::new(BufReader::new(opened)))
}

/// Whether a version of Polis is newer than this one by more than its patches. A version in another form tells nothing.
fn is_newer(version: &str) -> bool {
    let mut parts = version.split(['.', '-', '+']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else { return false };
    let own = polis_version::version();
    (major, minor) > (own.major, own.minor)
}

/// Reads the content to its end, and checks it as what etcd gave.
fn copy_content<R: Read>(content: &mut SnapshotContent<R>, into: &mut impl Write) -> Result<(), BoxError> {
    let mut checker = Checker::default();
    let mut piece = vec![0; PIECE];
    loop {
        match content.read(&mut piece)? {
            0 => break,
            length => {
                checker.update(&piece[..length]);
                into.write_all(&piece[..length])?;
            }
        }
    }
    checker.finish()?;
    Ok(())
}

/// Writes the content of a snapshot file of Polis to a new file, in etcd's form. Blocks.
pub(super) fn extract(file: &Path, key: Option<&RecoveryKey>, to: &Path) -> Result<(), BoxError> {
    let mut content = open(file)??.open(key)?;
    let mut new = fs::OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(to)?;
    copy_content(&mut content, &mut new)
}

/// Copies the data of a member, without what etcd has only prepared for later. Blocks.
pub(super) fn copy_member(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_member(&entry.path(), &target)?;
        } else if kind.is_file() && entry.path().extension().is_none_or(|end| end != "tmp") {
            let mut new = fs::OpenOptions::new().write(true).create_new(true).open(&target)?;
            io::copy(&mut fs::File::open(entry.path())?, &mut new)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use polis_recovery::snapshot::SnapshotWriter;
    use polis_storage::HostDisk;
    use sha2::{Digest as _, Sha256};

    use super::*;

    const CLUSTER: &str = "00112233445566778899aabbccddeeff";

    /// Name, file, key, and what the problem is if there is one.
    type Case<'a> = (&'static str, Vec<u8>, Option<&'a RecoveryKey>, Option<&'static str>);

    /// What etcd gives: a database and its hash.
    fn content() -> Vec<u8> {
        let database: Vec<u8> = (0..300 * 1024_usize).map(|index| (index % 251) as u8).collect();
        [&database[..], &Sha256::digest(&database)].concat()
    }

    fn file(cluster: &str, version: &str, key: Option<&RecoveryKey>) -> Vec<u8> {
        let content = content();
        let header = SnapshotHeader {
            cluster: cluster.parse().unwrap(),
            revision: 42,
            members: vec![],
            taken_at_seconds: 1_000,
            polis_version: version.to_owned(),
            etcd_version: "3.6.0".into(),
            content_length: content.len() as u64,
            content_sha256: Sha256::digest(&content).into(),
        };
        let mut writer = SnapshotWriter::new(Vec::new(), header, key.map(RecoveryKey::public).as_ref()).unwrap();
        writer.write_all(&content).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn a_snapshot_is_whole_and_of_this_cluster_and_opened_or_it_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(HostDisk::open(directory.path()).unwrap());
        let [key, other] = [(); 2].map(|()| RecoveryKey::generate());
        let own = polis_version::text();
        let sealed = file(CLUSTER, own, Some(&key));
        let mut changed = sealed.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 1;
        let mut longer = sealed.clone();
        longer.push(0);
        let foreign = "ffeeddccbbaa99887766554433221100";
        let cases: [Case<'_>; 12] = [
            ("encrypted", sealed.clone(), Some(&key), None),
            ("plain", file(CLUSTER, own, None), None, None),
            ("plain, with a key that nothing needs", file(CLUSTER, own, None), Some(&key), None),
            ("that of a member", content(), None, None),
            ("without its key", sealed.clone(), None, Some("encrypted to the recovery key")),
            ("with another key", sealed.clone(), Some(&other), Some("the words of the recovery key")),
            ("cut short", sealed[..sealed.len() - 1].to_vec(), Some(&key), Some("cut short")),
            ("cut in its header", sealed[..20].to_vec(), Some(&key), Some("cut short")),
            ("changed", changed, Some(&key), Some("changed or damaged")),
            ("longer", longer, Some(&key), Some("goes on after")),
            ("of another cluster", file(foreign, own, Some(&key)), Some(&key), Some(foreign)),
            ("of a newer version", file(CLUSTER, "99.0.0", Some(&key)), Some(&key), Some("99.0.0")),
        ];
        for (name, bytes, key, problem) in cases {
            let path = directory.path().join("file");
            fs::write(&path, bytes).unwrap();
            match (Source::find(&disk, Some(&path), key, CLUSTER), problem) {
                (Ok(found), None) => {
                    let Source::Snapshot { form: Form::OfPolis(key), file, .. } = &found else { continue };
                    let to = directory.path().join("extracted");
                    extract(file, key.as_ref(), &to).unwrap();
                    assert!(fs::read(&to).unwrap() == content(), "{name}");
                    assert!(extract(file, key.as_ref(), &to).is_err(), "{name}: nothing is written over");
                    fs::remove_file(&to).unwrap();
                }
                (Err(error), Some(problem)) => {
                    let text = error.to_string();
                    assert!(text.contains(problem) && text.contains("file"), "{name}: {text}");
                }
                (Ok(_), Some(_)) => panic!("{name}: it was taken"),
                (Err(error), None) => panic!("{name}: {error}"),
            }
        }
    }

    #[test]
    fn only_what_is_newer_by_more_than_patches_is_newer() {
        let polis_version::Version { major, minor, patch } = polis_version::version();
        for (version, expected) in [
            (format!("{major}.{minor}.{patch}"), false),
            (format!("{major}.{minor}.{}", patch + 9), false),
            (format!("{major}.{}.0", minor + 1), true),
            (format!("{}.0.0", major + 1), true),
            ("0.0.0".to_owned(), false),
            (String::new(), false),
            ("of old".to_owned(), false),
        ] {
            assert_eq!(is_newer(&version), expected, "{version}");
        }
    }
}
