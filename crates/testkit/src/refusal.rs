//! What a node says when it does not start or go on, and when it waits for a cure.

use std::path::Path;
use std::process::Command;

use polis_condition::Condition;
use polis_control::Status;

use crate::host::Host;
use crate::processes;
use crate::snapshot::Snapshot;

/// The four things that every error message for people has, each as a part of its text.
#[derive(Clone, Copy, Debug)]
pub struct Says<'a> {
    /// What failed.
    pub what: &'a str,
    /// Where.
    pub place: &'a Path,
    /// Why.
    pub why: &'a str,
    /// What to do next.
    pub next: &'a str,
}

impl Says<'_> {
    fn check(&self, text: &str) {
        let place = self.place.to_string_lossy();
        for (kind, part) in [("what", self.what), ("where", &*place), ("why", self.why), ("what next", self.next)] {
            assert!(!part.is_empty() && text.contains(part), "{kind}: {part:?} is not in:\n{text}");
        }
    }
}

/// Runs a node that is expected to end by itself with this exit code and message, and checks that everything below the test's
/// directory is exactly as it was.
///
/// # Panics
///
/// When something is not so.
pub fn refused(host: &Host, command: Command, exit: i32, says: Says<'_>) {
    refused_but_for(host, command, exit, says, &[]);
}

/// As [`refused`], for a node that has begun its work: what it may have changed are these paths in the test's directory.
///
/// # Panics
///
/// When something is not so.
pub fn refused_but_for(host: &Host, command: Command, exit: i32, says: Says<'_>, exempt: &[&str]) {
    let before = Snapshot::of(host.directory());
    let mut node = host.spawn(command);
    let status = node.wait_exit();
    let log = node.log();
    assert_eq!(status.code(), Some(exit), "{log}");
    // The last message is that of the command, in the style of all commands.
    let start = if log.starts_with("error: ") { Some(0) } else { log.rfind("\nerror: ") };
    let message = start.map(|start| &log[start..]).unwrap_or_else(|| panic!("no error is shown:\n{log}"));
    assert!(message.contains("\n  because: ") && !message.contains("panicked"), "{log}");
    says.check(message);
    assert_eq!(before.changes_but_for(exempt), Vec::<String>::new(), "{log}");
    processes::wait_until_gone(host.directory()).unwrap_or_else(|left| panic!("{left}"));
}

/// Checks that the condition `name` is there and what it says.
///
/// # Panics
///
/// When something is not so.
pub fn has_condition<'a>(status: &'a Status, name: &str, says: Says<'_>) -> &'a Condition {
    let found = status.conditions.iter().find(|condition| condition.name == name);
    let condition = found.unwrap_or_else(|| panic!("{name} is missing in {:?}", status.conditions));
    says.check(&format!("{}\n{}", condition.message, condition.hint));
    assert!(condition.hint.contains(says.next), "what to do is no hint: {condition:?}");
    condition
}
