//! Reading: backlog, stream, filters, slow and closed readers.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use common::{drain, drain_texts, everything, name, poll, stream, texts};
use polis_logtree::{
    Backlog, Entry, Item, Limits, Location, LogTree, READER_ENTRIES, ReadError, ReadOptions, Reader, Severity,
};

/// Longest that anything here may take; far more than it needs.
const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn the_backlog_is_all_the_newest_or_nothing() {
    let tree = LogTree::default();
    let (main, sub) = (tree.logger(&name("main")), tree.logger(&name("main.sub")));
    for number in 0..10 {
        if number % 3 == 0 { sub.info(number.to_string()) } else { main.info(number.to_string()) }
    }
    let cases: [(Backlog, bool, &[&str]); 8] = [
        (Backlog::All, false, &["1", "2", "4", "5", "7", "8"]),
        (Backlog::All, true, &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]),
        (Backlog::Last(3), false, &["5", "7", "8"]),
        (Backlog::Last(3), true, &["7", "8", "9"]),
        (Backlog::Last(100), false, &["1", "2", "4", "5", "7", "8"]),
        (Backlog::Last(0), true, &[]),
        (Backlog::None, true, &[]),
        (Backlog::Last(usize::MAX), true, &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]),
    ];
    for (backlog, with_children, expected) in cases {
        let options = ReadOptions { backlog, with_children, ..ReadOptions::default() };
        let entries = tree.read(&name("main"), options).unwrap().backlog;
        assert_eq!(texts(&entries), expected, "{backlog:?} with children: {with_children}");
    }
}

#[test]
fn filters_apply_to_the_backlog_and_to_the_stream() {
    let tree = LogTree::default();
    let write_all = || {
        let logger = tree.logger(&name("main"));
        let severities = [Severity::Info, Severity::Warning, Severity::Error, Severity::Fatal];
        severities.iter().for_each(|severity| logger.log(*severity, Location::UNKNOWN, severity.to_string()));
        tree.raw(&name("main")).write(b"raw\n");
        tree.raw(&name("main.sub")).write(b"raw of sub\n");
        tree.logger(&name("main.sub")).error("error of sub");
    };
    let all = ReadOptions { stream: true, ..ReadOptions::default() };
    let cases: [(ReadOptions, &[&str]); 8] = [
        (all, &["info", "warning", "error", "fatal", "raw"]),
        (
            ReadOptions { with_children: true, ..all },
            &["info", "warning", "error", "fatal", "raw", "raw of sub", "error of sub"],
        ),
        (ReadOptions { only_raw: true, ..all }, &["raw"]),
        (ReadOptions { only_raw: true, with_children: true, ..all }, &["raw", "raw of sub"]),
        (ReadOptions { only_leveled: true, ..all }, &["info", "warning", "error", "fatal"]),
        (ReadOptions { minimum_severity: Some(Severity::Info), ..all }, &["info", "warning", "error", "fatal"]),
        (
            ReadOptions { minimum_severity: Some(Severity::Error), with_children: true, ..all },
            &["error", "fatal", "error of sub"],
        ),
        (ReadOptions { minimum_severity: Some(Severity::Fatal), only_leveled: true, ..all }, &["fatal"]),
    ];
    write_all();
    let mut readers: Vec<Reader> =
        cases.iter().map(|(options, _)| tree.read(&name("main"), *options).unwrap()).collect();
    write_all();
    for ((options, expected), reader) in cases.iter().zip(&mut readers) {
        assert_eq!(texts(&reader.backlog), *expected, "backlog of {options:?}");
        assert_eq!(drain_texts(reader), *expected, "stream of {options:?}");
    }
}

#[test]
fn filters_that_exclude_each_other_are_an_error() {
    let tree = LogTree::default();
    let read = |options| tree.read(&name("main"), options).map(|_| ());
    let raw = ReadOptions { only_raw: true, ..ReadOptions::default() };
    let both = ReadOptions { only_leveled: true, ..raw };
    let severity = ReadOptions { minimum_severity: Some(Severity::Info), ..raw };
    assert_eq!(read(both), Err(ReadError::RawAndLeveled));
    assert_eq!(read(severity), Err(ReadError::RawAndSeverity));
    assert_eq!(tree.usage().readers, 0);
}

#[test]
fn a_stream_gets_names_that_did_not_exist_when_it_began() {
    let tree = LogTree::default();
    let mut below = tree.read(&name("root"), ReadOptions { with_children: true, ..stream() }).unwrap();
    let mut exact = tree.read(&name("root.a"), stream()).unwrap();
    for text in ["root.a", "root.a.b", "rooted", "root"] {
        tree.logger(&name(text)).info(text);
    }
    assert_eq!(drain_texts(&mut below), ["root.a", "root.a.b", "root"]);
    assert_eq!(drain_texts(&mut exact), ["root.a"]);
}

#[tokio::test]
async fn a_waiting_reader_is_woken() {
    let tree = LogTree::default();
    let mut reader = tree.read(&name("main"), stream()).unwrap();
    let logger = tree.logger(&name("main"));
    let waiting = tokio::spawn(async move { (reader.next().await, reader) });
    // The reader waits by now, or finds the entry when it looks; both must end.
    tokio::task::yield_now().await;
    logger.info("wake up");
    let (item, mut reader) = tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap();
    assert!(matches!(item, Some(Item::Entry(entry)) if entry.text() == "wake up"));
    // A wait that was given up loses nothing.
    assert!(tokio::time::timeout(Duration::ZERO, reader.next()).await.is_err());
    logger.info("again");
    let item = tokio::time::timeout(DEADLINE, reader.next()).await.unwrap();
    assert!(matches!(item, Some(Item::Entry(entry)) if entry.text() == "again"));
}

/// Counts how often it is called.
#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_reader_is_woken_once_until_it_comes_back() {
    let tree = LogTree::default();
    let logger = tree.logger(&name("main"));
    let mut reader = tree.read(&name("main"), stream()).unwrap();
    let count = Arc::new(CountingWaker::default());
    let waker = Waker::from(count.clone());
    let mut context = Context::from_waker(&waker);
    for wakes in 1..=3 {
        assert!(reader.poll_next(&mut context).is_pending());
        (0..100).for_each(|_| logger.info("again"));
        assert_eq!(count.0.load(Ordering::Relaxed), wakes);
        assert_eq!(drain(&mut reader).len(), 100);
    }
}

#[tokio::test]
async fn the_stream_ends_when_nobody_is_left_who_could_write() {
    let tree = LogTree::default();
    let logger = tree.logger(&name("main"));
    let mut reader = tree.read(&name("main"), stream()).unwrap();
    drop(tree);
    logger.info("last words");
    assert_eq!(drain_texts(&mut reader), ["last words"]);
    let waiting = tokio::spawn(async move { (reader.next().await, reader.next().await) });
    tokio::task::yield_now().await;
    drop(logger);
    assert_eq!(tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap(), (None, None));
}

#[test]
fn a_reader_without_a_stream_ends_at_once() {
    let tree = LogTree::default();
    let mut reader = tree.read(&name("main"), ReadOptions::default()).unwrap();
    tree.logger(&name("main")).info("later");
    assert_eq!(poll(&mut reader), Some(None));
    assert_eq!(tree.usage().readers, 0);
}

#[test]
fn a_closed_reader_is_removed_at_once() {
    let tree = LogTree::default();
    let logger = tree.logger(&name("main"));
    logger.info("before");
    let reader = tree.read(&name("main"), stream()).unwrap();
    let other = tree.read(&name(""), ReadOptions { with_children: true, ..stream() }).unwrap();
    assert_eq!(tree.usage().readers, 2);
    logger.info("buffered");
    let entry = Arc::downgrade(&everything(&tree, "main")[1]);
    assert_eq!(entry.strong_count(), 3, "the journal and both buffers hold it");
    drop(reader);
    assert_eq!(tree.usage().readers, 1, "no write was needed to notice");
    assert_eq!(entry.strong_count(), 2);
    drop(other);
    assert_eq!((tree.usage().readers, entry.strong_count()), (0, 1));
}

#[test]
fn the_number_of_readers_is_bounded_and_closing_one_makes_room() {
    let tree = LogTree::new(Limits { readers: 2, ..Limits::default() });
    let first = tree.read(&name("a"), stream()).unwrap();
    let _second = tree.read(&name("b"), stream()).unwrap();
    assert_eq!(tree.read(&name("c"), stream()).map(|_| ()), Err(ReadError::TooManyReaders(2)));
    assert!(tree.read(&name("c"), ReadOptions::default()).is_ok(), "a backlog alone needs no place");
    drop(first);
    assert!(tree.read(&name("c"), stream()).is_ok());
}

#[test]
fn a_slow_reader_is_told_how_much_it_missed_where_it_is_missing() {
    let tree = LogTree::new(Limits { reader_entries: 4, ..Limits::default() });
    let logger = tree.logger(&name("main"));
    let write = |numbers: std::ops::Range<u32>| numbers.for_each(|number| logger.info(number.to_string()));
    let mut reader = tree.read(&name("main"), stream()).unwrap();
    write(0..4);
    assert_eq!(drain_texts(&mut reader), ["0", "1", "2", "3"], "what fits is not lost");
    write(4..10);
    assert!(matches!(poll(&mut reader), Some(Some(Item::Entry(_)))));
    write(10..11);
    assert!(matches!(poll(&mut reader), Some(Some(Item::Entry(_)))));
    // Only now half is taken, and the stream goes on: with one gap of three in front of eleven.
    write(11..12);
    assert_eq!(drain_texts(&mut reader), ["6", "7", "<3 missed>", "11"]);
    write(12..20);
    assert_eq!(drain_texts(&mut reader), ["12", "13", "14", "15", "<4 missed>"], "a gap at the end is told too");
    write(20..21);
    assert_eq!(drain_texts(&mut reader), ["20"]);
}

#[test]
fn entries_that_a_filter_leaves_out_are_not_missed() {
    let tree = LogTree::new(Limits { reader_entries: 1, ..Limits::default() });
    let options = ReadOptions { minimum_severity: Some(Severity::Error), ..stream() };
    let mut reader = tree.read(&name("main"), options).unwrap();
    let logger = tree.logger(&name("main"));
    logger.error("kept");
    (0..10).for_each(|_| logger.info("filtered"));
    logger.error("missed");
    assert_eq!(drain_texts(&mut reader), ["kept", "<1 missed>"]);
}

#[test]
fn the_buffer_of_a_reader_is_bounded_in_bytes_too() {
    let tree = LogTree::new(Limits { reader_bytes: 3000, ..Limits::default() });
    let mut reader = tree.read(&name("main"), stream()).unwrap();
    let logger = tree.logger(&name("main"));
    (0..10).for_each(|_| logger.info("x".repeat(1000)));
    let items = drain(&mut reader);
    assert_eq!(items.len(), 3);
    assert_eq!(items[2], Item::Missed(8));
    logger.info("x".repeat(10_000));
    assert_eq!(drain(&mut reader).len(), 1, "one entry is buffered even when it is larger");
    for _ in 0..5 {
        (0..2).for_each(|_| logger.info("x".repeat(1000)));
        let items = drain(&mut reader);
        assert!(matches!(items[..], [Item::Entry(_), Item::Entry(_)]), "what was read makes room again: {items:?}");
    }
}

#[test]
fn a_stuck_reader_does_not_hold_up_four_writers() {
    const WRITERS: u64 = 4;
    const EACH: u64 = 50_000;
    let tree = LogTree::default();
    let mut stuck = tree.read(&name("main"), stream()).unwrap();
    let (done, finished) = mpsc::channel();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (tree, done) = (tree.clone(), done.clone());
            std::thread::spawn(move || {
                let logger = tree.logger(&name("main"));
                (0..EACH).for_each(|number| logger.info(format!("{writer} {number}")));
                done.send(()).unwrap();
            })
        })
        .collect();
    for _ in 0..WRITERS {
        finished.recv_timeout(DEADLINE).expect("a writer waits for the reader");
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let items = drain(&mut stuck);
    assert_eq!(items.len(), READER_ENTRIES + 1);
    assert_eq!(items[READER_ENTRIES], Item::Missed(WRITERS * EACH - READER_ENTRIES as u64));
    let bytes: usize = everything(&tree, "main").iter().map(|entry| Entry::memory_bytes(entry)).sum();
    assert_eq!(tree.usage().bytes, bytes);
}
