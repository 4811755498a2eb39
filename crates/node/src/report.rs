//! What the node tells of its inside, for `polis node report`.

use jiff::Timestamp;
use polis_consensus::Status as MemberStatus;
use polis_control::{EtcdReport, JournalReport, ProcessReport, Report, RunnableReport};
use polis_logtree::console::{Style, full};
use polis_logtree::{Backlog, LogTree, ReadOptions};
use polis_supervisor::NodeReport;

use crate::measures::Measures;
use crate::metrics::{Measured as _, ProcessSample, Snapshot, render};

/// Newest entries of each journal that are told.
const ENTRIES_PER_JOURNAL: usize = 200;

/// Most bytes of lines that are told of one journal, and of all of them: a node has some fifty, most of them quiet.
const BYTES_PER_JOURNAL: usize = 128 << 10;
const BYTES_OF_JOURNALS: usize = 6 << 20;

// With the rest it stays below what a client takes; characters that JSON escapes take up to six times their room.
const _: () = assert!(BYTES_OF_JOURNALS * 2 < polis_control::MAX_REPORT_LENGTH);

/// What the node tells of its inside.
pub(crate) async fn report(measures: &Measures) -> Report {
    let snapshot = measures.snapshot().await;
    let metrics = render(&snapshot).unwrap_or_default();
    let Snapshot { status, runnables, member, process, .. } = snapshot;
    Report {
        made: Timestamp::now(),
        version: polis_version::text().into(),
        status,
        process: process_report(&process),
        runnables: runnables.iter().map(runnable).collect(),
        etcd: member.as_ref().map(etcd),
        metrics,
        journals: journals(&measures.log_tree),
    }
}

fn process_report(sample: &ProcessSample) -> ProcessReport {
    ProcessReport {
        process_id: std::process::id(),
        resident_bytes: sample.resident_bytes,
        open_files: sample.open_files,
        open_files_limit: sample.open_files_limit,
        command_line: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
    }
}

fn runnable(report: &NodeReport) -> RunnableReport {
    RunnableReport {
        name: report.distinguished_name.to_string(),
        state: report.state.to_string(),
        since: Timestamp::try_from(report.since).unwrap_or_default(),
        restarts: report.restarts,
        failures_in_a_row: report.failures_in_a_row,
        last_error: report.last_error.clone(),
        starts_in: report.starts_in.map(|pause| pause.as_secs_f64()),
        running: report.running,
        overdue: report.overdue,
    }
}

fn etcd(status: &MemberStatus) -> EtcdReport {
    EtcdReport {
        phase: format!("{:?}", status.phase),
        version: status.version.as_ref().map(ToString::to_string),
        process_id: status.process_id,
        raft_term: status.raft_term,
        timing: format!("{:?}", status.timing),
        members: status.members.iter().map(|member| format!("{member:?}")).collect(),
    }
}

/// The newest lines of each journal.
fn journals(tree: &LogTree) -> Vec<JournalReport> {
    let mut room = BYTES_OF_JOURNALS;
    let mut journals = Vec::new();
    for name in tree.names() {
        let options = ReadOptions { backlog: Backlog::Last(ENTRIES_PER_JOURNAL), ..ReadOptions::default() };
        // Without a stream nothing can be refused.
        let Ok(reader) = tree.read(&name, options) else { continue };
        let mut left = BYTES_PER_JOURNAL.min(room);
        let mut lines = Vec::new();
        for entry in reader.backlog.iter().rev() {
            let text = full(entry, Style::default()).to_string();
            let Some(rest) = left.checked_sub(text.len()) else { break };
            left = rest;
            room -= text.len();
            lines.push(text);
        }
        lines.reverse();
        if !lines.is_empty() {
            journals.push(JournalReport { name: name.to_string(), lines });
        }
    }
    journals
}

#[cfg(test)]
mod tests {
    use polis_logtree::DistinguishedName;

    use super::*;

    #[test]
    fn the_newest_lines_of_each_journal_are_told_within_bounds() {
        let tree = LogTree::default();
        let logger = |name: &str| tree.logger(&DistinguishedName::parse(name).unwrap());
        for number in 0..300 {
            logger("root.chatty").info(format!("line {number}"));
        }
        for _ in 0..100 {
            logger("root.long").info("x".repeat(10_000));
        }
        logger("root.quiet").error("broken");
        let journals = journals(&tree);
        let of = |name: &str| &journals.iter().find(|journal| journal.name == name).unwrap().lines;
        assert_eq!(of("root.chatty").len(), ENTRIES_PER_JOURNAL);
        assert!(of("root.chatty").last().unwrap().ends_with("line 299"));
        assert!(of("root.long").len() < 14, "{}", of("root.long").len());
        assert_eq!(of("root.quiet").len(), 1);
    }

    #[test]
    fn all_journals_together_stay_within_their_bound() {
        let tree = LogTree::default();
        for number in 0..200 {
            let logger = tree.logger(&DistinguishedName::parse(&format!("root.runnable-{number}")).unwrap());
            for _ in 0..10 {
                logger.info("y".repeat(10_000));
            }
        }
        let bytes: usize = journals(&tree).iter().flat_map(|journal| &journal.lines).map(String::len).sum();
        assert!(bytes <= BYTES_OF_JOURNALS && bytes > BYTES_OF_JOURNALS / 2, "{bytes}");
    }
}
