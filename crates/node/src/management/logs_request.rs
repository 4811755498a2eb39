//! What a Logs call asks for, checked.

use polis_logtree::{Backlog, DistinguishedName, ReadOptions, Severity};
use polis_proto::api::LogsRequest;
use polis_proto::api::logs_request::{BacklogMode, StreamMode};
use polis_proto::common::LogFilter;
use polis_proto::common::log_filter::Filter;
use polis_proto::logtree::LeveledLogSeverity;

/// Most filters of one call (metropolis.md J.2): there are four kinds of them.
const MAX_FILTERS: usize = 10;

/// What a call asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) name: DistinguishedName,
    pub(super) options: ReadOptions,
}

/// Why a call cannot be answered as it is: all of them are the caller's mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidLogsRequest {
    #[error("{found} filters were given, and at most {MAX_FILTERS} are taken")]
    Filters { found: usize },
    #[error("{dn:?} is not the name of a log: {reason}")]
    Name { dn: String, reason: String },
    #[error("backlog_mode {0} is not one that this node knows")]
    BacklogMode(i32),
    #[error("backlog_count is {0}, and must be above zero with BACKLOG_MODE_COUNT")]
    BacklogCount(i64),
    #[error("stream_mode {0} is not one that this node knows")]
    StreamMode(i32),
    #[error("filter {number} is of no kind that this node knows")]
    UnknownFilter { number: usize },
    #[error("filter {number} has the severity {severity}, which is not one that this node knows")]
    Severity { number: usize, severity: i32 },
    #[error("no entry is raw and leveled: only_raw goes neither with only_leveled nor with a severity")]
    RawAndLeveled,
}

impl TryFrom<LogsRequest> for Wanted {
    type Error = InvalidLogsRequest;

    fn try_from(request: LogsRequest) -> Result<Self, InvalidLogsRequest> {
        let LogsRequest { dn, filters, backlog_mode, backlog_count, stream_mode } = request;
        if filters.len() > MAX_FILTERS {
            return Err(InvalidLogsRequest::Filters { found: filters.len() });
        }
        let name = DistinguishedName::parse(&dn).map_err(|error| InvalidLogsRequest::Name {
            dn: dn.chars().take(100).collect(),
            reason: error.to_string(),
        })?;
        let backlog = match BacklogMode::try_from(backlog_mode) {
            Ok(BacklogMode::Disable) => Backlog::None,
            Ok(BacklogMode::All) => Backlog::All,
            Ok(BacklogMode::Count) => match usize::try_from(backlog_count) {
                Ok(count) if count > 0 => Backlog::Last(count),
                Ok(_) | Err(_) => return Err(InvalidLogsRequest::BacklogCount(backlog_count)),
            },
            Ok(BacklogMode::Invalid) | Err(_) => return Err(InvalidLogsRequest::BacklogMode(backlog_mode)),
        };
        let stream = match StreamMode::try_from(stream_mode) {
            // Clients that want no stream leave it out (metropolis.md J.2 demands only the mode of the backlog).
            Ok(StreamMode::Disable | StreamMode::Invalid) => false,
            Ok(StreamMode::Unbuffered) => true,
            Err(_) => return Err(InvalidLogsRequest::StreamMode(stream_mode)),
        };
        let mut options = ReadOptions { backlog, stream, ..ReadOptions::default() };
        for (at, LogFilter { filter }) in filters.into_iter().enumerate() {
            let number = at + 1;
            match filter.ok_or(InvalidLogsRequest::UnknownFilter { number })? {
                Filter::WithChildren(_) => options.with_children = true,
                Filter::OnlyRaw(_) => options.only_raw = true,
                Filter::OnlyLeveled(_) => options.only_leveled = true,
                Filter::LeveledWithMinimumSeverity(filter) => {
                    let minimum = severity(filter.minimum)
                        .ok_or(InvalidLogsRequest::Severity { number, severity: filter.minimum })?;
                    // An entry must pass all filters, so the strictest counts.
                    options.minimum_severity = options.minimum_severity.max(Some(minimum));
                }
            }
        }
        if options.only_raw && (options.only_leveled || options.minimum_severity.is_some()) {
            return Err(InvalidLogsRequest::RawAndLeveled);
        }
        Ok(Self { name, options })
    }
}

fn severity(number: i32) -> Option<Severity> {
    match LeveledLogSeverity::try_from(number).ok()? {
        LeveledLogSeverity::Invalid => None,
        LeveledLogSeverity::Info => Some(Severity::Info),
        LeveledLogSeverity::Warning => Some(Severity::Warning),
        LeveledLogSeverity::Error => Some(Severity::Error),
        LeveledLogSeverity::Fatal => Some(Severity::Fatal),
    }
}

#[cfg(test)]
mod tests {
    use polis_proto::common::log_filter::{LeveledWithMinimumSeverity, OnlyLeveled, OnlyRaw, WithChildren};

    use super::*;

    fn all() -> LogsRequest {
        LogsRequest { backlog_mode: BacklogMode::All.into(), ..LogsRequest::default() }
    }

    fn filters(filters: impl IntoIterator<Item = Filter>) -> LogsRequest {
        LogsRequest { filters: filters.into_iter().map(|filter| LogFilter { filter: Some(filter) }).collect(), ..all() }
    }

    fn at_least(minimum: LeveledLogSeverity) -> Filter {
        Filter::LeveledWithMinimumSeverity(LeveledWithMinimumSeverity { minimum: minimum.into() })
    }

    #[track_caller]
    fn check(request: LogsRequest, expect: Result<ReadOptions, InvalidLogsRequest>) {
        assert_eq!(Wanted::try_from(request).map(|wanted| wanted.options), expect);
    }

    #[test]
    fn modes_and_counts() {
        let of = |backlog_mode: i32, backlog_count, stream_mode: i32| LogsRequest {
            backlog_mode,
            backlog_count,
            stream_mode,
            ..LogsRequest::default()
        };
        let (disable, everything, count) =
            (BacklogMode::Disable as i32, BacklogMode::All as i32, BacklogMode::Count as i32);
        let none = ReadOptions { backlog: Backlog::None, ..ReadOptions::default() };
        check(of(disable, 0, 0), Ok(none));
        check(of(disable, -7, StreamMode::Disable as i32), Ok(none));
        check(of(disable, 0, StreamMode::Unbuffered as i32), Ok(ReadOptions { stream: true, ..none }));
        check(of(everything, 0, 0), Ok(ReadOptions { backlog: Backlog::All, ..none }));
        check(of(count, 5, 0), Ok(ReadOptions { backlog: Backlog::Last(5), ..none }));
        check(of(count, 0, 0), Err(InvalidLogsRequest::BacklogCount(0)));
        check(of(count, i64::MIN, 0), Err(InvalidLogsRequest::BacklogCount(i64::MIN)));
        check(of(0, 0, 0), Err(InvalidLogsRequest::BacklogMode(0)));
        check(of(77, 0, 0), Err(InvalidLogsRequest::BacklogMode(77)));
        check(of(disable, 0, -1), Err(InvalidLogsRequest::StreamMode(-1)));
    }

    #[test]
    fn filters_add_up_and_contradictions_are_refused() {
        let (children, raw, leveled) =
            (Filter::WithChildren(WithChildren {}), Filter::OnlyRaw(OnlyRaw {}), Filter::OnlyLeveled(OnlyLeveled {}));
        let plain = ReadOptions::default();
        check(filters([]), Ok(plain));
        check(filters([children, raw]), Ok(ReadOptions { with_children: true, only_raw: true, ..plain }));
        check(
            filters([
                leveled,
                at_least(LeveledLogSeverity::Warning),
                at_least(LeveledLogSeverity::Error),
                at_least(LeveledLogSeverity::Info),
            ]),
            Ok(ReadOptions { only_leveled: true, minimum_severity: Some(Severity::Error), ..plain }),
        );
        check(filters([raw, leveled]), Err(InvalidLogsRequest::RawAndLeveled));
        check(filters([raw, at_least(LeveledLogSeverity::Fatal)]), Err(InvalidLogsRequest::RawAndLeveled));
        check(
            filters([children, at_least(LeveledLogSeverity::Invalid)]),
            Err(InvalidLogsRequest::Severity { number: 2, severity: 0 }),
        );
        check(filters(std::iter::repeat_n(children, 10)), Ok(ReadOptions { with_children: true, ..plain }));
        check(filters(std::iter::repeat_n(children, 11)), Err(InvalidLogsRequest::Filters { found: 11 }));
        let unset = LogsRequest { filters: vec![LogFilter { filter: None }], ..all() };
        check(unset, Err(InvalidLogsRequest::UnknownFilter { number: 1 }));
    }

    #[test]
    fn names() {
        for (dn, valid) in
            [("", true), ("root.manager", true), (".", false), ("root..manager", false), ("root.", false)]
        {
            assert_eq!(Wanted::try_from(LogsRequest { dn: dn.into(), ..all() }).is_ok(), valid, "{dn:?}");
        }
    }
}
