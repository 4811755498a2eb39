//! UpdateNodeRoles.
//!
//! Roles of Kubernetes are written to the record at once. That of a consensus member is asked for here and carried out by
//! `crate::membership`: a node that is to become one waits in a queue, and one that is to be none is removed by the others,
//! which is waited for.

use std::time::Duration;

use polis_identity::NodeId;
use polis_proto::api::node::Health;
use polis_proto::api::{UpdateNodeRolesRequest, UpdateNodeRolesResponse};
use polis_proto::common::node_roles::{KubernetesController, KubernetesWorker};
use polis_proto::common::{NodeRoles, NodeState};
use polis_proto::curator_state::{DecommissionPhase, NodeEnrolment};
use polis_supervisor::with_causes;
use tokio::time::timeout;
use tonic::Status;

use super::target::target;
use crate::membership::{EnqueueError, REMOVAL_DEADLINE};
use crate::services::core::Core;
use crate::services::refusal::{margin_refused, removal_refused};
use crate::services::text::state_name;
use crate::{LeaderState, NodeRecord, layout};

/// How long a request that gives both roles waits for the first. A node that is well gets it in a fraction of a second.
const MEMBER_PATIENCE: Duration = Duration::from_secs(10);

/// What a request wants of each role; `None` leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wish {
    consensus_member: Option<bool>,
    kubernetes_controller: Option<bool>,
    kubernetes_worker: Option<bool>,
}

/// What is to be done for a wish, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Plan {
    /// The node is to become a consensus member.
    join: bool,
    /// The node is to be no consensus member.
    leave: bool,
    /// A role that needs the first one is given together with it.
    wait: bool,
}

/// Gives roles to a node and takes them from it, for the reason given.
pub(super) async fn update(
    core: &Core,
    leader: &LeaderState,
    request: UpdateNodeRolesRequest,
    reason: &str,
) -> Result<UpdateNodeRolesResponse, Status> {
    let wish = Wish {
        consensus_member: request.consensus_member,
        kubernetes_controller: request.kubernetes_controller,
        kubernetes_worker: request.kubernetes_worker,
    };
    let id = target(request.node.map(Into::into))?;
    let plan = begin(core, leader, &id, wish).await?;
    if plan.leave {
        remove_member(core, leader, &id, reason).await?;
    }
    if plan.wait {
        wait_for_member(core, &id).await?;
    }
    write(core, leader, &id, wish).await?;
    Ok(UpdateNodeRolesResponse {})
}

/// Checks the wish, and puts the node into the queue if it is to become a consensus member.
async fn begin(core: &Core, leader: &LeaderState, id: &NodeId, wish: Wish) -> Result<Plan, Status> {
    // Nobody asks it to be decommissioned meanwhile.
    let _one_at_a_time = core.lifecycle().await?;
    let Some(found) = leader.node(id).await? else { return Err(Core::unknown_node(leader, id).await?) };
    let enrolment = leader.get_message::<NodeEnrolment>(&layout::enrolment(id)).await?;
    let phase = enrolment.map_or(DecommissionPhase::None, |known| known.value.decommission());
    let plan = plan(found.value.state, phase, &found.value.roles, wish)?;
    if plan.join {
        match core.members.enqueue_join(leader, id).await {
            Ok(_) => {}
            Err(EnqueueError::NoSuchNode(_)) => return Err(Core::unknown_node(leader, id).await?),
            Err(error) => return Err(enqueue_refused(error)),
        }
    }
    Ok(plan)
}

/// Has the others remove the consensus member of a node, and waits until that is done.
pub(super) async fn remove_member(core: &Core, leader: &LeaderState, id: &NodeId, reason: &str) -> Result<(), Status> {
    let removal = core.members.request_removal(leader, id, reason).await.map_err(removal_refused)?;
    core.members.removed(leader, &removal, REMOVAL_DEADLINE).await.map_err(removal_refused)
}

/// Waits until the node has the role of a consensus member, which comes before those that need it.
async fn wait_for_member(core: &Core, id: &NodeId) -> Result<(), Status> {
    let mut subscription = core.nodes.subscribe_node(*id);
    let given = async {
        let mut view = subscription.view();
        while view.record.is_some_and(|record| !record.value.is_consensus_member()) {
            view = subscription.changed().await;
        }
    };
    timeout(MEMBER_PATIENCE, given).await.map_err(|_| {
        Status::unavailable(format!(
            "{id} waits to become a consensus member, and becomes a Kubernetes controller only after that; `polis cluster \
             status` says what it waits for. Ask again then"
        ))
    })
}

/// Writes the roles that are nothing but a mark in the record.
async fn write(core: &Core, leader: &LeaderState, id: &NodeId, wish: Wish) -> Result<(), Status> {
    let _one_at_a_time = core.lifecycle().await?;
    if wish.kubernetes_controller == Some(false) {
        core.members.forget_controller(leader, id).await?;
    }
    let written = leader.update_node("curator/node/roles", id, |record| {
        let record = record.ok_or_else(|| Status::not_found(format!("{id} was deleted meanwhile")))?;
        let roles = marked(&record.roles, wish);
        if roles.kubernetes_controller.is_some() && roles.consensus_member.is_none() {
            return Err(needs_member());
        }
        Ok((roles != record.roles).then(|| NodeRecord { roles, ..record.clone() }))
    });
    written.await.map(|_| ())
}

/// Decides about a wish.
fn plan(state: NodeState, phase: DecommissionPhase, roles: &NodeRoles, wish: Wish) -> Result<Plan, Status> {
    let (member, controller) = (roles.consensus_member.is_some(), roles.kubernetes_controller.is_some());
    let worker = roles.kubernetes_worker.is_some();
    let gives = |wish: Option<bool>, has: bool| wish == Some(true) && !has;
    let gives_any = gives(wish.consensus_member, member)
        || gives(wish.kubernetes_controller, controller)
        || gives(wish.kubernetes_worker, worker);
    if gives_any && state != NodeState::Up {
        return Err(Status::failed_precondition(format!(
            "the node is {}, and only a node that is UP can have roles; it is once it was approved and has joined",
            state_name(state)
        )));
    }
    if gives_any && phase != DecommissionPhase::None {
        return Err(Status::failed_precondition("the node is being decommissioned, and gets no more roles"));
    }
    if wish.consensus_member == Some(false) {
        if wish.kubernetes_controller == Some(true) {
            return Err(needs_member());
        }
        if controller && wish.kubernetes_controller.is_none() {
            return Err(Status::failed_precondition(
                "the node is a Kubernetes controller, which needs a consensus member; take that role away first, or with \
                 the same request",
            ));
        }
    }
    let join = wish.consensus_member == Some(true);
    if gives(wish.kubernetes_controller, controller) && !member && !join {
        return Err(needs_member());
    }
    let wait = join && !member && gives(wish.kubernetes_controller, controller);
    Ok(Plan { join, leave: wish.consensus_member == Some(false), wait })
}

fn needs_member() -> Status {
    Status::failed_precondition(
        "a Kubernetes controller needs the node's own consensus member; give the node that role, too, and first",
    )
}

/// The roles with those set that are nothing but a mark.
fn marked(roles: &NodeRoles, wish: Wish) -> NodeRoles {
    fn mark<T: Default>(known: Option<T>, wish: Option<bool>) -> Option<T> {
        match wish {
            Some(true) => Some(known.unwrap_or_default()),
            Some(false) => None,
            None => known,
        }
    }
    NodeRoles {
        kubernetes_controller: mark::<KubernetesController>(roles.kubernetes_controller, wish.kubernetes_controller),
        kubernetes_worker: mark::<KubernetesWorker>(roles.kubernetes_worker, wish.kubernetes_worker),
        consensus_member: roles.consensus_member.clone(),
    }
}

/// The names of the roles that a node has, as Metropolis writes them.
pub(super) fn names(roles: &NodeRoles) -> Vec<&'static str> {
    let member = roles.consensus_member.is_some().then_some("ConsensusMember");
    let controller = roles.kubernetes_controller.is_some().then_some("KubernetesController");
    let worker = roles.kubernetes_worker.is_some().then_some("KubernetesWorker");
    [member, controller, worker].into_iter().flatten().collect()
}

fn enqueue_refused(error: EnqueueError) -> Status {
    let message = with_causes(&error);
    match error {
        EnqueueError::NoSuchNode(_) => Status::not_found(message),
        // A leader that has only begun to lead has not heard of the node yet, and will within seconds: the caller asks again.
        EnqueueError::NotHealthy { health: Health::Unknown, .. } => Status::unavailable(message),
        EnqueueError::NotUp { .. } | EnqueueError::NotHealthy { .. } | EnqueueError::NoShareKey(_) => {
            Status::failed_precondition(message)
        }
        EnqueueError::Refused { source, .. } => margin_refused(message, &source),
        EnqueueError::BeingRemoved(_) | EnqueueError::Members(_) => Status::unavailable(message),
        EnqueueError::State(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use polis_proto::common::node_roles::ConsensusMember;
    use tonic::Code;

    use super::*;

    const NOTHING: Wish = Wish { consensus_member: None, kubernetes_controller: None, kubernetes_worker: None };

    fn wish(member: Option<bool>, controller: Option<bool>, worker: Option<bool>) -> Wish {
        Wish { consensus_member: member, kubernetes_controller: controller, kubernetes_worker: worker }
    }

    fn roles(member: bool, controller: bool, worker: bool) -> NodeRoles {
        NodeRoles {
            consensus_member: member.then(ConsensusMember::default),
            kubernetes_controller: controller.then_some(KubernetesController {}),
            kubernetes_worker: worker.then_some(KubernetesWorker {}),
        }
    }

    #[test]
    fn wishes_are_checked_as_a_whole() {
        let (on, off) = (Some(true), Some(false));
        let nothing = Plan::default();
        let join = Plan { join: true, ..nothing };
        let leave = Plan { leave: true, ..nothing };
        let both = Plan { join: true, wait: true, ..nothing };
        for (has, wanted, expected) in [
            (roles(false, false, false), NOTHING, Ok(nothing)),
            (roles(false, false, false), wish(on, None, None), Ok(join)),
            (roles(true, false, false), wish(on, None, None), Ok(join)),
            (roles(false, false, false), wish(None, None, on), Ok(nothing)),
            (roles(false, false, true), wish(None, None, off), Ok(nothing)),
            // A controller needs a member.
            (roles(false, false, false), wish(None, on, None), Err(Code::FailedPrecondition)),
            (roles(true, false, false), wish(None, on, None), Ok(nothing)),
            (roles(false, false, false), wish(on, on, None), Ok(both)),
            (roles(true, false, false), wish(on, on, None), Ok(join)),
            (roles(true, true, false), wish(None, off, None), Ok(nothing)),
            // The member goes last, or with the controller.
            (roles(true, true, false), wish(off, None, None), Err(Code::FailedPrecondition)),
            (roles(true, true, false), wish(off, on, None), Err(Code::FailedPrecondition)),
            (roles(true, false, false), wish(off, on, None), Err(Code::FailedPrecondition)),
            (roles(true, true, false), wish(off, off, None), Ok(leave)),
            (roles(true, false, true), wish(off, None, None), Ok(leave)),
            (roles(false, false, false), wish(off, None, None), Ok(leave)),
        ] {
            let found = plan(NodeState::Up, DecommissionPhase::None, &has, wanted).map_err(|status| status.code());
            assert_eq!(found, expected, "{:?}, {wanted:?}", names(&has));
        }
    }

    #[test]
    fn only_nodes_that_are_up_and_stay_get_roles() {
        let any = [wish(Some(true), None, None), wish(None, None, Some(true)), wish(Some(true), Some(true), None)];
        let refused = |state, phase| {
            for wanted in any {
                let found = plan(state, phase, &roles(false, false, false), wanted).map_err(|status| status.code());
                assert_eq!(found, Err(Code::FailedPrecondition), "{state:?}, {phase:?}, {wanted:?}");
            }
            // What it has may be taken, or left as it is.
            let worker = roles(false, false, true);
            assert!(plan(state, phase, &worker, wish(None, None, Some(false))).is_ok(), "{state:?}, {phase:?}");
            assert!(plan(state, phase, &worker, wish(None, None, Some(true))).is_ok(), "{state:?}, {phase:?}");
        };
        for state in [NodeState::New, NodeState::Standby, NodeState::Decommissioned] {
            refused(state, DecommissionPhase::None);
        }
        for phase in [DecommissionPhase::Requested, DecommissionPhase::CleaningUp, DecommissionPhase::Decommissioned] {
            refused(NodeState::Up, phase);
        }
    }

    #[test]
    fn marks_do_not_touch_what_else_is_there() {
        let member = ConsensusMember { ca_certificate: vec![1], ..ConsensusMember::default() };
        let before = NodeRoles { consensus_member: Some(member), ..NodeRoles::default() };
        let after = marked(&before, wish(Some(true), Some(true), Some(true)));
        assert_eq!(names(&after), ["ConsensusMember", "KubernetesController", "KubernetesWorker"]);
        assert_eq!(after.consensus_member, before.consensus_member);
        assert_eq!(marked(&after, wish(None, Some(false), Some(false))), before);
    }
}
