//! The search: everybody is asked, whoever is named has to prove it, and then it is followed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{AbortHandle, Abortable, BoxFuture};
use futures::stream::{FuturesUnordered, StreamExt as _};
use polis_identity::AuthorityCertificate;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tonic::transport::Channel;

use super::ask::{Asking, Event};
use super::{Claim, Doubt, EndpointFailure, Judge, Leader, Search, connector};
use crate::ClientIdentity;

/// Pause between the beginnings of questions to different addresses: most searches are over when the first answers.
const STAGGER: Duration = Duration::from_millis(1);

/// Longest delay by [`STAGGER`].
const MAX_STAGGER: Duration = Duration::from_millis(5);

/// Events that wait to be looked at. Each address and each candidate has one at a time.
const MAX_EVENTS: usize = 64;

/// Addresses of leaders of the past that are asked too. A cluster has nine members at most, and each may have moved once.
const MAX_LEARNED: usize = 18;

/// Searches and follows.
#[derive(Debug)]
pub(super) struct Finder {
    identity: ClientIdentity,
    authority: AuthorityCertificate,
    endpoints: watch::Receiver<Vec<SocketAddr>>,
    judge: Option<Arc<dyn Judge>>,
    search: watch::Sender<Search>,
    doubts: mpsc::Receiver<Doubt>,
    /// Newest first.
    learned: VecDeque<SocketAddr>,
    generation: u64,
}

impl Finder {
    pub(super) const fn new(
        identity: ClientIdentity,
        authority: AuthorityCertificate,
        endpoints: watch::Receiver<Vec<SocketAddr>>,
        judge: Option<Arc<dyn Judge>>,
        search: watch::Sender<Search>,
        doubts: mpsc::Receiver<Doubt>,
    ) -> Self {
        Self { identity, authority, endpoints, judge, search, doubts, learned: VecDeque::new(), generation: 0 }
    }

    pub(super) async fn run(&mut self) -> Infallible {
        let mut lost = Lost::default();
        loop {
            let mut crowd = Crowd::new(self);
            let (claim, channel) = self.find(&mut crowd, lost).await;
            self.generation += 1;
            let leader =
                Leader { node_id: claim.node_id, address: claim.address, channel, generation: self.generation };
            self.search.send_replace(Search::Found(leader));
            self.learn(claim.address);
            crowd.keep(claim);
            lost = self.follow(&mut crowd, claim).await;
        }
    }

    /// Asks until somebody leads.
    async fn find(&mut self, crowd: &mut Crowd, lost: Lost) -> (Claim, Channel) {
        let mut failures: BTreeMap<SocketAddr, EndpointFailure> = lost.failure.into_iter().collect();
        let mut attempts = 0;
        let since = crowd.since;
        crowd.hint = lost.hint;
        crowd.examine();
        let mut endpoints_change = true;
        self.ask(crowd, &mut failures);
        self.search.send_replace(Search::Searching { since, attempts, failures: failures.clone() });
        loop {
            let event = tokio::select! {
                biased;
                event = crowd.next() => event,
                changed = self.endpoints.changed(), if endpoints_change => {
                    // Without a sender nothing changes any more.
                    endpoints_change = changed.is_ok();
                    self.ask(crowd, &mut failures);
                    self.search.send_replace(Search::Searching { since, attempts, failures: failures.clone() });
                    continue;
                }
                // Doubts about a leader that is given up already.
                Some(_) = self.doubts.recv() => continue,
            };
            attempts += 1;
            match event {
                Event::Named { by, claim } => {
                    crowd.named.insert(by, claim);
                    crowd.examine();
                }
                Event::Failed { by, failure } => {
                    crowd.named.remove(&by);
                    crowd.examine();
                    failures.insert(by, failure);
                }
                Event::LeadsNot { claim, failure } => {
                    failures.insert(claim.address, failure);
                }
                // Its question was given up while the answer waited here. Nobody would notice when it leads no more.
                Event::Leads { claim, .. } if !crowd.examined.contains_key(&claim) => {}
                Event::Leads { claim, channel } => return (claim, channel),
            }
            self.search.send_replace(Search::Searching { since, attempts, failures: failures.clone() });
        }
    }

    /// Waits until the leader does not lead any more, or may not.
    async fn follow(&mut self, crowd: &mut Crowd, leader: Claim) -> Lost {
        loop {
            tokio::select! {
                biased;
                event = crowd.next() => match event {
                    Event::Named { claim, .. } if claim.node_id != leader.node_id => {
                        return Lost { hint: Some(claim), failure: None };
                    }
                    Event::LeadsNot { claim, failure } if claim == leader => {
                        return Lost { hint: None, failure: Some((claim.address, failure)) };
                    }
                    // The leader itself is who says that it leads; the other only tells sooner when it does not.
                    Event::Named { .. } | Event::Failed { .. } | Event::Leads { .. } | Event::LeadsNot { .. } => {}
                },
                Some(doubt) = self.doubts.recv() => {
                    let hint = doubt.hint.as_ref().and_then(Claim::of_hint);
                    let is_other = hint.is_none_or(|hint| hint.node_id != leader.node_id);
                    if doubt.generation == self.generation && is_other {
                        return Lost { hint, failure: None };
                    }
                }
            }
        }
    }

    /// Asks all addresses. That of one that does not even refuse, nothing was heard is what is known of it until then.
    fn ask(&mut self, crowd: &mut Crowd, failures: &mut BTreeMap<SocketAddr, EndpointFailure>) {
        let addresses = self.addresses();
        for address in &addresses {
            failures.entry(*address).or_insert_with(|| EndpointFailure::now("has not answered yet"));
        }
        crowd.ask(addresses);
    }

    /// Where to ask: the given addresses, and those of former leaders.
    fn addresses(&mut self) -> Vec<SocketAddr> {
        let mut addresses = self.endpoints.borrow_and_update().clone();
        addresses.extend(&self.learned);
        addresses
    }

    fn learn(&mut self, address: SocketAddr) {
        self.learned.retain(|learned| *learned != address);
        self.learned.push_front(address);
        self.learned.truncate(MAX_LEARNED);
    }
}

/// How a leader was lost.
#[derive(Default)]
struct Lost {
    /// Who is said to lead instead.
    hint: Option<Claim>,
    /// What is wrong with the one that led.
    failure: Option<(SocketAddr, EndpointFailure)>,
}

/// All that are being asked.
struct Crowd {
    identity: ClientIdentity,
    authority: AuthorityCertificate,
    judge: Option<Arc<dyn Judge>>,
    since: Instant,
    events: mpsc::Receiver<Event>,
    sender: mpsc::Sender<Event>,
    questions: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Those who are asked who leads.
    asked: HashMap<SocketAddr, AbortHandle>,
    /// Those who are asked whether they lead.
    examined: HashMap<Claim, AbortHandle>,
    /// Who named whom last.
    named: HashMap<SocketAddr, Claim>,
    /// Whom the refusal of a call named.
    hint: Option<Claim>,
}

impl Crowd {
    fn new(finder: &Finder) -> Self {
        let (sender, events) = mpsc::channel(MAX_EVENTS);
        Self {
            identity: finder.identity.clone(),
            authority: finder.authority.clone(),
            judge: finder.judge.clone(),
            since: Instant::now(),
            events,
            sender,
            questions: FuturesUnordered::new(),
            asked: HashMap::new(),
            examined: HashMap::new(),
            named: HashMap::new(),
            hint: None,
        }
    }

    /// Asks those at these addresses who are not asked yet.
    fn ask(&mut self, addresses: Vec<SocketAddr>) {
        let mut delay = Duration::ZERO;
        for address in addresses {
            if self.asked.contains_key(&address) {
                continue;
            }
            let asking = self.asking(address, None);
            let handle = self.begin(asking.who_leads(delay));
            self.asked.insert(address, handle);
            delay = MAX_STAGGER.min(delay + STAGGER);
        }
    }

    /// Asks those who are named, and nobody who is not named any more.
    fn examine(&mut self) {
        let claims: Vec<Claim> = self.named.values().copied().chain(self.hint).collect();
        self.examined.retain(|claim, handle| {
            let stays = claims.contains(claim);
            if !stays {
                handle.abort();
            }
            stays
        });
        for claim in claims {
            if !self.examined.contains_key(&claim) {
                let asking = self.asking(claim.address, Some(claim));
                let handle = self.begin(asking.does_it_lead(claim));
                self.examined.insert(claim, handle);
            }
        }
    }

    /// Goes on with the leader, and with one other that named it.
    fn keep(&mut self, leader: Claim) {
        let others = self.named.iter().filter(|(by, claim)| **claim == leader && **by != leader.address);
        let informer = others.map(|(by, _)| *by).next();
        self.asked.retain(|address, handle| {
            let stays = Some(*address) == informer;
            if !stays {
                handle.abort();
            }
            stays
        });
        self.examined.retain(|claim, handle| {
            let stays = *claim == leader;
            if !stays {
                handle.abort();
            }
            stays
        });
    }

    /// What comes next of all questions.
    async fn next(&mut self) -> Event {
        loop {
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => return event,
                // One that was given up; the others do not end.
                Some(()) = self.questions.next() => {}
            }
        }
    }

    fn asking(&self, address: SocketAddr, claim: Option<Claim>) -> Asking {
        Asking {
            connector: connector(&self.identity, &self.authority, claim.map(|claim| claim.node_id)),
            address,
            judge: self.judge.clone(),
            events: self.sender.clone(),
            since: self.since,
        }
    }

    fn begin(&self, question: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let (handle, registration) = AbortHandle::new_pair();
        let question = Abortable::new(question, registration);
        self.questions.push(Box::pin(async move {
            // Given up or not, it is over.
            let _ = question.await;
        }));
        handle
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::task::yield_now;

    use super::*;
    use crate::testing::TestCluster;

    #[tokio::test(start_paused = true)]
    async fn an_answer_to_a_question_that_was_given_up_finds_nobody() {
        let cluster = TestCluster::default();
        let node = cluster.node();
        let claim = Claim { node_id: node.id, address: SocketAddr::from(([127, 1, 0, 1], 1)) };
        let (_endpoints, endpoints) = watch::channel(Vec::new());
        let (_doubts, doubts) = mpsc::channel(1);
        let authority = cluster.authority_certificate();
        let identity = node.identity.client_identity();
        let nothing = Search::Searching { since: Instant::now(), attempts: 0, failures: BTreeMap::new() };
        let mut finder = Finder::new(identity, authority, endpoints, None, watch::Sender::new(nothing), doubts);
        for is_asked in [false, true] {
            let mut crowd = Crowd::new(&finder);
            if is_asked {
                crowd.named.insert(claim.address, claim);
            }
            let channel = Channel::from_static("http://127.1.0.1:1").connect_lazy();
            crowd.sender.try_send(Event::Leads { claim, channel }).unwrap();
            let search = finder.find(&mut crowd, Lost::default());
            tokio::pin!(search);
            let mut found = None;
            for _ in 0..3 {
                found = found.or_else(|| (&mut search).now_or_never());
                yield_now().await;
            }
            assert_eq!(found.map(|(claim, _)| claim), is_asked.then_some(claim));
        }
    }
}
