use futures::{FutureExt as _, StreamExt as _};
use polis_logtree::{DistinguishedName, Limits};
use polis_proto::api::logs_request::{BacklogMode, StreamMode};
use polis_proto::common::LogFilter;
use polis_proto::common::log_filter::{Filter, LeveledWithMinimumSeverity, OnlyLeveled, OnlyRaw, WithChildren};
use polis_proto::logtree::log_entry::Kind;
use polis_proto::logtree::{LeveledLogSeverity, LogEntry};

use super::*;

fn name(text: &str) -> DistinguishedName {
    DistinguishedName::parse(text).unwrap()
}

/// A log with some of everything: `main` and, below it, `main.process`.
fn tree() -> LogTree {
    let tree = LogTree::default();
    let (main, process) = (tree.logger(&name("main")), name("main.process"));
    main.info("one");
    main.warning("two");
    main.error("three");
    tree.logger(&process).info("inner");
    tree.raw(&process).write(b"raw line\n");
    tree.raw(&process).write(b"bad \xc3\x28 bytes\n");
    tree
}

fn request(dn: &str, mode: BacklogMode, count: i64, filters: &[Filter]) -> LogsRequest {
    LogsRequest {
        dn: dn.into(),
        filters: filters.iter().map(|filter| LogFilter { filter: Some(*filter) }).collect(),
        backlog_mode: mode.into(),
        backlog_count: count,
        stream_mode: StreamMode::Disable.into(),
    }
}

const CHILDREN: Filter = Filter::WithChildren(WithChildren {});
const RAW: Filter = Filter::OnlyRaw(OnlyRaw {});
const LEVELED: Filter = Filter::OnlyLeveled(OnlyLeveled {});
const WARNINGS: Filter =
    Filter::LeveledWithMinimumSeverity(LeveledWithMinimumSeverity { minimum: LeveledLogSeverity::Warning as i32 });

fn text(entry: &LogEntry) -> String {
    match entry.kind.as_ref().unwrap() {
        Kind::Leveled(leveled) => leveled.lines.join("|"),
        Kind::Raw(raw) => raw.data.clone(),
    }
}

fn read(tree: &LogTree, request: LogsRequest) -> Vec<String> {
    let stream = Logs::new(tree.clone()).read(request).unwrap();
    let messages: Vec<LogsResponse> = stream.map(Result::unwrap).collect().now_or_never().expect("a backlog ends");
    assert!(messages.iter().all(|message| message.stream_entries.is_empty()));
    messages.iter().flat_map(|message| &message.backlog_entries).map(text).collect()
}

#[test]
fn the_backlog_is_all_an_exact_number_or_none_of_one_log_or_of_all_below_it() {
    let tree = tree();
    let (all, count, none) = (BacklogMode::All, BacklogMode::Count, BacklogMode::Disable);
    let everything = ["one", "two", "three", "inner", "raw line", "bad <INVALID>( bytes"];
    let table: [(LogsRequest, &[&str]); 9] = [
        (request("main", all, 0, &[]), &everything[..3]),
        (request("main", count, 2, &[]), &everything[1..3]),
        (request("main", count, 100, &[]), &everything[..3]),
        (request("main", none, 0, &[]), &[]),
        (request("main", all, 0, &[CHILDREN]), &everything),
        (request("", all, 0, &[CHILDREN]), &everything),
        (request("", all, 0, &[]), &[]),
        (request("main", count, 4, &[CHILDREN]), &everything[2..]),
        (request("nobody", all, 0, &[CHILDREN]), &[]),
    ];
    for (request, expect) in table {
        assert_eq!(read(&tree, request.clone()), expect, "{request:?}");
    }
}

#[test]
fn filters_choose_before_entries_are_counted() {
    let tree = tree();
    let all = |filters: &[Filter]| request("main", BacklogMode::All, 0, filters);
    let table: [(LogsRequest, &[&str]); 5] = [
        (all(&[WARNINGS]), &["two", "three"]),
        (all(&[CHILDREN, RAW]), &["raw line", "bad <INVALID>( bytes"]),
        (all(&[CHILDREN, LEVELED]), &["one", "two", "three", "inner"]),
        (all(&[RAW]), &[]),
        (request("main", BacklogMode::Count, 1, &[CHILDREN, WARNINGS]), &["three"]),
    ];
    for (request, expect) in table {
        assert_eq!(read(&tree, request.clone()), expect, "{request:?}");
    }
}

fn stream(tree: &LogTree, backlog: BacklogMode, filters: &[Filter]) -> LogStream {
    let request = LogsRequest { stream_mode: StreamMode::Unbuffered.into(), ..request("main", backlog, 0, filters) };
    Logs::new(tree.clone()).read(request).unwrap()
}

fn next(stream: &mut LogStream) -> Option<Vec<String>> {
    let message = stream.next().now_or_never()?.expect("it does not end").expect("it does not fail");
    assert!(message.backlog_entries.is_empty() || message.stream_entries.is_empty());
    Some(message.backlog_entries.iter().chain(&message.stream_entries).map(text).collect())
}

#[test]
fn a_stream_goes_on_after_the_backlog_and_is_filtered_and_replaced_as_that_is() {
    let tree = tree();
    let mut all = stream(&tree, BacklogMode::All, &[CHILDREN]);
    let mut warnings = stream(&tree, BacklogMode::Disable, &[WARNINGS]);
    let mut raw = stream(&tree, BacklogMode::Disable, &[CHILDREN, RAW]);
    assert_eq!(next(&mut all).unwrap().len(), 6);
    assert_eq!((next(&mut all), next(&mut warnings), next(&mut raw)), (None, None, None));

    let main = tree.logger(&name("main"));
    main.info("four");
    assert_eq!(next(&mut all).unwrap(), ["four"]);
    main.error("five");
    tree.raw(&name("main.process")).write(b"\xff\xff\n");
    assert_eq!(next(&mut all).unwrap(), ["five", "<INVALID>"]);
    assert_eq!(next(&mut warnings).unwrap(), ["five"]);
    assert_eq!(next(&mut raw).unwrap(), ["<INVALID>"]);
    assert_eq!((next(&mut all), next(&mut warnings), next(&mut raw)), (None, None, None));
}

#[test]
fn a_slow_reader_is_told_how_much_it_has_missed() {
    let tree = LogTree::new(Limits { reader_entries: 4, ..Limits::default() });
    let mut stream = stream(&tree, BacklogMode::Disable, &[]);
    for number in 0..10 {
        tree.logger(&name("main")).info(number.to_string());
    }
    let got = next(&mut stream).unwrap();
    assert_eq!(got[..4], ["0", "1", "2", "3"]);
    assert!(got[4].starts_with("[6 entries are missing here"), "{got:?}");
    tree.logger(&name("main")).info("on");
    assert_eq!(next(&mut stream).unwrap(), ["on"]);
}

#[test]
fn the_backlog_comes_in_messages_of_bounded_size() {
    let tree = LogTree::default();
    let logger = tree.logger(&name("main"));
    for _ in 0..4100 {
        logger.info("short");
    }
    for _ in 0..200 {
        logger.info("x".repeat(16_000));
    }
    let stream = Logs::new(tree).read(request("main", BacklogMode::All, 0, &[])).unwrap();
    let messages: Vec<LogsResponse> = stream.map(Result::unwrap).collect().now_or_never().unwrap();
    let counts: Vec<usize> = messages.iter().map(|message| message.backlog_entries.len()).collect();
    assert_eq!(counts[..2], [2000, 2000]);
    assert_eq!(counts.iter().sum::<usize>(), 4300);
    for message in messages {
        assert!(message.encoded_len() <= CHUNK_BYTES + 16_384, "{}", message.encoded_len());
    }
}

#[test]
fn a_stream_leaves_nothing_behind_and_ends_with_the_log() {
    let tree = tree();
    let mut ended = stream(&tree, BacklogMode::Disable, &[]);
    let dropped = stream(&tree, BacklogMode::Disable, &[]);
    assert_eq!(tree.usage().readers, 2);
    drop(dropped);
    assert_eq!(tree.usage().readers, 1);
    drop(tree);
    let status = ended.next().now_or_never().unwrap().unwrap().unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert!(ended.next().now_or_never().unwrap().is_none());
}

#[test]
fn there_is_room_for_so_many_and_no_more() {
    let logs = Logs::new(tree());
    let open = || logs.read(request("main", BacklogMode::All, 0, &[]));
    let mut streams: Vec<LogStream> = (0..MAX_CALLS).map(|_| open().unwrap()).collect();
    assert_eq!(open().err().unwrap().code(), tonic::Code::ResourceExhausted);
    streams.pop();
    streams.push(open().unwrap());
    // One that has left its message lie for too long loses its place, and is told so if it comes back.
    streams[3].place.lock().ready_since = Instant::now().checked_sub(STALLED_AFTER);
    streams.push(open().unwrap());
    let status = streams[3].next().now_or_never().unwrap().unwrap().unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert!(streams[3].next().now_or_never().unwrap().is_none());
}
