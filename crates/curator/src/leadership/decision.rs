//! Whether this node may claim the leadership now: a pure function.

use std::time::Duration;

use polis_identity::NodeId;
use tokio::time::Instant;

/// What a node knows when it decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// This node.
    pub(crate) own: NodeId,
    /// Its consensus member.
    pub(crate) member: MemberView,
    /// The present claim; `None` when there is none.
    pub(crate) current: Option<CurrentClaim>,
    /// Revision of the claim that this node holds and has not found to be over.
    pub(crate) held: Option<i64>,
    /// When this node last saw a claim or a sign of life, or became able to see them.
    pub(crate) quiet_since: Instant,
}

/// The part of a consensus member's status that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct MemberView {
    /// Whether it has a vote and contact with a quorum.
    pub(crate) is_ready: bool,
    /// Whether it leads raft.
    pub(crate) leads_raft: bool,
    /// Raft's term.
    pub(crate) raft_term: u64,
}

/// A claim, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CurrentClaim {
    pub(crate) node: NodeId,
    pub(crate) raft_term: u64,
    /// Revision at which it was written.
    pub(crate) revision: i64,
}

/// Why a node claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Nobody leads, and its member leads raft.
    Vacant,
    /// Its member was elected leader of raft after the present claim.
    Elected,
    /// It is named by the present claim, which an earlier run of it made.
    Again,
    /// The leader has been silent for too long.
    Silence,
}

impl Reason {
    /// The reason in words.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Vacant => "nobody leads, and the member of this node leads raft",
            Self::Elected => "the member of this node was elected the leader of raft",
            Self::Again => "this node led before it was started anew",
            Self::Silence => "the leader has given no sign of life",
        }
    }
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Claim.
    Claim(Reason),
    /// Not unless something changes, at the latest at this time.
    WaitUntil(Instant),
    /// Not unless something changes.
    Wait,
}

/// Whether to claim. `silence` is how long the leader may give no sign of life.
pub(crate) fn may_claim(view: &View, silence: Duration, now: Instant) -> Decision {
    let View { own, member, current, held, quiet_since } = view;
    if !member.is_ready {
        return Decision::Wait;
    }
    if held.is_some() && *held == current.map(|claim| claim.revision) {
        return Decision::Wait;
    }
    match current {
        None if member.leads_raft => return Decision::Claim(Reason::Vacant),
        Some(claim) if claim.node == *own && (member.leads_raft || member.raft_term == claim.raft_term) => {
            return Decision::Claim(Reason::Again);
        }
        Some(claim) if member.leads_raft && member.raft_term > claim.raft_term => {
            return Decision::Claim(Reason::Elected);
        }
        // The leader of raft is closer to it, or will be in a moment.
        None | Some(_) => {}
    }
    let overdue = *quiet_since + silence;
    if now >= overdue { Decision::Claim(Reason::Silence) } else { Decision::WaitUntil(overdue) }
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;
    use polis_secret::Secret32;
    use proptest::prelude::*;

    use super::*;

    const SILENCE: Duration = Duration::from_secs(15);

    #[test]
    fn who_claims_when() {
        let [own, other] = [(); 2].map(|()| NodeId::of(&NodeKey::generate().public()));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let until = Decision::WaitUntil(at(15));
        // Present claim as (node, term); member as (leads raft, term); seconds of silence.
        let cases = [
            ("leads raft, nobody claims", None, (true, 2), 0, Decision::Claim(Reason::Vacant)),
            ("does not lead raft, nobody claims", None, (false, 2), 14, until),
            ("does not lead raft, nobody claims for long", None, (false, 2), 15, Decision::Claim(Reason::Silence)),
            ("elected after the claim", Some((other, 2)), (true, 3), 0, Decision::Claim(Reason::Elected)),
            ("leads raft in the term of the claim", Some((other, 3)), (true, 3), 14, until),
            ("leads raft in an older term", Some((other, 4)), (true, 3), 14, until),
            ("the same, in silence", Some((other, 3)), (true, 3), 15, Decision::Claim(Reason::Silence)),
            ("a follower", Some((other, 2)), (false, 2), 14, until),
            ("a follower in a new term", Some((other, 2)), (false, 3), 14, until),
            ("a follower in silence", Some((other, 2)), (false, 2), 15, Decision::Claim(Reason::Silence)),
            ("started anew, same term", Some((own, 2)), (true, 2), 0, Decision::Claim(Reason::Again)),
            ("started anew with its member", Some((own, 2)), (true, 3), 0, Decision::Claim(Reason::Again)),
            ("started anew from a snapshot", Some((own, 9)), (true, 2), 0, Decision::Claim(Reason::Again)),
            ("started anew, led by silence", Some((own, 2)), (false, 2), 0, Decision::Claim(Reason::Again)),
            ("started anew, another was elected", Some((own, 2)), (false, 3), 14, until),
            ("the same, but it does not claim", Some((own, 2)), (false, 3), 15, Decision::Claim(Reason::Silence)),
        ];
        for (name, current, (leads_raft, raft_term), silent, expected) in cases {
            let current = current.map(|(node, raft_term)| CurrentClaim { node, raft_term, revision: 7 });
            let ready = MemberView { is_ready: true, leads_raft, raft_term };
            let view = View { own, member: ready, current, held: None, quiet_since: start };
            assert_eq!(may_claim(&view, SILENCE, at(silent)), expected, "{name}");
            let unready = View { member: MemberView { is_ready: false, ..ready }, ..view.clone() };
            assert_eq!(may_claim(&unready, SILENCE, at(silent)), Decision::Wait, "{name}, without a quorum or a vote");
            let held = View { held: Some(7), ..view.clone() };
            let leads = if current.is_some() { Decision::Wait } else { expected };
            assert_eq!(may_claim(&held, SILENCE, at(silent)), leads, "{name}, and holds the claim");
            let lost = View { held: Some(6), ..view };
            assert_eq!(may_claim(&lost, SILENCE, at(silent)), expected, "{name}, after it held an older claim");
        }
    }

    proptest! {
        /// As long as nobody is silent, only the leader of raft and the node that is named claim, whatever the history; and when the
        /// named node does not claim, a newly elected leader of raft does.
        #[test]
        fn without_silence_the_leadership_is_quiet_and_ends_up_with_raft(
            nodes in 1..9_usize,
            claim in prop::option::of((0..9_usize, 0..6_u64)),
            (leader, term) in (0..9_usize, 1..6_u64),
            silent in 0..15_u64,
        ) {
            let ids: Vec<NodeId> = (0..nodes)
                .map(|node| NodeId::of(&NodeKey::from_secret(Secret32::new([u8::try_from(node).unwrap(); 32])).public()))
                .collect();
            let start = Instant::now();
            let current = claim.map(|(node, raft_term)| CurrentClaim { node: ids[node % nodes], raft_term, revision: 5 });
            let leader = leader % nodes;
            for (node, own) in ids.iter().enumerate() {
                let member = MemberView { is_ready: true, leads_raft: node == leader, raft_term: term };
                let view = View { own: *own, member, current, held: None, quiet_since: start };
                let claims = matches!(may_claim(&view, SILENCE, start + Duration::from_secs(silent)), Decision::Claim(_));
                let is_named = current.is_some_and(|claim| claim.node == *own);
                let is_elected = node == leader && current.is_none_or(|claim| claim.raft_term < term);
                prop_assert!(!claims || node == leader || is_named, "{node} of {nodes}");
                prop_assert!(claims || !is_elected, "{node} of {nodes}");
            }
        }
    }
}
