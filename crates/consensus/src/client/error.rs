//! Why a call to etcd failed, in the terms in which callers decide what to do next.

use std::error::Error as _;

use tonic::Code;

use super::KeyValue;
use crate::BoxError;

/// A call to etcd failed.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// etcd was not reached, or said that it did nothing. Try again.
    #[error("etcd does not answer; it may be starting")]
    Unavailable {
        /// What the transport or etcd said.
        #[source]
        source: BoxError,
    },
    /// The cluster has no leader, so nothing was done. Try again; without a quorum of members it stays like this.
    #[error("the cluster has no leader: fewer than a quorum of its members reach each other")]
    NoLeader {
        /// What etcd said.
        #[source]
        source: BoxError,
    },
    /// The request was sent and no answer came: it may have been done, or may still be. Read before trying again.
    #[error("etcd was asked for a change and did not say whether it made it")]
    OutcomeUnknown {
        /// What the transport or etcd said.
        #[source]
        source: BoxError,
    },
    /// A comparison of the transaction did not hold; nothing was changed.
    #[error("the transaction was not made, as a key is not as it was expected to be")]
    PreconditionFailed {
        /// Results of the transaction's `otherwise` reads, in their order.
        found: Vec<Vec<KeyValue>>,
    },
    /// etcd's database has reached its quota, or its disk is full; reads still work.
    #[error("etcd refuses changes, as its database is full")]
    NoSpace {
        /// What etcd said.
        #[source]
        source: BoxError,
    },
    /// The lease does not exist, or no longer.
    #[error("the lease does not exist, or has expired")]
    LeaseNotFound,
    /// etcd refused the request for what it is: asking again will not help.
    #[error("etcd refuses the request")]
    Refused {
        /// What etcd said.
        #[source]
        source: BoxError,
    },
}

impl KvError {
    /// Whether the same call may succeed later without anything else being done about it.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::NoLeader { .. } | Self::OutcomeUnknown { .. } => true,
            Self::PreconditionFailed { .. } | Self::NoSpace { .. } | Self::LeaseNotFound | Self::Refused { .. } => {
                false
            }
        }
    }
}

/// What the call would have done, which decides what silence means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It only reads: silence means that it can be asked again.
    Read,
    /// It changes something.
    Change,
}

/// The kinds of failure, without their causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Certainly not done.
    NotDone,
    /// Perhaps done.
    Silence,
    NoLeader,
    NoSpace,
    LeaseNotFound,
    Refused,
}

/// Sorts what came back instead of an answer.
pub(crate) fn classify(error: etcd_client::Error, effect: Effect) -> KvError {
    use etcd_client::Error;
    let kind = kind_of(&error);
    // A status alone says it; the client's own words around it add nothing.
    let source: BoxError = if let Error::GRpcStatus(status) = error { status.into() } else { error.into() };
    match (kind, effect) {
        (Kind::NotDone, _) | (Kind::Silence, Effect::Read) => KvError::Unavailable { source },
        (Kind::Silence, Effect::Change) => KvError::OutcomeUnknown { source },
        (Kind::NoLeader, _) => KvError::NoLeader { source },
        (Kind::NoSpace, _) => KvError::NoSpace { source },
        (Kind::LeaseNotFound, _) => KvError::LeaseNotFound,
        (Kind::Refused, _) => KvError::Refused { source },
    }
}

fn kind_of(error: &etcd_client::Error) -> Kind {
    use etcd_client::Error;
    match error {
        Error::GRpcStatus(status) => {
            let mut cause = status.source();
            while let Some(error) = cause {
                if error.is::<tonic::ConnectError>() {
                    return Kind::NotDone;
                }
                cause = error.source();
            }
            kind(status.code(), status.message())
        }
        Error::LeaseKeepAliveError(message) if message.contains("not found") => Kind::LeaseNotFound,
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::Utf8Error(_) => Kind::Refused,
        Error::IoError(_)
        | Error::TransportError(_)
        | Error::WatchError(_)
        | Error::LeaseKeepAliveError(_)
        | Error::ElectError(_)
        | Error::InvalidMetadataValue(_)
        | Error::EndpointError(_)
        | Error::EndpointsNotManaged
        | Error::Internal(_) => Kind::Silence,
    }
}

/// Sorts an answer of gRPC that is no success. Messages are those of etcd 3.4 to 3.6.
fn kind(code: Code, message: &str) -> Kind {
    if message.contains("no leader") || message.contains("leader changed") {
        return Kind::NoLeader;
    }
    if message.contains("database space exceeded") {
        return Kind::NoSpace;
    }
    if message.contains("requested lease not found") {
        return Kind::LeaseNotFound;
    }
    if message.contains("too many requests") || message.contains("rpc not supported for learner") {
        return Kind::NotDone;
    }
    match code {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::ResourceExhausted
        | Code::Unauthenticated => Kind::Refused,
        // Among them "request timed out": etcd gave up waiting, and the proposal may still be committed.
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => Kind::Silence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_sorted_by_what_the_caller_can_do() {
        for (code, message, expected) in [
            (Code::Unavailable, "etcdserver: request timed out", Kind::Silence),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
                Kind::Silence,
            ),
            (Code::Unavailable, "etcdserver: server stopped", Kind::Silence),
            (Code::Unavailable, "etcdserver: no leader", Kind::NoLeader),
            (Code::Unavailable, "etcdserver: leader changed", Kind::NoLeader),
            (Code::Unavailable, "etcdserver: rpc not supported for learner", Kind::NotDone),
            (Code::ResourceExhausted, "etcdserver: too many requests", Kind::NotDone),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", Kind::NoSpace),
            (Code::NotFound, "etcdserver: requested lease not found", Kind::LeaseNotFound),
            (Code::InvalidArgument, "etcdserver: duplicate key given in txn request", Kind::Refused),
            (Code::InvalidArgument, "etcdserver: request is too large", Kind::Refused),
            (Code::Unknown, "transport error", Kind::Silence),
            (Code::Cancelled, "operation was canceled", Kind::Silence),
        ] {
            assert_eq!(kind(code, message), expected, "{code:?} {message}");
        }
    }

    #[test]
    fn silence_is_an_unknown_outcome_only_for_a_change() {
        let silence = || etcd_client::Error::GRpcStatus(tonic::Status::unknown("transport error"));
        assert!(matches!(classify(silence(), Effect::Change), KvError::OutcomeUnknown { .. }));
        assert!(matches!(classify(silence(), Effect::Read), KvError::Unavailable { .. }));
    }

    #[test]
    fn a_connection_that_was_never_made_changed_nothing() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let status = tonic::Status::from_error(Box::new(tonic::ConnectError(refused.into())));
        let error = classify(etcd_client::Error::GRpcStatus(status), Effect::Change);
        assert!(matches!(error, KvError::Unavailable { .. }), "{error:?}");
    }
}
