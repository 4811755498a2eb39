//! Calls to whoever leads.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use polis_supervisor::{Backoff, BackoffSettings};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use super::{ClusterClient, EndpointFailure, Leader};
use crate::{describe, is_transport_failure};

/// Pauses between calls that the same leader could not serve just now.
const RETRY: BackoffSettings = BackoffSettings {
    initial: Duration::from_millis(15),
    multiplier: 2.0,
    randomization: 0.5,
    maximum: Duration::from_millis(650),
};

/// How long to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPolicy {
    /// For everything: finding the leader, all tries, and the pauses.
    pub deadline: Duration,
    /// For one try; `None` leaves it to the deadline. For calls that are to be tried again when the leader hangs.
    pub attempt: Option<Duration>,
}

impl CallPolicy {
    /// Tries for this long.
    #[must_use]
    pub const fn within(deadline: Duration) -> Self {
        Self { deadline, attempt: None }
    }

    /// Gives one try at most this long.
    #[must_use]
    pub const fn each_within(self, attempt: Duration) -> Self {
        Self { attempt: Some(attempt), ..self }
    }
}

/// Why a call to the leader did not succeed.
#[derive(Clone, Debug)]
pub enum CallError {
    /// The leader answered, and trying again would change nothing.
    Refused {
        /// Who answered.
        address: SocketAddr,
        /// What.
        status: Status,
    },
    /// The time is over. Unless no leader was ever found, a try may have had its effect although nobody heard of it.
    OutOfTime {
        /// How long it was tried.
        after: Duration,
        /// How many calls were made.
        attempts: u32,
        /// What the last call failed of, and who was called. `None` when none was made.
        last: Option<(SocketAddr, Status)>,
        /// The last failure of each address, if there was no leader at the end.
        failures: BTreeMap<SocketAddr, EndpointFailure>,
    },
}

impl ClusterClient {
    /// Calls the leader, and again when it was not there: when the answer is UNAVAILABLE, when the connection breaks, and when
    /// meanwhile another node leads. Hints in the answer are followed.
    ///
    /// **The call may be made more than once, and one that failed may have had its effect.** It has to be one that can be repeated,
    /// as all of ours are by design of their requests; for any other use [`ClusterClient::leader`] and its channel.
    ///
    /// # Errors
    ///
    /// When the leader refuses, and when the time is over.
    pub async fn call<T, F, R>(&self, policy: CallPolicy, mut call: F) -> Result<T, CallError>
    where
        F: FnMut(tonic::transport::Channel) -> R,
        R: Future<Output = Result<T, Status>>,
    {
        let deadline = Instant::now() + policy.deadline;
        let mut pauses = Backoff::new(RETRY);
        let mut attempts = 0;
        let mut last: Option<(SocketAddr, Status)> = None;
        loop {
            let Ok(leader) = timeout_at(deadline, self.leader()).await else { break };
            attempts += 1;
            let end = policy.attempt.map_or(deadline, |attempt| deadline.min(Instant::now() + attempt));
            let result = tokio::select! {
                biased;
                result = timeout_at(end, call(leader.channel.clone())) => result,
                () = self.replaced(&leader) => {
                    last = Some((leader.address, Status::unavailable("another node leads now")));
                    continue;
                }
            };
            let status = match result {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(status)) if !may_pass(&status) => {
                    return Err(CallError::Refused { address: leader.address, status });
                }
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("the leader did not answer in time"),
            };
            self.doubt(&leader, &status);
            last = Some((leader.address, status));
            if Instant::now() >= deadline {
                break;
            }
            tokio::select! {
                () = self.replaced(&leader) => {}
                () = sleep(pauses.next(rand::random())) => {}
            }
        }
        let failures = self.0.search.borrow().failures();
        Err(CallError::OutOfTime { after: policy.deadline, attempts, last, failures })
    }

    /// Waits until another node leads, or this one at another address.
    async fn replaced(&self, leader: &Leader) {
        self.wait_for(|search| {
            let found = search.leader()?;
            let is_other = found.node_id != leader.node_id || found.address != leader.address;
            is_other.then_some(())
        })
        .await;
    }
}

/// Whether trying again may help.
fn may_pass(status: &Status) -> bool {
    status.code() == Code::Unavailable || is_transport_failure(status)
}

impl CallError {
    /// The last answer of a leader, or what stands for it.
    #[must_use]
    pub const fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused { status, .. } | Self::OutOfTime { last: Some((_, status)), .. } => Some(status),
            Self::OutOfTime { last: None, .. } => None,
        }
    }

    /// Proof that the caller was deleted, if that was the answer of anybody. Whether it is one is to be checked.
    #[must_use]
    pub fn removed_node(&self) -> Option<polis_proto::rpc_detail::RemovedNode> {
        let of_status = self.status().and_then(crate::detail::removed_node);
        of_status.or_else(|| match self {
            Self::Refused { .. } => None,
            Self::OutOfTime { failures, .. } => failures.values().find_map(|failure| failure.removed.clone()),
        })
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { address, status } => {
                write!(formatter, "the leader at {address} answered {:?}: {}", status.code(), describe(status))
            }
            Self::OutOfTime { after, attempts, last, failures } => {
                write!(formatter, "no success within {after:?}")?;
                if let Some((address, status)) = last {
                    write!(formatter, "; the last of {attempts} calls, to {address}, failed: {}", describe(status))?;
                }
                if !failures.is_empty() {
                    let mut text = String::new();
                    for (address, failure) in failures {
                        // Writing to a string does not fail.
                        let _ = write!(text, "; {}", failure.at(*address));
                    }
                    write!(formatter, "; no node is known to lead{text}")?;
                } else if last.is_none() {
                    formatter.write_str("; no node is known to lead, and nobody was there to be asked")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for CallError {}
