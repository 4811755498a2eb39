//! A snapshot on a machine without a node: a new node is made, and the state is given to it as the only consensus member.
//!
//! The state is opened in the data partition of the new node and nowhere else, so that nothing of it lies about where the cluster asks for
//! encrypted data. What the cluster asks for is in the state; so the strictest is made first, and where that is not it, begun anew.
//!
//! Until the last step, the journal in its final phase, a start of the node does nothing but say what was cut off, and the next attempt throws
//! away what there is and makes another node. So no key of a node is ever in use twice.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polis_consensus::EtcdBinary;
use polis_control::{NodeFilesError, RecoverError, RecoverFound, RecoverReport, RecoverRequest, Recovery, Reset};
use polis_encryption::GocryptfsData;
use polis_identity::{NodeId, NodeKey};
use polis_manager::{Restoration, is_restoration};
use polis_recovery::snapshot::Protection;
use polis_snapshots::RestoreTool;
use polis_storage::journal::{Phase, StorageSecurity};
use polis_storage::{DataGate, Layout, RootDirectory, RootError, durable};
use polis_supervisor::{BoxError, with_causes};
use tokio::runtime::Runtime;

use super::source::Source;
use super::state::{Made, RestoredState};
use super::{error_of, runtime};
use crate::files::reset::{HeldReset, NodeReset, REASON};
use crate::keeping::Keeping;

/// What of others is named when a root is not empty.
const NAMED: usize = 3;

/// What a root holds, for a snapshot that is to be restored there.
pub(super) enum Place {
    /// A node, or what is to be taken for one.
    Node,
    /// Nothing, or what an attempt has left that was cut off.
    Blank,
    /// A node that was restored and has never run.
    Restored,
    /// Something of others.
    Foreign(Vec<PathBuf>),
}

impl Place {
    /// Looks, and changes nothing.
    pub(super) fn look(root: &RootDirectory) -> Result<Self, BoxError> {
        let keeping = Keeping::with(root.disk(), None, None);
        let layout = Layout::new(Arc::clone(&keeping.disk));
        // Whatever is wrong with a journal, it is that of a node.
        let Ok(journal) = layout.journal_store(keeping.seals.clone()).load() else { return Ok(Self::Node) };
        if let Some(journal) = journal.map(|loaded| loaded.value) {
            return Ok(match journal.phase() {
                _ if !is_restoration(&journal) => Self::Node,
                Phase::Formattable | Phase::Formatted => Self::Blank,
                Phase::Removed { reason } if reason == REASON => Self::Blank,
                Phase::Enrolled if keeping.disk.metadata(layout.last_state.path())?.is_none() => Self::Restored,
                Phase::Enrolled | Phase::Removed { .. } => Self::Node,
            });
        }
        let reset = NodeReset::look(root.disk())?;
        // An attempt may have died in its very first write, and nobody needs what a write has left that never ended.
        let is_whole = |path: &PathBuf| !path.file_name().and_then(OsStr::to_str).is_some_and(durable::is_temporary);
        let own = reset.plan.items.into_iter().map(|item| item.path).filter(is_whole);
        let found: Vec<PathBuf> = own.chain(reset.plan.stays).take(NAMED).collect();
        Ok(if found.is_empty() { Self::Blank } else { Self::Foreign(found) })
    }
}

/// A snapshot that is to be restored on a machine without a node.
pub(super) struct HeldRestoration {
    /// Absent where there is nothing at all yet.
    root: Option<RootDirectory>,
    path: PathBuf,
    key: NodeKey,
    source: Source,
    /// Whether the state is in the file for everybody to read.
    is_plain: bool,
    etcd: EtcdBinary,
    tool: RestoreTool,
    found: RecoverFound,
}

impl HeldRestoration {
    /// Looks at the snapshot and at what is needed, and changes nothing. `root` has nothing that anybody needs.
    pub(super) fn look(
        root: Option<RootDirectory>,
        request: &RecoverRequest,
        snapshot: &Path,
        etcd: EtcdBinary,
        tool: RestoreTool,
    ) -> Result<Self, RecoverError> {
        if request.data_device.is_some() {
            return Err(refused(
                "nothing was restored: a new node for a snapshot keeps its data below its root".into(),
                "leave out --data-device; further nodes may join with devices of their own",
            ));
        }
        let source = Source::of_snapshot(snapshot, request.recovery_key.as_ref(), None).map_err(|source| {
            let hint = match request.recovery_key {
                None => "one that is encrypted needs its recovery key (--recovery FILE|-); else give another snapshot",
                Some(_) => "nothing was changed; give the words of the key that it names, or another snapshot",
            };
            RecoverError::Failed(error_of("there is nothing that a cluster could be made of", source, Some(hint)))
        })?;
        if !request.others_are_gone {
            return Err(refused(
                "nothing was restored: a cluster that is made of a snapshot is the same cluster, with its keys, and this machine \
                 cannot ask whether its members are still there"
                    .into(),
                "where one of them is left, recover that one (--root of its node): it has newer data and is known to the others. If they are \
                 gone for good, add --others-are-gone. Should a majority of them be alive after all, they go on as a second cluster",
            ));
        }
        let header = match &source {
            Source::Snapshot { header, .. } => header.as_deref(),
            Source::Data { .. } => None,
        };
        let (cluster_id, members) = match header {
            Some((header, _)) => {
                (header.cluster.to_string(), header.members.iter().map(|member| member.node).collect())
            }
            None => ("of the snapshot".to_owned(), Vec::new()),
        };
        let key = NodeKey::generate();
        let found = RecoverFound {
            node_id: NodeId::of(&key.public()),
            cluster_id,
            members,
            asked: Vec::new(),
            age: source.age(),
            bytes: source.bytes(),
            revision: source.revision(&tool),
            snapshot: source.snapshot().map(PathBuf::from),
        };
        let is_plain = header.is_none_or(|(_, protection)| *protection == Protection::Plaintext);
        Ok(Self { root, path: request.root.clone(), key, source, is_plain, etcd, tool, found })
    }

    /// All of it, on a root that is held.
    fn restore(&self, root: &RootDirectory, runtime: &Runtime, tell: &dyn Fn(&str)) -> Result<RecoverReport, BoxError> {
        let keeping = Keeping::with(root.disk(), None, None);
        let mut security = self.strictest(&keeping)?;
        loop {
            discard(root)?;
            tell("making a new node");
            let layout = Layout::new(Arc::clone(&keeping.disk));
            let seals = keeping.seals.clone();
            let mut restoration = Restoration::record(layout, &*keeping.backends, seals, self.key.clone(), security)?;
            runtime.block_on(restoration.open())?;
            let restoration = Arc::new(restoration);
            let state = RestoredState {
                disk: Arc::clone(&keeping.disk),
                restoration: Arc::clone(&restoration),
                security,
                etcd: self.etcd.clone(),
                tool: self.tool.clone(),
                node_id: self.found.node_id,
                source: self.source.clone(),
            };
            let made = state.make(runtime, tell);
            let closed = runtime.block_on(restoration.close());
            match made? {
                Made::Adopted(adopted) => {
                    closed?;
                    restoration.finish(&adopted)?;
                    return Ok(RecoverReport {
                        revision: adopted.left.revision,
                        others: adopted.left.others.iter().copied().collect(),
                        with_keys: adopted.left.with_keys.iter().map(|(node, heard)| (*node, *heard)).collect(),
                        incarnation: adopted.left.epoch.incarnation,
                        kept: None,
                    });
                }
                Made::Wants(wanted) => {
                    closed?;
                    tell("beginning anew, as the cluster keeps its data otherwise");
                    security = wanted;
                }
            }
        }
    }

    /// The strictest way to keep data that this machine has.
    fn strictest(&self, keeping: &Keeping) -> Result<StorageSecurity, BoxError> {
        match keeping.backends.choose(StorageSecurity::AuthenticatedEncrypted) {
            Ok(_) => Ok(StorageSecurity::AuthenticatedEncrypted),
            // Nothing is lost where everybody can read the file; what the cluster asks for is seen to afterwards.
            Err(_) if self.is_plain => Ok(StorageSecurity::Insecure),
            Err(lacking) => {
                let remedy = lacking.remedy.to_string();
                Err(format!(
                    "the snapshot is encrypted and is opened in encrypted data only: {}. {remedy}",
                    with_causes(&lacking)
                )
                .into())
            }
        }
    }
}

impl Recovery for HeldRestoration {
    fn found(&self) -> &RecoverFound {
        &self.found
    }

    fn run(mut self: Box<Self>, tell: &dyn Fn(&str)) -> Result<RecoverReport, RecoverError> {
        let what = format!("the snapshot was not restored at {}", self.path.display());
        let failed = |error: BoxError| {
            RecoverError::Failed(error_of(&what, error, Some("there is no node; see to what is named, and repeat it")))
        };
        // What the new node and etcd make is for their user alone, as at a start.
        rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
        let runtime = runtime().map_err(|error| failed(error.into()))?;
        let root = match self.root.take() {
            Some(root) => root,
            None => RootDirectory::open_or_create(&self.path).map_err(|error: RootError| failed(error.into()))?,
        };
        let restored = self.restore(&root, &runtime, tell);
        restored.map_err(|error| {
            // What cannot be thrown away now is by the next attempt.
            if let Err(left) = discard(&root) {
                tell(&format!("what was begun is left: {}", with_causes(&*left)));
            }
            failed(error)
        })
    }
}

/// Throws away what an attempt has left that came to no end. A node that is whole is never touched.
fn discard(root: &RootDirectory) -> Result<(), BoxError> {
    GocryptfsData::new(root.disk(), DataGate::closed()).clear_left_mount()?;
    match Place::look(root)? {
        Place::Blank => {}
        Place::Restored | Place::Node | Place::Foreign(_) => {
            return Err("there is something at its root meanwhile that it must not touch".into());
        }
    }
    let reset = NodeReset::look(root.disk())?;
    let reset: Box<dyn Reset> = Box::new(HeldReset { root: root.clone(), reset });
    reset.run()?;
    Ok(())
}

/// A refusal with what to do instead.
pub(super) fn refused(what: String, hint: &str) -> RecoverError {
    RecoverError::Refused(NodeFilesError { what, hint: Some(hint.to_owned()), source: None })
}
