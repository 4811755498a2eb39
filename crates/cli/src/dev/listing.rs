//! The nodes and what they do: `status`, `env`, and the table that `up` ends with.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use polis_control::{NodeState, Status};
use serde::Serialize;

use super::directory::Directory;
use super::record::Record;
use super::start::address_of;
use crate::arguments::{DevDirectory, OutputFormat};
use crate::failure::Failure;
use crate::node_status::{ask, read_last_state, runtime};
use crate::shell;
use crate::view::{Paint, Table, print, print_value, state_text};

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
    directory.require_record()?;
    let exports = [
        ("POLIS_DEV_DIR", directory.path().to_owned()),
        ("POLIS_CONFIG", directory.owner()),
        ("POLIS_ROOT", directory.node_root(1)),
    ];
    let lines = exports.map(|(name, value)| format!("export {name}={}\n", shell::quote(&value)));
    print(&lines.concat())?;
    Ok(ExitCode::SUCCESS)
}

/// Asks every node.
pub(super) fn rows(directory: &Directory, record: &Record) -> Result<Vec<Row>, Failure> {
    runtime()?.block_on(async {
        let mut rows = Vec::new();
        for number in record.numbers() {
            rows.push(row(directory, record, number).await?);
        }
        Ok(rows)
    })
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
    Ok(Row { node: number, node_id, address, pid: process.map(|process| process.pid), state, roles, root, log })
}

/// The table of nodes; `wide` adds where things are.
pub(super) fn render(rows: &[Row], wide: bool) -> String {
    render_with(rows, wide, Paint::for_stdout())
}

fn render_with(rows: &[Row], wide: bool, paint: Paint) -> String {
    let mut heading = vec!["NODE", "STATE", "NODE ID", "ADDRESS", "PROCESS", "ROLES"];
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
NODE  STATE    NODE ID                                      ADDRESS    PROCESS  ROLES
1     Running  metropolis-00112233445566778899aabbccddeeff  127.0.0.2  4242     ConsensusMember
2     stopped  -                                            127.0.0.2  -        -
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
