//! The loop that follows the leadership, and the signs of life that a leader gives.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use polis_consensus::{KvError, Status, Transaction, Watch};
use polis_identity::NodeId;
use polis_proto::curator_state::LeaderAlive;
use polis_supervisor::{Context, Runnable, RunnableResult, with_causes};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::claim::{ClaimError, claim};
use super::completion::complete;
use super::decision::{Decision, MemberView, Reason};
use super::knowledge::{Knowledge, pause_after};
use super::{Leadership, LeadershipTiming};
use crate::watch::{NodeSubscription, Nodes};
use crate::{Heartbeats, LeaderState, State, StateError, layout};

/// Everything that following the leadership needs. Clones share what is published.
#[derive(Clone)]
pub(crate) struct Follow {
    pub(crate) state: State,
    pub(crate) own: NodeId,
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) nodes: Nodes,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) timing: LeadershipTiming,
    pub(crate) published: watch::Sender<Leadership>,
}

impl Runnable for Follow {
    fn run(&self, context: Context) -> BoxFuture<'static, RunnableResult> {
        let follow = self.clone();
        async move {
            context.healthy();
            let life = Life {
                knowledge: Knowledge::new(follow.own, Instant::now()),
                status: follow.status.clone(),
                held: None,
                leader: None,
                follow,
            };
            context.unless_cancelled(life.run()).await?
        }
        .boxed()
    }
}

impl Follow {
    fn publish(&self, leadership: Leadership) {
        self.published.send_if_modified(|known| {
            if *known == leadership {
                return false;
            }
            if known.leader().is_some() {
                self.heartbeats.end();
            }
            match &leadership {
                Leadership::Leader(state) => {
                    tracing::info!("this node leads the cluster, in raft's term {}", state.raft_term());
                    let now = Instant::now();
                    self.heartbeats.begin(now);
                    // It need not wait for its own first heartbeat to know that this node lives.
                    self.heartbeats.stamp(self.own, now);
                }
                Leadership::Follower { leader, address: _ } => tracing::info!("{leader} leads the cluster"),
                Leadership::Unsettled => tracing::info!("it is not known who leads the cluster"),
            }
            *known = leadership;
            true
        });
    }
}

/// One life of the loop.
struct Life {
    follow: Follow,
    knowledge: Knowledge,
    status: watch::Receiver<Status>,
    /// What the claim that this node holds has given it.
    held: Option<LeaderState>,
    /// Follows the record of another leader, for its address.
    leader: Option<(NodeId, NodeSubscription)>,
}

impl Life {
    async fn run(mut self) -> RunnableResult {
        loop {
            self.settle();
            if !self.knowledge.is_ready() {
                let wake = match self.decide() {
                    Decision::WaitUntil(deadline) => Some(deadline),
                    Decision::Wait | Decision::Claim(_) => None,
                };
                tokio::select! {
                    changed = self.status.changed() => changed?,
                    () = at(wake) => {}
                }
                continue;
            }
            match self.look().await {
                Ok(watch) => self.follow_changes(watch).await?,
                Err(error) => {
                    tracing::warn!("who leads the cluster cannot be read: {}", with_causes(&error));
                    let pause = self.knowledge.failed(Instant::now());
                    let _ = timeout(pause, self.status.changed()).await;
                }
            }
        }
    }

    /// Reads how things are, and watches from there on.
    async fn look(&mut self) -> Result<Watch, StateError> {
        let state = &self.follow.state;
        let found = state.read(Transaction::new().get(layout::leader()).get(layout::leader_alive())).await?;
        let mut pairs = found.found.into_iter().map(|pairs| pairs.into_iter().next());
        let mut next = || pairs.next().flatten();
        let now = Instant::now();
        self.knowledge.take_claim(next().as_ref(), found.revision, now);
        self.knowledge.take_alive(next().map_or(0, |pair| pair.mod_revision), now);
        Ok(state.root().watch(layout::leadership(), found.revision))
    }

    /// Follows what changes, until it must be read anew.
    async fn follow_changes(&mut self, mut watch: Watch) -> RunnableResult {
        loop {
            self.settle();
            let wake = match self.decide() {
                Decision::Claim(reason) => match self.claim(reason).await {
                    Ok(()) => continue,
                    Err(ClaimError::Outdated) => return Ok(()),
                    Err(ClaimError::Etcd(error)) => {
                        tracing::warn!("the leadership could not be claimed: {}", with_causes(&error));
                        self.knowledge.failed(Instant::now());
                        // Whether a claim without an answer was made is seen by reading.
                        if matches!(error, KvError::OutcomeUnknown { .. }) {
                            return Ok(());
                        }
                        continue;
                    }
                },
                Decision::WaitUntil(deadline) => Some(deadline),
                Decision::Wait => None,
            };
            tokio::select! {
                changes = watch.next() => match changes {
                    Ok(changes) => {
                        let now = Instant::now();
                        changes.iter().for_each(|change| self.knowledge.take_change(change, now));
                    }
                    Err(_) => return Ok(()),
                },
                changed = self.status.changed() => changed?,
                () = address_changed(&mut self.leader) => {}
                () = lost(self.held.as_ref()) => {
                    // A transaction was refused: somebody else has claimed.
                    self.knowledge.lost();
                    return Ok(());
                }
                () = at(wake) => {}
            }
        }
    }

    /// Takes over how the own member is, lets go what is no longer held, and publishes what follows.
    fn settle(&mut self) {
        let member = {
            let status = self.status.borrow_and_update();
            MemberView { is_ready: status.is_ready(), leads_raft: status.is_leader(), raft_term: status.raft_term }
        };
        let now = Instant::now();
        self.knowledge.take_member(member, now);
        if let Some(over) = self.held.take_if(|_| !self.knowledge.is_held()) {
            over.lose();
        }
        let leads = self.held.as_ref().filter(|_| self.knowledge.leads(now));
        let leadership = match (leads, self.knowledge.leader()) {
            (Some(held), _) => Leadership::Leader(held.clone()),
            (None, Some(leader)) => Leadership::Follower { leader, address: self.address_of(leader) },
            (None, None) => Leadership::Unsettled,
        };
        if !matches!(leadership, Leadership::Follower { .. }) {
            self.leader = None;
        }
        self.follow.publish(leadership);
    }

    fn decide(&self) -> Decision {
        self.knowledge.decide(self.follow.timing.silence, Instant::now())
    }

    /// Where another leader was last seen.
    fn address_of(&mut self, leader: NodeId) -> Option<std::net::IpAddr> {
        self.leader.take_if(|(known, _)| *known != leader);
        let nodes = &self.follow.nodes;
        let (_, subscription) = self.leader.get_or_insert_with(|| (leader, nodes.subscribe_node(leader)));
        subscription.view().record?.value.address()
    }

    async fn claim(&mut self, reason: Reason) -> Result<(), ClaimError> {
        tracing::info!("claiming the leadership: {}", reason.text());
        let raft_term = self.knowledge.raft_term();
        let Follow { state, own, .. } = &self.follow;
        let (leader, has_member_list) = claim(state, own, raft_term, self.knowledge.seen(reason)).await?;
        self.knowledge.claimed(raft_term, leader.fence().revision, Instant::now());
        if !has_member_list {
            make_complete(&leader).await;
        }
        self.held = Some(leader);
        Ok(())
    }
}

impl Drop for Life {
    /// Whatever it ends of: nobody follows any more, so this node leads no more. The next life claims anew.
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.lose();
        }
        self.follow.publish(Leadership::Unsettled);
    }
}

/// Makes what the cluster lacks, before anybody relies on it.
async fn make_complete(leader: &LeaderState) {
    for failures in 0.. {
        match complete(leader).await {
            Ok(()) | Err(StateError::LostLeadership) => return,
            Err(error @ (StateError::Unavailable(_) | StateError::OutcomeUnknown(_) | StateError::Conflict)) => {
                tracing::warn!("the cluster's member list cannot be made yet: {}", with_causes(&error));
                sleep(pause_after(failures)).await;
            }
            // Without it no member can be added or removed. Everything else works.
            Err(error @ StateError::Damaged { .. }) => {
                tracing::error!("the cluster's member list cannot be made: {}", with_causes(&error));
                return;
            }
        }
    }
}

async fn address_changed(leader: &mut Option<(NodeId, NodeSubscription)>) {
    match leader {
        Some((_, subscription)) => drop(subscription.changed().await),
        None => std::future::pending().await,
    }
}

async fn lost(held: Option<&LeaderState>) {
    match held {
        Some(held) => held.lost().await,
        None => std::future::pending().await,
    }
}

async fn at(wake: Option<Instant>) {
    match wake {
        Some(wake) => sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

/// Gives signs of life while this node leads. Returns why it does so no more.
pub(crate) async fn alive(leader: &LeaderState, timing: LeadershipTiming) -> StateError {
    let mut pause = timing.alive_interval;
    for counter in 1.. {
        sleep(pause).await;
        let alive = LeaderAlive { node_id: leader.node_id().to_string(), counter };
        let transaction = Transaction::new().put(layout::leader_alive(), alive.encode_to_vec());
        pause = match leader.transact("curator/leadership/alive", transaction).await {
            Ok(_) => timing.alive_interval,
            Err(error @ (StateError::LostLeadership | StateError::Conflict | StateError::Damaged { .. })) => {
                return error;
            }
            // Sooner than usual, as others are counting.
            Err(StateError::Unavailable(_) | StateError::OutcomeUnknown(_)) => timing.alive_interval / 5,
        };
    }
    StateError::LostLeadership
}
