//! [`Record`]: a typed value with a file format, and what is wrong with bytes that are none.

use zeroize::Zeroizing;

use crate::envelope::Format;

/// A value that has a file format of its own.
pub trait Record: Sized {
    /// Envelope of its files.
    const FORMAT: Format;
    /// Site under which reading it settles its directory ([`crate::durable::settle`]).
    const LOAD_SITE: &'static str;

    /// The payload.
    fn to_payload(&self) -> Zeroizing<Vec<u8>>;

    /// Reads a payload.
    ///
    /// # Errors
    ///
    /// When it is not a valid one.
    fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord>;
}

/// Why a payload that arrived whole is not a valid record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRecord {
    /// It is no message at all.
    #[error("its content is not a protobuf message of the expected kind")]
    NotAMessage(#[source] prost::DecodeError),
    /// One of its fields has an impossible value.
    #[error("its field {field} is wrong: {problem}")]
    Field {
        /// Name of the field in the schema.
        field: &'static str,
        /// What is wrong, without the value: it may be secret.
        problem: String,
    },
}

impl InvalidRecord {
    /// `field` is wrong because of `problem`.
    pub(crate) fn field(field: &'static str, problem: impl ToString) -> Self {
        Self::Field { field, problem: problem.to_string() }
    }

    /// Fails unless `field` has content.
    pub(crate) fn not_empty(field: &'static str, value: &[u8]) -> Result<(), Self> {
        if value.is_empty() { Err(Self::field(field, "it is empty")) } else { Ok(()) }
    }
}
