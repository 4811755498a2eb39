//! Making a cluster of one of what a node has, after the others are gone for good (`polis cluster recover`; `cold-start.md`,
//! "Recovery key").
//!
//! All work is done on copies, in `data/etcd/recovering` and `data/etcd/recovered`, by an etcd that nobody reaches. The one step that changes the node is
//! the last: the new data directory takes the place of the old one, which is kept as that of a removed member is. Before it, a
//! kill leaves the node as it was and something to throw away; after it, a cluster of one.
//!
//! Encrypted data are opened for that as a start would open them, with the recovery key in the place of the members that are gone
//! (module `data`). The key that has opened them is put beside the node's own half before that last step, so that the cluster of one starts without
//! anybody; cut off between the two, the node is as it was and has a copy that it drops again when its members open it.
//!
//! A snapshot needs no node: where there is none, one is made for it (module `blank`).

mod blank;
mod data;
mod others;
mod source;
mod state;
mod steps;
mod supervised;
mod swap;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use polis_consensus::{EtcdBinary, PeerPki};
use polis_control::{NodeFilesError, RecoverError, RecoverFound, RecoverReport, RecoverRequest, Recovery};
use polis_curator::KnownHistory;
use polis_identity::{AuthorityCertificate, Certificate, NodeId, NodeKey, verify_certificate_authority};
use polis_manager::OpenOfflineError;
use polis_proto::curator_state;
use polis_roleserve::{addresses_on_disk, load_operator_peers};
use polis_snapshots::RestoreTool;
use polis_storage::journal::Phase;
use polis_storage::{Disk, Journal, Layout, RootDirectory, RootError};
use polis_supervisor::{BoxError, with_causes};
use polis_unlock::{Epoch, SignedMemberList};
use prost::Message as _;

use self::blank::{HeldRestoration, Place};
use self::data::OpenData;
use self::others::{Asker, Others, ask};
use self::source::Source;
use crate::keeping::Keeping;

/// Threads that do it: most of the work is etcd's.
const WORKER_THREADS: usize = 2;

/// Who the node is, as its files say.
pub(super) struct Survivor {
    pub(super) node_id: NodeId,
    pub(super) key: NodeKey,
    pub(super) cluster_id: String,
    pub(super) authority: AuthorityCertificate,
    certificate: Certificate,
    /// The newest list of members that the node has.
    list: Option<SignedMemberList>,
    /// What it has heard of the history of the members.
    pub(super) known: Option<KnownHistory>,
}

/// A recovery that holds the lock of its node.
pub(super) struct HeldRecovery {
    /// Closed before the lock is released.
    data: OpenData,
    /// Held until the end.
    root: RootDirectory,
    keeping: Keeping,
    survivor: Survivor,
    source: Source,
    etcd: EtcdBinary,
    tool: RestoreTool,
    found: RecoverFound,
}

/// What restores a snapshot where it is to be: into the node that is at the root, or on a machine without one. Changes nothing.
pub(super) fn look(request: &RecoverRequest) -> Result<Box<dyn Recovery>, RecoverError> {
    let root = match (RootDirectory::open(&request.root), &request.snapshot) {
        (Ok(root), _) => Some(root),
        (Err(RootError::Absent { .. }), Some(_)) => None,
        (Err(error), _) => return Err(RecoverError::Failed(super::unusable(&request.root, error))),
    };
    let place = match (&root, &request.snapshot) {
        (None, _) => Place::Blank,
        (Some(_), None) => Place::Node,
        (Some(root), Some(_)) => Place::look(root).map_err(|source| {
            let what = format!("it cannot be seen what is at {}", request.root.display());
            RecoverError::Failed(error_of(&what, source, Some("nothing was changed; see to the disk and repeat it")))
        })?,
    };
    match (place, root, request.snapshot.as_deref()) {
        (Place::Blank, root, Some(snapshot)) => {
            let (etcd, tool) = tools(request)?;
            Ok(Box::new(HeldRestoration::look(root, request, snapshot, etcd, tool)?))
        }
        (Place::Restored, _, _) => Err(blank::refused(
            format!(
                "nothing was restored: the node at {} was made of a snapshot and has not run yet",
                request.root.display()
            ),
            "start it (polis node run --root DIR); to restore another snapshot in its place, delete it before (polis node reset --root DIR)",
        )),
        (Place::Foreign(found), _, _) => Err(blank::refused(
            format!(
                "nothing was restored: {} is not empty, and what is there is of no node that is whole: {}",
                request.root.display(),
                found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
            ),
            "give a root that is empty or not there yet; or, if this is the root of a node, bring its enrolment journal back",
        )),
        (Place::Node | Place::Blank, Some(root), _) => Ok(Box::new(HeldRecovery::look(root, request)?)),
        (Place::Node | Place::Blank, None, _) => {
            let absent = RootError::Absent { path: request.root.clone() };
            Err(RecoverError::Failed(super::unusable(&request.root, absent)))
        }
    }
}

/// The programs that do the work.
fn tools(request: &RecoverRequest) -> Result<(EtcdBinary, RestoreTool), RecoverError> {
    let search_path = std::env::var_os("PATH");
    let etcd = EtcdBinary::find(request.etcd.as_deref(), search_path.as_deref())
        .map_err(|error| RecoverError::Missing(error_of("nothing was recovered", error.into(), None)))?;
    let tool = RestoreTool::find(etcd.path(), search_path.as_deref()).ok_or_else(|| {
        RecoverError::Missing(NodeFilesError {
            what: "nothing was recovered: neither etcdutl nor etcdctl is there, which make data of a snapshot".into(),
            hint: Some(
                "run `scripts/setup run`, which unpacks it beside etcd, or install the Debian package etcd-client"
                    .into(),
            ),
            source: None,
        })
    })?;
    Ok((etcd, tool))
}

impl HeldRecovery {
    /// Looks at what is there, asks the others, and changes nothing.
    pub(super) fn look(root: RootDirectory, request: &RecoverRequest) -> Result<Self, RecoverError> {
        let keeping = Keeping::with(root.disk(), request.data_device.as_deref(), None);
        let path = root.path().to_owned();
        let (etcd, tool) = tools(request)?;
        let unfit = |source, hint: Option<&str>| {
            let what = format!("the node at {} cannot be made a cluster of its own", path.display());
            RecoverError::Failed(error_of(&what, source, hint))
        };
        let journal = member_journal(&keeping).map_err(|error| unfit(error, None))?;
        let runtime = runtime().map_err(|error| unfit(error.into(), None))?;
        let data = OpenData::open(runtime, &keeping, &journal, request.recovery_key.as_ref()).map_err(|error| {
            let hint = hint_of(&error);
            unfit(error.into(), hint)
        })?;
        let survivor = Survivor::load(&keeping.disk, &journal).map_err(|error| unfit(error, None))?;
        let disk = &keeping.disk;
        let (snapshot, key) = (request.snapshot.as_deref(), request.recovery_key.as_ref());
        let source = Source::find(disk, snapshot, key, &survivor.cluster_id).map_err(|source| {
            let what = format!("there is nothing that a cluster could be made of at {}", path.display());
            let hint = match (snapshot, key) {
                (Some(_), None) => {
                    "one that is encrypted needs its recovery key (--recovery FILE|-); else give another, or none: then what the \
                     node's own member has is used"
                }
                (Some(_), Some(_)) => "give another, or none: then what the node's own member has is used",
                (None, _) => "run it on another node that was a member, or give a snapshot with --snapshot FILE",
            };
            RecoverError::Failed(error_of(&what, source, Some(hint)))
        })?;
        let asked = survivor.ask_others(disk).map_err(|source| {
            RecoverError::Failed(error_of("the other nodes of the cluster could not be asked", source, None))
        })?;
        let asked = match asked {
            Others::Silent(asked) => asked,
            Others::Alive(alive) => {
                return Err(RecoverError::Refused(NodeFilesError {
                    what: format!("nothing was recovered: {}", alive.of(&survivor.cluster_id)),
                    hint: Some(alive.hint().into()),
                    source: None,
                }));
            }
        };
        let members: Vec<NodeId> =
            survivor.list.iter().flat_map(|list| list.list().members()).map(|it| it.node_id).collect();
        let is_alone = !members.is_empty() && members.iter().all(|member| *member == survivor.node_id);
        if !request.others_are_gone && !is_alone {
            return Err(RecoverError::Refused(NodeFilesError {
                what: "nothing was recovered: the other members do not answer, which does not mean that they are gone"
                    .into(),
                hint: Some(format!(
                    "start them, or repair the network between them and this node: nothing is lost by that. If they are gone for good \
                     ({}), add --others-are-gone. Should a majority of them be alive after all, out of reach from here, they go on as a \
                     second cluster",
                    listed(&asked)
                )),
                source: None,
            }));
        }
        let found = RecoverFound {
            node_id: survivor.node_id,
            cluster_id: survivor.cluster_id.clone(),
            members,
            asked,
            age: source.age(),
            bytes: source.bytes(),
            revision: source.revision(&tool),
            snapshot: source.snapshot().map(PathBuf::from),
        };
        Ok(Self { data, root, keeping, survivor, source, etcd, tool, found })
    }
}

impl Recovery for HeldRecovery {
    fn found(&self) -> &RecoverFound {
        &self.found
    }

    fn run(self: Box<Self>, tell: &dyn Fn(&str)) -> Result<RecoverReport, RecoverError> {
        let what =
            format!("the node at {} was not made a cluster of its own; it is as it was", self.root.path().display());
        let hint = "see to what is named, and repeat it";
        let report = steps::run(&self, tell);
        let Self { data, .. } = *self;
        if let Err(error) = data.close() {
            tell(&format!(
                "the data partition could not be closed; the next start of the node clears that: {}",
                with_causes(&error)
            ));
        }
        report.map_err(|error| RecoverError::Failed(error_of(&what, error, Some(hint))))
    }
}

impl Survivor {
    /// As the files of an open data partition say.
    fn load(disk: &Arc<dyn Disk>, journal: &Journal) -> Result<Self, BoxError> {
        let layout = Layout::new(Arc::clone(disk));
        let credentials =
            layout.data.node.credentials.load()?.ok_or("its data partition has no credentials: is it there?")?;
        let key = NodeKey::from_secret(credentials.node_key.clone());
        let authority = verify_certificate_authority(Certificate::from_der(credentials.ca_certificate)?)?;
        let certificate = Certificate::from_der(credentials.node_certificate)?;
        if PeerPki::load(&layout.data.etcd.credentials, &key)?.is_none() {
            return Err("the node is no consensus member: only one that was has a copy of the cluster's state, and the credentials of one".into());
        }
        if layout.data.etcd.joining.load()?.is_some() {
            return Err("its consensus member has never worked: it was joining when it ended".into());
        }
        let list = layout.esp.polis.signed_members.load()?.map(|loaded| loaded.value.signed_list);
        let list = match list {
            Some(list) => {
                Some(SignedMemberList::verify(curator_state::SignedMemberList::decode(&list[..])?, &authority)?)
            }
            None => None,
        };
        let recorded = journal.highest_epoch.as_ref().map(|it| Epoch { incarnation: it.incarnation, epoch: it.epoch });
        let highest = list.as_ref().map(|list| list.list().epoch()).max(recorded);
        let recoveries = list.as_ref().map(|list| list.list().recoveries().to_vec()).unwrap_or_default();
        Ok(Self {
            node_id: NodeId::of(&key.public()),
            cluster_id: authority.cluster_id().to_string(),
            known: highest.map(|highest| KnownHistory { highest, recoveries }),
            key,
            authority,
            certificate,
            list,
        })
    }

    fn ask_others(&self, disk: &Arc<dyn Disk>) -> Result<Others, BoxError> {
        let mut addresses = addresses_on_disk(disk, &self.authority, &self.node_id);
        for (node, address) in load_operator_peers(disk)? {
            if node != self.node_id && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let asker = Asker { key: &self.key, certificate: &self.certificate, authority: &self.authority };
        runtime()?.block_on(ask(&addresses, &asker))
    }
}

/// The journal of a node that is a member of a cluster.
fn member_journal(keeping: &Keeping) -> Result<Journal, BoxError> {
    let store = Layout::new(Arc::clone(&keeping.disk)).journal_store(keeping.seals.clone());
    let journal = store.load()?.ok_or("there is no node: it has no enrolment journal")?.value;
    match journal.phase() {
        Phase::Enrolled => Ok(journal),
        Phase::Formattable | Phase::Formatted => Err("the node has never been a member of a cluster".into()),
        Phase::Removed { reason } => Err(format!("the node was removed from its cluster: {reason}").into()),
    }
}

/// What to do about data that do not open.
fn hint_of(error: &OpenOfflineError) -> Option<&'static str> {
    Some(match error {
        error if error.wants_recovery_key() => {
            "there are two ways: give the words of the cluster's recovery key (--recovery FILE, or --recovery - to be asked for them); or, \
             where so many members are left that they open each other's data, start them and this node"
        }
        OpenOfflineError::Words(_) | OpenOfflineError::WrongBlob => {
            "nothing was changed; give the words of the recovery key that the cluster had when this node last ran"
        }
        OpenOfflineError::NoBlob(_) | OpenOfflineError::BlobFile(_) | OpenOfflineError::Blob(_) => {
            "nothing was changed; where the ESP of this node was copied, bring esp/polis/recovery.0 and .1 back, or recover another survivor; a \
             snapshot of the cluster is another way: --snapshot FILE on a new machine"
        }
        OpenOfflineError::Data(_) => {
            "nothing was changed; a node whose data are on a device of their own needs --data-device, as at its start"
        }
        OpenOfflineError::NoKey
        | OpenOfflineError::WrongCopy
        | OpenOfflineError::Journal(_)
        | OpenOfflineError::Unavailable(_) => return None,
    })
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build()
}

fn listed(asked: &[(String, String)]) -> String {
    if asked.is_empty() {
        return "no address of another is known".into();
    }
    asked.iter().map(|(address, outcome)| format!("{address}: {outcome}")).collect::<Vec<_>>().join("; ")
}

fn error_of(what: &str, source: BoxError, hint: Option<&str>) -> NodeFilesError {
    NodeFilesError { what: what.to_owned(), hint: hint.map(str::to_owned), source: Some(source) }
}

/// How long ago something was, if the clock allows to say it.
fn since(time: std::time::SystemTime) -> Option<Duration> {
    std::time::SystemTime::now().duration_since(time).ok()
}
