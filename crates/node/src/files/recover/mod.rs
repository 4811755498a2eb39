//! Making a cluster of one of what a node has, after the others are gone for good (`polis cluster recover`; `cold-start.md`,
//! "Recovery key").
//!
//! All work is done on copies, in `data/etcd/recovering` and `data/etcd/recovered`, by an etcd that nobody reaches. The one step that changes the node is
//! the last: the new data directory takes the place of the old one, which is kept as that of a removed member is. Before it, a
//! kill leaves the node as it was and something to throw away; after it, a cluster of one.

mod others;
mod source;
mod steps;
mod swap;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use polis_consensus::{EtcdBinary, PeerPki};
use polis_control::{NodeFilesError, RecoverError, RecoverFound, RecoverReport, RecoverRequest, Recovery};
use polis_identity::{AuthorityCertificate, Certificate, NodeId, NodeKey, verify_certificate_authority};
use polis_proto::curator_state;
use polis_roleserve::{addresses_on_disk, load_operator_peers};
use polis_snapshots::RestoreTool;
use polis_storage::journal::Phase;
use polis_storage::{Disk, Layout, RootDirectory};
use polis_supervisor::BoxError;
use polis_unlock::{Epoch, SignedMemberList};
use prost::Message as _;

use self::others::{Others, ask};
use self::source::Source;
use crate::keeping::seals;

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
    /// Highest epoch that it has heard of.
    pub(super) highest: Option<Epoch>,
}

/// A recovery that holds the lock of its node.
pub(super) struct HeldRecovery {
    /// Held until the end.
    root: RootDirectory,
    survivor: Survivor,
    source: Source,
    etcd: EtcdBinary,
    tool: RestoreTool,
    found: RecoverFound,
}

impl HeldRecovery {
    /// Looks at what is there, asks the others, and changes nothing.
    pub(super) fn look(root: RootDirectory, request: &RecoverRequest) -> Result<Self, RecoverError> {
        let disk: Arc<dyn Disk> = root.disk();
        let path = root.path().to_owned();
        let search_path = std::env::var_os("PATH");
        let etcd = EtcdBinary::find(request.etcd.as_deref(), search_path.as_deref())
            .map_err(|error| RecoverError::Missing(error_of("nothing was recovered", error.into(), None)))?;
        let tool = RestoreTool::find(etcd.path(), search_path.as_deref()).ok_or_else(|| {
            RecoverError::Missing(NodeFilesError {
                what: "nothing was recovered: neither etcdutl nor etcdctl is there, which make data of a snapshot"
                    .into(),
                hint: Some(
                    "run `scripts/setup run`, which unpacks it beside etcd, or install the Debian package etcd-client"
                        .into(),
                ),
                source: None,
            })
        })?;
        let survivor = Survivor::load(&disk).map_err(|source| {
            let what = format!("the node at {} cannot be made a cluster of its own", path.display());
            RecoverError::Failed(error_of(&what, source, None))
        })?;
        let (snapshot, key) = (request.snapshot.as_deref(), request.recovery_key.as_ref());
        let source = Source::find(&disk, snapshot, key, &survivor.cluster_id).map_err(|source| {
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
        let asked = survivor.ask_others(&disk).map_err(|source| {
            RecoverError::Failed(error_of("the other nodes of the cluster could not be asked", source, None))
        })?;
        let asked = match asked {
            Others::Silent(asked) => asked,
            Others::Quorum { leader } => {
                return Err(RecoverError::Refused(NodeFilesError {
                    what: format!(
                        "nothing was recovered: the cluster {} lives. {leader} leads it and has the quorum",
                        survivor.cluster_id
                    ),
                    hint: Some(
                        "start this node: it goes on as what it is in its cluster. If its data are damaged, the others replace its \
                         member by themselves"
                            .into(),
                    ),
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
            snapshot: source.snapshot().map(PathBuf::from),
        };
        Ok(Self { root, survivor, source, etcd, tool, found })
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
        steps::run(&self, tell).map_err(|error| RecoverError::Failed(error_of(&what, error, Some(hint))))
    }
}

impl Survivor {
    fn load(disk: &Arc<dyn Disk>) -> Result<Self, BoxError> {
        let layout = Layout::new(Arc::clone(disk));
        let journal =
            layout.journal_store(seals(None)).load()?.ok_or("there is no node: it has no enrolment journal")?.value;
        match journal.phase() {
            Phase::Enrolled => {}
            Phase::Formattable | Phase::Formatted => return Err("the node has never been a member of a cluster".into()),
            Phase::Removed { reason } => return Err(format!("the node was removed from its cluster: {reason}").into()),
        }
        if layout.encrypted.partition.exists()? || journal.node_unlock_key.is_some() {
            return Err("its data are encrypted, and this command works on data that are not. Where a quorum of the members still has \
                        power, they open each other's data at their next start; where too few are left, start this node and open it \
                        with the recovery key: polis unlock --recovery"
                .into());
        }
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
        Ok(Self {
            node_id: NodeId::of(&key.public()),
            cluster_id: authority.cluster_id().to_string(),
            highest: list.as_ref().map(|list| list.list().epoch()).max(recorded),
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
        runtime()?.block_on(ask(&addresses, &self.key, &self.certificate, &self.authority))
    }
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
