//! The line that each mutating call leaves in the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tonic::Code;

use super::bucket::{Bucket, Rate};
use super::connection::Connection;

/// Target of the lines that mutating calls leave. Each has the fields `method`, `caller`, `address`, `result` and `duration_ms`. Calls
/// that are refused are among them. Those of strangers that lead to nothing are told up to a rate, beyond which they are counted
/// (`untold`): nobody without a certificate can fill the log.
pub const AUDIT_TARGET: &str = "audit";

/// Lines about strangers' calls that led to nothing: enough to see an attack, and too few to push anything out of the log.
const STRANGERS_IN_VAIN: Rate = Rate { per_second: 1.0, at_once: 100.0 };

/// What is known about lines that were written.
pub(super) struct AuditLog {
    in_vain: Mutex<Bucket>,
    untold: AtomicU64,
}

impl Default for AuditLog {
    fn default() -> Self {
        Self { in_vain: Mutex::new(Bucket::full(STRANGERS_IN_VAIN, Instant::now())), untold: AtomicU64::new(0) }
    }
}

impl AuditLog {
    /// Whether a line is written. One that is not is counted.
    fn is_told(&self, in_vain: bool) -> bool {
        let mut bucket = self.in_vain.lock().unwrap_or_else(PoisonError::into_inner);
        let told = !in_vain || bucket.take(STRANGERS_IN_VAIN, Instant::now());
        if !told {
            self.untold.fetch_add(1, Ordering::Relaxed);
        }
        told
    }
}

/// Writes its line when it is dropped: at the end of the call, however that came about.
pub(super) struct AuditLine {
    connection: Arc<Connection>,
    method: &'static str,
    began: Instant,
    result: Option<Code>,
}

impl AuditLine {
    pub(super) fn new(connection: &Arc<Connection>, method: &'static str, began: Instant) -> Self {
        Self { connection: Arc::clone(connection), method, began, result: None }
    }

    /// The first result counts.
    pub(super) fn set_result(&mut self, code: Code) {
        self.result.get_or_insert(code);
    }
}

impl Drop for AuditLine {
    fn drop(&mut self) {
        let Connection { server, caller, is_stranger, .. } = &*self.connection;
        if !server.audit.is_told(*is_stranger && self.result != Some(Code::Ok)) {
            return;
        }
        // Without a result the caller went away, or the connection was lost.
        let result = self.result.map_or("abandoned".to_owned(), |code| format!("{code:?}"));
        let duration_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let untold = server.audit.untold.swap(0, Ordering::Relaxed);
        tracing::info!(
            target: AUDIT_TARGET,
            method = self.method,
            caller = %caller.peer,
            address = %caller.address,
            result,
            duration_ms,
            untold = (untold > 0).then_some(untold),
            "mutating call"
        );
    }
}
