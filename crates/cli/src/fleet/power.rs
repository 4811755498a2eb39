//! `polis node reboot` and `polis node poweroff`.

use std::process::ExitCode;

use polis_proto::api::RebootRequest;
use polis_proto::api::node_management_client::NodeManagementClient;
use polis_proto::api::reboot_request::{NextBoot, Type};
use polis_rpc::NODE_MANAGEMENT_PORT;

use super::reach;
use crate::arguments::{PowerArguments, RebootArguments};
use crate::cluster::{self, StatusDocument};
use crate::failure::Failure;
use crate::operator::Operator;
use crate::view::Progress;

pub(super) fn reboot(arguments: &RebootArguments) -> Result<ExitCode, Failure> {
    let kind = if arguments.kexec { Type::Kexec } else { Type::Firmware };
    let (next_boot, option) = match (arguments.rollback, arguments.firmware) {
        (true, _) => (NextBoot::StartRollback, " --rollback"),
        (false, true) => (NextBoot::StartFirmwareUi, " --firmware"),
        (false, false) => (NextBoot::StartNormal, ""),
    };
    let option = format!("{option}{}", if arguments.kexec { " --kexec" } else { "" });
    run(&arguments.node, &Order { verb: "reboot", option, kind, next_boot })
}

pub(super) fn power_off(arguments: &PowerArguments) -> Result<ExitCode, Failure> {
    let (kind, next_boot) = (Type::PowerOff, NextBoot::StartNormal);
    run(arguments, &Order { verb: "poweroff", option: String::new(), kind, next_boot })
}

/// What a node is told.
struct Order {
    verb: &'static str,
    /// Options of the command that gives it.
    option: String,
    kind: Type,
    next_boot: NextBoot,
}

fn run(arguments: &PowerArguments, order: &Order) -> Result<ExitCode, Failure> {
    let Order { verb, option, kind, next_boot } = order;
    let (kind, next_boot) = (*kind, *next_boot);
    Operator::run(&arguments.connection, &format!("node {verb}"), async |operator| {
        let node = reach::to_ask(operator, &arguments.id, NODE_MANAGEMENT_PORT).await?;
        let id = node.id.to_string();
        if !arguments.bypass_quorum {
            let status = cluster::get_status(operator).await?;
            if let Some(loss) = quorum_loss(&status, &id, kind) {
                return Err(Failure::failed(format!("{id} was left alone")).refused().because_of(loss).hint(format!(
                    "bring the others back first: polis cluster health{options}\n\
                     if the cluster may stand still meanwhile: polis node {verb} {id}{option} --bypass-quorum{options}",
                    options = operator.options()
                )));
            }
        }
        let request = RebootRequest { r#type: kind.into(), next_boot: next_boot.into() };
        let what = format!("{id} was not told to {}", if kind == Type::PowerOff { "stop" } else { "restart" });
        // Once only: a second one would hit the node when it has just come back.
        let mut client = NodeManagementClient::new(operator.node_channel(node.id, node.address));
        node.answer(operator, &what, operator.timeout(), client.reboot(request)).await?;
        let come_back = format!("see it come back: polis node list {id}{}", operator.options());
        Progress::start().line(&match (kind, next_boot) {
            (Type::PowerOff, _) => format!("{id} stops; it has to be started on the spot"),
            (_, NextBoot::StartFirmwareUi) => {
                format!("{id} restarts and stops in the menu of its firmware, where somebody has to go on")
            }
            (_, NextBoot::StartRollback) => format!("{id} restarts with the image that it had before; {come_back}"),
            (Type::Invalid | Type::Firmware | Type::Kexec, NextBoot::StartNormal) => {
                format!("{id} restarts; {come_back}")
            }
        });
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Why the cluster would stand still without the node. The only member of a cluster may be restarted: nobody else is there to
/// be surprised, and it comes back by itself.
fn quorum_loss(status: &StatusDocument, node_id: &str, kind: Type) -> Option<String> {
    let is_voter = status.voters().any(|member| member.node_id.as_deref() == Some(node_id));
    let others =
        status.voters().filter(|member| member.reachable && member.node_id.as_deref() != Some(node_id)).count();
    let quorum = usize::try_from(status.quorum).unwrap_or(usize::MAX);
    let comes_back_alone = status.voters().count() == 1 && kind != Type::PowerOff;
    if !is_voter || others >= quorum || comes_back_alone {
        return None;
    }
    Some(format!(
        "without it {others} of {} members with a vote would answer, and {quorum} must: nothing could be changed until it is back",
        status.voters().count()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::MemberDocument;

    #[test]
    fn only_what_costs_the_quorum_is_refused() {
        let status = |reachable: &[bool], learner: bool| {
            let members = reachable.iter().enumerate().map(|(index, reachable)| MemberDocument {
                node_id: Some(index.to_string()),
                reachable: *reachable,
                ..MemberDocument::default()
            });
            let learner = learner.then(|| MemberDocument {
                node_id: Some("l".into()),
                learner: true,
                ..MemberDocument::default()
            });
            StatusDocument {
                quorum: u32::try_from(reachable.len() / 2 + 1).unwrap(),
                members: members.chain(learner).collect(),
                ..StatusDocument::default()
            }
        };
        let refused = |status: &StatusDocument, node: &str, kind| quorum_loss(status, node, kind).is_some();
        let three = status(&[true, true, true], true);
        assert!(!refused(&three, "0", Type::Firmware) && !refused(&three, "l", Type::PowerOff));
        let weak = status(&[true, true, false], false);
        assert!(refused(&weak, "0", Type::Firmware) && !refused(&weak, "2", Type::Firmware));
        assert!(refused(&status(&[true, true], false), "0", Type::Firmware));
        let one = status(&[true], false);
        assert!(!refused(&one, "0", Type::Firmware) && refused(&one, "0", Type::PowerOff));
        let text = quorum_loss(&weak, "1", Type::Firmware).unwrap();
        assert_eq!(
            text,
            "without it 1 of 3 members with a vote would answer, and 2 must: nothing could be changed until it is back"
        );
    }
}
