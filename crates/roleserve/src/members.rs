//! The consensus members, as the cluster names them.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use polis_consensus::{BoxError, FetchMembers, Member};
use polis_identity::{NodeId, PeerAddress, PublicKey};
use polis_proto::enrolment::GetMembersRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_proto::enrolment::get_members_response::ConsensusMember;
use polis_rpc::{CallError, ClusterClient};
use tokio::time::{Instant, sleep};

use crate::addresses::{Addresses, Sighting};
use crate::shared::CALL;

/// How long a joiner waits until the leader has it in its list: the role that makes it join may be there a moment earlier. After
/// that its runnable dies, and says why.
const LISTED_PATIENCE: Duration = Duration::from_secs(5);

/// Pause between two looks at the list. A join is to take a fraction of a second, and happens rarely.
const LISTED_PAUSE: Duration = Duration::from_millis(20);

/// Where the members were last seen. One with a key or an id that makes no sense is left out.
pub(crate) fn sightings(members: &[ConsensusMember]) -> Vec<Sighting> {
    let sighting = |member: &ConsensusMember| {
        let public_key = PublicKey::try_from(&member.public_key[..]).ok()?;
        let address = member.addresses.iter().find_map(|address| address.parse().ok());
        Some(Sighting { node_id: NodeId::of(&public_key), public_key: Some(public_key), address })
    };
    members.iter().filter_map(sighting).collect()
}

/// The list for a member that joins, asked from the leader at each attempt.
pub(crate) struct ClusterMembers {
    pub(crate) cluster: ClusterClient,
    pub(crate) addresses: Addresses,
    pub(crate) own: PublicKey,
}

/// The leader does not have this node in its list.
#[derive(Debug, thiserror::Error)]
#[error("the cluster's list of consensus members has {0} members, and this node is not among them")]
struct NotListed(usize);

impl FetchMembers for ClusterMembers {
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<Member>, BoxError>> {
        async {
            let deadline = Instant::now() + LISTED_PATIENCE;
            loop {
                let members = self.ask().await?;
                let own = self.own.as_bytes();
                if members.iter().any(|member| member.public_key == own) {
                    return Ok(members.iter().filter_map(member).collect());
                }
                if Instant::now() >= deadline {
                    return Err(NotListed(members.len()).into());
                }
                sleep(LISTED_PAUSE).await;
            }
        }
        .boxed()
    }
}

impl ClusterMembers {
    pub(crate) fn shared(cluster: ClusterClient, addresses: Addresses, own: PublicKey) -> Arc<dyn FetchMembers> {
        Arc::new(Self { cluster, addresses, own })
    }

    async fn ask(&self) -> Result<Vec<ConsensusMember>, CallError> {
        let answer = self.cluster.call(CALL, |channel| async move {
            Ok(EnrolmentClient::new(channel).get_members(GetMembersRequest {}).await?.into_inner())
        });
        let members = answer.await?.members;
        let sightings = sightings(&members);
        // They are dialed next.
        self.addresses.change(|known| {
            known.change_directory(|directory| {
                sightings.iter().for_each(|sighting| directory.learn(sighting));
                // There is always a member; a list without any says that the leader does not know yet.
                if !sightings.is_empty() {
                    directory.set_members(&sightings.iter().map(|sighting| sighting.node_id).collect());
                }
            });
        });
        Ok(members)
    }
}

/// A member as the consensus knows it. Its number in etcd was not told, and a joiner needs none.
fn member(member: &ConsensusMember) -> Option<Member> {
    let public_key = PublicKey::try_from(&member.public_key[..]).ok()?;
    Some(Member {
        id: 0,
        node_id: Some(NodeId::of(&public_key)),
        address: Some(PeerAddress::of(&public_key).ip()),
        is_learner: member.learner,
        is_started: member.started,
    })
}
