//! `polis node list` and `polis node describe`.

use std::process::ExitCode;

use polis_proto::api::GetNodesRequest;
use polis_proto::api::management_client::ManagementClient;

use super::{Column, NodeDocument, columns, select};
use crate::arguments::ListArguments;
use crate::failure::Failure;
use crate::operator::{CallFailure, Operator};
use crate::view::{Paint, print_value};

/// `standard` are the columns of the table unless others are asked for.
pub(super) fn run(arguments: &ListArguments, command: &str, standard: &[Column]) -> Result<ExitCode, Failure> {
    let nodes =
        Operator::run(&arguments.connection, command, async |operator| Ok(get(operator, &arguments.filter).await?))?;
    let nodes = if arguments.ids.is_empty() {
        nodes
    } else {
        let chosen = select::choose_all(&nodes, &arguments.ids)?;
        chosen.into_iter().map(|chosen| chosen.node.clone()).collect()
    };
    print_value(arguments.output, &nodes, |wide| {
        let columns = match (&arguments.columns[..], wide) {
            ([], false) => standard,
            ([], true) => Column::WIDE,
            (chosen, _) => chosen,
        };
        columns::render(&nodes, columns, Paint::for_stdout())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The nodes for which the CEL expression is true (all for an empty one), ordered by id.
pub(crate) async fn get(operator: &Operator, filter: &str) -> Result<Vec<NodeDocument>, CallFailure> {
    let answer = operator
        .ask("the nodes could not be listed", async |channel| {
            let request = GetNodesRequest { filter: filter.to_owned() };
            let mut answers = ManagementClient::new(channel).get_nodes(request).await?.into_inner();
            let mut nodes = Vec::new();
            while let Some(node) = answers.message().await? {
                nodes.push(NodeDocument::from(node));
            }
            Ok(nodes)
        })
        .await;
    let mut nodes = answer?;
    nodes.sort_by(|one, other| one.node_id.cmp(&other.node_id));
    Ok(nodes)
}
