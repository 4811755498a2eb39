//! Asks the other nodes of the cluster whether they have a quorum, before a node is made a cluster of its own.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use polis_identity::{AuthorityCertificate, Certificate, NodeKey};
use polis_proto::enrolment::GetMembersRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_roleserve::Removal;
use polis_rpc::{
    CURATOR_PORT, CallError, CallPolicy, ClientIdentity, ClusterClient, EndpointFailure, FailureKind, Search, describe,
    detail,
};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Code;

/// How long the others have to answer: several elections of members that are slow just then, as this one may have led them until a
/// moment ago. To hold a quorum for gone is worse than to wait for none.
const PATIENCE: Duration = Duration::from_secs(8);

/// How long one call may take.
const ATTEMPT: Duration = Duration::from_secs(2);

/// How long every address has to refuse connections, at each of the attempts, until nobody is waited for any more: their machines are
/// there and no node runs on them, which no election changes. Longer than a node takes between its end and its next start.
const CLOSED_FOR: Duration = Duration::from_secs(2);

/// What the others say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// Somebody answers for the cluster.
    Alive(Alive),
    /// Nobody answers for a quorum: for each address, what came of it.
    Silent(Vec<(String, String)>),
}

/// Who answers for the cluster. Beside it nothing is recovered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Alive {
    /// They have a leader, which has read something for us: a quorum.
    Quorum {
        /// Who answered.
        leader: SocketAddr,
    },
    /// They have a leader, and it refuses what it was asked. So it is there, whatever is wrong with this node.
    Refused {
        /// Who answered.
        leader: SocketAddr,
        /// What, for people.
        answer: String,
    },
    /// A node of the cluster answers, and believes this one no more: the cluster has gone on without it.
    Disowned {
        /// Who answered.
        by: SocketAddr,
        /// What, for people.
        answer: String,
    },
    /// The cluster has deleted this node, which is proven.
    Deleted {
        /// Who has shown the proof.
        by: SocketAddr,
        /// Why, for people.
        removal: String,
    },
}

impl Alive {
    /// What it is with this cluster.
    pub(super) fn of(&self, cluster_id: &str) -> String {
        match self {
            Self::Quorum { leader } => format!("the cluster {cluster_id} lives. {leader} leads it and has the quorum"),
            Self::Refused { leader, answer } => {
                format!("the cluster {cluster_id} lives. {leader} leads it and refuses to answer this node: {answer}")
            }
            Self::Disowned { by, answer } => {
                format!("the cluster {cluster_id} has gone on without this node. {by} is of it, and answers: {answer}")
            }
            Self::Deleted { by, removal } => {
                format!("this node is none of the cluster {cluster_id} any more: {removal}. {by} has shown the proof")
            }
        }
    }

    /// What to do instead.
    pub(super) const fn hint(&self) -> &'static str {
        match self {
            Self::Quorum { .. } => {
                "start this node: it goes on as what it is in its cluster. If its data are damaged, the others replace its member by \
                 themselves"
            }
            Self::Refused { .. } | Self::Disowned { .. } => {
                "see `polis cluster health` of that cluster, and whether this node runs another version, has a wrong clock or was deleted \
                 there. If that cluster has no quorum, recover one of its members that the others believe, or restore a snapshot on a new \
                 machine (--snapshot FILE)"
            }
            Self::Deleted { .. } => {
                "use this machine for another node: `polis node reset`, then new parameters (`polis parameters register`). If that \
                 cluster has no quorum, recover one of its members that was not deleted, or restore a snapshot on a new machine \
                 (--snapshot FILE)"
            }
        }
    }
}

/// As who the others are asked.
pub(super) struct Asker<'survivor> {
    pub(super) key: &'survivor NodeKey,
    pub(super) certificate: &'survivor Certificate,
    pub(super) authority: &'survivor AuthorityCertificate,
}

/// What came of the calls.
enum Asked {
    /// It was answered.
    Answered,
    /// It was not.
    Failed(CallError),
    /// It need not be waited for any longer: the addresses have said enough.
    Clear,
}

/// Asks at these addresses, as the node that these credentials prove.
pub(super) async fn ask(addresses: &[IpAddr], asker: &Asker<'_>) -> Result<Others, polis_supervisor::BoxError> {
    if addresses.is_empty() {
        return Ok(Others::Silent(Vec::new()));
    }
    let endpoints = addresses.iter().map(|address| SocketAddr::new(*address, CURATOR_PORT)).collect();
    let (_sender, endpoints) = watch::channel(endpoints);
    let identity = ClientIdentity::node(asker.key, asker.certificate)?;
    let cluster = ClusterClient::new(identity, asker.authority.clone(), endpoints);
    let policy = CallPolicy::within(PATIENCE).each_within(ATTEMPT);
    // It is the leader alone that answers this, and it reads with a quorum.
    let asked = cluster
        .call(policy, |channel| async move { EnrolmentClient::new(channel).get_members(GetMembersRequest {}).await });
    let asked = tokio::select! {
        never = cluster.run() => match never {},
        answered = asked => match answered {
            Ok(_) => Asked::Answered,
            Err(error) => Asked::Failed(error),
        },
        () = clear(cluster.search()) => Asked::Clear,
    };
    let search = cluster.search().borrow().clone();
    Ok(judge(addresses, asked, &search, asker))
}

/// Waits until the addresses have said enough: one of them disowns this node, or all of them are closed.
async fn clear(mut search: watch::Receiver<Search>) {
    let mut closed = Closed::default();
    loop {
        let failures = search.borrow_and_update().failures();
        if failures.values().any(is_disowned) || closed.observe(&failures) {
            return;
        }
        if search.changed().await.is_err() {
            // The caller holds the sender, so this cannot be.
            std::future::pending::<()>().await;
        }
    }
}

/// Since when each address refuses connections, and does nothing else.
#[derive(Default)]
struct Closed(BTreeMap<SocketAddr, Instant>);

impl Closed {
    /// Whether all of them have done so for long enough, after these failures, the last ones of all addresses.
    fn observe(&mut self, failures: &BTreeMap<SocketAddr, EndpointFailure>) -> bool {
        self.0.retain(|address, _| failures.get(address).is_some_and(|it| it.kind == FailureKind::NobodyListens));
        let mut are_closed = !failures.is_empty();
        for (address, failure) in failures {
            are_closed &= failure.kind == FailureKind::NobodyListens && {
                let first = *self.0.entry(*address).or_insert(failure.at);
                failure.at.saturating_duration_since(first) >= CLOSED_FOR
            };
        }
        are_closed
    }
}

/// Whether it is the answer of a node of the cluster that does not stand by this one any more.
fn is_disowned(failure: &EndpointFailure) -> bool {
    failure.removed.is_some() || failure.kind == FailureKind::Answered(Code::Unauthenticated)
}

/// What follows from what came of the calls, and how far the search was then.
fn judge(addresses: &[IpAddr], asked: Asked, search: &Search, asker: &Asker<'_>) -> Others {
    let deleted = |by, proof: Option<Vec<u8>>| {
        let removal = Removal::proven_by(&proof?, asker.authority, &asker.key.public()).ok()?;
        Some(Alive::Deleted { by, removal: removal.to_string() })
    };
    let failures = search.failures();
    let disowned = failures.iter().find(|(_, failure)| is_disowned(failure)).map(|(by, failure)| {
        let proof = failure.removed.clone().map(|removed| removed.signed_tombstone);
        deleted(*by, proof).unwrap_or_else(|| Alive::Disowned { by: *by, answer: failure.text.clone() })
    });
    let last = match asked {
        // Whoever has answered may be gone again.
        Asked::Answered => {
            let leader = search.leader().map_or(SocketAddr::new(addresses[0], CURATOR_PORT), |leader| leader.address);
            return Others::Alive(Alive::Quorum { leader });
        }
        Asked::Failed(CallError::Refused { address: leader, status }) => {
            let proof = detail::removed_node(&status).map(|removed| removed.signed_tombstone);
            let refused = || Alive::Refused { leader, answer: describe(&status) };
            return Others::Alive(deleted(leader, proof).unwrap_or_else(refused));
        }
        Asked::Failed(CallError::OutOfTime { last, .. }) => last,
        Asked::Clear => None,
    };
    disowned.map(Others::Alive).unwrap_or_else(|| {
        let text = |address: &IpAddr| {
            let endpoint = SocketAddr::new(*address, CURATOR_PORT);
            let called = last.as_ref().filter(|(called, _)| *called == endpoint);
            let called = called.map(|(_, status)| format!("it says that it leads, and: {}", describe(status)));
            let failure = failures.get(&endpoint).map(|failure| failure.text.clone()).or(called);
            (address.to_string(), failure.unwrap_or_else(|| "it does not answer".to_owned()))
        };
        Others::Silent(addresses.iter().map(text).collect())
    })
}

#[cfg(test)]
mod tests {
    use polis_curator::Tombstone;
    use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority};
    use polis_proto::rpc_detail::RemovedNode;
    use tonic::Status;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn endpoint(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], CURATOR_PORT))
    }

    fn failure(kind: FailureKind, at: Instant) -> EndpointFailure {
        EndpointFailure { at, kind, text: "so it is".into(), removed: None }
    }

    #[test]
    fn nobody_is_waited_for_once_every_address_has_been_closed_for_long_enough() {
        const CLOSED: FailureKind = FailureKind::NobodyListens;
        let began = Instant::now();
        let at = |millis: u64| began + Duration::from_millis(millis);
        let both = |one: (FailureKind, u64), other: (FailureKind, u64)| {
            let failures = [(endpoint(1), one), (endpoint(2), other)];
            failures.into_iter().map(|(address, (kind, millis))| (address, failure(kind, at(millis)))).collect()
        };
        let steps: [(BTreeMap<_, _>, bool); 8] = [
            (both((CLOSED, 0), (FailureKind::Other, 0)), false),
            (both((CLOSED, 2000), (FailureKind::Other, 0)), false),
            (both((CLOSED, 2000), (CLOSED, 1000)), false),
            (both((CLOSED, 2500), (CLOSED, 2999)), false),
            // One answers in between: it is there, and begins anew.
            (both((FailureKind::Answered(Code::Unavailable), 2600), (CLOSED, 3100)), false),
            (both((CLOSED, 2700), (CLOSED, 3100)), false),
            (both((CLOSED, 4600), (CLOSED, 4600)), false),
            (both((CLOSED, 4700), (CLOSED, 4600)), true),
        ];
        let mut closed = Closed::default();
        for (number, (failures, expected)) in steps.into_iter().enumerate() {
            assert_eq!(closed.observe(&failures), expected, "step {number}");
        }
        assert!(!closed.observe(&BTreeMap::new()), "a leader is found");
    }

    #[test]
    fn whoever_answers_for_the_cluster_is_no_silence() {
        let [authority, foreign] = [(); 2].map(|()| CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME));
        let key = NodeKey::generate();
        let certificate = authority.issue_node(&key.public());
        let asker = Asker { key: &key, certificate: &certificate, authority: authority.certificate() };
        let proof = |authority: &CertificateAuthority| {
            let cluster_id = authority.certificate().cluster_id();
            let tombstone = Tombstone { cluster_id, public_key: key.public(), reason: "sold".into() };
            RemovedNode { signed_tombstone: tombstone.sign(authority).encode() }
        };
        let refused = |status: Status| Asked::Failed(CallError::Refused { address: endpoint(1), status });
        let searching = |kind, removed: Option<RemovedNode>| Search::Searching {
            since: Instant::now(),
            attempts: 1,
            failures: [(endpoint(1), EndpointFailure { removed, ..failure(kind, Instant::now()) })].into(),
        };
        let nobody = || searching(FailureKind::Other, None);
        let out_of_time = |last: Option<Status>| {
            let last = last.map(|status| (endpoint(1), status));
            Asked::Failed(CallError::OutOfTime { after: PATIENCE, attempts: 1, last, failures: BTreeMap::new() })
        };
        let quorum = || Others::Alive(Alive::Quorum { leader: endpoint(1) });
        let refusal = |answer: &str| Others::Alive(Alive::Refused { leader: endpoint(1), answer: answer.into() });
        let disowned = || Others::Alive(Alive::Disowned { by: endpoint(1), answer: "so it is".into() });
        let deleted = || Others::Alive(Alive::Deleted { by: endpoint(1), removal: "it was deleted: sold".into() });
        let silent = |text: &str| Others::Silent(vec![(ADDRESS.to_string(), text.into())]);
        let gone = |authority| detail::with_removed_node(Status::unauthenticated("gone"), &proof(authority));
        let answered = |code| searching(FailureKind::Answered(code), None);
        for (name, asked, search, expected) in [
            ("a leader answers", Asked::Answered, nobody(), quorum()),
            ("a leader refuses", refused(Status::unimplemented("older")), nobody(), refusal("older")),
            ("a leader shows a proof", refused(gone(&authority)), nobody(), deleted()),
            ("a leader shows no proof", refused(gone(&foreign)), nobody(), refusal("gone")),
            ("a node shows a proof", Asked::Clear, searching(FailureKind::Other, Some(proof(&authority))), deleted()),
            ("a node shows no proof", Asked::Clear, searching(FailureKind::Other, Some(proof(&foreign))), disowned()),
            ("a node believes it no more", Asked::Clear, answered(Code::Unauthenticated), disowned()),
            ("the same, in the end", out_of_time(None), answered(Code::Unauthenticated), disowned()),
            ("a node knows no leader", out_of_time(None), answered(Code::Unavailable), silent("so it is")),
            ("all are closed", Asked::Clear, searching(FailureKind::NobodyListens, None), silent("so it is")),
            (
                "a leader cannot read",
                out_of_time(Some(Status::unavailable("no quorum"))),
                Search::Searching { since: Instant::now(), attempts: 1, failures: BTreeMap::new() },
                silent("it says that it leads, and: no quorum"),
            ),
        ] {
            assert_eq!(judge(&[ADDRESS], asked, &search, &asker), expected, "{name}");
        }
    }
}
