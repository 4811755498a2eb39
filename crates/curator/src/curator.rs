//! [`Curator`]: what a node with a consensus member runs to take part in the cluster's state.

mod leading;
mod server;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use polis_condition::{Conditions, Severity};
use polis_consensus::Consensus;
use polis_identity::NodeId;
use polis_rpc::{Limits, ServerIdentity, ServerSettings};
use polis_supervisor::{Context, Runnable, RunnableResult};
use tokio::sync::watch;
use tokio::time::timeout;

use self::leading::while_leading;
use crate::leadership::{Follow, alive};
use crate::membership::{Members, UnfinishedRemoval};
use crate::services::{Services, routes};
use crate::{Heartbeats, LeaderState, Leadership, LeadershipTiming, Nodes, State};

/// Name of the condition that removed members could still be helped by members that have not heard of it.
const REMOVAL_UNFINISHED: &str = "removal-unfinished";

/// How long the nodes may take to hear of a removal before it is said who has not: those that run hear of it in a moment.
const HEARING: Duration = Duration::from_secs(3);

/// Everything that a curator is made of.
pub struct Settings {
    /// The consensus member of this node.
    pub consensus: Consensus,
    /// What the curator shows to those who call it.
    pub identity: ServerIdentity,
    /// The node's address, at which it is called; `None` while it has none.
    pub address: watch::Receiver<Option<IpAddr>>,
    /// How signs of life are given and waited for.
    pub timing: LeadershipTiming,
}

/// The curator of a node: follows the state of the cluster, leads it when it is this node's turn, and serves. Clones are handles
/// of the same; run one of them under a supervisor, beside the consensus member and not above or below it.
///
/// Each of its parts is a runnable of its own, so that the death of one leaves the others running.
#[derive(Clone)]
pub struct Curator(Arc<Inner>);

struct Inner {
    consensus: Consensus,
    identity: ServerIdentity,
    address: watch::Receiver<Option<IpAddr>>,
    timing: LeadershipTiming,
    own: NodeId,
    state: State,
    nodes: Nodes,
    heartbeats: Heartbeats,
    members: Members,
    leadership: watch::Sender<Leadership>,
}

impl Curator {
    /// Prepares a curator; nothing runs yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let Settings { consensus, identity, address, timing } = settings;
        let state = State::new(consensus.kv_root());
        let nodes = Nodes::new(state.clone(), consensus.status());
        let own = identity.node_id();
        let heartbeats = Heartbeats::default();
        Self(Arc::new(Inner {
            members: Members::new(consensus.clone(), heartbeats.clone()),
            consensus,
            identity,
            address,
            timing,
            own,
            state,
            nodes,
            heartbeats,
            leadership: watch::Sender::new(Leadership::Unsettled),
        }))
    }

    /// Who leads the cluster, as this node knows it.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.0.leadership.subscribe()
    }

    /// The nodes of the cluster, as this node last heard of them.
    #[must_use]
    pub fn nodes(&self) -> &Nodes {
        &self.0.nodes
    }

    /// When this node last heard of each node, while it leads.
    #[must_use]
    pub fn heartbeats(&self) -> &Heartbeats {
        &self.0.heartbeats
    }

    /// The cluster's state, for reading.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.0.state
    }

    /// The consensus members, for reading how they stand.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.0.members
    }

    /// The consensus member of this node.
    #[must_use]
    pub fn consensus(&self) -> &Consensus {
        &self.0.consensus
    }
}

impl Runnable for Curator {
    fn run(&self, context: Context) -> BoxFuture<'static, RunnableResult> {
        let inner = Arc::clone(&self.0);
        async move {
            context.run("nodes", inner.nodes.clone())?;
            context.run("leadership", inner.follow())?;
            let living = Arc::clone(&inner);
            context.run("alive", move |context: Context| Arc::clone(&living).alive(context))?;
            let changing = Arc::clone(&inner);
            context.run("membership", move |context: Context| Arc::clone(&changing).change_members(context))?;
            let telling = Arc::clone(&inner);
            context.run("removals", move |context: Context| Arc::clone(&telling).tell_unfinished(context))?;
            context.run("server", move |context: Context| Arc::clone(&inner).serve(context))?;
            context.healthy();
            Err(context.cancelled().await.into())
        }
        .boxed()
    }
}

impl Inner {
    fn follow(&self) -> Follow {
        Follow {
            state: self.state.clone(),
            own: self.own,
            status: self.consensus.status(),
            nodes: self.nodes.clone(),
            heartbeats: self.heartbeats.clone(),
            timing: self.timing,
            published: self.leadership.clone(),
        }
    }

    /// Gives signs of life while this node leads.
    async fn alive(self: Arc<Self>, context: Context) -> RunnableResult {
        context.healthy();
        let work = while_leading(self.leadership.subscribe(), |leader| {
            let timing = self.timing;
            async move { Err(alive(&leader, timing).await.into()) }
        });
        context.unless_cancelled(work).await?
    }

    /// Changes the consensus members while this node leads.
    async fn change_members(self: Arc<Self>, context: Context) -> RunnableResult {
        context.healthy();
        let work = while_leading(self.leadership.subscribe(), |leader: LeaderState| {
            let members = self.members.clone();
            async move { members.lead(leader).await }
        });
        context.unless_cancelled(work).await?
    }

    /// Says which removals are not finished: on every member, as its operator sees no other.
    async fn tell_unfinished(self: Arc<Self>, context: Context) -> RunnableResult {
        context.healthy();
        let _cleared = Cleared(context.conditions());
        context.unless_cancelled(tell_unfinished(self.nodes.unfinished(), context.conditions())).await?
    }

    /// Serves whoever calls.
    async fn serve(self: Arc<Self>, context: Context) -> RunnableResult {
        let settings = ServerSettings {
            name: "curator",
            identity: self.identity.clone(),
            trust: self.nodes.trust(),
            limits: Limits::default(),
        };
        let routes = routes(Services {
            leadership: self.leadership.subscribe(),
            nodes: self.nodes.clone(),
            heartbeats: self.heartbeats.clone(),
            consensus: self.consensus.clone(),
            members: self.members.clone(),
            identity: self.identity.clone(),
            address: self.address.clone(),
        });
        server::run(context, self.address.clone(), settings, routes).await
    }
}

/// Clears the condition when it is dropped: nobody says any more how it stands.
struct Cleared<'a>(&'a Conditions);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        self.0.clear(REMOVAL_UNFINISHED);
    }
}

/// Says which removals are not finished.
async fn tell_unfinished(
    mut unfinished: watch::Receiver<Vec<UnfinishedRemoval>>,
    conditions: &Conditions,
) -> RunnableResult {
    let mut is_raised = false;
    loop {
        // A removal of which all hear at once is nobody's concern.
        if !is_raised && !unfinished.borrow_and_update().is_empty() {
            match timeout(HEARING, unfinished.wait_for(Vec::is_empty)).await {
                Ok(heard) => drop(heard?),
                Err(_) => is_raised = true,
            }
        }
        let texts: Vec<String> = unfinished.borrow_and_update().iter().map(|removal| removal.text.clone()).collect();
        if texts.is_empty() {
            is_raised = false;
            conditions.clear(REMOVAL_UNFINISHED);
        } else if is_raised {
            conditions.raise(
                REMOVAL_UNFINISHED,
                Severity::Warning,
                texts.join("; "),
                "start those that have not heard of it; until then keep the removed machine off the network",
            );
        }
        unfinished.changed().await?;
    }
}
