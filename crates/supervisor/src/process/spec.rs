//! What is to be started, and where its output goes.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use polis_logtree::RawWriter;
use polis_sys::{Importance, Signal};

/// How long a process gets by default to end in order after its stop signal.
pub const PROCESS_STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Where one output stream of a process goes.
pub enum OutputSink {
    /// Into the log, as raw lines under the name of the runnable.
    Log,
    /// Into this writer, for example one that understands the lines of etcd.
    Writer(RawWriter),
    /// To a function, line by line without the line break. Longer lines than
    /// [`MAX_LINE_LENGTH`](crate::MAX_LINE_LENGTH) are cut, and what is not UTF-8 is replaced. It must be quick; its
    /// panic is the death of the runnable.
    Lines(Arc<dyn Fn(&str) + Send + Sync>),
    /// Nowhere.
    Discard,
}

impl OutputSink {
    /// To a function, line by line.
    pub fn lines(function: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self::Lines(Arc::new(function))
    }
}

impl fmt::Debug for OutputSink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Log => "Log",
            Self::Writer(_) => "Writer",
            Self::Lines(_) => "Lines",
            Self::Discard => "Discard",
        })
    }
}

/// A process to be started. It gets no standard input and a process group of its own, and inherits nothing: its
/// environment is what is said here and nothing else. `Debug` shows the names of its variables and not their values, which may
/// be secret.
pub struct ProcessSpec {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// The arguments after the program's name.
    pub arguments: Vec<OsString>,
    /// The complete environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The directory it starts in; `None` is `/`.
    pub working_directory: Option<PathBuf>,
    /// The signal that asks it to end; SIGTERM by default.
    pub stop_signal: Signal,
    /// How long after the stop signal its group gets SIGKILL; [`PROCESS_STOP_DEADLINE`] by default.
    pub stop_deadline: Duration,
    /// Where its standard output goes; into the log by default.
    pub standard_output: OutputSink,
    /// Where its standard error goes; into the log by default.
    pub standard_error: OutputSink,
    /// How much it matters when memory or the disk is short; as much as this process by default.
    pub importance: Importance,
}

impl fmt::Debug for ProcessSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.environment.iter().map(|(name, _)| name).collect();
        formatter
            .debug_struct("ProcessSpec")
            .field("program", &self.program)
            .field("arguments", &self.arguments)
            .field("environment", &names)
            .field("working_directory", &self.working_directory)
            .field("stop_signal", &self.stop_signal)
            .field("stop_deadline", &self.stop_deadline)
            .field("standard_output", &self.standard_output)
            .field("standard_error", &self.standard_error)
            .field("importance", &self.importance)
            .finish()
    }
}

impl ProcessSpec {
    /// A program without arguments and with an empty environment.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            working_directory: None,
            stop_signal: Signal::TERM,
            stop_deadline: PROCESS_STOP_DEADLINE,
            standard_output: OutputSink::Log,
            standard_error: OutputSink::Log,
            importance: Importance::default(),
        }
    }

    /// One more argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn arguments<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// One more variable of the environment.
    #[must_use]
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_value_of_the_environment() {
        let text =
            format!("{:?}", ProcessSpec::new("/bin/true").variable("HTTPS_PROXY", "http://polis:token@127.0.0.1:1"));
        assert!(text.contains("HTTPS_PROXY") && !text.contains("token"), "{text}");
    }
}
