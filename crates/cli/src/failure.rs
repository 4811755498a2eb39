//! How a command ends when it does not end well: one style for all errors.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use crate::view::{Paint, safe};

/// Exit codes other than 0 (`cli.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was tried and did not work.
    Failed = 1,
    /// Wrong usage, or a prerequisite is missing.
    Usage = 2,
    /// Refused, because it would endanger the cluster or a node that lives.
    Refused = 3,
}

/// An error as it is shown: what failed, because of what, what it means for the quorum, and what to do next. Small, as every
/// function here may return one.
#[derive(Debug)]
pub(crate) struct Failure(Box<Parts>);

#[derive(Debug)]
struct Parts {
    exit: Exit,
    what: String,
    causes: Vec<String>,
    /// What it means for the quorum of the cluster.
    quorum: Option<String>,
    hint: Option<String>,
    /// Lines shown below, such as the end of a log.
    details: Vec<String>,
}

impl Failure {
    /// Something was tried and did not work.
    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            exit: Exit::Failed,
            what: what.into(),
            causes: Vec::new(),
            quorum: None,
            hint: None,
            details: Vec::new(),
        }))
    }

    /// Wrong usage, or a missing prerequisite.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::failed(what).exit(Exit::Usage)
    }

    /// An error whose own text says what failed; its sources are the causes.
    pub(crate) fn of(error: &dyn Error) -> Self {
        let failure = Self::failed(error.to_string());
        match error.source() {
            Some(source) => failure.because(source),
            None => failure,
        }
    }

    /// An error of another part of the program.
    pub(crate) fn with_exit(error: &dyn Error, hint: Option<&str>, exit: Exit) -> Self {
        let failure = Self::of(error).exit(exit);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }

    /// Adds `error` and its whole chain as causes.
    pub(crate) fn because(mut self, error: &dyn Error) -> Self {
        let mut next = Some(error);
        while let Some(cause) = next {
            self.0.causes.push(cause.to_string());
            next = cause.source();
        }
        self
    }

    /// Adds a cause in words.
    pub(crate) fn because_of(mut self, cause: impl Into<String>) -> Self {
        self.0.causes.push(cause.into());
        self
    }

    /// It was refused because it would endanger the cluster or a node that lives.
    pub(crate) fn refused(self) -> Self {
        self.exit(Exit::Refused)
    }

    /// A prerequisite is missing; the hint has the line that installs it.
    pub(crate) fn missing(self) -> Self {
        self.exit(Exit::Usage)
    }

    fn exit(mut self, exit: Exit) -> Self {
        self.0.exit = exit;
        self
    }

    /// Says what it means for the quorum.
    pub(crate) fn quorum(mut self, quorum: impl Into<String>) -> Self {
        self.0.quorum = Some(quorum.into());
        self
    }

    /// Says what to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds lines that are shown below the message.
    pub(crate) fn details(mut self, lines: impl IntoIterator<Item = String>) -> Self {
        self.0.details.extend(lines);
        self
    }

    /// Writes the message to the standard error.
    pub(crate) fn show(self) -> ExitCode {
        write(&self.render(Paint::for_stderr()));
        ExitCode::from(self.0.exit as u8)
    }

    /// As [`Failure::show`], but does not wait for longer than this for somebody to take the message.
    pub(crate) fn show_within(self, longest: Duration) -> ExitCode {
        let text = Arc::new(self.render(Paint::for_stderr()));
        let (done, written) = sync_channel(1);
        let writer = std::thread::Builder::new().name("error".into()).spawn({
            let text = Arc::clone(&text);
            move || {
                write(&text);
                // Nobody waits any more when the time is over.
                let _ = done.send(());
            }
        });
        match writer {
            // The thread is not joined: while it is blocked, only the end of the process ends it.
            Ok(_) => drop(written.recv_timeout(longest)),
            Err(_) => write(&text),
        }
        ExitCode::from(self.0.exit as u8)
    }

    /// Exit code and message, for tests.
    #[cfg(test)]
    pub(crate) fn code_and_text(&self) -> (u8, String) {
        (self.0.exit as u8, self.render(Paint::plain()))
    }

    fn render(&self, paint: Paint) -> String {
        let mut text = format!("{} {}\n", paint.red("error:"), indent(&self.0.what));
        for cause in &self.0.causes {
            text.push_str(&format!("  {} {}\n", paint.dim("because:"), indent(cause)));
        }
        if let Some(quorum) = &self.0.quorum {
            text.push_str(&format!("  {} {}\n", paint.dim("quorum:"), indent(quorum)));
        }
        if let Some(hint) = &self.0.hint {
            text.push_str(&format!("  {} {}\n", paint.bold("hint:"), indent(hint)));
        }
        for line in &self.0.details {
            text.push_str(&format!("  {} {line}\n", paint.dim("|")));
        }
        safe(&text).into_owned()
    }
}

fn write(text: &str) {
    // Nobody is left to be told when the standard error is gone.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Keeps the lines of one part of a message together.
fn indent(text: &str) -> String {
    text.replace('\n', "\n    ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn the_message_has_what_why_and_what_next() {
        let error = Outer(std::io::Error::other("inner"));
        let failure = Failure::usage("it broke").because(&error).hint("do this:\npolis owner create");
        let failure = failure.quorum("none").details(["last line".to_owned()]);
        assert_eq!(
            failure.render(Paint::plain()),
            "error: it broke\n  because: outer\n  because: inner\n  quorum: none\n  hint: do this:\n    polis owner create\n  \
             | last line\n"
        );
        assert_eq!(failure.0.exit, Exit::Usage);
        assert_eq!(failure.refused().0.exit, Exit::Refused);
        assert_eq!(Failure::of(&error).render(Paint::plain()), "error: outer\n  because: inner\n");
    }
}
