//! The nodes and what they do: `status`, `env`, and the table that `up` ends with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use futures::future::{join, join_all};
use polis_control::{NodeState, Status};
use serde::Serialize;

use super::access;
use super::directory::Directory;
use super::process::ProcessIdentity;
use super::record::Record;
use super::start::address_of;
use crate::arguments::{DevDirectory, OutputFormat};
use crate::failure::Failure;
use crate::fleet::get_nodes;
use crate::node_status::{ask, read_last_state, runtime};
use crate::operator::Operator;
use crate::view::{Paint, Progress, Table, print, print_value, state_text};
use crate::{endpoint, shell};

/// Longest time that a node has to answer. A node that takes longer is shown with the last state that it wrote down.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// One node, as `polis dev status -o json` lists it.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    node: u32,
    /// Absent until the node has decided on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<String>,
    address: String,
    /// Absent when the node does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    state: NodeState,
    /// What the leader says of it; absent when no leader answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<String>,
    roles: Vec<String>,
    root: PathBuf,
    log: PathBuf,
}

pub(super) fn status(arguments: &DevDirectory, output: OutputFormat) -> Result<ExitCode, Failure> {
    let directory = Directory::resolve(arguments)?;
    let record = directory.require_record()?;
    let rows = rows(&directory, &record)?;
    print_value(output, &rows, |wide| render(&rows, wide))?;
    Ok(ExitCode::SUCCESS)
}

/// Exports for a POSIX shell.
pub(super) fn environment(arguments: &DevDirectory) -> Result<ExitCode, Failure> {
    let directory = Directory::resolve(arguments)?;
    let record = directory.require_record()?;
    let endpoints: Vec<String> = access::endpoints(&record)?.into_iter().map(endpoint::show).collect();
    let exports = [
        ("POLIS_DEV_DIR", directory.path().to_owned()),
        ("POLIS_CONFIG", directory.owner()),
        ("POLIS_ENDPOINTS", endpoints.join(",").into()),
        ("POLIS_ROOT", directory.node_root(1)),
    ];
    let lines = exports.map(|(name, value)| format!("export {name}={}\n", shell::quote(&value)));
    print(&lines.concat())?;
    // Not on the standard output, which a shell reads.
    Progress::start().line(&format!(
        "with these, polis acts on the cluster at {}, and `polis owner` on its owner key; back to your own: \
         unset POLIS_DEV_DIR POLIS_CONFIG POLIS_ENDPOINTS POLIS_ROOT",
        directory.path().display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Asks every node, and the leader.
pub(super) fn rows(directory: &Directory, record: &Record) -> Result<Vec<Row>, Failure> {
    runtime()?.block_on(async {
        let nodes = join_all(record.numbers().map(|number| row(directory, record, number)));
        let (rows, healths) = join(nodes, healths(directory, record)).await;
        let mut rows = rows.into_iter().collect::<Result<Vec<Row>, Failure>>()?;
        for row in &mut rows {
            row.health = row.node_id.as_ref().and_then(|id| healths.get(id)).cloned();
        }
        Ok(rows)
    })
}

/// The health of the nodes by their ids, as far as a leader can be asked.
async fn healths(directory: &Directory, record: &Record) -> BTreeMap<String, String> {
    let is_running =
        |number| record.node(number).and_then(|node| node.process.as_ref()).is_some_and(ProcessIdentity::is_running);
    let running = record.numbers().filter(|number| is_running(*number)).count();
    // Without a quorum there is no leader, and waiting for one would only take time.
    if running * 2 <= record.numbers().count() || !directory.is_owned() {
        return BTreeMap::new();
    }
    let Ok(connection) = access::connection(directory, record, ANSWER_TIMEOUT) else { return BTreeMap::new() };
    let nodes = Operator::run_here(&connection, "dev status", async |operator| Ok(get_nodes(operator, "").await?));
    let nodes = nodes.await.unwrap_or_default();
    nodes.into_iter().map(|node| (node.node_id, node.health)).collect()
}

async fn row(directory: &Directory, record: &Record, number: u32) -> Result<Row, Failure> {
    let root = directory.node_root(number);
    let process = record.node(number).and_then(|node| node.process.as_ref()).filter(|process| process.is_running());
    // Only the process that was recorded may answer.
    let answer = match process {
        Some(_) => ask(&root, ANSWER_TIMEOUT).await.ok(),
        None => None,
    };
    // A file that cannot be read says as much as none at all; `polis node status` says what is wrong with it.
    let status = answer.or_else(|| read_last_state(&root).ok().flatten());
    let (node_id, state, roles) = match status {
        Some(Status { node_id, state, roles, .. }) => (node_id, state, roles),
        None => (None, NodeState::New, Vec::new()),
    };
    let address = address_of(record, number)?.to_string();
    let log = directory.node_log(number);
    let pid = process.map(|process| process.pid);
    Ok(Row { node: number, node_id, address, pid, state, health: None, roles, root, log })
}

/// The table of nodes; `wide` adds where things are.
pub(super) fn render(rows: &[Row], wide: bool) -> String {
    render_with(rows, wide, Paint::for_stdout())
}

fn render_with(rows: &[Row], wide: bool, paint: Paint) -> String {
    let mut heading = vec!["NODE", "STATE", "HEALTH", "NODE ID", "ADDRESS", "PROCESS", "ROLES"];
    if wide {
        heading.extend(["ROOT", "LOG"]);
    }
    let mut table = Table::new(heading);
    for row in rows {
        let state = match row.pid {
            Some(_) => state_text(row.state, paint),
            None => paint.yellow("stopped"),
        };
        let mut cells = vec![
            row.node.to_string(),
            state,
            match row.health.as_deref() {
                Some("HEALTHY") => paint.green("HEALTHY"),
                Some("HEARTBEAT_TIMEOUT") => paint.red("HEARTBEAT_TIMEOUT"),
                Some(other) => other.to_owned(),
                None => String::new(),
            },
            row.node_id.clone().unwrap_or_default(),
            row.address.clone(),
            row.pid.map(|pid| pid.to_string()).unwrap_or_default(),
            row.roles.join(","),
        ];
        if wide {
            cells.extend([row.root.display().to_string(), row.log.display().to_string()]);
        }
        table.row(cells);
    }
    table.render(paint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(pid: Option<u32>) -> Row {
        Row {
            node: 1,
            node_id: Some("metropolis-00112233445566778899aabbccddeeff".into()),
            address: "127.0.0.2".into(),
            pid,
            state: NodeState::Running,
            health: pid.map(|_| "HEALTHY".into()),
            roles: vec!["ConsensusMember".into()],
            root: "/d/node-1/root".into(),
            log: "/d/node-1/polis.log".into(),
        }
    }

    #[test]
    fn a_running_and_a_stopped_node() {
        assert_eq!(
            render_with(
                &[example(Some(4242)), Row { node: 2, node_id: None, roles: vec![], ..example(None) }],
                false,
                Paint::plain()
            ),
            "\
NODE  STATE    HEALTH   NODE ID                                      ADDRESS    PROCESS  ROLES
1     Running  HEALTHY  metropolis-00112233445566778899aabbccddeeff  127.0.0.2  4242     ConsensusMember
2     stopped  -        -                                            127.0.0.2  -        -
"
        );
    }

    #[test]
    fn the_json_keys_are_those_of_the_contract() {
        let json = serde_json::to_value(example(None)).unwrap();
        assert_eq!(json["state"], "Running");
        assert_eq!(json["roles"], serde_json::json!(["ConsensusMember"]));
        assert!(json.get("pid").is_none() && json.get("health").is_none());
    }
}
