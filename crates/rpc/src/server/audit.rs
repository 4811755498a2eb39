//! The line that each mutating call leaves in the log.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use polis_logtree::runnable_span;
use polis_supervisor::Context;
use tonic::Code;
use tracing::Span;

use super::bucket::{Bucket, Rate};
use super::connection::Connection;
use crate::{Caller, Peer};

/// Target of the lines that mutating calls leave. Each has the fields `method`, `caller`, `address`, `result` and `duration_ms`, and
/// `object` if the handler has said what the call is about. Calls that are refused are among them. Those of strangers that lead to
/// nothing are told up to a rate, beyond which they are counted (`untold`): nobody without a certificate can fill the log.
///
/// Lines about calls of users, who are people, are in the journal `audit` below that of the server's runnable, and all others in
/// `audit-of-nodes` beside it.
pub const AUDIT_TARGET: &str = "audit";

/// Journal of the lines about users' calls. A thousand nodes that find a new leader say as much in a second as people do in a year.
const JOURNAL_OF_USERS: &str = "audit";

/// Journal of the lines about calls of nodes, and of those who are to become one.
const JOURNAL_OF_NODES: &str = "audit-of-nodes";

/// Longest object that is written down, in characters: a node, and some ten labels or roles.
const LONGEST_OBJECT: usize = 400;

/// What a mutating call is about, such as which node and which of its roles, for the line that it leaves in the log. Handlers say it
/// as soon as they know, before they do anything. A call without one is about its caller, or about the node that it was made to.
#[derive(Clone, Debug, Default)]
pub struct AuditObject(Arc<OnceLock<String>>);

impl AuditObject {
    /// That of this request. A request that did not come through [`serve`](crate::serve) leaves no line, and what is said of it is lost.
    #[must_use]
    pub fn of<T>(request: &tonic::Request<T>) -> Self {
        request.extensions().get().cloned().unwrap_or_default()
    }

    /// Says what the call is about; no secret is ever part of that. What is said first counts, and of a long text the beginning.
    pub fn set(&self, object: impl fmt::Display) {
        let text = object.to_string();
        let shown = text.chars().take(LONGEST_OBJECT).flat_map(char::escape_debug).collect();
        let _ = self.0.set(shown);
    }

    fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// Lines about strangers' calls that led to nothing: enough to see an attack, and too few to push anything out of the log.
const STRANGERS_IN_VAIN: Rate = Rate { per_second: 1.0, at_once: 100.0 };

/// What is known about lines that were written.
pub(super) struct AuditLog {
    in_vain: Mutex<Bucket>,
    untold: AtomicU64,
    of_users: Span,
    of_nodes: Span,
}

impl AuditLog {
    /// That of a server in the runnable with this context.
    pub(super) fn new(context: &Context) -> Self {
        let own = context.distinguished_name();
        let journal = |name| runnable_span(&own.child(name).unwrap_or_else(|_| own.clone()));
        Self {
            in_vain: Mutex::new(Bucket::full(STRANGERS_IN_VAIN, Instant::now())),
            untold: AtomicU64::new(0),
            of_users: journal(JOURNAL_OF_USERS),
            of_nodes: journal(JOURNAL_OF_NODES),
        }
    }

    /// Where the lines about this caller are.
    const fn journal(&self, caller: &Caller) -> &Span {
        match caller.peer {
            Peer::User(_) => &self.of_users,
            Peer::Node(_) | Peer::Ephemeral(_) | Peer::Anonymous => &self.of_nodes,
        }
    }

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
    object: AuditObject,
    began: Instant,
    result: Option<Code>,
}

impl AuditLine {
    pub(super) fn new(connection: &Arc<Connection>, method: &'static str, began: Instant) -> Self {
        Self { connection: Arc::clone(connection), method, object: AuditObject::default(), began, result: None }
    }

    /// Where the handler says what the call is about.
    pub(super) fn object(&self) -> AuditObject {
        self.object.clone()
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
            parent: server.audit.journal(caller),
            method = self.method,
            caller = %caller.peer,
            address = %caller.address,
            object = self.object.get(),
            result,
            duration_ms,
            untold = (untold > 0).then_some(untold),
            "mutating call"
        );
    }
}
