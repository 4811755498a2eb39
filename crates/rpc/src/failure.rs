//! What really happened, dug out from below a status.

use std::error::Error;
use std::io;

use tonic::Status;

use crate::ConnectError;

/// Deepest chain of causes that is followed. Real ones have at most eight.
const MAX_CAUSES: usize = 32;

/// The reason why there was no connection, if that is what a call failed of.
#[must_use]
pub fn connect_error(status: &Status) -> Option<&ConnectError> {
    causes(status).find_map(|cause| cause.downcast_ref())
}

/// Whether the call failed on the way (no connection, or it broke), and is no answer of the server.
#[must_use]
pub fn is_transport_failure(status: &Status) -> bool {
    status.source().is_some()
}

/// What a call failed of, for people: the server's message if it answered, and the innermost causes if it did not.
#[must_use]
pub fn describe(status: &Status) -> String {
    if let Some(error) = connect_error(status) {
        return polis_supervisor::with_causes(error);
    }
    if !is_transport_failure(status) {
        return match status.message() {
            "" => status.code().description().to_owned(),
            message => message.to_owned(),
        };
    }
    // The layers in between say "transport error" and the like.
    let innermost = causes(status).last().map(ToString::to_string).unwrap_or_default();
    format!("the connection broke: {innermost}")
}

/// The causes below a status, from the outermost on.
fn causes(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(status.source(), |error| below(*error)).take(MAX_CAUSES)
}

/// The cause of an error. An `io::Error` hides the one that it carries behind the cause of that one, so that it is looked for.
fn below<'error>(error: &'error (dyn Error + 'static)) -> Option<&'error (dyn Error + 'static)> {
    let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inside.map_or_else(|| error.source(), |inside| Some(inside))
}
