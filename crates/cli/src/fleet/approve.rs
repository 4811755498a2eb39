//! `polis node approve`.

use std::process::ExitCode;

use polis_proto::api::ApproveNodeRequest;
use polis_proto::api::management_client::ManagementClient;

use super::{Column, NodeDocument, columns, list, reach};
use crate::arguments::{ApproveArguments, OutputFormat};
use crate::failure::Failure;
use crate::operator::{Operator, Repeat};
use crate::view::{Paint, Progress, print, print_value};

pub(super) fn run(arguments: &ApproveArguments) -> Result<ExitCode, Failure> {
    if arguments.ids.is_empty() {
        return show_waiting(arguments);
    }
    Operator::run(&arguments.connection, "node approve", async |operator| {
        let progress = Progress::start();
        for node in reach::to_change(operator, &arguments.ids, "was not approved").await? {
            let id = &node.node_id;
            match &*node.state {
                "NEW" => {
                    approve(operator, &node).await?;
                    progress.line(&format!("{id} is approved; it joins by itself"));
                }
                "STANDBY" => progress.line(&format!("{id} was approved already; it has not come to join yet")),
                state => progress.line(&format!("{id} is {state}; there was nothing to approve")),
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Admits one node. Doing it again changes nothing.
pub(crate) async fn approve(operator: &Operator, node: &NodeDocument) -> Result<(), Failure> {
    let what = format!("{} was not approved", node.node_id);
    let key = hex::decode(&node.public_key).map_err(|error| Failure::failed(&*what).because(&error))?;
    let answer = operator
        .call(&what, Repeat::Always, async |channel| {
            ManagementClient::new(channel).approve_node(ApproveNodeRequest { pubkey: key.clone() }).await.map(|_| ())
        })
        .await;
    Ok(answer?)
}

fn show_waiting(arguments: &ApproveArguments) -> Result<ExitCode, Failure> {
    let (waiting, options) = Operator::run(&arguments.connection, "node approve", async |operator| {
        let mut nodes = list::get(operator, "").await?;
        nodes.retain(|node| node.state == "NEW");
        Ok((nodes, operator.options().to_owned()))
    })?;
    print_value(arguments.output, &waiting, |_| {
        if waiting.is_empty() {
            return "no machine waits for approval\n".to_owned();
        }
        columns::render(&waiting, Column::WAITING, Paint::for_stdout())
    })?;
    match arguments.output {
        OutputFormat::Table | OutputFormat::Wide if !waiting.is_empty() => {
            print(&format!("compare the key with what the machine shows, then: polis node approve ID{options}\n"))?;
        }
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Json | OutputFormat::Yaml => {}
    }
    Ok(ExitCode::SUCCESS)
}
