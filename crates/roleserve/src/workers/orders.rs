//! Follows what the cluster wants every node to learn at once: revocations, the member list, and what is to become of this node.
//! What a later start must know is made durable before anybody is told of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use polis_identity::{NodeId, RevocationList};
use polis_proto::curator_state;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_proto::enrolment::orders::Floor;
use polis_proto::enrolment::{Orders, WatchOrdersRequest};
use polis_storage::Revocations;
use polis_supervisor::{BoxError, Context, RunnableResult, with_causes};
use polis_unlock::SignedMemberList;
use polis_unlock_service::Members;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::follow::{Follower, follow};
use crate::identity::Identity;
use crate::kept::Kept;
use crate::members;
use crate::shared::Shared;

pub(crate) async fn run(shared: Arc<Shared>, context: Context) -> RunnableResult {
    let identity = shared.identity(&context).await?;
    let kept = Kept::new(
        shared.layout.data.node.revocations.clone(),
        "the list of what the cluster's authority has revoked",
        "revocations-damaged",
    );
    let known = context.unless_cancelled(kept.load(&context)).await??;
    if let Some(list) = known.and_then(|known| RevocationList::read(known.revocation_list, &identity.authority).ok()) {
        shared.trust_parts.send_modify(|parts| parts.revocations = Some(list));
    }
    let members = shared.members(&context).await?;
    let cluster = shared.cluster(&context).await?;
    context.healthy();
    let mut follower = Follow { shared: &shared, context: &context, identity: &identity, kept, members };
    Err(context.unless_cancelled(follow(&shared, &context, &identity, &cluster, &mut follower)).await?)
}

struct Follow<'a> {
    shared: &'a Shared,
    context: &'a Context,
    identity: &'a Identity,
    kept: Kept<Revocations>,
    members: Members,
}

#[async_trait]
impl Follower for Follow<'_> {
    type Message = Orders;
    const WHAT: &'static str = "the cluster's orders";

    async fn open(&self, channel: Channel) -> Result<Streaming<Orders>, Status> {
        Ok(EnrolmentClient::new(channel).watch_orders(WatchOrdersRequest {}).await?.into_inner())
    }

    async fn take(&mut self, orders: Orders) -> Result<(), BoxError> {
        let decommission = orders.decommission();
        let Orders { revocation_list, signed_list, members, floors, recovery_public_key, .. } = orders;
        self.take_revocations(revocation_list).await?;
        if let Some(signed_list) = signed_list {
            self.take_members(signed_list).await?;
        }
        self.raise_floors(floors).await?;
        let sightings = members::sightings(&members);
        let ids: BTreeSet<_> = sightings.iter().map(|sighting| sighting.node_id).collect();
        self.shared.addresses.change(|known| {
            known.change_directory(|directory| {
                sightings.iter().for_each(|sighting| directory.learn(sighting));
                // There is always a member; a list without any says that the leader does not know yet.
                if !ids.is_empty() {
                    directory.set_members(&ids);
                }
            });
        });
        // Empty while none is set; and one that was set is only ever replaced.
        if let Ok(key) = recovery_public_key.try_into() {
            self.shared.recovery_key.send_if_modified(|known| known.replace(key) != Some(key));
        }
        self.shared.trust_parts.send_if_modified(|parts| !std::mem::replace(&mut parts.orders_fresh, true));
        self.shared.decommission.send_if_modified(|known| std::mem::replace(known, decommission) != decommission);
        Ok(())
    }

    fn lose(&mut self) {
        self.shared.trust_parts.send_if_modified(|parts| std::mem::take(&mut parts.orders_fresh));
    }
}

impl Follow<'_> {
    /// A list that is older than the known one is ignored: what was revoked stays revoked.
    async fn take_revocations(&self, list: Vec<u8>) -> Result<(), BoxError> {
        if list.is_empty() {
            return Ok(());
        }
        let list = match RevocationList::read(list, &self.identity.authority) {
            Ok(list) => list,
            Err(error) => {
                tracing::warn!(reason = with_causes(&error), "ignored a list of revocations that is not the cluster's");
                return Ok(());
            }
        };
        let newest = self.shared.trust_parts.borrow().revocations.as_ref().map(RevocationList::number);
        if newest.is_some_and(|newest| newest >= list.number()) {
            return Ok(());
        }
        let record = Revocations { revocation_list: list.der().to_vec() };
        self.kept.store(self.context, record, "node/revocations").await?;
        self.shared.trust_parts.send_modify(|parts| parts.revocations = Some(list));
        Ok(())
    }

    /// The highest epoch wins, wherever a list comes from. That this leader is one to follow was decided before ([`crate::allegiance`]).
    async fn take_members(&self, wire: curator_state::SignedMemberList) -> Result<(), BoxError> {
        let list = match SignedMemberList::verify(wire, &self.identity.authority) {
            Ok(list) => list,
            Err(error) => {
                tracing::warn!(reason = with_causes(&error), "ignored a member list that the cluster has not signed");
                return Ok(());
            }
        };
        self.members.follow(list).await?;
        Ok(())
    }

    /// What others have reported to have split anew. One that makes no sense is left out: the others are as good as before.
    async fn raise_floors(&self, floors: Vec<Floor>) -> Result<(), BoxError> {
        for Floor { node_id, epoch } in floors {
            if let (Ok(owner), Some(epoch)) = (node_id.parse::<NodeId>(), epoch) {
                self.members.raise_floor(owner, epoch.into()).await?;
            }
        }
        Ok(())
    }
}
