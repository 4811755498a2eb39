//! `polis node rekey` and `polis node reseal`.

use std::process::ExitCode;

use polis_proto::node_api::node_client::NodeClient;
use polis_proto::node_api::{RekeyRequest, ResealRequest};
use polis_rpc::NODE_MANAGEMENT_PORT;

use super::reach;
use crate::arguments::KeyArguments;
use crate::failure::Failure;
use crate::operator::{Operator, node_failure};
use crate::view::Progress;

pub(super) fn rekey(arguments: &KeyArguments) -> Result<ExitCode, Failure> {
    Operator::run(&arguments.connection, "node rekey", async |operator| {
        let node = reach::to_ask(operator, &arguments.id, NODE_MANAGEMENT_PORT).await?;
        let answer = NodeClient::new(operator.node_channel(node.id, node.address)).rekey(RekeyRequest {}).await;
        let what = format!("the key of {} was not replaced to the end", node.id);
        answer.map_err(|status| node_failure(&what, &node.id, node.address, &status))?;
        Progress::start()
            .line(&format!("the cluster unlock key of {} was replaced; the old one opens nothing any more", node.id));
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn reseal(arguments: &KeyArguments) -> Result<ExitCode, Failure> {
    Operator::run(&arguments.connection, "node reseal", async |operator| {
        let node = reach::to_ask(operator, &arguments.id, NODE_MANAGEMENT_PORT).await?;
        let answer = NodeClient::new(operator.node_channel(node.id, node.address)).reseal(ResealRequest {}).await;
        let what = format!("the seal of {} was not renewed", node.id);
        answer.map_err(|status| node_failure(&what, &node.id, node.address, &status))?;
        Progress::start().line(&format!("the keys of {} are sealed to the present state of its machine", node.id));
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}
