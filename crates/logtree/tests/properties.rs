//! Properties: retention and reading against a simple model, and backlog plus stream under concurrent writers.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{drain, everything, name, poll, texts};
use polis_logtree::{Backlog, Entry, Item, Limits, Location, LogTree, ReadOptions, Reader, Severity};
use proptest::prelude::*;

/// Names with parents, children, and neighbours that sort between them.
const NAMES: [&str; 6] = ["a", "a.b", "a.b.c", "a-b", "ab", ""];

const SEVERITIES: [Severity; 4] = [Severity::Info, Severity::Warning, Severity::Error, Severity::Fatal];

#[derive(Clone, Debug)]
enum Step {
    Leveled { name: usize, severity: Severity, padding: usize },
    Raw { name: usize, padding: usize },
    Read { name: usize, options: ReadOptions },
}

fn options() -> impl Strategy<Value = ReadOptions> {
    let backlog = prop_oneof![Just(Backlog::None), (0..12_usize).prop_map(Backlog::Last), Just(Backlog::All)];
    let kind = prop_oneof![
        Just((false, false, None)),
        Just((true, false, None)),
        Just((false, true, None)),
        (any::<bool>(), prop::sample::select(&SEVERITIES[..])).prop_map(|(leveled, least)| (
            false,
            leveled,
            Some(least)
        )),
    ];
    (backlog, any::<bool>(), any::<bool>(), kind).prop_map(
        |(backlog, stream, with_children, (only_raw, only_leveled, minimum_severity))| ReadOptions {
            backlog,
            stream,
            with_children,
            only_raw,
            only_leveled,
            minimum_severity,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..NAMES.len();
    prop_oneof![
        4 => (name(), prop::sample::select(&SEVERITIES[..]), 0..300_usize)
            .prop_map(|(name, severity, padding)| Step::Leveled { name, severity, padding }),
        2 => (name(), 0..300_usize).prop_map(|(name, padding)| Step::Raw { name, padding }),
        2 => (name(), options()).prop_map(|(name, options)| Step::Read { name, options }),
    ]
}

/// Whether `options`, asked under `under`, let this entry pass: the promise in its plainest words.
fn passes(under: &str, options: &ReadOptions, entry: &Entry) -> bool {
    let within = entry.name.as_str() == under
        || options.with_children && (under.is_empty() || entry.name.as_str().starts_with(&format!("{under}.")));
    let kind = match entry.severity() {
        None => !options.only_leveled && options.minimum_severity.is_none(),
        Some(severity) => !options.only_raw && options.minimum_severity.is_none_or(|least| severity >= least),
    };
    within && kind
}

proptest! {
    #[test]
    fn reading_agrees_with_a_model(
        steps in prop::collection::vec(step(), 0..120),
        entries_per_name in 1..8_usize,
        bytes in 200..6000_usize,
    ) {
        let tree = LogTree::new(Limits { entries_per_name, bytes, ..Limits::default() });
        let mut kept: Vec<Arc<Entry>> = Vec::new();
        let mut following: Vec<(Reader, Vec<String>, &str, ReadOptions)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let written = match step {
                Step::Leveled { name: at, severity, padding } => {
                    let text = format!("{number}{}", "x".repeat(padding));
                    tree.logger(&name(NAMES[at])).log(severity, Location::UNKNOWN, text);
                    Some(NAMES[at])
                }
                Step::Raw { name: at, padding } => {
                    tree.raw(&name(NAMES[at])).write(format!("{number}{}\n", "x".repeat(padding)).as_bytes());
                    Some(NAMES[at])
                }
                Step::Read { name: at, options } => {
                    let Ok(reader) = tree.read(&name(NAMES[at]), options) else { continue };
                    let passing: Vec<_> = kept.iter().filter(|one| passes(NAMES[at], &options, one)).cloned().collect();
                    let most = match options.backlog {
                        Backlog::None => 0,
                        Backlog::Last(most) => most,
                        Backlog::All => usize::MAX,
                    };
                    let expected = texts(&passing[passing.len() - passing.len().min(most)..]);
                    prop_assert_eq!(texts(&reader.backlog), expected);
                    if options.stream {
                        following.push((reader, Vec::new(), NAMES[at], options));
                    }
                    None
                }
            };
            if let Some(under) = written {
                let last = tree.read(&name(under), ReadOptions { backlog: Backlog::Last(1), ..ReadOptions::default() });
                let entry = last.unwrap().backlog.remove(0);
                prop_assert!(entry.text().starts_with(&number.to_string()));
                for (_, expected, under, options) in &mut following {
                    if passes(under, options, &entry) {
                        expected.push(entry.text().into_owned());
                    }
                }
                kept.push(entry);
                // Oldest first within the name, then oldest of all until it fits.
                let of_name = |one: &Arc<Entry>| one.name.as_str() == under;
                if kept.iter().filter(|one| of_name(one)).count() > entries_per_name {
                    let oldest = kept.iter().position(of_name).unwrap();
                    kept.remove(oldest);
                }
                while kept.len() > 1 && kept.iter().map(|one| one.memory_bytes()).sum::<usize>() > bytes {
                    kept.remove(0);
                }
            }
            prop_assert_eq!(texts(&everything(&tree, "")), texts(&kept));
            prop_assert_eq!(tree.usage().bytes, kept.iter().map(|one| one.memory_bytes()).sum::<usize>());
        }
        for (mut reader, expected, _, _) in following {
            let streamed: Vec<Arc<Entry>> = drain(&mut reader)
                .into_iter()
                .filter_map(|item| match item {
                    Item::Entry(entry) => Some(entry),
                    Item::Missed(_) => None,
                })
                .collect();
            prop_assert_eq!(texts(&streamed), expected);
        }
    }

    /// However writing and reading alternate: counting entries and gaps, a reader always knows which entry is next, and
    /// its buffer stays within its bounds.
    #[test]
    fn entries_and_gaps_together_are_the_whole_sequence(
        rounds in prop::collection::vec((0..20_u64, 0..20_usize), 1..60),
        reader_entries in 1..9_usize,
        reader_bytes in 1..4000_usize,
    ) {
        let tree = LogTree::new(Limits { reader_entries, reader_bytes, ..Limits::default() });
        let logger = tree.logger(&name("main"));
        let mut reader = tree.read(&name("main"), common::stream()).unwrap();
        let (mut written, mut position) = (0, 0);
        let check = |item: Item, position: &mut u64| match item {
            Item::Entry(entry) => {
                assert_eq!(entry.text(), position.to_string());
                *position += 1;
            }
            Item::Missed(count) => {
                assert!(count > 0);
                *position += count;
            }
        };
        for (writes, reads) in rounds {
            for _ in 0..writes {
                logger.info(written.to_string());
                written += 1;
            }
            for _ in 0..reads {
                if let Some(Some(item)) = poll(&mut reader) {
                    check(item, &mut position);
                }
            }
        }
        let rest = drain(&mut reader);
        prop_assert!(rest.iter().filter(|item| matches!(item, Item::Entry(_))).count() <= reader_entries);
        rest.into_iter().for_each(|item| check(item, &mut position));
        prop_assert_eq!(position, written);
    }
}

const WRITERS: usize = 4;
const EACH: usize = 1500;

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Readers that begin in the midst of four writers: what a reader got, backlog and stream with the gaps counted, is
    /// exactly the sequence that the tree holds, without anything left out or twice.
    #[test]
    fn backlog_and_stream_are_one_exact_sequence_under_concurrent_writers(
        begin_after in prop::collection::vec(0..WRITERS * EACH, 1..4),
        reader_entries in prop_oneof![Just(WRITERS * EACH), 1..200_usize],
        backlog in prop_oneof![Just(Backlog::All), Just(Backlog::None), (0..3000_usize).prop_map(Backlog::Last)],
    ) {
        let limits = Limits { reader_entries, reader_bytes: usize::MAX, ..Limits::default() };
        let (tree, written) = (LogTree::new(limits), AtomicUsize::new(0));
        let read = std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (tree, written) = (&tree, &written);
                scope.spawn(move || {
                    let logger = tree.logger(&name(["a", "a.b"][writer % 2]));
                    for number in 0..EACH {
                        logger.info(format!("{writer} {number}"));
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let readers: Vec<_> = begin_after
                .iter()
                .map(|after| {
                    let (tree, written) = (&tree, &written);
                    scope.spawn(move || {
                        while written.load(Ordering::Relaxed) < *after {
                            std::thread::yield_now();
                        }
                        let options = ReadOptions { backlog, stream: true, with_children: true, ..ReadOptions::default() };
                        let mut reader = tree.read(&name("a"), options).unwrap();
                        let mut items = Vec::new();
                        while written.load(Ordering::Relaxed) < WRITERS * EACH {
                            items.extend(poll(&mut reader).flatten());
                        }
                        items.extend(drain(&mut reader));
                        (reader.backlog.clone(), items)
                    })
                })
                .collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
        });
        let sequence = everything(&tree, "");
        prop_assert_eq!(sequence.len(), WRITERS * EACH);
        for writer in 0..WRITERS {
            let own: Vec<_> =
                texts(&sequence).into_iter().filter(|text| text.starts_with(&format!("{writer} "))).collect();
            prop_assert_eq!(own, (0..EACH).map(|number| format!("{writer} {number}")).collect::<Vec<_>>());
        }
        for (backlog_read, items) in read {
            let streamed = items.iter().map(|item| match item {
                Item::Entry(_) => 1,
                Item::Missed(count) => usize::try_from(*count).unwrap(),
            });
            let begin = WRITERS * EACH - streamed.sum::<usize>();
            let expected = match backlog {
                Backlog::None => begin..begin,
                Backlog::Last(most) => begin - begin.min(most)..begin,
                Backlog::All => 0..begin,
            };
            prop_assert_eq!(backlog_read.len(), expected.len());
            prop_assert!(backlog_read.iter().zip(&sequence[expected]).all(|(one, other)| Arc::ptr_eq(one, other)));
            let mut position = begin;
            for item in items {
                match item {
                    Item::Entry(entry) => {
                        prop_assert!(Arc::ptr_eq(&entry, &sequence[position]), "wrong entry at {}", position);
                        position += 1;
                    }
                    Item::Missed(count) => position += usize::try_from(count).unwrap(),
                }
            }
            prop_assert_eq!(position, WRITERS * EACH);
        }
    }
}
