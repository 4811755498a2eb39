//! `polis cluster confirm-two`.

use std::process::ExitCode;

use polis_proto::cluster::ConfirmTwoRequest;
use polis_proto::cluster::cluster_client::ClusterClient as ClusterServiceClient;

use crate::arguments::ConfirmTwoArguments;
use crate::failure::Failure;
use crate::operator::{Operator, Repeat};
use crate::view::print;

pub(super) fn run(arguments: &ConfirmTwoArguments) -> Result<ExitCode, Failure> {
    let withdraw = arguments.withdraw;
    let options = Operator::run(&arguments.connection, "cluster confirm-two", async |operator| {
        let what = "it was not noted that two members are to stay two";
        let answer = operator
            .call(what, Repeat::Always, async |channel| {
                ClusterServiceClient::new(channel).confirm_two(ConfirmTwoRequest { withdraw }).await.map(|_| ())
            })
            .await;
        answer?;
        Ok(operator.options().to_owned())
    })?;
    let now = if withdraw {
        "of two members, each keeps a copy of its key again and comes back alone"
    } else {
        "of two members, neither keeps a copy of its key: after a power failure both are needed, or the recovery key"
    };
    print(&format!("{now}\nlook at it: polis cluster status{options}\n"))?;
    Ok(ExitCode::SUCCESS)
}
