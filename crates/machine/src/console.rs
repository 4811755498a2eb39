//! What a person at the machine sees: on a screen two pages, the status and the log, switched with Tab; on serial lines the log.
//!
//! What is shown is made by functions from values to lines; writing them is all that the rest does.

mod log_page;
mod overview;
mod page;
pub(crate) mod screen;
pub(crate) mod serial;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

pub use overview::Overview;
pub use page::status_page;
use polis_supervisor::{Context, RunnableResult};
use rustix::fs::OFlags;
use tokio::sync::watch;

use crate::names::changed;

/// The screen of a machine, whichever of its virtual terminals is shown.
const SCREEN: &str = "tty0";

/// Logs one line each time that the node stands elsewhere, so that it is seen on serial lines: a runnable.
pub(crate) async fn tell_changes(context: Context, mut overview: watch::Receiver<Arc<Overview>>) -> RunnableResult {
    context.healthy();
    let mut told = String::new();
    loop {
        let line = overview.borrow_and_update().in_one_line();
        if line != told {
            tracing::info!("{line}");
            told = line;
        }
        context.unless_cancelled(changed(&mut overview)).await?;
    }
}

/// Writes to a console, given by its name below `/dev`, what it takes at once: nothing may wait for a console.
pub(crate) fn say_on(device: &str, text: &str) {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().write(true).custom_flags(flags).open(Path::new("/dev").join(device));
    // A console that is not there shows nothing.
    let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
}

/// Writes to the screen.
pub(crate) fn say_on_screen(text: &str) {
    say_on(SCREEN, text);
}
