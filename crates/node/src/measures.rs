//! What is measured on this node, and where it comes from.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use jiff::Timestamp;
use polis_curator::{Curator, LeaderState, Leadership};
use polis_logtree::LogTree;
use polis_proto::common::{NodeRoles, NodeState};
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::watch_event::Progress;
use polis_proto::curator_api::{WatchRequest, watch_request};
use polis_roleserve::{ControlPlane, RoleServe};
use polis_rpc::CallPolicy;
use polis_supervisor::Observer;
use tokio::time::{Instant, timeout};

use crate::metrics::{Deaths, Discovered, LeadingSample, Measured, ProcessSample, QuorumSample, Snapshot};
use crate::status::Sources;

/// How long the leader may take to ask the consensus members how they are, for a page of metrics. Monitoring waits for 10 s by
/// default, and a page without the quorum is better than none.
const SURVEY_DEADLINE: Duration = Duration::from_secs(4);

/// How long a node without a curator may take to ask the leader which nodes there are.
const DISCOVERY_POLICY: CallPolicy = CallPolicy::within(Duration::from_secs(5));

/// Where all that is measured on this node comes from. Clones are the same.
#[derive(Clone)]
pub(crate) struct Measures {
    pub(crate) observer: Observer,
    pub(crate) log_tree: LogTree,
    pub(crate) deaths: Deaths,
    pub(crate) sources: Sources,
    pub(crate) control_plane: ControlPlane,
    pub(crate) role_serve: RoleServe,
}

#[tonic::async_trait]
impl Measured for Measures {
    async fn snapshot(&self) -> Snapshot {
        let member = self.control_plane.member().borrow().as_ref().map(|member| member.status());
        let contact_age = self.role_serve.contact().borrow().silent_for(Instant::now());
        let status = self.sources.now();
        let newest = status.snapshots.as_ref().map(|kept| kept.newest);
        // One that a wrong clock has put into the future is new.
        let snapshot_age = newest.map(|newest| Timestamp::now().duration_since(newest).try_into().unwrap_or_default());
        Snapshot {
            status,
            snapshot_age,
            runnables: self.observer.dump(),
            deaths: self.deaths.counts(),
            contact_age,
            member: member.map(|status| status.borrow().clone()),
            leading: self.leading().await,
            log: self.log_tree.usage(),
            process: ProcessSample::take(),
        }
    }

    async fn etcd(&self) -> io::Result<Vec<u8>> {
        let member = self.control_plane.member().borrow().clone();
        match member {
            Some(member) => member.etcd_metrics().await,
            None => Err(io::Error::new(io::ErrorKind::NotFound, "this node runs no consensus member")),
        }
    }

    async fn discover(&self) -> Vec<Discovered> {
        match self.curator() {
            Some(curator) => {
                let records = curator.nodes().all();
                records
                    .iter()
                    .filter_map(|record| {
                        let record = &record.value;
                        let address = &record.status.as_ref()?.external_address;
                        (record.state == NodeState::Up)
                            .then(|| discovered(record.id.to_string(), address, &record.roles))
                            .flatten()
                    })
                    .collect()
            }
            None => self.ask_leader().await.unwrap_or_default(),
        }
    }
}

impl Measures {
    fn curator(&self) -> Option<Curator> {
        self.control_plane.curator().borrow().clone()
    }

    async fn leading(&self) -> Option<LeadingSample> {
        let curator = self.curator()?;
        let leader = leader_state(&curator)?;
        let now = Instant::now();
        let records = curator.nodes().all();
        let up = records.iter().filter(|record| record.value.state == NodeState::Up).map(|record| record.value.id);
        let heartbeat_ages = up.map(|id| (id, curator.heartbeats().age(&id, now))).collect();
        // Without an answer in time the rest is still worth a page.
        let status = timeout(SURVEY_DEADLINE, curator.members().status(&leader)).await.ok().and_then(Result::ok);
        let (quorum, joins) = match status {
            Some(status) => (
                Some(QuorumSample { voters: status.margin.voters, answering: status.margin.reachable }),
                status.queue.iter().map(|queued| (queued.node, queued.attempts)).collect(),
            ),
            None => (None, BTreeMap::new()),
        };
        Some(LeadingSample { heartbeat_ages, quorum, joins })
    }

    /// The nodes of the cluster, as the leader has them.
    async fn ask_leader(&self) -> Option<Vec<Discovered>> {
        let cluster = self.role_serve.cluster()?;
        let listed = cluster.call(DISCOVERY_POLICY, |channel| async move {
            let kind = watch_request::Kind::NodesInCluster(watch_request::NodesInCluster {});
            let request = WatchRequest { kind: Some(kind) };
            let mut events = CuratorClient::new(channel).watch(request).await?.into_inner();
            let mut nodes = Vec::new();
            while let Some(event) = events.message().await? {
                let last = event.progress() == Progress::LastBacklogged;
                nodes.extend(event.nodes);
                if last {
                    break;
                }
            }
            Ok(nodes)
        });
        let nodes = listed.await.ok()?;
        let discovered = nodes.into_iter().filter_map(|node| {
            let up = node.state() == NodeState::Up;
            let roles = node.roles.unwrap_or_default();
            discovered(node.id, &node.status?.external_address, &roles).filter(|_| up)
        });
        Some(discovered.collect())
    }
}

fn leader_state(curator: &Curator) -> Option<LeaderState> {
    match &*curator.leadership().borrow() {
        Leadership::Leader(state) => Some(state.clone()),
        Leadership::Unsettled | Leadership::Follower { .. } => None,
    }
}

fn discovered(node_id: String, address: &str, roles: &NodeRoles) -> Option<Discovered> {
    (!address.is_empty()).then(|| Discovered {
        node_id,
        address: address.to_owned(),
        consensus_member: roles.consensus_member.is_some(),
        kubernetes_controller: roles.kubernetes_controller.is_some(),
        kubernetes_worker: roles.kubernetes_worker.is_some(),
    })
}
