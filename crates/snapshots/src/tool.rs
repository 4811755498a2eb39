//! [`RestoreTool`]: etcd's own tool that makes a member's data of a snapshot.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use polis_supervisor::{Cancelled, Context, ExitStatus, Importance, OutputSink, ProcessSpec, SpawnError};
use tokio::time::timeout;

/// Names of the tool, the better one first: etcd 3.6 has moved it from the second to the first.
const NAMES: [&str; 2] = ["etcdutl", "etcdctl"];

/// How long it may take: 2 GiB on a disk that spins, read and written.
const DEADLINE: Duration = Duration::from_secs(300);

/// Lines of its output that are kept for the message about its failure.
const KEPT_LINES: usize = 5;

/// It matters less than anything else that the node does: it reads and writes as much as the whole database, for a trial.
const LEAST_IMPORTANT: Importance = Importance { out_of_memory_score: Some(500), disk_level: Some(7) };

/// The tool. Clones are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreTool(PathBuf);

/// What is to be made of a snapshot: a cluster of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Directory that is made; it must not exist.
    pub data_directory: PathBuf,
    /// Name of the member.
    pub name: String,
    /// Its peer URL.
    pub peer_url: String,
    /// What tells this cluster from all before it: it is mixed into the ids of cluster and member.
    pub token: String,
}

/// The tool did not do what it was to do with a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The tool did not start.
    #[error("{} cannot be started", tool.display())]
    Start {
        /// The tool.
        tool: PathBuf,
        /// Why.
        #[source]
        source: SpawnError,
    },
    /// It says that it did not work.
    #[error("{} could not work with the file ({status}). It has said: {}", tool.display(), lines.join(" | "))]
    Failed {
        /// The tool.
        tool: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// Its last lines.
        lines: Vec<String>,
    },
    /// It says something that is not what it was asked for.
    #[error("{} has not said what was asked of it, but: {}", tool.display(), lines.join(" | "))]
    NotUnderstood {
        /// The tool.
        tool: PathBuf,
        /// Its last lines.
        lines: Vec<String>,
    },
    /// It does not end.
    #[error("{} has not ended within {} s", tool.display(), DEADLINE.as_secs())]
    TooSlow {
        /// The tool.
        tool: PathBuf,
    },
    /// The node stops.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl RestoreTool {
    /// Finds the tool: beside `etcd`, else in the directories of `search_path` (the value of `PATH`).
    #[must_use]
    pub fn find(etcd: &Path, search_path: Option<&OsStr>) -> Option<Self> {
        let beside = etcd.parent().map(Path::to_owned);
        let searched = std::env::split_paths(search_path.unwrap_or_default());
        let directories = beside.into_iter().chain(searched).filter(|directory| directory.is_absolute());
        let is_program = |path: &PathBuf| {
            fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
        };
        directories.flat_map(|directory| NAMES.map(|name| directory.join(name))).find(is_program).map(Self)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Restores a snapshot, whose hash it checks as well.
    ///
    /// # Errors
    ///
    /// When it does not work. What it has made until then is left.
    pub async fn restore(&self, context: &Context, snapshot: &Path, restored: &Restored) -> Result<(), RestoreError> {
        let Restored { data_directory, name, peer_url, token } = restored;
        let arguments = [
            "snapshot".to_owned(),
            "restore".to_owned(),
            snapshot.display().to_string(),
            format!("--data-dir={}", data_directory.display()),
            format!("--name={name}"),
            format!("--initial-cluster={name}={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster-token={token}"),
        ];
        self.run(context, &arguments).await.map(drop)
    }

    /// Revision of the state in a snapshot, or in the database of a member that does not run. Changes nothing.
    ///
    /// # Errors
    ///
    /// When it does not work, or the file is damaged.
    pub async fn revision(&self, context: &Context, database: &Path) -> Result<i64, RestoreError> {
        let file = database.display().to_string();
        let arguments = ["snapshot".to_owned(), "status".to_owned(), file, "--write-out=json".to_owned()];
        let lines = self.run(context, &arguments).await?;
        let status = lines.iter().find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let revision = status.and_then(|status| status["revision"].as_i64());
        revision.ok_or_else(|| RestoreError::NotUnderstood { tool: self.0.clone(), lines })
    }

    /// Runs it to its end, and returns its last lines.
    async fn run(&self, context: &Context, arguments: &[String]) -> Result<Vec<String>, RestoreError> {
        let mut spec = ProcessSpec::new(&self.0).arguments(arguments);
        // etcdctl before 3.4 spoke another language by default.
        spec = spec.variable("ETCDCTL_API", "3");
        spec.importance = LEAST_IMPORTANT;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = || {
            let lines = Arc::clone(&lines);
            OutputSink::lines(move |line| {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.len() == KEPT_LINES {
                    lines.remove(0);
                }
                lines.push(line.to_owned());
            })
        };
        (spec.standard_output, spec.standard_error) = (sink(), sink());
        let tool = || self.0.clone();
        let process = context.process(spec).await.map_err(|source| RestoreError::Start { tool: tool(), source })?;
        let kept = || lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match context.unless_cancelled(timeout(DEADLINE, process.wait())).await {
            Ok(Ok(status)) if status.is_success() => Ok(kept()),
            Ok(Ok(status)) => Err(RestoreError::Failed { tool: tool(), status, lines: kept() }),
            Ok(Err(_)) => {
                process.stop().await;
                Err(RestoreError::TooSlow { tool: tool() })
            }
            Err(cancelled) => {
                process.stop().await;
                Err(cancelled.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(directory: &Path, name: &str, mode: u32) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn the_tool_is_found_beside_etcd_and_then_in_the_path() {
        let (beside, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let etcd = beside.path().join("etcd");
        let find = || RestoreTool::find(&etcd, Some(other.path().as_os_str())).map(|tool| tool.0);
        assert_eq!(find(), None);
        program(other.path(), "etcdutl", 0o644);
        assert_eq!(find(), None, "it is no program");
        let second = program(other.path(), "etcdctl", 0o755);
        assert_eq!(find(), Some(second));
        let third = program(beside.path(), "etcdctl", 0o755);
        assert_eq!(find(), Some(third));
        let first = program(beside.path(), "etcdutl", 0o755);
        assert_eq!(find(), Some(first));
    }
}
