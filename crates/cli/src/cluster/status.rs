//! `polis cluster status` and `polis consensus members`.

use std::process::ExitCode;

use polis_proto::cluster::GetStatusRequest;
use polis_proto::cluster::cluster_client::ClusterClient as ClusterServiceClient;

use super::StatusDocument;
use crate::arguments::ShowClusterArguments;
use crate::failure::Failure;
use crate::operator::{CallFailure, Operator};
use crate::view::{Paint, print_value};

pub(super) fn run(arguments: &ShowClusterArguments) -> Result<ExitCode, Failure> {
    let status = Operator::run(&arguments.connection, "cluster status", async |operator| Ok(get(operator).await?))?;
    print_value(arguments.output, &status, |wide| status.render(wide, Paint::for_stdout()))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn run_members(arguments: &ShowClusterArguments) -> Result<ExitCode, Failure> {
    let status = Operator::run(&arguments.connection, "consensus members", async |operator| Ok(get(operator).await?))?;
    print_value(arguments.output, &status.members, |wide| status.render_members(wide, Paint::for_stdout()))?;
    Ok(ExitCode::SUCCESS)
}

/// What the leader says the cluster is doing.
pub(crate) async fn get(operator: &Operator) -> Result<StatusDocument, CallFailure> {
    let what = "the leader could not be asked what the cluster is doing";
    operator
        .ask(what, async |channel| {
            let answer = ClusterServiceClient::new(channel).get_status(GetStatusRequest {}).await?;
            Ok(StatusDocument::from(answer.into_inner()))
        })
        .await
}
