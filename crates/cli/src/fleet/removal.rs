//! `polis node decommission` and `polis node delete`.

use std::process::ExitCode;
use std::time::Duration;

use polis_proto::api::delete_node_request::{self, SafetyBypassHasRoles, SafetyBypassNotDecommissioned};
use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::{DecommissionNodeRequest, DeleteNodeRequest, decommission_node_request};
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::{NodeDocument, list, reach};
use crate::arguments::{DecommissionArguments, DeleteArguments};
use crate::failure::Failure;
use crate::operator::{Operator, Repeat};
use crate::view::Progress;
use crate::{cluster, duration};

/// Pause between two looks at a node that is leaving. It erases its keys within a second or two.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) fn decommission(arguments: &DecommissionArguments) -> Result<ExitCode, Failure> {
    Operator::run(&arguments.connection, "node decommission", async |operator| {
        let progress = Progress::start();
        let node = reach::one_to_change(operator, &arguments.id, "was not told to leave").await?;
        let id = &node.node_id;
        if node.state == "DECOMMISSIONED" {
            progress.line(&format!(
                "{id} is decommissioned already; remove it: polis node delete {id}{}",
                operator.options()
            ));
            return Ok(());
        }
        let answer = operator
            .call(&format!("{id} was not told to leave"), Repeat::Always, async |channel| {
                let node = Some(decommission_node_request::Node::Id(id.clone()));
                ManagementClient::new(channel).decommission_node(DecommissionNodeRequest { node }).await.map(|_| ())
            })
            .await;
        match answer {
            Ok(()) => {}
            Err(error) if error.code() == Some(Code::FailedPrecondition) => {
                return Err(Failure::from(error).refused().hint(before_leaving(&node, operator.options())));
            }
            Err(error) => return Err(error.into()),
        }
        if !arguments.wait {
            progress.line(&format!("{id} is told to leave; how far it is: polis cluster status{}", operator.options()));
            return Ok(());
        }
        wait(operator, id, arguments.wait_timeout, &progress).await?;
        progress.line(&format!("{id} has erased its keys; remove it: polis node delete {id}{}", operator.options()));
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until the node has done its part.
async fn wait(operator: &Operator, id: &str, longest: Duration, progress: &Progress) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut phase = "REQUESTED".to_owned();
    while begin.elapsed() < longest {
        let nodes = list::get(operator, "").await?;
        match nodes.iter().find(|node| node.node_id == id).map(|node| &*node.state) {
            None | Some("DECOMMISSIONED") => return Ok(()),
            Some(_) => {}
        }
        let status = cluster::get_status(operator).await?;
        let now = status.decommissioning.iter().find(|leaving| leaving.node_id == id);
        if let Some(now) = now.filter(|now| now.phase != phase) {
            phase = now.phase.clone();
            progress.line(&format!("{id}: {phase}"));
        }
        progress.waiting(&format!("{id}: {phase} for {}", duration::show(begin.elapsed())));
        sleep(PAUSE).await;
    }
    Err(Failure::failed(format!("{id} has not left within {}", duration::show(longest)))
        .because_of(format!("its decommissioning is at {phase}"))
        .because_of("only the node itself can erase its keys; it goes on when it runs and reaches the cluster")
        .hint(format!(
            "look at it: polis cluster health{options}\n\
             if it is dead for good: polis node delete {id} --bypass-not-decommissioned{options}",
            options = operator.options()
        )))
}

pub(super) fn delete(arguments: &DeleteArguments) -> Result<ExitCode, Failure> {
    Operator::run(&arguments.connection, "node delete", async |operator| {
        let node = reach::one_to_change(operator, &arguments.id, "was not deleted").await?;
        let id = &node.node_id;
        let answer = operator
            .call(&format!("{id} was not deleted"), Repeat::Always, async |channel| {
                let request = DeleteNodeRequest {
                    node: Some(delete_node_request::Node::Id(id.clone())),
                    safety_bypass_has_roles: arguments.bypass_has_roles.then_some(SafetyBypassHasRoles {}),
                    safety_bypass_not_decommissioned: arguments
                        .bypass_not_decommissioned
                        .then_some(SafetyBypassNotDecommissioned {}),
                };
                ManagementClient::new(channel).delete_node(request).await.map(|_| ())
            })
            .await;
        match answer {
            Ok(()) => {}
            // An earlier attempt has done it, and its answer was lost.
            Err(error) if error.was_repeated() && error.code() == Some(Code::NotFound) => {}
            Err(error) if error.code() == Some(Code::FailedPrecondition) => {
                let flags = missing_bypasses(&node, arguments);
                let failure = Failure::from(error);
                return Err(if flags.is_empty() {
                    failure
                } else {
                    failure.refused().hint(format!(
                        "{}\nif it is dead for good: polis node delete {id} {}{}",
                        proper_way(&node, operator.options()),
                        flags.join(" "),
                        operator.options()
                    ))
                });
            }
            Err(error) => return Err(error.into()),
        }
        Progress::start().line(&format!("{id} is deleted, and its certificate is revoked"));
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The flags without which the cluster does not delete the node (metropolis.md G.4).
fn missing_bypasses(node: &NodeDocument, arguments: &DeleteArguments) -> Vec<&'static str> {
    let given = |flag, given: bool, needed: bool| (given || needed).then_some(flag);
    let has_roles = !node.roles.is_empty();
    let flags: Vec<&str> = [
        given("--bypass-has-roles", arguments.bypass_has_roles, has_roles),
        given("--bypass-not-decommissioned", arguments.bypass_not_decommissioned, node.is_up()),
    ]
    .into_iter()
    .flatten()
    .collect();
    let all_given =
        (!has_roles || arguments.bypass_has_roles) && (!node.is_up() || arguments.bypass_not_decommissioned);
    if all_given { Vec::new() } else { flags }
}

/// What to do with a node that the cluster does not decommission as it is.
fn before_leaving(node: &NodeDocument, options: &str) -> String {
    let id = &node.node_id;
    match (&*node.state, &node.roles[..]) {
        ("UP", [_, ..]) => proper_way(node, options),
        ("NEW" | "STANDBY", _) => {
            format!("it has no keys of the cluster to erase; remove it: polis node delete {id}{options}")
        }
        ("UP", []) => {
            format!("if it waits to become a consensus member: polis node remove role ConsensusMember {id}{options}")
        }
        _ => format!("see how it is: polis node describe {id}{options}"),
    }
}

/// What to do with a node that still lives.
fn proper_way(node: &NodeDocument, options: &str) -> String {
    let id = &node.node_id;
    let mut steps: Vec<String> =
        node.roles.iter().rev().map(|role| format!("polis node remove role {role} {id}{options}")).collect();
    if node.is_up() {
        steps.push(format!("polis node decommission {id} --wait{options}"));
    }
    format!("first: {}", steps.join("\n       "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_that_are_missing_and_the_proper_way() {
        let node = |state: &str, roles: &[&'static str]| NodeDocument {
            node_id: "metropolis-a".into(),
            state: state.into(),
            roles: roles.to_vec(),
            ..NodeDocument::default()
        };
        let arguments = |roles: bool, decommissioned: bool| {
            let line = "polis node delete metropolis-a";
            let roles = if roles { " --bypass-has-roles" } else { "" };
            let decommissioned = if decommissioned { " --bypass-not-decommissioned" } else { "" };
            crate::arguments::tests::delete(&format!("{line}{roles}{decommissioned}"))
        };
        let up = node("UP", &["ConsensusMember", "KubernetesController"]);
        let check = |node: &NodeDocument, roles, decommissioned, expect: &[&str]| {
            assert_eq!(missing_bypasses(node, &arguments(roles, decommissioned)), expect);
        };
        let both = &["--bypass-has-roles", "--bypass-not-decommissioned"];
        check(&up, false, false, both);
        check(&up, true, false, both);
        check(&up, true, true, &[]);
        check(&node("UP", &[]), false, false, &["--bypass-not-decommissioned"]);
        check(&node("NEW", &[]), false, false, &[]);
        check(&node("DECOMMISSIONED", &["ConsensusMember"]), false, false, &["--bypass-has-roles"]);
        assert_eq!(
            proper_way(&up, " --config D"),
            "first: polis node remove role KubernetesController metropolis-a --config D\n       \
             polis node remove role ConsensusMember metropolis-a --config D\n       \
             polis node decommission metropolis-a --wait --config D"
        );
        assert_eq!(before_leaving(&up, " --config D"), proper_way(&up, " --config D"));
        assert!(
            before_leaving(&node("NEW", &[]), " --config D").ends_with("polis node delete metropolis-a --config D")
        );
        assert!(before_leaving(&node("UP", &[]), "").ends_with("polis node remove role ConsensusMember metropolis-a"));
    }
}
