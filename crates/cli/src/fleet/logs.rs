//! `polis node logs`.

use std::io::{self, Write as _};
use std::process::ExitCode;

use polis_proto::api::logs_request::{BacklogMode, StreamMode};
use polis_proto::api::node_management_client::NodeManagementClient;
use polis_proto::api::{LogsRequest, LogsResponse};
use polis_proto::common::LogFilter;
use polis_proto::common::log_filter::{Filter, LeveledWithMinimumSeverity, OnlyLeveled, OnlyRaw, WithChildren};
use polis_proto::logtree::LeveledLogSeverity;
use polis_rpc::NODE_MANAGEMENT_PORT;
use tonic::{Status, Streaming};

use super::{log_line, reach};
use crate::arguments::{Backlog, FleetLogsArguments, LogKind, LogOutput, LogSeverity};
use crate::failure::Failure;
use crate::operator::{Operator, node_failure};
use crate::view::{Paint, safe, safe_json};

pub(super) fn run(arguments: &FleetLogsArguments) -> Result<ExitCode, Failure> {
    Operator::run(&arguments.connection, "node logs", async |operator| {
        let node = reach::to_ask(operator, &arguments.id, NODE_MANAGEMENT_PORT).await?;
        let what = format!("the log of {} could not be shown", node.id);
        let failed = |status: &Status| node_failure(&what, &node.id, node.address, status);
        let mut client = NodeManagementClient::new(operator.node_channel(node.id, node.address));
        let asked = client.logs(request(arguments));
        let answers = node.answer(operator, &what, operator.timeout(), asked).await?;
        match show(answers, arguments.output).await {
            Ok(()) => Ok(()),
            Err(ShowError::Status(status)) => Err(failed(&status)),
            // A reader that has seen enough, such as `head`, is no error.
            Err(ShowError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(ShowError::Output(error)) => {
                Err(Failure::failed("the log could not be written to the standard output").because(&error))
            }
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn request(arguments: &FleetLogsArguments) -> LogsRequest {
    let mut filters = Vec::new();
    if !arguments.exact {
        filters.push(Filter::WithChildren(WithChildren {}));
    }
    match arguments.only {
        Some(LogKind::Raw) => filters.push(Filter::OnlyRaw(OnlyRaw {})),
        Some(LogKind::Leveled) => filters.push(Filter::OnlyLeveled(OnlyLeveled {})),
        None => {}
    }
    if let Some(severity) = arguments.severity {
        let minimum = match severity {
            LogSeverity::Info => LeveledLogSeverity::Info,
            LogSeverity::Warning => LeveledLogSeverity::Warning,
            LogSeverity::Error => LeveledLogSeverity::Error,
            LogSeverity::Fatal => LeveledLogSeverity::Fatal,
        };
        filters.push(Filter::LeveledWithMinimumSeverity(LeveledWithMinimumSeverity { minimum: minimum.into() }));
    }
    let (backlog_mode, backlog_count) = match arguments.backlog {
        Backlog::None => (BacklogMode::Disable, 0),
        Backlog::Last(count) => (BacklogMode::Count, i64::from(count)),
        Backlog::All => (BacklogMode::All, 0),
    };
    let stream_mode = if arguments.follow { StreamMode::Unbuffered } else { StreamMode::Disable };
    LogsRequest {
        dn: arguments.dn.clone(),
        filters: filters.into_iter().map(|filter| LogFilter { filter: Some(filter) }).collect(),
        backlog_mode: backlog_mode.into(),
        backlog_count,
        stream_mode: stream_mode.into(),
    }
}

/// Why the entries could not be shown to the end.
enum ShowError {
    Status(Status),
    Output(io::Error),
}

async fn show(mut answers: Streaming<LogsResponse>, output: LogOutput) -> Result<(), ShowError> {
    let paint = Paint::for_stdout();
    while let Some(answer) = answers.message().await.map_err(ShowError::Status)? {
        let entries = answer.backlog_entries.iter().chain(&answer.stream_entries);
        let text: String = entries
            .map(|entry| match output {
                LogOutput::Text => safe(&log_line::text(entry, paint)).into_owned(),
                LogOutput::Json => safe_json(&format!("{}\n", log_line::json(entry))).into_owned(),
            })
            .collect();
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(ShowError::Output)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_what_was_written() {
        let check = |line: &str, filters: &[&str], backlog: (BacklogMode, i64), stream: StreamMode| {
            let request = request(&crate::arguments::tests::logs(&format!("polis node logs metropolis-a {line}")));
            let found: Vec<String> =
                request.filters.iter().map(|filter| format!("{:?}", filter.filter.as_ref().unwrap())).collect();
            assert_eq!(found.len(), filters.len(), "{line}: {found:?}");
            assert!(filters.iter().all(|part| found.iter().any(|text| text.contains(part))), "{line}: {found:?}");
            let (mode, count) = backlog;
            assert_eq!((request.backlog_mode, request.backlog_count), (mode.into(), count), "{line}");
            assert_eq!(request.stream_mode, i32::from(stream), "{line}");
        };
        check("", &["WithChildren"], (BacklogMode::Count, 1_000), StreamMode::Disable);
        check("-f --backlog all -e", &[], (BacklogMode::All, 0), StreamMode::Unbuffered);
        check("--backlog 0 -f", &["WithChildren"], (BacklogMode::Disable, 0), StreamMode::Unbuffered);
        check(
            "--backlog 5 --severity error",
            &["WithChildren", "minimum: Error"],
            (BacklogMode::Count, 5),
            StreamMode::Disable,
        );
        check("--only raw", &["WithChildren", "OnlyRaw"], (BacklogMode::Count, 1_000), StreamMode::Disable);
    }
}
