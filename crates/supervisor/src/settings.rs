//! The numbers of a supervisor.

use std::time::Duration;

use crate::backoff::BackoffSettings;
use crate::core::MAX_CHILDREN;

/// The numbers of a supervisor. The default is what a node runs with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a runnable that died waits before it is started again (metropolis.md A.3).
    pub backoff: BackoffSettings,
    /// How long a runnable may take to stop after it was cancelled before a condition names it. 12 s: the 10 s that a
    /// child process gets by default to end in order ([`PROCESS_STOP_DEADLINE`](crate::PROCESS_STOP_DEADLINE)), and a
    /// little work around it.
    pub stop_deadline: Duration,
    /// How long after the deadline its task is aborted, and how long after that it is given up by
    /// [`Supervisor::shutdown`](crate::Supervisor::shutdown).
    pub stop_grace: Duration,
    /// So many deaths in a row without staying up, or within [`RESTART_WINDOW`](crate::RESTART_WINDOW), raise the
    /// condition [`RESTARTS_OFTEN`](crate::RESTARTS_OFTEN).
    pub restarts_often: u32,
    /// Most children of one runnable, and names it may reserve; at most [`MAX_CHILDREN`].
    pub max_children: usize,
    /// Seed of the randomness of the backoff; `None` takes one from the system.
    pub seed: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backoff: BackoffSettings::default(),
            stop_deadline: Duration::from_secs(12),
            stop_grace: Duration::from_secs(5),
            restarts_often: 5,
            max_children: MAX_CHILDREN,
            seed: None,
        }
    }
}
