//! Calls that did not succeed, and how they are shown.

use std::net::SocketAddr;

use polis_identity::NodeId;
use polis_rpc::{CallError, describe, detail, is_transport_failure};
use tonic::{Code, Status};

use super::Repeat;
use crate::duration;
use crate::failure::Failure;

/// A call to the leader that did not succeed.
#[derive(Debug)]
pub(crate) struct CallFailure {
    /// What has failed, in words.
    pub(super) what: String,
    pub(super) attempts: u32,
    pub(super) repeat: Repeat,
    /// Whether it only asked; then nothing can have been carried out.
    pub(super) is_question: bool,
    pub(super) error: CallError,
    pub(super) options: String,
    /// Endpoints at which nodes of other clusters are.
    pub(super) foreign: Vec<SocketAddr>,
}

impl CallFailure {
    /// The same failure, said of what was to be done with the answer.
    pub(crate) fn of(self, what: impl Into<String>) -> Self {
        Self { what: what.into(), ..self }
    }

    /// The code of the leader's refusal; `None` when it did not refuse.
    pub(crate) fn code(&self) -> Option<Code> {
        match &self.error {
            CallError::Refused { status, .. } if !is_transport_failure(status) => Some(status.code()),
            CallError::Refused { .. } | CallError::OutOfTime { .. } => None,
        }
    }

    /// Whether an earlier try of the same call may have had its effect.
    pub(crate) const fn was_repeated(&self) -> bool {
        self.attempts > 1
    }

    /// Whether it is not known what became of it.
    pub(crate) fn is_outcome_unknown(&self) -> bool {
        if self.is_question {
            return false;
        }
        match &self.error {
            CallError::Refused { status, .. } => is_transport_failure(status) || status.code() == Code::Unavailable,
            CallError::OutOfTime { last, .. } => {
                last.as_ref().is_some_and(|(_, status)| detail::leader(status).is_none())
            }
        }
    }

    /// Why, on one line.
    pub(crate) fn cause(&self) -> String {
        self.causes().join("; ")
    }

    fn causes(&self) -> Vec<String> {
        match &self.error {
            CallError::Refused { address, status } => {
                // A certificate that is not believed is refused by every node.
                let who = if status.code() == Code::Unauthenticated { "node" } else { "leader" };
                vec![format!("the {who} at {address} answered: {}", answer(status))]
            }
            CallError::OutOfTime { after, last, failures, .. } => {
                let mut causes = Vec::new();
                if let Some((address, status)) = last {
                    causes.push(format!("the leader: {}", at(*address, &answer(status))));
                }
                causes.extend(failures.iter().map(|(address, failure)| failure.at(*address)));
                if causes.is_empty() {
                    causes.push(format!("nobody answered within {}", duration::show(*after)));
                }
                causes
            }
        }
    }
}

impl From<CallFailure> for Failure {
    fn from(error: CallFailure) -> Self {
        match &error.error {
            CallError::Refused { status, .. } => refused(&error, status),
            CallError::OutOfTime { after, last: None, .. } => {
                let what = format!("{}: no leader was found within {}", error.what, duration::show(*after));
                no_answer(&what, error.causes()).hint(no_leader_hint(&error))
            }
            CallError::OutOfTime { after, last: Some(_), .. } => {
                let tried =
                    if error.attempts > 1 { format!(", asked {} times", error.attempts) } else { String::new() };
                let failure = Failure::failed(format!("{} within {}{tried}", error.what, duration::show(*after)));
                let failure = error.causes().into_iter().fold(failure, Failure::because_of);
                let failure = if error.is_outcome_unknown() {
                    failure.because_of("a request whose answer was lost may have been carried out")
                } else {
                    failure
                };
                failure
                    .quorum("a leader that cannot finish what it is asked has most likely lost it, or is losing it")
                    .hint(format!("see what is wrong: polis cluster health{}", error.options))
            }
        }
    }
}

/// What to do when no leader was found.
fn no_leader_hint(error: &CallFailure) -> String {
    let foreign: Vec<String> = error.foreign.iter().map(ToString::to_string).collect();
    if !foreign.is_empty() {
        return format!(
            "what answers at {} is of another cluster than the CA in the configuration directory: name nodes of this cluster\n\
             with --endpoints, or the directory of that cluster with --config; if this cluster is no more and was made anew, move\n\
             ca.pem and owner.pem away, then: polis cluster takeownership{}",
            foreign.join(", "),
            error.options
        );
    }
    format!(
        "start nodes that are down until more than half of the consensus members run (polis node status --root DIR on\n\
         each), or name other nodes with --endpoints; then: polis cluster health{}",
        error.options
    )
}

fn refused(error: &CallFailure, status: &Status) -> Failure {
    let failure = failed_or_usage(&error.what, status);
    let failure = error.causes().into_iter().fold(failure, Failure::because_of);
    if let Some(margin) = detail::margin(status) {
        let away = match &margin.unreachable[..] {
            [] => String::new(),
            away => format!("; these do not answer: {}", away.join(", ")),
        };
        return failure
            .refused()
            .quorum(format!(
                "afterwards {} of {} members with a vote would answer, and {} must: the cluster would stand still{away}",
                margin.reachable_after, margin.voters_after, margin.quorum_after
            ))
            .hint(format!(
                "bring back those that do not answer, or add another member first: polis consensus members{}\n\
                 no flag overrides this",
                error.options
            ));
    }
    if is_transport_failure(status) {
        let failure = if error.repeat == Repeat::OnlyIfNothingWasDone {
            failure.because_of(
                "it is not known whether it was carried out, and it was not repeated, as that could do harm",
            )
        } else {
            failure
        };
        return failure
            .quorum("not known: the connection to the leader broke")
            .hint(format!("see what is wrong: polis cluster health{}", error.options));
    }
    let quorum = "none: the leader answered, and nothing was changed";
    match status.code() {
        Code::Unauthenticated => failure.quorum(quorum).hint(format!(
            "the cluster does not believe the owner certificate. If a rotation of the owner key was interrupted here:\n\
             polis owner rotate{options}\n\
             if the owner was changed elsewhere, get the new owner-key.pem from there, then:\n\
             polis cluster takeownership{options}",
            options = error.options
        )),
        Code::PermissionDenied => failure
            .quorum(quorum)
            .hint("the key is not the one of the cluster's owner; name the right directory with --config DIR"),
        Code::NotFound => failure.quorum(quorum).hint(format!("see what is there: polis node list{}", error.options)),
        Code::Unimplemented => failure.quorum(quorum).hint(format!(
            "the leader cannot do this; this polis is of version {}. See what the nodes run, and update those that are older:\n\
             polis node list --columns node-id,version{}",
            polis_version::text(),
            error.options
        )),
        Code::Unavailable => failure
            .quorum("not known: the leader could not do it just now")
            .hint(format!("see what is wrong: polis cluster health{}", error.options)),
        Code::InvalidArgument => failure,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Internal
        | Code::DataLoss => failure.quorum(quorum),
    }
}

/// What cannot be right whatever the state of the cluster is wrong usage.
fn failed_or_usage(what: &str, status: &Status) -> Failure {
    if status.code() == Code::InvalidArgument { Failure::usage(what) } else { Failure::failed(what) }
}

/// What a status says, with its code where it is an answer.
fn answer(status: &Status) -> String {
    if is_transport_failure(status) {
        describe(status)
    } else {
        format!("{} ({})", describe(status), code_name(status.code()))
    }
}

/// The code as gRPC writes it.
const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The cause with the address that it is about, once.
pub(crate) fn at(address: SocketAddr, cause: &str) -> String {
    let prefix = address.to_string();
    if cause.starts_with(&prefix) { cause.to_owned() } else { format!("{prefix}: {cause}") }
}

/// Nobody who could say anything has answered; each address with its cause.
pub(super) fn no_answer(what: &str, causes: Vec<String>) -> Failure {
    causes
        .into_iter()
        .fold(Failure::failed(what), Failure::because_of)
        .quorum(
            "not known: either it is lost, or no node that has it can be reached from here. Nodes that run go on as they are; \
             without a quorum nothing can be changed",
        )
}

/// A call to a node itself that did not succeed.
pub(crate) fn node_failure(what: &str, node_id: &NodeId, address: SocketAddr, status: &Status) -> Failure {
    let failure = failed_or_usage(what, status).because_of(format!("{node_id} at {}", at(address, &answer(status))));
    if is_transport_failure(status) {
        failure.quorum("not known from this: other nodes were not asked").hint(
            "see how the node is: polis node list, polis cluster health; on its machine: polis node status --root DIR",
        )
    } else {
        failure.quorum("none: only this node was asked")
    }
}
