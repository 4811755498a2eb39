//! Writing: leveled entries and their lines, locations and times, raw lines in pieces.

mod common;

use common::{everything, name, texts};
use jiff::Timestamp;
use polis_logtree::{
    Entry, LEVELED_BYTES, Leveled, LineBuffer, Location, LogTree, Logger, Payload, RAW_LINE_BYTES, Raw, Severity,
};
use proptest::prelude::*;

fn leveled(entry: &Entry) -> &Leveled {
    match &entry.payload {
        Payload::Leveled(leveled) => leveled,
        Payload::Raw(raw) => panic!("a raw entry: {raw:?}"),
    }
}

fn raw(entry: &Entry) -> &Raw {
    match &entry.payload {
        Payload::Raw(raw) => raw,
        Payload::Leveled(leveled) => panic!("a leveled entry: {leveled:?}"),
    }
}

#[test]
fn a_text_of_several_lines_is_one_entry() {
    let cases: [(&str, &[&str]); 6] = [
        ("one", &["one"]),
        ("one\ntwo\n", &["one", "two"]),
        ("\n\none\n\n  two\n\n", &["one", "", "  two"]),
        ("one\r\ntwo\r\n", &["one", "two"]),
        ("", &[""]),
        ("\n\n", &[""]),
    ];
    for (text, expected) in cases {
        let tree = LogTree::default();
        tree.logger(&name("main")).info(text);
        let entries = everything(&tree, "main");
        assert_eq!(entries.len(), 1);
        assert_eq!(leveled(&entries[0]).lines().collect::<Vec<_>>(), expected, "{text:?}");
    }
}

#[test]
fn an_entry_says_when_where_and_how_bad() {
    let tree = LogTree::default();
    let logger = tree.logger(&name("main"));
    let before = Timestamp::now();
    let line = line!() + 1;
    logger.warning("look here");
    let after = Timestamp::now();
    let entry = everything(&tree, "main").remove(0);
    assert_eq!(leveled(&entry).location, Location { file: file!().into(), line });
    assert_eq!(entry.severity(), Some(Severity::Warning));
    assert!(before <= entry.timestamp && entry.timestamp <= after);
    assert_eq!(entry.name, name("main"));
}

#[test]
fn a_wrapper_can_give_the_place_of_its_caller() {
    #[track_caller]
    fn wrapper(logger: &Logger) {
        logger.error("from the wrapper");
        logger.log(Severity::Fatal, std::panic::Location::caller(), "from the wrapper too");
    }
    let tree = LogTree::default();
    let line = line!() + 1;
    wrapper(&tree.logger(&name("main")));
    for entry in everything(&tree, "main") {
        assert_eq!(leveled(&entry).location, Location { file: file!().into(), line });
    }
}

#[test]
fn an_entry_of_another_origin_keeps_its_time_and_place() {
    let tree = LogTree::default();
    let timestamp = "2001-02-03T04:05:06Z".parse().unwrap();
    let location: Location = "far/away.go:77".parse().unwrap();
    let payload = Payload::Leveled(Leveled::new(Severity::Info, location.clone(), "external"));
    tree.logger(&name("main")).write(timestamp, payload);
    let entry = everything(&tree, "main").remove(0);
    assert_eq!((entry.timestamp, &leveled(&entry).location), (timestamp, &location));
    assert_eq!(location.base_name(), "away.go");
    assert_eq!(location.to_string().parse(), Ok(location));
    for bad in ["", "file", "file:", ":1", "file:x", "file:-1"] {
        assert!(bad.parse::<Location>().is_err(), "{bad:?}");
    }
}

#[test]
fn a_very_long_text_is_cut_and_says_so() {
    let tree = LogTree::default();
    let text = format!("x{}", "ä".repeat(LEVELED_BYTES));
    tree.logger(&name("main")).info(&text);
    let entry = everything(&tree, "main").remove(0);
    let lines: Vec<&str> = leveled(&entry).lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(text.starts_with(lines[0]));
    assert_eq!(lines[1], format!("[cut after {} of {} bytes]", LEVELED_BYTES - 1, text.len()));
}

#[test]
fn raw_lines_arrive_when_they_are_complete() {
    let tree = LogTree::default();
    let mut writer = tree.raw(&name("child"));
    let expect = |expected: &[&str]| assert_eq!(texts(&everything(&tree, "child")), expected);
    writer.write(b"begin");
    expect(&[]);
    writer.write(b"ning\nsecond\r\n\nun");
    expect(&["beginning", "second", ""]);
    writer.write(b"");
    writer.write(b"finished\r");
    expect(&["beginning", "second", ""]);
    writer.close();
    expect(&["beginning", "second", "", "unfinished"]);
    // A writer that is dropped on an error path loses nothing either.
    tree.raw(&name("child")).write(b"dropped");
    expect(&["beginning", "second", "", "unfinished", "dropped"]);
    tree.raw(&name("child")).close();
    expect(&["beginning", "second", "", "unfinished", "dropped"]);
}

#[test]
fn both_kinds_share_a_name() {
    let tree = LogTree::default();
    tree.logger(&name("main")).info("leveled");
    tree.raw(&name("main")).write(b"raw\n");
    let entries = everything(&tree, "main");
    assert_eq!(entries.iter().map(|entry| entry.severity()).collect::<Vec<_>>(), [Some(Severity::Info), None]);
}

#[test]
fn long_raw_lines_are_cut_and_their_length_is_kept() {
    let exact = "x".repeat(RAW_LINE_BYTES);
    let cases = [
        (exact.clone(), exact.clone(), RAW_LINE_BYTES),
        (format!("{exact}y"), exact.clone(), RAW_LINE_BYTES + 1),
        (exact.repeat(5), exact.clone(), 5 * RAW_LINE_BYTES),
        // A character across the limit is left out whole.
        (format!("{}€uro", &exact[2..]), exact[2..].into(), RAW_LINE_BYTES + 4),
    ];
    for (line, kept, original_length) in cases {
        let tree = LogTree::default();
        // In one piece and in many.
        tree.raw(&name("child")).write(format!("{line}\n").as_bytes());
        let mut writer = tree.raw(&name("child"));
        format!("{line}\n").as_bytes().chunks(100).for_each(|piece| writer.write(piece));
        for entry in everything(&tree, "child") {
            assert_eq!(entry.text(), kept);
            assert_eq!(raw(&entry).original_length(), original_length);
            assert_eq!(raw(&entry).is_cut(), original_length > kept.len());
        }
    }
}

#[test]
fn bytes_that_are_no_text_are_kept_and_shown_as_invalid() {
    let cases: [(&[u8], &str); 4] = [
        (b"plain", "plain"),
        (b"a\xff\xfe\xfdb", "a<INVALID>b"),
        (b"\xe2\x82", "<INVALID>"),
        (b"a\xc3b\xc3", "a<INVALID>b<INVALID>"),
    ];
    for (line, text) in cases {
        let raw = Raw::new(line, line.len());
        assert_eq!((raw.data(), &*raw.text()), (line, text));
    }
    assert_eq!(Raw::new(b"abc", 0).original_length(), 3, "no line is shorter than what was kept of it");
}

#[test]
fn a_writer_takes_many_lines_at_once_in_order() {
    let tree = LogTree::default();
    let lines: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    tree.raw(&name("child")).write((lines.join("\n") + "\n").as_bytes());
    assert_eq!(texts(&everything(&tree, "child")), lines);
}

proptest! {
    /// However the bytes are cut into pieces, the lines are the same as when they come at once.
    #[test]
    fn pieces_do_not_matter(
        bytes in prop::collection::vec(prop_oneof![3 => Just(b'x'), 2 => Just(b'\n'), 1 => Just(b'\r'), 1 => any::<u8>()], 0..200),
        cuts in prop::collection::vec(0..200_usize, 0..10),
        limit in 0..20_usize,
    ) {
        let mut expected: Vec<(Vec<u8>, usize)> = bytes
            .split(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .map(|line| (line[..line.len().min(limit)].to_vec(), line.len()))
            .collect();
        // What follows the last line break is a line only if there is something.
        if bytes.last().is_none_or(|last| *last == b'\n') {
            expected.pop();
        }
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let mut buffer = LineBuffer::new(limit);
        let mut lines = Vec::new();
        for piece in cuts.windows(2) {
            buffer.write(&bytes[piece[0]..piece[1]], |line| lines.push((line.data.to_vec(), line.original_length)));
        }
        buffer.flush(|line| lines.push((line.data.to_vec(), line.original_length)));
        prop_assert_eq!(lines, expected);
    }
}
