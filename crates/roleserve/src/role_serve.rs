//! [`RoleServe`]: the workers of a node that has an identity, and what they tell the rest of it.

use std::net::IpAddr;
use std::sync::Arc;

use polis_identity::{AuthorityCertificate, NodeId};
use polis_proto::curator_state::DecommissionPhase;
use polis_proto::enrolment::ReportNodeRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_rpc::{CallError, ClusterClient, Trust};
use polis_storage::{ClusterDirectory, Disk, Layout, LocalRoles, OperatorPeer, OperatorPeers, TwoGenerationsError};
use polis_supervisor::{Context, Runnable, RunnableResult, runnable};
use polis_unlock::SignedMemberList;
use polis_unlock_service::KnownAddresses;
use prost::Message as _;
use tokio::sync::watch;

use crate::contact::Contact;
use crate::removal::Removal;
use crate::shared::{CALL, Settings, Shared};
use crate::{announcements, workers};

/// What a node does because of its roles, and what it does for its cluster in any role. Clones are the same.
#[derive(Clone)]
pub struct RoleServe(Arc<Shared>);

impl RoleServe {
    /// Prepares the workers; nothing runs yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(Shared::new(settings)))
    }

    /// The runnable whose children the workers are. They wait until it is known who this node is.
    #[must_use]
    pub fn runnable(&self) -> impl Runnable {
        let shared = Arc::clone(&self.0);
        runnable(move |context: Context| {
            let shared = Arc::clone(&shared);
            async move {
                start(&context, &shared)?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        })
    }

    /// The roles of this node: those last known, as soon as they are read from its disk, and then those that the cluster gives
    /// it. They are durable before they are seen here.
    #[must_use]
    pub fn roles(&self) -> watch::Receiver<Option<LocalRoles>> {
        self.0.roles.subscribe()
    }

    /// How this node stands to the leader of its cluster.
    #[must_use]
    pub fn contact(&self) -> watch::Receiver<Contact> {
        self.0.contact.subscribe()
    }

    /// Whom the cluster has let go, for the servers of this node.
    #[must_use]
    pub fn trust(&self) -> watch::Receiver<Arc<Trust>> {
        self.0.trust.subscribe()
    }

    /// Set once the cluster has let this node go, which it has proved. It is then to stop for good.
    #[must_use]
    pub fn removed(&self) -> watch::Receiver<Option<Removal>> {
        self.0.removed.subscribe()
    }

    /// How far this node is to be, or has been, decommissioned, as the cluster has recorded it.
    #[must_use]
    pub fn decommission(&self) -> watch::Receiver<DecommissionPhase> {
        self.0.decommission.subscribe()
    }

    /// Where the other nodes listen for members whose data are locked, each at the likeliest address first. Empty until it is known
    /// who this node is.
    #[must_use]
    pub fn unlock_ports(&self) -> watch::Receiver<Arc<KnownAddresses>> {
        self.0.addresses.unlock_ports()
    }

    /// Public half of the recovery key, once the cluster has told it in this start; `None` as well while no recovery key is set.
    #[must_use]
    pub fn recovery_key(&self) -> watch::Receiver<Option<[u8; 32]>> {
        self.0.recovery_key.subscribe()
    }

    /// Tells the cluster how far this node has come with being decommissioned. With the last phase [`RoleServe::removed`] is set.
    ///
    /// # Errors
    ///
    /// When the cluster did not take it within some seconds; it is to be tried again.
    pub async fn report_decommission(&self, phase: DecommissionPhase) -> Result<(), CallError> {
        let Some(cluster) = self.cluster() else { return std::future::pending().await };
        let request = ReportNodeRequest { decommission: phase.into(), ..ReportNodeRequest::default() };
        let reported = cluster.call(CALL, |channel| {
            let request = request.clone();
            async move { EnrolmentClient::new(channel).report_node(request).await }
        });
        reported.await?;
        if phase == DecommissionPhase::Decommissioned {
            self.0.take_removal(Removal::Decommissioned);
        }
        Ok(())
    }

    /// The client of the cluster with this node's credentials, once there is one.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterClient> {
        self.0.cluster.borrow().clone()
    }

    /// The same, for whoever follows it.
    #[must_use]
    pub fn clients(&self) -> watch::Receiver<Option<ClusterClient>> {
        self.0.cluster.subscribe()
    }

    /// The newest member list that the cluster has signed.
    #[must_use]
    pub fn members(&self) -> watch::Receiver<Option<Arc<SignedMemberList>>> {
        self.0.members.subscribe()
    }
}

fn start(context: &Context, shared: &Arc<Shared>) -> RunnableResult {
    macro_rules! run {
        ($name:literal, $worker:path) => {{
            let shared = Arc::clone(shared);
            context.run($name, move |context: Context| $worker(Arc::clone(&shared), context))?;
        }};
    }
    run!("addresses", workers::bookkeeping::run);
    run!("announcements", announcements::run);
    run!("client", workers::client::run);
    run!("contact", workers::no_contact::run);
    run!("heartbeat", workers::heartbeat::run);
    run!("locate", workers::locate::run);
    run!("member", workers::member::run);
    run!("nodes", workers::nodes::run);
    run!("orders", workers::orders::run);
    run!("other-side", workers::other_side::run);
    run!("peer-revocations", workers::peer_revocations::run);
    run!("record", workers::record::run);
    run!("replacement", workers::replacement::run);
    run!("report", workers::report::run);
    run!("status", workers::status::run);
    run!("trust", workers::trust::run);
    Ok(())
}

/// Writes down which nodes of its cluster a node has been told of, before it has ever had contact as one of them: the leader is
/// looked for there. Whatever directory is there already stays. Blocks.
///
/// # Errors
///
/// When the directory cannot be read or written.
pub fn store_first_directory(
    disk: &Arc<dyn Disk>,
    nodes: impl IntoIterator<Item = (NodeId, Vec<IpAddr>)>,
) -> Result<(), TwoGenerationsError> {
    let file = Layout::new(Arc::clone(disk)).esp.polis.cluster_directory;
    if file.load()?.is_some() {
        return Ok(());
    }
    let nodes: std::collections::BTreeMap<String, Vec<String>> = nodes
        .into_iter()
        .map(|(node_id, addresses)| (node_id.to_string(), addresses.iter().map(IpAddr::to_string).collect()))
        .collect();
    let nodes = nodes.into_iter().map(|(node_id, addresses)| polis_storage::DirectoryNode {
        node_id,
        public_key: None,
        addresses,
        consensus_member: false,
    });
    file.store(&ClusterDirectory { nodes: nodes.collect() }, "directory/first")
}

/// Where the other nodes of the cluster of `authority` may be, as far as the ESP tells: what a node begins with that cannot read
/// anything else yet. Those of consensus members come first. What cannot be read or is not the cluster's is not there. Blocks.
#[must_use]
pub fn addresses_on_disk(disk: &Arc<dyn Disk>, authority: &AuthorityCertificate, own: &NodeId) -> Vec<IpAddr> {
    let Layout { esp, .. } = Layout::new(Arc::clone(disk));
    let directory = esp.polis.cluster_directory.load().ok().flatten().map(|loaded| loaded.value.nodes);
    let members = members_on_disk(disk, authority);
    let own_name = own.to_string();
    let mut nodes = directory.unwrap_or_default();
    nodes.retain(|node| node.node_id != own_name);
    nodes.sort_by_key(|node| !node.consensus_member);
    let known = nodes.iter().flat_map(|node| &node.addresses).filter_map(|address| address.parse().ok());
    let listed = members.iter().flat_map(|signed| signed.list().members());
    let listed = listed.filter(|member| member.node_id != *own).flat_map(|member| member.addresses.iter().copied());
    let mut all: Vec<IpAddr> = Vec::new();
    for address in known.chain(listed) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// The newest list of consensus members that was seen, if it can be read and the cluster has signed it. Blocks.
pub(crate) fn members_on_disk(disk: &Arc<dyn Disk>, authority: &AuthorityCertificate) -> Option<SignedMemberList> {
    let loaded = Layout::new(Arc::clone(disk)).esp.polis.signed_members.load().ok()??;
    let wire = polis_proto::curator_state::SignedMemberList::decode(&loaded.value.signed_list[..]).ok()?;
    SignedMemberList::verify(wire, authority).ok()
}

/// What an operator has said about where nodes are, as it is kept on the disk. Blocks.
///
/// # Errors
///
/// When it cannot be read.
pub fn load_operator_peers(disk: &Arc<dyn Disk>) -> Result<Vec<(NodeId, IpAddr)>, TwoGenerationsError> {
    let stored = Layout::new(Arc::clone(disk)).esp.polis.operator_peers.load()?;
    let peers = stored.map(|loaded| loaded.value.peers).unwrap_or_default();
    let peers = peers.iter().filter_map(|peer| Some((peer.node_id.parse().ok()?, peer.address.parse().ok()?)));
    Ok(peers.collect())
}

/// Keeps what an operator says about where nodes are, instead of what he has said before. Blocks.
///
/// # Errors
///
/// When it cannot be written.
pub fn store_operator_peers(disk: &Arc<dyn Disk>, peers: &[(NodeId, IpAddr)]) -> Result<(), TwoGenerationsError> {
    let mut peers: Vec<OperatorPeer> = peers
        .iter()
        .map(|(node_id, address)| OperatorPeer { node_id: node_id.to_string(), address: address.to_string() })
        .collect();
    peers.sort();
    peers.dedup();
    Layout::new(Arc::clone(disk)).esp.polis.operator_peers.store(&OperatorPeers { peers }, "peers")
}
