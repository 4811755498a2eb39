//! The `tracing` layer.

mod common;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{everything, name, texts};
use polis_logtree::{Entry, Location, LogTree, Payload, Severity, runnable_span};
use tracing::level_filters::LevelFilter;
use tracing::{Instrument as _, Level, debug, error, info, info_span, trace, warn};
use tracing_subscriber::layer::SubscriberExt as _;

/// Runs `action` with a subscriber that writes events up to `maximum` into a new tree.
fn logged_up_to(maximum: LevelFilter, action: impl FnOnce()) -> LogTree {
    let tree = LogTree::default();
    let subscriber = tracing_subscriber::registry().with(tree.layer_up_to(maximum));
    tracing::subscriber::with_default(subscriber, action);
    tree
}

/// As above with the level that nodes use; returns all entries.
fn logged(action: impl FnOnce()) -> Vec<Arc<Entry>> {
    let tree = LogTree::default();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(tree.layer()), action);
    everything(&tree, "")
}

fn names(entries: &[Arc<Entry>]) -> Vec<&str> {
    entries.iter().map(|entry| entry.name.as_str()).collect()
}

#[test]
fn events_land_under_the_innermost_runnable() {
    let entries = logged(|| {
        info!("outside");
        runnable_span(&name("root")).in_scope(|| {
            info!("in root");
            runnable_span(&name("root.network")).in_scope(|| info!("in network"));
            info_span!("step").in_scope(|| info!("in a step of root"));
            info!("in root again");
        });
        info_span!("step").in_scope(|| info!("outside in a step"));
    });
    assert_eq!(names(&entries), ["process", "root", "root.network", "root", "root", "process"]);
}

#[test]
fn an_event_says_where_and_how_bad() {
    let line = line!() + 2;
    let entries = logged(|| {
        error!("first");
        warn!("second");
        info!("third");
    });
    let severities: Vec<_> = entries.iter().map(|entry| entry.severity()).collect();
    assert_eq!(severities, [Some(Severity::Error), Some(Severity::Warning), Some(Severity::Info)]);
    let Payload::Leveled(leveled) = &entries[0].payload else { panic!("a raw entry") };
    assert_eq!(leveled.location, Location { file: file!().into(), line });
}

#[derive(Debug)]
struct Failure(Option<Box<Failure>>);

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "cannot start" } else { "disk full" })
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.as_deref().map(|cause| cause as _)
    }
}

struct Unformattable;

impl fmt::Display for Unformattable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Err(fmt::Error)
    }
}

#[test]
fn fields_are_readable_behind_the_message() {
    let failure = Failure(Some(Box::new(Failure(None))));
    let entries = logged(|| {
        info!("plain");
        info!(port = 7834, up = true, "listening");
        info!(node = "metropolis-1", note = "two words", empty = "", quote = "a\"b", "texts");
        info!(address = %"127.0.0.1:80", parts = ?["a", "b"], none = ?None::<u8>, "display and debug");
        info!(only = 1, fields = "here");
        info!(message = "as a field", port = 1);
        error!(error = &failure as &dyn std::error::Error, "start failed");
        info!(port = 3, "several\nlines\n");
        info!(bad = %Unformattable, good = 1, "formatting");
        info!(r#type = "keyword", "raw name");
        info!("");
    });
    let expected = [
        "plain",
        "listening port=7834 up=true",
        "texts node=metropolis-1 note=\"two words\" empty=\"\" quote=\"a\\\"b\"",
        "display and debug address=127.0.0.1:80 parts=[\"a\", \"b\"] none=None",
        "only=1 fields=here",
        "as a field port=1",
        "start failed error=cannot start: disk full",
        "several\nlines port=3",
        "formatting bad=<cannot be formatted> good=1",
        "raw name type=keyword",
        "",
    ];
    assert_eq!(texts(&entries), expected);
}

#[test]
fn spans_inside_the_runnable_are_shown_with_their_fields() {
    let entries = logged(|| {
        let outer = info_span!("outside", hidden = true);
        let _entered = outer.enter();
        runnable_span(&name("root")).in_scope(|| {
            let request = info_span!("request", id = 5, peer = tracing::field::Empty);
            request.in_scope(|| info!(step = 1, "begun"));
            request.record("peer", "node two");
            request.in_scope(|| {
                info!("known");
                info_span!("retry").in_scope(|| info!("again"));
            });
        });
        info!("after");
    });
    let expected = [
        "begun step=1 [request id=5]",
        "known [request id=5 peer=\"node two\"]",
        "again [request id=5 peer=\"node two\"] [retry]",
        "after [outside hidden=true]",
    ];
    assert_eq!(texts(&entries), expected);
}

/// Counts how often it is formatted.
struct Counted<'a>(&'a AtomicUsize);

impl fmt::Display for Counted<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fetch_add(1, Ordering::Relaxed);
        formatter.write_str("counted")
    }
}

#[test]
fn a_level_that_is_not_wanted_costs_nothing_and_a_wanted_one_is_there() {
    let formatted = AtomicUsize::new(0);
    let events = || {
        info!(value = %Counted(&formatted), "info");
        debug!(value = %Counted(&formatted), "debug");
        trace!(value = %Counted(&formatted), "trace");
        assert!(tracing::span_enabled!(Level::ERROR));
    };
    let cases: [(LevelFilter, &[&str]); 4] = [
        (LevelFilter::INFO, &["info value=counted"]),
        (LevelFilter::DEBUG, &["info value=counted", "debug value=counted"]),
        (LevelFilter::TRACE, &["info value=counted", "debug value=counted", "trace value=counted"]),
        (LevelFilter::ERROR, &[]),
    ];
    for (maximum, expected) in cases {
        formatted.store(0, Ordering::Relaxed);
        let tree = logged_up_to(maximum, events);
        let entries = everything(&tree, "");
        assert_eq!(texts(&entries), expected);
        assert_eq!(formatted.load(Ordering::Relaxed), expected.len(), "at {maximum}");
    }
}

#[test]
fn a_runnable_is_known_at_every_level() {
    let tree = logged_up_to(LevelFilter::ERROR, || runnable_span(&name("root.a")).in_scope(|| error!("here")));
    assert_eq!(names(&everything(&tree, "")), ["root.a"]);
}

/// Logs while it is formatted.
struct Chatty;

impl fmt::Display for Chatty {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        info!(inner = 1, "from inside");
        formatter.write_str("chatty")
    }
}

#[test]
fn a_value_that_logs_while_it_is_formatted_does_no_harm() {
    let tree = LogTree::default();
    let mut reader = tree.read(&name("process"), common::stream()).unwrap();
    let subscriber = tracing_subscriber::registry().with(tree.layer());
    tracing::subscriber::with_default(subscriber, || {
        info!(value = %Chatty, "outer");
        let span = info_span!("span", value = tracing::field::Empty);
        span.record("value", tracing::field::display(Chatty));
        span.in_scope(|| info!("in the span"));
    });
    let read = common::drain_texts(&mut reader);
    // Whether `tracing` passes on what is logged meanwhile is its own decision.
    for text in ["outer value=chatty", "in the span [span value=chatty]"] {
        assert!(read.contains(&text.to_owned()), "{read:?}");
    }
}

#[tokio::test]
async fn tasks_keep_their_runnable_across_waits_and_threads() {
    let tree = LogTree::default();
    let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(tree.layer()));
    let tasks: Vec<_> = (0..10)
        .map(|number| {
            let work = async move {
                for round in 0..10 {
                    info!(round, "at work");
                    tokio::task::yield_now().await;
                }
            };
            tokio::spawn(work.instrument(runnable_span(&name(&format!("root.n{number}")))))
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    drop(guard);
    for number in 0..10 {
        let expected: Vec<_> = (0..10).map(|round| format!("at work round={round}")).collect();
        assert_eq!(texts(&everything(&tree, &format!("root.n{number}"))), expected);
    }
}
