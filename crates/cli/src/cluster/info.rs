//! `polis cluster info` and `polis cluster ticket`.

use std::process::ExitCode;

use polis_identity::{Certificate, verify_certificate_authority};
use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::{GetClusterInfoRequest, GetClusterInfoResponse, GetRegisterTicketRequest};
use polis_proto::cluster::RotateRegisterTicketRequest;
use polis_proto::cluster::cluster_client::ClusterClient as ClusterServiceClient;
use serde_json::json;

use super::InfoDocument;
use crate::arguments::{OutputFormat, ShowClusterArguments, TicketCommand};
use crate::failure::Failure;
use crate::operator::{Operator, Repeat};
use crate::view::{Paint, print_value};

pub(super) fn run(arguments: &ShowClusterArguments) -> Result<ExitCode, Failure> {
    let info = Operator::run(&arguments.connection, "cluster info", async |operator| {
        let info = get(operator).await?;
        let shown = Certificate::from_der(info.ca_certificate)
            .map_err(|error| Failure::failed("the cluster shows a CA that is no certificate").because(&error))?;
        let authority = verify_certificate_authority(shown)
            .map_err(|error| Failure::failed("the cluster shows a CA that is none").because(&error))?;
        Ok(InfoDocument::new(
            &authority,
            info.cluster_configuration.unwrap_or_default(),
            info.cluster_directory.unwrap_or_default(),
        ))
    })?;
    print_value(arguments.output, &info, |_| info.render(Paint::for_stdout()))?;
    Ok(ExitCode::SUCCESS)
}

/// What the cluster says it is.
pub(crate) async fn get(operator: &Operator) -> Result<GetClusterInfoResponse, Failure> {
    let what = "the cluster could not be asked what it is";
    let answer = operator
        .ask(what, async |channel| {
            let answer = ManagementClient::new(channel).get_cluster_info(GetClusterInfoRequest {}).await?;
            Ok(answer.into_inner())
        })
        .await;
    Ok(answer?)
}

/// The register ticket, in the form in which machines show it.
pub(crate) async fn ticket(operator: &Operator) -> Result<Vec<u8>, Failure> {
    let what = "the register ticket could not be fetched";
    let answer = operator
        .ask(what, async |channel| {
            let answer = ManagementClient::new(channel).get_register_ticket(GetRegisterTicketRequest {}).await?;
            Ok(answer.into_inner().ticket)
        })
        .await;
    Ok(answer?)
}

pub(super) fn run_ticket(command: &TicketCommand) -> Result<ExitCode, Failure> {
    match command {
        TicketCommand::Show(arguments) => {
            let ticket =
                Operator::run(&arguments.connection, "cluster ticket show", async |operator| ticket(operator).await)?;
            show_ticket(&ticket, arguments.output)
        }
        TicketCommand::Rotate(arguments) => {
            let ticket = Operator::run(&arguments.connection, "cluster ticket rotate", async |operator| {
                let what = "the register ticket was not renewed";
                let answer = operator
                    .call(what, Repeat::OnlyIfNothingWasDone, async |channel| {
                        let request = RotateRegisterTicketRequest {};
                        let answer = ClusterServiceClient::new(channel).rotate_register_ticket(request).await?;
                        Ok(answer.into_inner().ticket)
                    })
                    .await;
                answer.map_err(|error| {
                    let lost = error.is_outcome_unknown();
                    let failure = Failure::from(error);
                    if lost {
                        failure.hint(format!(
                            "whether there is a new ticket shows: polis cluster ticket show{}",
                            operator.options()
                        ))
                    } else {
                        failure
                    }
                })
            })?;
            show_ticket(&ticket, arguments.output)
        }
    }
}

fn show_ticket(ticket: &[u8], output: OutputFormat) -> Result<ExitCode, Failure> {
    let ticket = hex::encode(ticket);
    print_value(output, &json!({"ticket": ticket}), |_| format!("{ticket}\n"))?;
    Ok(ExitCode::SUCCESS)
}
