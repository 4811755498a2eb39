//! What the checks found, and how it is shown.

use serde::Serialize;

use crate::view::{Paint, count};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// Something does not work, or one more failure would stop it.
    Error,
    /// It works, with less safety than it should.
    Warning,
    /// Somebody may want to know, or has something to do.
    Notice,
    /// As it should be.
    Ok,
}

/// One line of `polis cluster health`. Keys are part of the command contract: add, do not change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// Stable name of the check, in kebab case.
    pub(super) check: &'static str,
    /// Node that it is about; absent when it is about the whole cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node_id: Option<String>,
    /// What was found.
    pub(super) what: String,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<String>,
    /// What it means for the quorum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) quorum: Option<String>,
    /// What to do next: a command, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

impl Finding {
    pub(super) fn new(level: Level, check: &'static str, what: impl Into<String>) -> Self {
        Self { level, check, node_id: None, what: what.into(), cause: None, quorum: None, next: None }
    }

    pub(super) fn node(mut self, node_id: &str) -> Self {
        self.node_id = Some(node_id.to_owned());
        self
    }

    pub(super) fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    pub(super) fn quorum(mut self, quorum: impl Into<String>) -> Self {
        self.quorum = Some(quorum.into());
        self
    }

    pub(super) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

/// All findings. Keys are part of the command contract: add, do not change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    /// Whether there is no error.
    pub(super) healthy: bool,
    pub(super) errors: usize,
    pub(super) warnings: usize,
    pub(super) findings: Vec<Finding>,
}

impl Report {
    /// The worst comes first; within a level the order stays.
    pub(super) fn new(mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| finding.level);
        let number = |level| findings.iter().filter(|finding| finding.level == level).count();
        let (errors, warnings) = (number(Level::Error), number(Level::Warning));
        Self { healthy: errors == 0, errors, warnings, findings }
    }

    pub(super) fn render(&self, paint: Paint) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let level = match finding.level {
                Level::Error => paint.red("error  "),
                Level::Warning => paint.yellow("warning"),
                Level::Notice => paint.bold("notice "),
                Level::Ok => paint.green("ok     "),
            };
            let node = finding.node_id.as_ref().map(|id| format!("{id}: ")).unwrap_or_default();
            text.push_str(&format!(
                "{level}  {node}{}  {}\n",
                indent(&finding.what),
                paint.dim(&format!("[{}]", finding.check))
            ));
            for (name, value) in [("cause: ", &finding.cause), ("quorum:", &finding.quorum), ("next:  ", &finding.next)]
            {
                if let Some(value) = value {
                    text.push_str(&format!("         {} {}\n", paint.dim(name), indent(value)));
                }
            }
        }
        let summary = match (self.errors, self.warnings) {
            (0, 0) => paint.green("nothing is wrong"),
            (0, warnings) => paint.yellow(&count(warnings, "warning")),
            (errors, 0) => paint.red(&count(errors, "error")),
            (errors, warnings) => paint.red(&format!("{}, {}", count(errors, "error"), count(warnings, "warning"))),
        };
        format!("{text}\n{summary}\n")
    }
}

fn indent(text: &str) -> String {
    text.replace('\n', "\n                 ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first() {
        let report = Report::new(vec![
            Finding::new(Level::Ok, "leader", "node a leads"),
            Finding::new(Level::Warning, "versions", "two versions"),
            Finding::new(Level::Error, "heartbeat", "no heartbeat for 25s")
                .node("metropolis-c")
                .cause("first\nsecond")
                .quorum("one more failure stops all changes")
                .next("polis node logs metropolis-c"),
        ]);
        assert_eq!(
            report.render(Paint::plain()),
            "\
error    metropolis-c: no heartbeat for 25s  [heartbeat]
         cause:  first
                 second
         quorum: one more failure stops all changes
         next:   polis node logs metropolis-c
warning  two versions  [versions]
ok       node a leads  [leader]

1 error, 1 warning
"
        );
        assert_eq!((report.healthy, report.errors, report.warnings), (false, 1, 1));
        let json = serde_json::to_value(&report.findings[1]).unwrap();
        assert_eq!(json, serde_json::json!({"level": "warning", "check": "versions", "what": "two versions"}));
        assert!(Report::new(vec![]).render(Paint::plain()).contains("nothing is wrong"));
    }
}
