//! The loop around a collector or a drill: it carries out what these decide, and tells them what happens.

use std::collections::BTreeMap;
use std::sync::Arc;

use polis_identity::{NodeId, PublicKey};
use polis_unlock::{
    Action, Alarm, ClusterUnlockKey, Collector, Drill, DrillAction, Epoch, Event, Progress, Proof, SignedMemberList,
    UnlockRequest,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::contacts::Contact;
use crate::line::Calling;
use crate::members::KnownMembers;
use crate::pace::Ticks;
use crate::peers::{KnownAddresses, Outcome, Peers};
use crate::{StoreMembersError, Surroundings, UnlockStatus};

/// What decides.
pub(crate) trait Core {
    /// What it is for.
    type Goal;

    /// Takes in what has happened, and says what is to be done.
    fn handle(&mut self, event: Event) -> Vec<Step<Self::Goal>>;

    /// The newest member list that it knows.
    fn members(&self) -> Option<&SignedMemberList>;
}

/// What is to be done. Executed in order.
pub(crate) enum Step<G> {
    Persist(SignedMemberList),
    Ask { peer: NodeId, request: UnlockRequest },
    Report(Progress),
    Alarm(Alarm),
    Reached(G),
}

impl Core for Collector {
    type Goal = (ClusterUnlockKey, Proof);

    fn handle(&mut self, event: Event) -> Vec<Step<Self::Goal>> {
        let step = |action| match action {
            Action::Persist(list) => Step::Persist(list),
            Action::Ask { peer, request } => Step::Ask { peer, request },
            Action::Open { key, proof } => Step::Reached((key, proof)),
            Action::Report(progress) => Step::Report(progress),
            Action::Alarm(alarm) => Step::Alarm(alarm),
        };
        self.handle(event).into_iter().map(step).collect()
    }

    fn members(&self) -> Option<&SignedMemberList> {
        self.members()
    }
}

impl Core for Drill {
    /// The split that was tried, or that its shares are worth nothing.
    type Goal = Result<Epoch, Alarm>;

    fn handle(&mut self, event: Event) -> Vec<Step<Self::Goal>> {
        let step = |action| match action {
            DrillAction::Persist(list) => Step::Persist(list),
            DrillAction::Ask { peer, request } => Step::Ask { peer, request },
            DrillAction::Report(progress) => Step::Report(progress),
            DrillAction::Alarm(alarm) => match alarm {
                Alarm::UselessSplit { .. } => Step::Reached(Err(alarm)),
                Alarm::BadShare { .. } | Alarm::WrongKey { .. } | Alarm::BadList { .. } => Step::Alarm(alarm),
            },
            DrillAction::Verified { epoch } => Step::Reached(Ok(epoch)),
        };
        self.handle(event).into_iter().map(step).collect()
    }

    fn members(&self) -> Option<&SignedMemberList> {
        self.members()
    }
}

/// Runs a core.
pub(crate) struct Engine<'a, C: Core> {
    core: C,
    id: NodeId,
    surroundings: &'a Surroundings,
    peers: Peers,
    ticks: Ticks,
    next_tick: Instant,
    began: Instant,
    status: UnlockStatus,
    goal: Option<C::Goal>,
    members: watch::Receiver<Arc<KnownMembers>>,
    contacts: watch::Receiver<Arc<BTreeMap<PublicKey, Contact>>>,
    addresses: watch::Receiver<Arc<KnownAddresses>>,
}

/// What has woken the loop.
enum Wake {
    Peer(NodeId, Outcome),
    Tick,
    Members,
    Contacts,
    Addresses,
}

impl<'a, C: Core> Engine<'a, C> {
    pub(crate) fn new(core: C, id: NodeId, surroundings: &'a Surroundings) -> Self {
        let now = Instant::now();
        let calling = Calling { identity: surroundings.identity.clone(), from: surroundings.from };
        let mut contacts = surroundings.contacts.watch();
        // What there is already counts as news.
        contacts.mark_changed();
        let mut engine = Self {
            core,
            id,
            surroundings,
            peers: Peers::new(calling, surroundings.port),
            ticks: Ticks::new(),
            next_tick: now,
            began: now,
            status: UnlockStatus::default(),
            goal: None,
            members: surroundings.members.watch(),
            contacts,
            addresses: surroundings.addresses.clone(),
        };
        engine.look_around();
        engine
    }

    /// Goes on until what it is for is reached. May be called again to go on.
    pub(crate) async fn run(&mut self) -> Result<C::Goal, StoreMembersError> {
        loop {
            if let Some(goal) = self.goal.take() {
                return Ok(goal);
            }
            let wake = tokio::select! {
                (peer, outcome) = self.peers.next() => Wake::Peer(peer, outcome),
                () = changed(&mut self.contacts) => Wake::Contacts,
                () = changed(&mut self.addresses) => Wake::Addresses,
                () = changed(&mut self.members) => Wake::Members,
                () = sleep_until(self.next_tick) => Wake::Tick,
            };
            for event in self.events(wake) {
                self.handle(event).await?;
            }
            self.publish();
        }
    }

    /// Tells the core what has happened, and does what it says.
    pub(crate) async fn handle(&mut self, event: Event) -> Result<(), StoreMembersError> {
        for step in self.core.handle(event) {
            match step {
                Step::Persist(list) => {
                    self.surroundings.members.take_over(list).await?;
                    self.look_around();
                }
                Step::Ask { peer, request } => self.peers.ask(&peer, request),
                Step::Report(progress) => self.status.progress = progress,
                Step::Alarm(alarm) => {
                    if self.status.add_alarm(alarm) {
                        tracing::error!("{alarm}");
                    }
                }
                Step::Reached(goal) => self.goal = Some(goal),
            }
        }
        Ok(())
    }

    /// What there is to tell the core.
    fn events(&mut self, wake: Wake) -> Vec<Event> {
        let up = |nodes: Vec<NodeId>| nodes.into_iter().map(Event::PeerUp).collect();
        match wake {
            Wake::Peer(peer, Outcome::Answer(reply)) => vec![Event::Reply(peer, reply)],
            Wake::Peer(peer, Outcome::Nothing) => vec![Event::NoAnswer(peer)],
            Wake::Tick => {
                self.next_tick = Instant::now() + self.ticks.next(rand::random());
                vec![Event::Tick]
            }
            Wake::Contacts => {
                let contacts = Arc::clone(&self.contacts.borrow_and_update());
                up(self.peers.called(&contacts))
            }
            Wake::Addresses => up(self.look_around()),
            Wake::Members => {
                let known = Arc::clone(&self.members.borrow_and_update());
                known.list.clone().map(Event::MembersChanged).into_iter().collect()
            }
        }
    }

    /// Takes over who the others are and where. Returns those who may be found now.
    fn look_around(&mut self) -> Vec<NodeId> {
        let known = Arc::clone(&self.addresses.borrow());
        self.peers.set(&self.id, self.core.members().map(SignedMemberList::list), &known)
    }

    fn publish(&mut self) {
        self.status.refresh(&self.peers, self.began, Instant::now());
        self.surroundings.status.send_if_modified(|published| {
            let is_new = **published != self.status;
            if is_new {
                *published = Arc::new(self.status.clone());
            }
            is_new
        });
    }
}

/// Waits for news: for ever once nobody has any.
async fn changed<T>(news: &mut watch::Receiver<T>) {
    if news.changed().await.is_err() {
        std::future::pending().await
    }
}
