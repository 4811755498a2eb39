//! What a node knows of the leadership, and how that follows from what it sees: pure, without etcd and without a clock.

use std::time::Duration;

use polis_consensus::{Change, KeyValue};
use polis_identity::NodeId;
use polis_proto::curator_state::Leader;
use prost::Message as _;
use tokio::time::Instant;

use super::claim::Seen;
use super::decision::{CurrentClaim, Decision, MemberView, Reason, View, may_claim};
use crate::layout;

/// Pause after a read or a claim that failed; it doubles with each further one. Mostly the member will answer in a moment, or be
/// ready no more.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest pause: for what a person has to cure, such as a full disk.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// For how long a leader whose member has no contact with a quorum still calls itself the leader: longer than a restart of etcd
/// takes, after which it goes on, and shorter than clients are patient who could find another.
const CONTACT_GRACE: Duration = Duration::from_secs(2);

/// What a node knows of the leadership.
#[derive(Debug)]
pub(super) struct Knowledge {
    view: View,
    seen: Seen,
    /// Since when the own member has no contact with a quorum; `None` while it has.
    contactless_since: Option<Instant>,
    /// Until when what failed is not tried again.
    paused_until: Option<Instant>,
    /// How often in a row reading or claiming has failed.
    failures: u32,
}

impl Knowledge {
    /// The node `own` knows nothing yet.
    pub(super) fn new(own: NodeId, now: Instant) -> Self {
        let view = View { own, member: MemberView::default(), current: None, held: None, quiet_since: now };
        Self { view, seen: Seen::default(), contactless_since: Some(now), paused_until: None, failures: 0 }
    }

    /// Takes over how the own member is.
    pub(super) fn take_member(&mut self, member: MemberView, now: Instant) {
        if !member.is_ready {
            self.contactless_since.get_or_insert(now);
        } else if self.contactless_since.take().is_some() {
            // While it had no contact it could not see a sign of life.
            self.view.quiet_since = now;
        }
        self.view.member = member;
    }

    /// Takes over a change of a key.
    pub(super) fn take_change(&mut self, change: &Change, now: Instant) {
        let revision = change.revision();
        let pair = match change {
            Change::Put(pair) => Some(pair),
            Change::Delete { .. } => None,
        };
        if change.key() == layout::leader().as_bytes() {
            self.take_claim(pair, revision, now);
        } else if change.key() == layout::leader_alive().as_bytes() {
            self.take_alive(pair.map_or(0, |pair| pair.mod_revision), now);
        }
    }

    /// Takes over the present claim, as it was at `revision`.
    pub(super) fn take_claim(&mut self, pair: Option<&KeyValue>, revision: i64, now: Instant) {
        let claimed = pair.map_or(0, |pair| pair.mod_revision);
        // What is older than the own claim is told late.
        if claimed == self.seen.claim || revision < self.seen.claim {
            return;
        }
        self.seen.claim = claimed;
        self.view.current = pair.and_then(read_claim);
        self.view.quiet_since = now;
        self.view.held.take_if(|held| *held != claimed);
    }

    /// Takes over the revision of the last sign of life; 0 when there is none.
    pub(super) fn take_alive(&mut self, revision: i64, now: Instant) {
        if self.seen.alive != Some(revision) {
            self.seen.alive = Some(revision);
            self.view.quiet_since = now;
        }
    }

    /// The own claim was made at `revision`, and is held.
    pub(super) fn claimed(&mut self, raft_term: u64, revision: i64, now: Instant) {
        (self.paused_until, self.failures) = (None, 0);
        self.seen = Seen { claim: revision, alive: Some(revision) };
        self.view.current = Some(CurrentClaim { node: self.view.own, raft_term, revision });
        self.view.held = Some(revision);
        self.view.quiet_since = now;
    }

    /// A transaction was refused: the claim that is held is over.
    pub(super) const fn lost(&mut self) {
        self.view.held = None;
    }

    /// Reading or claiming has failed. Returns for how long it is not tried again.
    pub(super) fn failed(&mut self, now: Instant) -> Duration {
        let pause = pause_after(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.paused_until = Some(now + pause);
        pause
    }

    /// Whether to claim now, and else when to ask again.
    pub(super) fn decide(&self, silence: Duration, now: Instant) -> Decision {
        match (may_claim(&self.view, silence, now), self.paused_until) {
            (Decision::Claim(_), Some(until)) if now < until => Decision::WaitUntil(until),
            (Decision::Wait, _) => self.retreat(now).map_or(Decision::Wait, Decision::WaitUntil),
            (decision, _) => decision,
        }
    }

    /// Whether this node calls itself the leader. It may still hold the claim when it does not.
    pub(super) fn leads(&self, now: Instant) -> bool {
        self.is_held() && (self.contactless_since.is_none() || self.retreat(now).is_some())
    }

    /// When this node ceases to call itself the leader unless its member gets contact; `None` when it need not, or has done so.
    fn retreat(&self, now: Instant) -> Option<Instant> {
        let retreat = self.contactless_since? + CONTACT_GRACE;
        (self.is_held() && now < retreat).then_some(retreat)
    }

    /// What a claim for this reason is conditioned on.
    pub(super) fn seen(&self, reason: Reason) -> Seen {
        let alive = match reason {
            // A sign of life that this node is about to be told of refutes the silence.
            Reason::Silence => self.seen.alive,
            Reason::Vacant | Reason::Elected | Reason::Again => None,
        };
        Seen { claim: self.seen.claim, alive }
    }

    /// Whether the own member has contact with a quorum.
    pub(super) const fn is_ready(&self) -> bool {
        self.view.member.is_ready
    }

    /// Raft's term, as the own member has it.
    pub(super) const fn raft_term(&self) -> u64 {
        self.view.member.raft_term
    }

    /// Whether this node holds the claim and has not found it to be over.
    pub(super) const fn is_held(&self) -> bool {
        self.view.held.is_some()
    }

    /// Another node that leads, if that is known for sure.
    pub(super) fn leader(&self) -> Option<NodeId> {
        let leader = self.view.current.filter(|_| self.is_ready()).map(|claim| claim.node);
        leader.filter(|leader| *leader != self.view.own)
    }
}

/// Pause after a failure that follows this many in a row.
pub(super) fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE)
}

/// Reads a claim. One that cannot be read is nobody's, so that it can be replaced.
fn read_claim(pair: &KeyValue) -> Option<CurrentClaim> {
    let claim = Leader::decode(&pair.value[..]).ok();
    let claim = claim.and_then(|claim| Some((claim.node_id.parse().ok()?, claim.raft_term)));
    if claim.is_none() {
        tracing::error!("the claim of the leadership at {} cannot be read; it will be replaced", layout::leader());
    }
    claim.map(|(node, raft_term)| CurrentClaim { node, raft_term, revision: pair.mod_revision })
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;

    use super::*;

    const SILENCE: Duration = Duration::from_secs(15);

    const FOLLOWER: MemberView = MemberView { is_ready: true, leads_raft: false, raft_term: 3 };

    fn id() -> NodeId {
        NodeId::of(&NodeKey::generate().public())
    }

    fn pair(key: String, value: Vec<u8>, mod_revision: i64) -> KeyValue {
        KeyValue { key: key.into_bytes(), value, create_revision: 1, mod_revision, version: 1, lease: None }
    }

    fn claim(node: &NodeId, raft_term: u64, revision: i64) -> Change {
        Change::Put(pair(layout::leader(), Leader { node_id: node.to_string(), raft_term }.encode_to_vec(), revision))
    }

    fn alive(revision: i64) -> Change {
        Change::Put(pair(layout::leader_alive(), Vec::new(), revision))
    }

    /// A clock of seconds.
    fn clock() -> impl Fn(u64) -> Instant {
        let start = Instant::now();
        move |seconds| start + Duration::from_secs(seconds)
    }

    #[test]
    fn silence_is_counted_from_the_last_sign_of_life_that_could_be_seen() {
        let (at, other) = (clock(), id());
        let mut knowledge = Knowledge::new(id(), at(0));
        knowledge.take_member(FOLLOWER, at(0));
        knowledge.take_change(&claim(&other, 3, 7), at(1));
        assert_eq!(knowledge.decide(SILENCE, at(1)), Decision::WaitUntil(at(16)));
        knowledge.take_change(&alive(8), at(6));
        assert_eq!(knowledge.decide(SILENCE, at(20)), Decision::WaitUntil(at(21)));
        // The same again is none.
        knowledge.take_alive(8, at(10));
        assert_eq!(knowledge.decide(SILENCE, at(21)), Decision::Claim(Reason::Silence));
        // A time without contact does not count.
        knowledge.take_member(MemberView { is_ready: false, ..FOLLOWER }, at(12));
        assert_eq!(knowledge.decide(SILENCE, at(100)), Decision::Wait);
        assert_eq!(knowledge.leader(), None, "it may be another by now");
        knowledge.take_member(FOLLOWER, at(30));
        assert_eq!(knowledge.decide(SILENCE, at(44)), Decision::WaitUntil(at(45)));
        assert_eq!(knowledge.leader(), Some(other));
        // A new term alone is no sign of life.
        knowledge.take_member(MemberView { raft_term: 4, ..FOLLOWER }, at(40));
        assert_eq!(knowledge.decide(SILENCE, at(44)), Decision::WaitUntil(at(45)));
        knowledge.take_change(&claim(&other, 4, 9), at(44));
        assert_eq!(knowledge.decide(SILENCE, at(45)), Decision::WaitUntil(at(59)));
    }

    #[test]
    fn a_claim_for_silence_is_refuted_by_a_sign_of_life_and_others_are_not() {
        let (at, other) = (clock(), id());
        let mut knowledge = Knowledge::new(id(), at(0));
        knowledge.take_change(&claim(&other, 3, 7), at(0));
        knowledge.take_change(&alive(8), at(0));
        assert_eq!(knowledge.seen(Reason::Silence), Seen { claim: 7, alive: Some(8) });
        for reason in [Reason::Vacant, Reason::Elected, Reason::Again] {
            assert_eq!(knowledge.seen(reason), Seen { claim: 7, alive: None }, "{reason:?}");
        }
        knowledge.take_alive(0, at(1));
        assert_eq!(knowledge.seen(Reason::Silence), Seen { claim: 7, alive: Some(0) }, "it is to be absent");
    }

    #[test]
    fn a_claim_is_held_until_another_one_or_none_is_there() {
        let (at, own, other) = (clock(), id(), id());
        let leads = MemberView { leads_raft: true, ..FOLLOWER };
        let begin = || {
            let mut knowledge = Knowledge::new(own, at(0));
            knowledge.take_member(leads, at(0));
            knowledge.take_change(&claim(&other, 2, 7), at(0));
            assert_eq!(knowledge.decide(SILENCE, at(0)), Decision::Claim(Reason::Elected));
            knowledge.claimed(3, 9, at(1));
            knowledge
        };
        let mut knowledge = begin();
        // What was before it is told late, and so is the claim itself.
        for change in [claim(&other, 2, 7), claim(&other, 2, 8), alive(8), claim(&own, 3, 9), alive(9), alive(12)] {
            knowledge.take_change(&change, at(2));
            assert!(knowledge.is_held(), "{change:?}");
            assert_eq!(knowledge.decide(SILENCE, at(100)), Decision::Wait, "{change:?}");
        }
        let deleted = Change::Delete { key: layout::leader().into_bytes(), revision: 10 };
        let garbage = Change::Put(pair(layout::leader(), b"\xff".to_vec(), 10));
        let cases = [
            (claim(&other, 3, 10), Some(other), Decision::WaitUntil(at(18))),
            // It was made by an earlier run, and nobody has told it so.
            (claim(&own, 3, 10), None, Decision::Claim(Reason::Again)),
            (deleted, None, Decision::Claim(Reason::Vacant)),
            (garbage, None, Decision::Claim(Reason::Vacant)),
        ];
        for (change, leader, decision) in cases {
            let mut knowledge = begin();
            knowledge.take_change(&change, at(3));
            assert!(!knowledge.is_held(), "{change:?}");
            assert_eq!(knowledge.leader(), leader, "{change:?}");
            assert_eq!(knowledge.decide(SILENCE, at(3)), decision, "{change:?}");
        }
        let mut knowledge = begin();
        knowledge.lost();
        assert!(!knowledge.is_held());
    }

    #[test]
    fn a_leader_without_contact_retreats_after_a_grace_and_returns_with_it() {
        let (at, own) = (clock(), id());
        let mut knowledge = Knowledge::new(own, at(0));
        assert!(!knowledge.leads(at(0)));
        let leads = MemberView { leads_raft: true, ..FOLLOWER };
        let away = MemberView { is_ready: false, ..leads };
        knowledge.take_member(leads, at(0));
        knowledge.claimed(3, 9, at(0));
        assert!(knowledge.leads(at(0)));
        assert_eq!(knowledge.decide(SILENCE, at(50)), Decision::Wait);
        knowledge.take_member(away, at(50));
        assert!(knowledge.leads(at(51)));
        assert_eq!(knowledge.decide(SILENCE, at(51)), Decision::WaitUntil(at(50) + CONTACT_GRACE));
        knowledge.take_member(away, at(51));
        assert!(!knowledge.leads(at(52)), "it counts from the beginning");
        assert_eq!(knowledge.decide(SILENCE, at(52)), Decision::Wait);
        assert!(knowledge.is_held(), "the claim stands, as far as this node knows");
        knowledge.take_member(leads, at(60));
        assert!(knowledge.leads(at(60)));
    }

    #[test]
    fn what_fails_is_tried_again_less_and_less_often() {
        let (at, own) = (clock(), id());
        let mut knowledge = Knowledge::new(own, at(0));
        knowledge.take_member(MemberView { leads_raft: true, ..FOLLOWER }, at(0));
        let pauses: Vec<Duration> = (0..8).map(|_| knowledge.failed(at(0))).collect();
        assert_eq!(pauses[0], FIRST_PAUSE);
        assert!(pauses.is_sorted() && pauses[1] > pauses[0]);
        assert_eq!(pauses[7], LONGEST_PAUSE);
        assert_eq!(knowledge.decide(SILENCE, at(4)), Decision::WaitUntil(at(0) + LONGEST_PAUSE));
        assert_eq!(knowledge.decide(SILENCE, at(5)), Decision::Claim(Reason::Vacant));
        knowledge.claimed(3, 9, at(5));
        assert_eq!(knowledge.failed(at(6)), FIRST_PAUSE);
    }
}
