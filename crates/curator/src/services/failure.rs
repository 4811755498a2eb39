//! How a request fails, and what of that is tried again here.

use std::future::Future;

use tonic::Status;

use crate::StateError;
use crate::state::UPDATE_ATTEMPTS;

/// Why one attempt at a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request is refused, or has to wait.
    Refused(Status),
    /// The state was not read or changed.
    State(StateError),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(status) => status,
            Failure::State(error) => error.into(),
        }
    }
}

/// Attempts a request, and again when another one was faster: read, decide, write on the condition that what was read is still
/// there. Each conflict means that somebody else's request is done, so there are few.
pub(super) async fn repeat<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Failure>>,
{
    for _ in 0..UPDATE_ATTEMPTS {
        match attempt().await {
            Ok(answer) => return Ok(answer),
            Err(Failure::State(StateError::Conflict)) => {}
            Err(failure @ (Failure::Refused(_) | Failure::State(_))) => return Err(failure.into()),
        }
    }
    Err(StateError::Conflict.into())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::FutureExt as _;
    use tonic::Code;

    use super::*;

    fn attempts(outcomes: impl Fn(u32) -> Result<u32, Failure>) -> (u32, Result<u32, Code>) {
        let count = Cell::new(0);
        let result = repeat(|| {
            count.set(count.get() + 1);
            std::future::ready(outcomes(count.get()))
        });
        let result = result.now_or_never().unwrap();
        (count.get(), result.map_err(|status| status.code()))
    }

    #[test]
    fn only_conflicts_are_tried_again_and_not_for_ever() {
        assert_eq!(attempts(Ok), (1, Ok(1)));
        let conflicts = |number| if number < 3 { Err(StateError::Conflict.into()) } else { Ok(number) };
        assert_eq!(attempts(conflicts), (3, Ok(3)));
        assert_eq!(attempts(|_| Err(StateError::Conflict.into())), (UPDATE_ATTEMPTS, Err(Code::Unavailable)));
        assert_eq!(attempts(|_| Err(StateError::LostLeadership.into())), (1, Err(Code::Unavailable)));
        assert_eq!(attempts(|_| Err(Status::not_found("no").into())), (1, Err(Code::NotFound)));
    }
}
