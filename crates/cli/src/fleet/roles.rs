//! `polis node add role` and `polis node remove role`.

use std::process::ExitCode;

use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::{UpdateNodeRolesRequest, update_node_roles_request};
use tonic::Code;

use super::{NodeDocument, reach};
use crate::arguments::{Role, RoleArguments};
use crate::failure::Failure;
use crate::operator::{Operator, Repeat};
use crate::view::Progress;

/// Gives the role, or takes it.
pub(super) fn run(arguments: &RoleArguments, give: bool) -> Result<ExitCode, Failure> {
    let command = if give { "node add role" } else { "node remove role" };
    let role = arguments.role;
    Operator::run(&arguments.connection, command, async |operator| {
        let progress = Progress::start();
        let not_done = format!("{} the role {}", if give { "was not given" } else { "did not lose" }, role.name());
        for node in reach::to_change(operator, &arguments.ids, &not_done).await? {
            let id = &node.node_id;
            progress.waiting(&format!("{id}: {} {} ...", if give { "adding" } else { "removing" }, role.name()));
            set(operator, &node, role, give).await?;
            let done = match (give, node.has_role(role), role) {
                (true, true, _) => format!("{id} has the role {} already", role.name()),
                (true, false, Role::ConsensusMember) => format!(
                    "{id} is to become a {}; how far it is: polis cluster status{}",
                    role.name(),
                    operator.options()
                ),
                (true, false, Role::KubernetesController | Role::KubernetesWorker) => {
                    format!("{id} has the role {} now", role.name())
                }
                (false, true, _) => format!("{id} has the role {} no more", role.name()),
                (false, false, _) => format!("{id} did not have the role {}", role.name()),
            };
            progress.line(&done);
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Gives a node a role, or takes it. Doing it again changes nothing. Where the node is not far enough, the way there is named.
///
/// # Errors
///
/// When the cluster refuses or does not answer.
pub(crate) async fn set(operator: &Operator, node: &NodeDocument, role: Role, give: bool) -> Result<(), Failure> {
    let id = &node.node_id;
    let what = if give {
        format!("{id} was not given the role {}", role.name())
    } else {
        format!("the role {} was not taken from {id}", role.name())
    };
    let only = |this: Role| (this == role).then_some(give);
    let answer = operator
        .call(&what, Repeat::Always, async |channel| {
            let request = UpdateNodeRolesRequest {
                node: Some(update_node_roles_request::Node::Id(id.clone())),
                kubernetes_worker: only(Role::KubernetesWorker),
                kubernetes_controller: only(Role::KubernetesController),
                consensus_member: only(Role::ConsensusMember),
            };
            ManagementClient::new(channel).update_node_roles(request).await.map(|_| ())
        })
        .await;
    match answer {
        Ok(()) => Ok(()),
        Err(error) if error.code() == Some(Code::FailedPrecondition) => {
            let failure = Failure::from(error);
            let first = if give { before_roles } else { before_none };
            Err(match first(node, role, operator.options()) {
                Some(next) => failure.refused().hint(next),
                None => failure.refused(),
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// What to do with a node that cannot have roles yet.
fn before_roles(node: &NodeDocument, role: Role, options: &str) -> Option<String> {
    let (id, role) = (&node.node_id, role.name());
    let then = format!("then: polis node add role {role} {id}{options}");
    match &*node.state {
        "NEW" => Some(format!(
            "it waits for approval; compare its key with what the machine shows, and approve it: polis node approve {id}{options}\n\
             wait until it is UP: polis node list {id}{options}\n{then}"
        )),
        "STANDBY" => Some(format!(
            "it was approved and has not joined yet, which it does by itself once it runs and reaches the cluster; on its machine:\n\
             polis node status --root DIR\nwait until it is UP: polis node list {id}{options}\n{then}"
        )),
        "UP" => Some(format!("wait until it is HEALTHY: polis node list {id}{options}\n{then}")),
        _ => None,
    }
}

/// What to do with a node that has another role which needs this one.
fn before_none(node: &NodeDocument, role: Role, options: &str) -> Option<String> {
    let (id, other) = (&node.node_id, Role::KubernetesController);
    (role == Role::ConsensusMember && node.has_role(other))
        .then(|| format!("first: polis node remove role {} {id}{options}", other.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_a_role_for_a_node_that_is_not_up() {
        let node = |state: &str| NodeDocument {
            node_id: "metropolis-a".into(),
            state: state.into(),
            ..NodeDocument::default()
        };
        let way = |state| before_roles(&node(state), Role::KubernetesWorker, " --config D");
        for state in ["NEW", "STANDBY", "UP"] {
            let way = way(state).unwrap();
            for part in [
                "polis node list metropolis-a --config D",
                "polis node add role KubernetesWorker metropolis-a --config D",
            ] {
                assert!(way.contains(part), "{part:?} is missing in {way}");
            }
            assert_eq!(way.contains("polis node approve metropolis-a --config D"), state == "NEW", "{way}");
        }
        assert_eq!(way("DECOMMISSIONED"), None);
        let controller = NodeDocument { roles: vec!["ConsensusMember", "KubernetesController"], ..node("UP") };
        assert_eq!(
            before_none(&controller, Role::ConsensusMember, " --config D").as_deref(),
            Some("first: polis node remove role KubernetesController metropolis-a --config D")
        );
        assert_eq!(before_none(&node("UP"), Role::ConsensusMember, ""), None);
    }
}
