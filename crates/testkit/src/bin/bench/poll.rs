//! A client that tries again and again.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::BenchError;
use crate::child::PATIENCE;

/// Time between two tries.
pub(crate) const INTERVAL: Duration = Duration::from_millis(5);

/// When a try is given up: what was handed to a leader that is dead is answered after seconds or never. New ones are made
/// meanwhile, so that nothing is lost by waiting for it.
const TRY: Duration = Duration::from_millis(250);

/// Most tries at one endpoint that wait for their answer. With fewer, one that is not answered would hold up the others; with more,
/// those that are being given up would keep whoever answers from what is measured.
const AT_ONCE: usize = 16;

/// Makes a try with each of `count` endpoints every [`INTERVAL`] until one succeeds. Returns when that was.
pub(crate) async fn until_success<F>(
    what: &str,
    count: usize,
    attempt: impl Fn(usize) -> F,
) -> Result<std::time::Instant, BenchError>
where
    F: Future<Output = bool> + Send + 'static,
{
    let mut tries = JoinSet::new();
    let mut open = vec![0; count];
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        tokio::select! {
            _ = ticks.tick() => {
                for (number, open) in open.iter_mut().enumerate().filter(|(_, open)| **open < AT_ONCE) {
                    *open += 1;
                    let attempt = timeout(TRY, attempt(number));
                    tries.spawn(async move { (number, attempt.await.unwrap_or(false)) });
                }
            }
            Some(done) = tries.join_next() => {
                let (number, is_done) = done?;
                if is_done {
                    return Ok(std::time::Instant::now());
                }
                open[number] -= 1;
            }
        }
    }
    Err(format!("no {what} within {PATIENCE:?}").into())
}
