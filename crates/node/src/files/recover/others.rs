//! Asks the other nodes of the cluster whether they have a quorum, before a node is made a cluster of its own.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use polis_identity::{AuthorityCertificate, Certificate, NodeKey};
use polis_proto::enrolment::GetMembersRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_rpc::{CURATOR_PORT, CallPolicy, ClientIdentity, ClusterClient, Search};
use tokio::sync::watch;

/// How long the others have to answer: several elections of members that are slow just then, as this one may have led them until a
/// moment ago. To hold a quorum for gone is worse than to wait for none.
const PATIENCE: Duration = Duration::from_secs(8);

/// How long one call may take.
const ATTEMPT: Duration = Duration::from_secs(2);

/// What the others say.
pub(super) enum Others {
    /// They have a leader, which has read something for us: a quorum.
    Quorum {
        /// Who answered.
        leader: SocketAddr,
    },
    /// Nobody answers for a quorum: for each address, what came of it.
    Silent(Vec<(String, String)>),
}

/// Asks at these addresses, as the node that these credentials prove.
pub(super) async fn ask(
    addresses: &[IpAddr],
    key: &NodeKey,
    certificate: &Certificate,
    authority: &AuthorityCertificate,
) -> Result<Others, polis_supervisor::BoxError> {
    if addresses.is_empty() {
        return Ok(Others::Silent(Vec::new()));
    }
    let endpoints = addresses.iter().map(|address| SocketAddr::new(*address, CURATOR_PORT)).collect();
    let (_sender, endpoints) = watch::channel(endpoints);
    let cluster = ClusterClient::new(ClientIdentity::node(key, certificate)?, authority.clone(), endpoints);
    let policy = CallPolicy::within(PATIENCE).each_within(ATTEMPT);
    // It is the leader alone that answers this, and it reads with a quorum.
    let asked = cluster
        .call(policy, |channel| async move { EnrolmentClient::new(channel).get_members(GetMembersRequest {}).await });
    let answered = tokio::select! {
        never = cluster.run() => match never {},
        answered = asked => answered.is_ok(),
    };
    let search = cluster.search().borrow().clone();
    Ok(match (answered, search) {
        (true, Search::Found(leader)) => Others::Quorum { leader: leader.address },
        // It has answered, and is gone again.
        (true, Search::Searching { .. }) => Others::Quorum { leader: SocketAddr::new(addresses[0], CURATOR_PORT) },
        (false, search) => {
            let failures = search.failures();
            let text = |address: &IpAddr| {
                let endpoint = SocketAddr::new(*address, CURATOR_PORT);
                let failure = failures.get(&endpoint).map_or("it does not answer", |failure| failure.text.as_str());
                (address.to_string(), failure.to_owned())
            };
            Others::Silent(addresses.iter().map(text).collect())
        }
    })
}
