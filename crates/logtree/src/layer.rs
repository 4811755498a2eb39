//! The `tracing` layer: events of the usual macros become entries under the name of their runnable.
//!
//! What an event needs of its spans is worked out when a span is made and stored in the span: the logger of the innermost
//! runnable and the rendered fields of the spans inside it. An event looks at one span only, however deep it is.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Span, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::fields::FieldWriter;
use crate::{DistinguishedName, LEVELED_BYTES, Leveled, Location, LogTree, Logger, Payload, Severity};

/// The name under which events land that are outside of any runnable.
pub const PROCESS_NAME: &str = "process";

/// Marks the span of a runnable among all others.
const RUNNABLE_TARGET: &str = "polis::runnable";

/// The span of the runnable with this name: events inside it, in the same tree of tasks, are logged under `name`. The
/// innermost of several wins. The span has the highest level there is, so that a filter which lets any event pass lets
/// the span pass too.
pub fn runnable_span(name: &DistinguishedName) -> Span {
    tracing::error_span!(target: RUNNABLE_TARGET, "runnable", dn = name.as_str())
}

/// See [`LogTree::layer`].
pub(crate) struct TreeLayer {
    tree: LogTree,
    process: Logger,
}

/// What a span knows; shared by the spans below that add nothing, replaced when the span records more fields.
#[derive(Clone)]
struct SpanContext {
    /// The logger of the innermost runnable; `None` outside of any.
    logger: Option<Logger>,
    /// The spans between the runnable and here with their fields, ready to be put behind a message:
    /// ` [request id=5] [retry attempt=2]`.
    rendered: String,
}

thread_local! {
    /// Where messages are put together. Taken while in use, so a value that logs while it is formatted gets a new one.
    static SCRATCH: Cell<String> = const { Cell::new(String::new()) };
}

impl TreeLayer {
    pub(crate) fn new(tree: LogTree) -> Self {
        let name = DistinguishedName::root().child(PROCESS_NAME).unwrap_or_else(|_| DistinguishedName::root());
        let process = tree.logger(&name);
        Self { tree, process }
    }

    fn logger_of_runnable(&self, attributes: &Attributes<'_>) -> Option<Logger> {
        let mut visitor = NameVisitor(None);
        attributes.record(&mut visitor);
        Some(self.tree.logger(&visitor.0?))
    }
}

impl<S> Layer<S> for TreeLayer
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut here = match span.parent().and_then(|parent| parent.extensions().get::<Arc<SpanContext>>().cloned()) {
            Some(parent) => SpanContext::clone(&parent),
            None => SpanContext { logger: None, rendered: String::new() },
        };
        let metadata = attributes.metadata();
        let own = if metadata.target() == RUNNABLE_TARGET { self.logger_of_runnable(attributes) } else { None };
        if let Some(logger) = own {
            here = SpanContext { logger: Some(logger), rendered: String::new() };
        } else {
            here.rendered.push_str(" [");
            here.rendered.push_str(metadata.name());
            attributes.record(&mut FieldWriter::after_name(&mut here.rendered));
            here.rendered.push(']');
        }
        span.extensions_mut().replace(Arc::new(here));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        // Formatting may run foreign code, so it is done before the span's data is locked.
        let mut added = String::new();
        values.record(&mut FieldWriter::after_name(&mut added));
        if let Some(here) = span.extensions_mut().get_mut::<Arc<SpanContext>>() {
            let rendered = &mut Arc::make_mut(here).rendered;
            if rendered.pop().is_some() {
                rendered.push_str(&added);
                rendered.push(']');
            }
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut text = SCRATCH.take();
        text.clear();
        event.record(&mut FieldWriter::message_first(&mut text));
        let here = context.event_span(event).and_then(|span| span.extensions().get::<Arc<SpanContext>>().cloned());
        let logger = match &here {
            Some(here) => {
                text.push_str(&here.rendered);
                here.logger.as_ref().unwrap_or(&self.process)
            }
            None => &self.process,
        };
        let leveled = Leveled::new(severity(metadata), location(metadata), &text);
        logger.write(Timestamp::now(), Payload::Leveled(leveled));
        if text.capacity() <= LEVELED_BYTES {
            SCRATCH.set(text);
        }
    }
}

fn severity(metadata: &Metadata<'_>) -> Severity {
    match *metadata.level() {
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warning,
        // `tracing` has its levels as constants of one struct; what is left is INFO, DEBUG and TRACE.
        _ => Severity::Info,
    }
}

fn location(metadata: &'static Metadata<'static>) -> Location {
    match metadata.file() {
        Some(file) => Location { file: Cow::Borrowed(file), line: metadata.line().unwrap_or(0) },
        None => Location::UNKNOWN,
    }
}

/// Finds the name in the fields of a runnable's span.
struct NameVisitor(Option<DistinguishedName>);

impl Visit for NameVisitor {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "dn" {
            self.0 = DistinguishedName::parse(value).ok();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        if write!(text, "{value:?}").is_ok() {
            self.record_str(field, &text);
        }
    }
}
