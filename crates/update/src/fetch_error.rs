//! [`FetchError`]: why an image was not fetched.

use std::time::Duration;

use http::StatusCode;

use crate::digest::Digest;
use crate::manifest::ManifestError;
use crate::transport::ConnectError;

/// Why an image was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The server does not have it, or does not give it.
    #[error("{url} is answered with {status}{}", explain(*status))]
    Answer {
        /// What was asked for.
        url: String,
        /// The answer.
        status: StatusCode,
    },
    /// What came is not what the digest says.
    #[error("{url} has other content than its digest says: it has {found}")]
    OtherContent {
        /// What was asked for.
        url: String,
        /// Digest of what came.
        found: Digest,
    },
    /// More than is taken.
    #[error("{url} has more than the {limit} bytes that it may have")]
    TooLong {
        /// What was asked for.
        url: String,
        /// Most bytes.
        limit: u64,
    },
    /// The manifest of something else.
    #[error("{url} is not the manifest of an image")]
    Manifest {
        /// What was asked for.
        url: String,
        /// Why.
        #[source]
        source: ManifestError,
    },
    /// The server sends somewhere where nobody should follow.
    #[error("{url} redirects to {location:?}, which is not followed")]
    Redirection {
        /// What was asked for.
        url: String,
        /// Where to.
        location: String,
    },
    /// The time is over.
    #[error("{url} could not be fetched within {} seconds", budget.as_secs())]
    OutOfTime {
        /// What was asked for.
        url: String,
        /// The time for all.
        budget: Duration,
        /// Why the last try failed; nothing if the first was still under way.
        #[source]
        last: Option<Passing>,
    },
}

/// What may be over at the next try.
#[derive(Debug, thiserror::Error)]
pub enum Passing {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The other side did not speak HTTP to the end.
    #[error("the connection broke")]
    Http(#[from] hyper::Error),
    /// It fell silent.
    #[error("the server sent nothing for {} seconds", .0.as_secs())]
    Silent(Duration),
    /// It is overloaded, or broken for now.
    #[error("the server answers {0}")]
    Unwell(StatusCode),
    /// It ended before the end.
    #[error("the server ended after {received} of {expected} bytes")]
    Short {
        /// Bytes that came.
        received: u64,
        /// Bytes of the whole.
        expected: u64,
    },
}

/// What an answer means to whoever asked for an update.
fn explain(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            ": the server wants to know who asks, and nodes fetch only what everybody may have"
        }
        StatusCode::NOT_FOUND => ": look at host, repository and digest",
        _ => "",
    }
}
