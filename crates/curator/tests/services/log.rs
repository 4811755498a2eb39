//! What this process logs, kept to be looked through.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use polis_rpc::AUDIT_TARGET;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// All lines of the parts of Polis and of calls at every level, with their fields, of every test of this process since the first call.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<String>>);

impl Log {
    /// Begins to keep what is logged.
    pub(crate) fn start() -> Self {
        let log = Self::default();
        tracing::subscriber::set_global_default(log.clone()).expect("one test of this process reads the log");
        log
    }

    pub(crate) fn read(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self, record: impl FnOnce(&mut Line)) {
        let mut line = Line(String::new());
        record(&mut line);
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.push_str(&line.0);
        text.push('\n');
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("polis") || metadata.target() == AUDIT_TARGET
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.write(|line| span.record(line));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.write(|line| values.record(line));
    }

    fn event(&self, event: &Event<'_>) {
        self.write(|line| event.record(line));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
