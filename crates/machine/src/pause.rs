//! Waiting while there is no runtime.

use std::time::Duration;

/// Sleeps on the calling thread.
#[expect(
    clippy::disallowed_methods,
    reason = "before the runtime there is and after it is gone, this thread is all that runs, and every wait has a deadline"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
