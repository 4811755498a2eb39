//! The others: where each is, what it is being asked, and whether it is silent. When it is asked is the collector's decision.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use polis_identity::{NodeId, PublicKey};
use polis_supervisor::with_causes;
use polis_unlock::{MemberList, UnlockReply, UnlockRequest};
use tokio::time::Instant;

use crate::contacts::Contact;
use crate::line::{AskError, Calling, Line, MAX_ADDRESSES, ask};

/// How long an attempt may be without a connection before it is taken for one that hangs: far longer than connecting takes, and shorter
/// than the system waits before it tries again.
const HANGS_AFTER: Duration = Duration::from_millis(300);

/// Where nodes are said to be, the likeliest first.
pub type KnownAddresses = BTreeMap<NodeId, Vec<SocketAddr>>;

/// All others.
pub(crate) struct Peers {
    calling: Calling,
    /// Where a node listens of which only the IP address is known.
    port: u16,
    peers: BTreeMap<NodeId, Peer>,
    attempts: FuturesUnordered<BoxFuture<'static, Ended>>,
    last_number: u64,
}

struct Peer {
    key: PublicKey,
    /// Where it may be, the likeliest first.
    addresses: Vec<SocketAddr>,
    /// Its last call.
    called: Option<Contact>,
    line: Option<Line>,
    attempt: Option<Attempt>,
    /// Absent when it has answered, or was never asked.
    silence: Option<Silence>,
}

/// That a peer does not answer.
pub(crate) struct Silence {
    /// Since when.
    pub(crate) since: Instant,
    /// What happened when it was last asked.
    pub(crate) failure: String,
}

/// A question that is under way.
struct Attempt {
    number: u64,
    /// When the peer was first asked without an answer.
    since: Instant,
    /// When this attempt began.
    began: Instant,
    request: UnlockRequest,
    is_connected: Arc<AtomicBool>,
}

/// What became of an attempt.
struct Ended {
    peer: NodeId,
    number: u64,
    result: Result<(UnlockReply, Line), AskError>,
}

/// What a peer that was asked has said.
pub(crate) enum Outcome {
    Answer(UnlockReply),
    Nothing,
}

impl Peers {
    pub(crate) fn new(calling: Calling, port: u16) -> Self {
        Self { calling, port, peers: BTreeMap::new(), attempts: FuturesUnordered::new(), last_number: 0 }
    }

    /// Takes over who the others are and where they are said to be. Returns those of whom a new address is known, while they are
    /// silent.
    pub(crate) fn set(&mut self, own: &NodeId, list: Option<&MemberList>, known: &KnownAddresses) -> Vec<NodeId> {
        let mut before = std::mem::take(&mut self.peers);
        let mut moved = Vec::new();
        for member in list.into_iter().flat_map(MemberList::members).filter(|member| member.node_id != *own) {
            let id = member.node_id;
            let peer = before.remove(&id).filter(|peer| peer.key == member.join_key);
            let mut peer = peer.unwrap_or_else(|| Peer::new(member.join_key));
            let listed = member.addresses.iter().map(|address| SocketAddr::new(*address, self.port));
            let said = known.get(&id).into_iter().flatten().copied();
            let is_moved = peer.set_addresses(self.port, said.chain(listed));
            self.peers.insert(id, peer);
            if is_moved && self.is_looked_for(&id) {
                moved.push(id);
            }
        }
        moved
    }

    /// Takes over who has called. Returns those who were silent and are there now.
    pub(crate) fn called(&mut self, contacts: &BTreeMap<PublicKey, Contact>) -> Vec<NodeId> {
        let mut up = Vec::new();
        for (id, peer) in &mut self.peers {
            let contact = contacts.get(&peer.key).copied();
            if contact.is_some() && contact != peer.called {
                peer.called = contact;
                let before = std::mem::take(&mut peer.addresses);
                peer.set_addresses(self.port, before.into_iter());
                up.push(*id);
            }
        }
        // One that answers is not asked sooner because it calls: two that have nothing for each other would never rest.
        up.retain(|id| self.is_looked_for(id));
        up
    }

    /// Whether the peer has not been heard since it was last looked for. If an attempt to connect to it hangs, another one takes its
    /// place, as that one has begun before the peer was there.
    fn is_looked_for(&mut self, id: &NodeId) -> bool {
        let Some(peer) = self.peers.get(id).filter(|peer| peer.line.is_none()) else { return false };
        match &peer.attempt {
            Some(attempt) if attempt.is_connected.load(Ordering::Relaxed) || attempt.began.elapsed() < HANGS_AFTER => {
                false
            }
            Some(attempt) => {
                let request = attempt.request.clone();
                self.ask(id, request);
                false
            }
            None => true,
        }
    }

    /// Asks a peer. What it is being asked already is given up for it.
    pub(crate) fn ask(&mut self, id: &NodeId, request: UnlockRequest) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        self.last_number += 1;
        let number = self.last_number;
        let is_connected = Arc::new(AtomicBool::new(peer.line.is_some()));
        let began = Instant::now();
        let since = peer.attempt.as_ref().map_or(began, |attempt| attempt.since);
        let (line, addresses) = (peer.line.take(), peer.addresses.clone());
        peer.attempt =
            Some(Attempt { number, since, began, request: request.clone(), is_connected: Arc::clone(&is_connected) });
        let (peer, key, calling) = (*id, peer.key, self.calling.clone());
        self.attempts.push(Box::pin(async move {
            let result = ask(&calling, key, &addresses, line, request, &is_connected).await;
            Ended { peer, number, result }
        }));
    }

    /// Waits for what becomes of the next question: for ever while there is none.
    pub(crate) async fn next(&mut self) -> (NodeId, Outcome) {
        loop {
            let Some(Ended { peer: id, number, result }) = self.attempts.next().await else {
                return std::future::pending().await;
            };
            // One that is no member any more, or a question that was given up.
            let is_waited_for = |attempt: &mut Attempt| attempt.number == number;
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            let Some(attempt) = peer.attempt.take_if(is_waited_for) else { continue };
            return (id, peer.end(&attempt, result));
        }
    }

    /// Where the peer is, or else where it is looked for.
    pub(crate) fn addresses(&self, id: &NodeId) -> Vec<IpAddr> {
        let Some(peer) = self.peers.get(id) else { return Vec::new() };
        match &peer.line {
            Some(line) => vec![line.address.ip()],
            None => peer.addresses.iter().map(SocketAddr::ip).collect::<BTreeSet<_>>().into_iter().collect(),
        }
    }

    /// Whether the peer does not answer.
    pub(crate) fn silence(&self, id: &NodeId) -> Option<&Silence> {
        self.peers.get(id)?.silence.as_ref()
    }
}

impl Peer {
    const fn new(key: PublicKey) -> Self {
        Self { key, addresses: Vec::new(), called: None, line: None, attempt: None, silence: None }
    }

    /// Where it called from comes first. Returns whether a new one is among them.
    fn set_addresses(&mut self, port: u16, addresses: impl Iterator<Item = SocketAddr>) -> bool {
        let called = self.called.map(|contact| SocketAddr::new(contact.from, port));
        let mut seen = BTreeSet::new();
        let all = called.into_iter().chain(addresses).filter(|address| seen.insert(*address));
        let before = std::mem::replace(&mut self.addresses, all.take(MAX_ADDRESSES).collect());
        self.addresses.iter().any(|address| !before.contains(address))
    }

    fn end(&mut self, attempt: &Attempt, result: Result<(UnlockReply, Line), AskError>) -> Outcome {
        match result {
            Ok((reply, line)) => {
                self.line = Some(line);
                self.silence = None;
                Outcome::Answer(reply)
            }
            Err(error) => {
                let since = self.silence.as_ref().map_or(attempt.since, |silence| silence.since);
                self.silence = Some(Silence { since, failure: with_causes(&error) });
                Outcome::Nothing
            }
        }
    }
}
