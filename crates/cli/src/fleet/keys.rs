//! `polis node rekey` and `polis node reseal`.

use std::process::ExitCode;
use std::time::Duration;

use polis_proto::node_api::node_client::NodeClient;
use polis_proto::node_api::{RekeyRequest, ResealRequest};
use polis_rpc::NODE_MANAGEMENT_PORT;

use super::reach;
use crate::arguments::KeyArguments;
use crate::failure::Failure;
use crate::operator::Operator;
use crate::view::Progress;

/// A node answers an order about its keys within a minute, if only to say that it goes on with it.
const NODE_ANSWERS_WITHIN: Duration = Duration::from_secs(65);

/// How long an answer is waited for.
fn longest(operator: &Operator) -> Duration {
    operator.timeout().max(NODE_ANSWERS_WITHIN)
}

pub(super) fn rekey(arguments: &KeyArguments) -> Result<ExitCode, Failure> {
    Operator::run(&arguments.connection, "node rekey", async |operator| {
        let node = reach::to_ask(operator, &arguments.id, NODE_MANAGEMENT_PORT).await?;
        let mut client = NodeClient::new(operator.node_channel(node.id, node.address));
        let what = format!("the key of {} was not replaced to the end", node.id);
        node.answer(operator, &what, longest(operator), client.rekey(RekeyRequest {})).await?;
        Progress::start()
            .line(&format!("the cluster unlock key of {} was replaced; the old one opens nothing any more", node.id));
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn reseal(arguments: &KeyArguments) -> Result<ExitCode, Failure> {
    Operator::run(&arguments.connection, "node reseal", async |operator| {
        let node = reach::to_ask(operator, &arguments.id, NODE_MANAGEMENT_PORT).await?;
        let mut client = NodeClient::new(operator.node_channel(node.id, node.address));
        let what = format!("the seal of {} was not renewed", node.id);
        node.answer(operator, &what, longest(operator), client.reseal(ResealRequest {})).await?;
        Progress::start().line(&format!("the keys of {} are sealed to the present state of its machine", node.id));
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}
