//! `polis node add role` and `polis node remove role`.

use std::process::ExitCode;

use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::{UpdateNodeRolesRequest, update_node_roles_request};

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
        for node in reach::to_change(operator, &arguments.ids).await? {
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

/// Gives a node a role, or takes it. Doing it again changes nothing.
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
    Ok(answer?)
}
