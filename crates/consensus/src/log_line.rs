//! What a line of etcd's log tells about its state. Pure.
//!
//! etcd offers no watch on its leader or on its readiness; its log lines are the trigger, and what it answers when asked
//! is the truth. So a line that is taken for the wrong thing, or a new version that words it differently, costs time (up to
//! the next regular check) and nothing else.

use serde_json::Value;

use crate::damage::is_sign;

/// What a line hints at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    /// The client socket is served, or is about to be.
    Serving,
    /// The peer port is served.
    ServingPeers,
    /// A leader was elected.
    Elected,
    /// This member looks for a leader.
    Electing,
    /// The leader, the members or this member's place among them changed.
    Changed,
    /// The disk is full.
    NoSpace,
    /// The cluster has removed this member.
    Removed,
    /// The data of this member cannot be read.
    Damaged,
    /// Something that people want to see when etcd has died: an error, or a line that is no JSON (usage, panics).
    Complaint,
    /// Nothing that this crate acts on.
    Nothing,
}

/// Beginnings of messages with which etcd 3.4 to 3.6 announces that clients are served.
const SERVING: [&str; 3] =
    ["ready to serve client requests", "serving client traffic insecurely", "serving client traffic securely"];

/// Beginning of the message with which etcd 3.4 to 3.6 announce that they serve other members.
const SERVING_PEERS: &str = "serving peer traffic";

/// Parts of messages with which raft announces that there is a leader.
const ELECTED: [&str; 1] = ["elected leader"];

/// Parts of messages with which raft announces that there is none.
const ELECTING: [&str; 2] = ["is starting a new election", "lost leader"];

/// Parts of messages with which etcd 3.4 to 3.6 announces a change of leader, term, members or alarms.
const CHANGED: [&str; 10] = [
    "changed leader",
    "became leader",
    "became follower",
    "promoted member",
    "promote member",
    "added member",
    "removed member",
    "updated member",
    "switched to configuration",
    "alarm",
];

/// Text of the system call's error on a full disk. etcd's own quota is told by its alarm.
pub(crate) const NO_SPACE: &str = "no space left on device";

/// What etcd 3.4 to 3.6 say before they end because their member was removed.
const REMOVED: &str = "permanently removed from the cluster";

/// What etcd 3.4 panics with when it is asked how it is and does not find itself among the members: while it is being removed, and
/// before a joiner has heard of its own addition.
pub(crate) const NOT_AMONG_THE_MEMBERS: &str = "failed to find local ID in cluster members";

/// Beginnings of lines with which Go tells where a fatal signal came from, and what the memory there was.
const DUMPED: [&str; 4] = ["PC=0x", "runtime: g ", "stack: frame=", "0x"];

/// Characters of the longest name of a register: `rflags` on x86-64, `cpsr` or `lr` elsewhere.
const LONGEST_REGISTER: usize = 6;

/// Classifies one line.
#[must_use]
pub(crate) fn classify(line: &str) -> Hint {
    if line.contains(NO_SPACE) {
        return Hint::NoSpace;
    }
    if line.contains(REMOVED) {
        return Hint::Removed;
    }
    if is_sign(line) {
        return Hint::Damaged;
    }
    let Ok(Value::Object(fields)) = serde_json::from_str(line) else {
        let tells_nothing = line.trim().is_empty() || is_of_stack(line) || is_of_dump(line);
        return if tells_nothing { Hint::Nothing } else { Hint::Complaint };
    };
    let text = |name| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let message = text("msg");
    if matches!(text("level"), "error" | "dpanic" | "panic" | "fatal") {
        Hint::Complaint
    } else if SERVING.iter().any(|start| message.starts_with(start)) {
        Hint::Serving
    } else if message.starts_with(SERVING_PEERS) {
        Hint::ServingPeers
    } else if ELECTED.iter().any(|part| message.contains(part)) {
        Hint::Elected
    } else if ELECTING.iter().any(|part| message.contains(part)) {
        Hint::Electing
    } else if CHANGED.iter().any(|part| message.contains(part)) {
        Hint::Changed
    } else {
        Hint::Nothing
    }
}

/// Whether the line is part of the stack that Go prints below the message of a panic: it tells people nothing, and is so long
/// that the message would not be among the last lines.
fn is_of_stack(line: &str) -> bool {
    let is_call = || line.ends_with(')') && line.split('(').next().is_some_and(|name| !name.contains(' '));
    line.starts_with('\t') || line.starts_with("goroutine ") || line.starts_with("created by ") || is_call()
}

/// Whether the line is part of what Go prints of memory and registers below the message of a fatal signal, as when it gets no
/// thread: that is as long as a stack, and comes last.
fn is_of_dump(line: &str) -> bool {
    let is_register = || match line.split_whitespace().collect::<Vec<_>>()[..] {
        [name, value] => name.len() <= LONGEST_REGISTER && value.starts_with("0x"),
        _ => false,
    };
    DUMPED.iter().any(|start| line.starts_with(start)) || is_register()
}

/// What is shown to people of a line that is a complaint: its message and its error, without what a program needs.
#[must_use]
pub(crate) fn complaint(line: &str) -> String {
    let Ok(Value::Object(fields)) = serde_json::from_str(line) else { return line.to_owned() };
    let text = |name| fields.get(name).and_then(Value::as_str);
    match (text("msg"), text("error")) {
        (Some(message), Some(error)) => format!("{message}: {error}"),
        (Some(message), None) => message.to_owned(),
        (None, Some(_) | None) => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_etcd_are_told_apart() {
        let info = |message: &str| format!(r#"{{"level":"info","ts":"t","caller":"c","msg":"{message}"}}"#);
        let fatal = r#"{"level":"fatal","msg":"discovery failed","error":"listen tcp: bind: address already in use"}"#;
        for (line, expected) in [
            (info("serving client traffic insecurely; this is strongly discouraged!"), Hint::Serving),
            (info("ready to serve client requests"), Hint::Serving),
            (info("serving peer traffic"), Hint::ServingPeers),
            (info("raft.node: 10e3 elected leader 10e3 at term 2"), Hint::Elected),
            (info("raft.node: 10e3 lost leader 10e3 at term 2"), Hint::Electing),
            (info("10e3 is starting a new election at term 2"), Hint::Electing),
            (info("10e3 became follower at term 3"), Hint::Changed),
            (info("10e3 switched to configuration voters=(1 2) learners=(3)"), Hint::Changed),
            (info("added member"), Hint::Changed),
            (info("alarm raised"), Hint::Changed),
            (info("finished scheduled compaction"), Hint::Nothing),
            (fatal.to_owned(), Hint::Complaint),
            ("panic: runtime error".to_owned(), Hint::Complaint),
            ("2026-11-30 06:45:26.422503 W | pkg/fileutil: check file permission".to_owned(), Hint::Complaint),
            (r#"{"level":"fatal","msg":"write wal: no space left on device"}"#.to_owned(), Hint::NoSpace),
            (
                r#"{"level":"warn","msg":"server error","error":"the member has been permanently removed from the cluster"}"#
                    .to_owned(),
                Hint::Removed,
            ),
            (r#"{"level":"fatal","msg":"discovery failed","error":"walpb: crc mismatch"}"#.to_owned(), Hint::Damaged),
            ("unexpected fault address 0x7fb68c035000".to_owned(), Hint::Damaged),
            ("[1, 2]".to_owned(), Hint::Complaint),
            (String::new(), Hint::Nothing),
            ("goroutine 1 [running]:".to_owned(), Hint::Nothing),
            ("go.uber.org/zap/zapcore.(*CheckedEntry).Write(0xc0001, {0x0, 0x0, 0x0})".to_owned(), Hint::Nothing),
            ("main.main()".to_owned(), Hint::Nothing),
            ("\tgo.etcd.io/etcd/main.go:28 +0x17".to_owned(), Hint::Nothing),
            ("created by go.etcd.io/etcd/etcdserver.openBackend".to_owned(), Hint::Nothing),
            ("panic: cannot map (too large)".to_owned(), Hint::Complaint),
            ("runtime/cgo: pthread_create failed: Resource temporarily unavailable".to_owned(), Hint::Complaint),
            ("SIGABRT: abort".to_owned(), Hint::Complaint),
            ("PC=0x7fd980225eec m=0 sigcode=18446744073709551610".to_owned(), Hint::Nothing),
            ("runtime: g 0: unknown pc 0x7fd980225eec".to_owned(), Hint::Nothing),
            ("stack: frame={sp:0x7ffc76d85ba0, fp:0x0} stack=[0x7ffc76587120,0x7ffc76d86130)".to_owned(), Hint::Nothing),
            ("0x00007ffc76d85aa0:  0x0000000000000000  0x0000000000000000 ".to_owned(), Hint::Nothing),
            ("rflags 0x246".to_owned(), Hint::Nothing),
            ("rip    0x7f38d65e0eec".to_owned(), Hint::Nothing),
            ("address 0x246".to_owned(), Hint::Complaint),
            (r#"{"level":7,"msg":null}"#.to_owned(), Hint::Nothing),
        ] {
            assert_eq!(classify(&line), expected, "{line}");
        }
    }

    #[test]
    fn a_complaint_is_shown_without_what_programs_need() {
        let fatal =
            r#"{"level":"fatal","ts":1,"msg":"discovery failed","error":"bind: in use","stacktrace":"main.main\n"}"#;
        for (line, shown) in [
            (fatal, "discovery failed: bind: in use"),
            (r#"{"level":"fatal","msg":"limit is too low","limit":24}"#, "limit is too low"),
            (r#"{"level":"fatal"}"#, r#"{"level":"fatal"}"#),
            ("panic: runtime error", "panic: runtime error"),
        ] {
            assert_eq!(complaint(line), shown);
        }
    }
}
