//! `polis cluster health`: what is wrong with a cluster.
//!
//! First everybody is asked, all at the same time ([`observe`]), then what they said is judged ([`judge`]), and then it is
//! shown ([`finding`]). An answer that is missing is itself an observation, so nothing keeps the other checks from being made.

mod finding;
mod judge;
mod judge_keys;
mod judge_nodes;
mod observations;
mod observe;

use std::process::ExitCode;
use std::time::Duration;

use crate::arguments::ShowClusterArguments;
use crate::failure::Failure;
use crate::operator::Operator;
use crate::view::{Paint, print_value};

use finding::Report;

/// Longest time for finding the leader and hearing it. An election takes one or two seconds, and whoever asks what is wrong does
/// not want to wait for what will not come.
const LEADER_TIMEOUT: Duration = Duration::from_secs(8);

pub(super) fn run(arguments: &ShowClusterArguments) -> Result<ExitCode, Failure> {
    let mut connection = arguments.connection.clone();
    connection.timeout = connection.timeout.min(LEADER_TIMEOUT);
    let report = Operator::run(&connection, "cluster health", async |operator| {
        Ok(Report::new(judge::judge(&observe::observe(operator).await, operator.options())))
    })?;
    print_value(arguments.output, &report, |_| report.render(Paint::for_stdout()))?;
    Ok(if report.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
