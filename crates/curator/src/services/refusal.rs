//! What a change of members is refused with.

use polis_identity::NodeId;
use polis_proto::rpc_detail::MarginRefusal;
use polis_rpc::detail;
use polis_supervisor::with_causes;
use tonic::Status;

use crate::membership::{Margin, Refusal, RemovalError};

/// Why a member is not removed.
pub(super) fn removal_refused(error: RemovalError) -> Status {
    let message = with_causes(&error);
    match error {
        RemovalError::NoSuchNode(_) => Status::not_found(message),
        RemovalError::Refused { source, .. } => margin_refused(message, &source),
        RemovalError::Withdrawn { .. } => Status::failed_precondition(message),
        RemovalError::Busy(_) | RemovalError::UnderWay { .. } | RemovalError::Members(_) => {
            Status::unavailable(message)
        }
        RemovalError::State(error) => error.into(),
    }
}

/// A refusal with its numbers, where it has some.
pub(super) fn margin_refused(message: String, refusal: &Refusal) -> Status {
    let status = Status::failed_precondition(message);
    let numbers = |margin: &Margin| {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        MarginRefusal {
            voters_after: count(margin.voters),
            quorum_after: count(margin.quorum()),
            reachable_after: count(margin.reachable),
            unreachable: margin.unreachable.iter().map(NodeId::to_string).collect(),
        }
    };
    match refusal {
        Refusal::Quorum(verdict) => detail::with_margin(status, &numbers(&verdict.after)),
        Refusal::NoQuorum(margin) => detail::with_margin(status, &numbers(margin)),
        // No member is left of which one could answer.
        Refusal::LastMember(_) => {
            detail::with_margin(status, &MarginRefusal { quorum_after: 1, ..MarginRefusal::default() })
        }
        Refusal::TooMany => status,
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_refusal_has_its_numbers() {
        let id = NodeId::of(&polis_identity::NodeKey::generate().public());
        let margin = Margin { voters: 3, reachable: 1, unreachable: [id].into() };
        let refusal = Refusal::NoQuorum(Box::new(margin));
        let status = removal_refused(RemovalError::Refused { node: id, source: refusal });
        assert_eq!(status.code(), Code::FailedPrecondition);
        let expected =
            MarginRefusal { voters_after: 3, quorum_after: 2, reachable_after: 1, unreachable: vec![id.to_string()] };
        assert_eq!(detail::margin(&status), Some(expected));
        assert!(status.message().contains("has no quorum"), "{}", status.message());
    }
}
