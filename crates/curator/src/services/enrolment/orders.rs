//! WatchOrders: what a node must learn at once.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use polis_identity::NodeId;
use polis_proto::curator_state::DecommissionPhase;
use polis_proto::enrolment::Orders;
use polis_proto::enrolment::orders::Floor;
use polis_unlock::Epoch;
use tokio::sync::watch;
use tonic::Status;

use super::members::to_wire;
use crate::services::core::Core;
use crate::services::leader::Tenure;
use crate::watch::{ClusterOrders, NodeSubscription, Nodes};

/// One who watches.
struct Watcher {
    tenure: Tenure,
    nodes: Nodes,
    orders: watch::Receiver<Arc<ClusterOrders>>,
    /// The node that asks; absent for an operator.
    own: Option<NodeSubscription>,
    /// What was told last. The orders are shared with everybody else who watches.
    told: Option<(Arc<ClusterOrders>, DecommissionPhase)>,
}

/// Tells the caller, who may be a node, what it must know: at once, and again at each change.
pub(super) fn watch(
    core: &Arc<Core>,
    caller: Option<NodeId>,
) -> Result<BoxStream<'static, Result<Orders, Status>>, Status> {
    let watcher = Watcher {
        tenure: core.tenure()?,
        nodes: core.nodes.clone(),
        orders: core.nodes.orders(),
        own: caller.map(|id| core.nodes.subscribe_node(id)),
        told: None,
    };
    let orders = stream::unfold(Some(watcher), async |watcher| {
        let mut watcher = watcher?;
        let next = watcher.next().await;
        let watcher = next.is_ok().then_some(watcher);
        Some((next, watcher))
    });
    Ok(orders.boxed())
}

impl Watcher {
    async fn next(&mut self) -> Result<Orders, Status> {
        if self.told.is_none() {
            tokio::select! {
                status = self.tenure.ended() => return Err(status),
                () = self.nodes.listed() => {}
            }
        }
        loop {
            let orders = Arc::clone(&self.orders.borrow_and_update());
            let phase = self.phase();
            let is_told = |(told, phase_told): &(Arc<ClusterOrders>, DecommissionPhase)| {
                Arc::ptr_eq(told, &orders) && *phase_told == phase
            };
            if !self.told.as_ref().is_some_and(is_told) {
                let message = to_message(&orders, phase);
                self.told = Some((orders, phase));
                return Ok(message);
            }
            tokio::select! {
                status = self.tenure.ended() => return Err(status),
                changed = self.orders.changed() => {
                    changed.map_err(|_| Status::unavailable("this node is stopping"))?;
                }
                () = changed(&mut self.own) => {}
            }
        }
    }

    /// What is to become of the node that asks.
    fn phase(&mut self) -> DecommissionPhase {
        let enrolment = self.own.as_mut().and_then(|own| own.view().enrolment);
        enrolment.map_or(DecommissionPhase::None, |known| known.value.decommission())
    }
}

fn to_message(orders: &ClusterOrders, phase: DecommissionPhase) -> Orders {
    Orders {
        revocation_list: orders.revocation_list.clone(),
        signed_list: orders.signed_list.clone(),
        decommission: phase.into(),
        members: orders.members.iter().cloned().map(to_wire).collect(),
        floors: orders.floors.iter().map(floor).collect(),
        recovery_public_key: orders.recovery_public_key.clone(),
        two_confirmed: orders.two_confirmed,
    }
}

fn floor((node, epoch): &(NodeId, Epoch)) -> Floor {
    Floor { node_id: node.to_string(), epoch: Some((*epoch).into()) }
}

/// Waits until something about the node itself has changed.
async fn changed(own: &mut Option<NodeSubscription>) {
    match own {
        Some(own) => drop(own.changed().await),
        None => std::future::pending().await,
    }
}
