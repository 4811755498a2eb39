//! The parsers: etcd's JSON lines, the kernel's records.

mod common;

use common::{everything, name};
use jiff::Timestamp;
use polis_logtree::parse::{ETCD_LINE_BYTES, etcd, kernel};
use polis_logtree::{Line, Location, LogTree, Payload, RAW_LINE_BYTES, Severity};
use proptest::prelude::*;

fn now() -> Timestamp {
    "2030-01-01T00:00:00Z".parse().unwrap()
}

fn line(text: &str) -> Line<'_> {
    Line { data: text.as_bytes(), original_length: text.len() }
}

/// Severity, time, place and text; the first two as text, `raw` for a raw entry.
fn summary((timestamp, payload): (Timestamp, Payload)) -> (String, String, String, String) {
    match payload {
        Payload::Leveled(leveled) => {
            (leveled.severity.to_string(), timestamp.to_string(), leveled.location.to_string(), leveled.text().into())
        }
        Payload::Raw(raw) => ("raw".into(), timestamp.to_string(), String::new(), raw.text().into()),
    }
}

#[test]
fn lines_of_etcd_become_leveled_entries() {
    let cases = [
        (
            r#"{"level":"info","ts":"2026-11-30T06:56:57.608Z","caller":"etcdserver/backend.go:80","msg":"opened backend db","path":"/data/member/snap/db","took":"13.014535ms"}"#,
            (
                "info",
                "2026-11-30T06:56:57.608Z",
                "etcdserver/backend.go:80",
                "opened backend db path=/data/member/snap/db took=13.014535ms",
            ),
        ),
        (
            r#"{"level":"warn","ts":"2026-11-30T08:56:57.617+0200","caller":"auth/store.go:1380","msg":"simple token is not cryptographically signed"}"#,
            (
                "warning",
                "2026-11-30T06:56:57.617Z",
                "auth/store.go:1380",
                "simple token is not cryptographically signed",
            ),
        ),
        (
            r#"{"level":"error","ts":1577836800.25,"msg":"numbers","max":5,"ratio":0.5,"on":true,"none":null,"list":["a",1],"map":{"b":{}}}"#,
            (
                "error",
                "2020-01-01T00:00:00.25Z",
                "unknown:0",
                r#"numbers max=5 ratio=0.5 on=true none=null list=["a",1] map={"b":{}}"#,
            ),
        ),
        (
            r#"{"level":"debug","msg":"order of the line","z":1,"a":"two words","m":"","a":2}"#,
            ("info", "2030-01-01T00:00:00Z", "unknown:0", r#"order of the line z=1 a="two words" m="" a=2"#),
        ),
        (
            r#"{"level":"fatal","ts":"2026-11-30T06:56:57Z","caller":"etcdmain/etcd.go:271","msg":"discovery failed","error":"listen: in use","stacktrace":"main.main\n\tmain.go:32\n"}"#,
            (
                "error",
                "2026-11-30T06:56:57Z",
                "etcdmain/etcd.go:271",
                "discovery failed error=\"listen: in use\"\nstacktrace:\n  main.main\n  \tmain.go:32",
            ),
        ),
        (
            r#"{"level":"panic","ts":"not a time","caller":"nowhere","msg":"","level":"info","msg":"second"}"#,
            ("error", "2030-01-01T00:00:00Z", "unknown:0", r#" ts="not a time" caller=nowhere level=info msg=second"#),
        ),
        (
            r#"{"level":"dpanic","ts":1e300,"msg":"escaped \u001b[31m and é","k\ney":1}"#,
            ("error", "2030-01-01T00:00:00Z", "unknown:0", "escaped \u{1b}[31m and é ts=1e+300 k\ney=1"),
        ),
    ];
    for (text, (severity, timestamp, location, expected)) in cases {
        let expected = (severity.into(), timestamp.into(), location.into(), expected.into());
        assert_eq!(summary(etcd(line(text), now())), expected, "{text}");
    }
}

#[test]
fn what_is_no_line_of_etcd_stays_as_it_is() {
    let deep = "[".repeat(5000);
    let cases = [
        "",
        "panic: runtime error: index out of range",
        "{",
        "[]",
        "null",
        "\"text\"",
        "{}",
        r#"{"level":"info"}"#,
        r#"{"msg":"no level"}"#,
        r#"{"level":"loud","msg":"unknown level"}"#,
        r#"{"level":5,"msg":"level is a number"}"#,
        r#"{"level":"info","msg":["no text"]}"#,
        r#"{"level":"info","msg":"cut in the mid"#,
        r#"{"level":"info","msg":"more behind"} {"#,
        &deep,
    ];
    for text in cases {
        let (timestamp, payload) = etcd(line(text), now());
        let Payload::Raw(raw) = payload else { panic!("{text:?} became {payload:?}") };
        assert_eq!(timestamp, now());
        assert_eq!(raw.data(), &text.as_bytes()[..text.len().min(RAW_LINE_BYTES)]);
        assert_eq!(raw.original_length(), text.len());
    }
    let whole = r#"{"level":"info","msg":"whole"}"#;
    let (_, payload) = etcd(Line { data: whole.as_bytes(), original_length: 10_000 }, now());
    assert!(matches!(payload, Payload::Raw(raw) if raw.original_length() == 10_000), "its end is missing");
}

#[test]
fn the_output_of_etcd_lands_in_the_tree() {
    let tree = LogTree::default();
    let mut writer = tree.etcd(&name("root.consensus.etcd"));
    let padding = "x".repeat(ETCD_LINE_BYTES - 100);
    let long = format!(r#"{{"level":"warn","msg":"long","padding":"{padding}"}}"#);
    let longer = format!(r#"{{"level":"warn","msg":"longer","padding":"{padding}{padding}"}}"#);
    let output = format!("{{\"level\":\"info\",\"msg\":\"ready\"}}\ngarbage\n{long}\n{longer}\nunfinished");
    output.as_bytes().chunks(1000).for_each(|piece| writer.write(piece));
    writer.close();
    let entries = everything(&tree, "root.consensus");
    let severities: Vec<_> = entries.iter().map(|entry| entry.severity()).collect();
    assert_eq!(severities, [Some(Severity::Info), None, Some(Severity::Warning), None, None]);
    assert_eq!(entries[0].text(), "ready");
    assert_eq!(entries[2].text(), format!("long padding={padding}"));
    assert!(matches!(&entries[3].payload, Payload::Raw(raw) if raw.original_length() == longer.len()));
    assert_eq!(entries[4].text(), "unfinished");
}

#[test]
fn records_of_the_kernel_become_leveled_entries() {
    let started = "2026-11-30T06:00:00Z".parse().unwrap();
    let cases: [(&[u8], &str, &str, &str); 12] = [
        (b"6,0,0,-;Linux version 6.1\n", "info", "2026-11-30T06:00:00Z", "Linux version 6.1"),
        (
            b"12,4711,1500000,-,caller=T1;link is down\n SUBSYSTEM=net\n DEVICE=+net:eth0\n",
            "warning",
            "2026-11-30T06:00:01.5Z",
            "link is down",
        ),
        (b"0,1,1,-;emergency", "fatal", "2026-11-30T06:00:00.000001Z", "emergency"),
        (b"9,1,0,-;alert", "fatal", "2026-11-30T06:00:00Z", "alert"),
        (b"2,1,0,-;critical", "error", "2026-11-30T06:00:00Z", "critical"),
        (b"3,1,0,c;error", "error", "2026-11-30T06:00:00Z", "error"),
        (b"5,1,0,-;notice", "info", "2026-11-30T06:00:00Z", "notice"),
        (b"7,1,0,-;a;b\\x0ac\\x5cd\\x\\xzz", "info", "2026-11-30T06:00:00Z", "a;b\nc\\d\\x\\xzz"),
        (b"6,1,0,-;", "info", "2026-11-30T06:00:00Z", ""),
        (b"6,1;short header", "raw", "2030-01-01T00:00:00Z", "6,1;short header"),
        (b"x,1,0,-;no priority\n K=v", "raw", "2030-01-01T00:00:00Z", "x,1,0,-;no priority"),
        (b"6,1,9223372036854775807,-;late", "raw", "2030-01-01T00:00:00Z", "6,1,9223372036854775807,-;late"),
    ];
    for (record, severity, timestamp, text) in cases {
        let (actual_severity, actual_timestamp, location, actual_text) = summary(kernel(record, started, now()));
        let actual = (&*actual_severity, &*actual_timestamp, &*actual_text);
        assert_eq!(actual, (severity, timestamp, text), "{}", String::from_utf8_lossy(record));
        assert_eq!(
            location,
            if severity == "raw" { String::new() } else { Location { file: "kernel".into(), line: 0 }.to_string() }
        );
    }
}

proptest! {
    #[test]
    fn no_input_makes_a_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        etcd(Line { data: &bytes, original_length: bytes.len() }, now());
        kernel(&bytes, now(), now());
    }

    /// The same for input that is nearly right.
    #[test]
    fn no_damage_makes_a_parser_panic(at in 0..120_usize, byte in any::<u8>(), cut in 0..120_usize) {
        let samples: [&[u8]; 2] = [
            br#"{"level":"info","ts":"2026-11-30T06:56:57.608Z","caller":"a/b.go:80","msg":"m \u00e9","stack":"a\nb","n":-1e9}"#,
            b"12,4711,1500000,-,caller=T1;link\\x0a is \\xe2\\x82 down\n SUBSYSTEM=net\n",
        ];
        for sample in samples {
            let mut damaged = sample.to_vec();
            let at = at % damaged.len();
            damaged[at] = byte;
            damaged.truncate(cut.max(1));
            etcd(Line { data: &damaged, original_length: damaged.len() }, now());
            kernel(&damaged, now(), now());
        }
    }
}
