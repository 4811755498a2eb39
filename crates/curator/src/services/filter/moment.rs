//! Durations and points in time.

use std::any::Any;
use std::cmp::Ordering;

use cel::ExecutionError;
use cel::common::traits::Comparer;
use cel::common::types::Type;
use cel::common::value::{StaticVal, Val};
use jiff::{SignedDuration, Timestamp};
use prost_types::{Duration as WireDuration, Timestamp as WireTimestamp};

/// A duration or a point in time. Two of the same kind can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Duration(SignedDuration),
    Timestamp(Timestamp),
}

/// `google.protobuf.Duration`.
pub(super) static DURATION: Type = Type::new_unspecified_type("google.protobuf.Duration");

/// `google.protobuf.Timestamp`.
pub(super) static TIMESTAMP: Type = Type::new_unspecified_type("google.protobuf.Timestamp");

impl Moment {
    /// What a message says; zero when it is not set.
    pub(super) fn of_duration(duration: Option<&WireDuration>) -> Self {
        let zero = WireDuration::default();
        let duration = duration.unwrap_or(&zero);
        Self::Duration(
            SignedDuration::from_secs(duration.seconds)
                .saturating_add(SignedDuration::from_nanos(duration.nanos.into())),
        )
    }

    /// What a message says; the beginning of 1970 when it is not set, or says something impossible.
    pub(super) fn of_timestamp(timestamp: Option<&WireTimestamp>) -> Self {
        let zero = WireTimestamp::default();
        let timestamp = timestamp.unwrap_or(&zero);
        Self::Timestamp(Timestamp::new(timestamp.seconds, timestamp.nanos).unwrap_or(Timestamp::UNIX_EPOCH))
    }

    /// Reads a duration such as `1h30m`, `10s` or `-1.5s`.
    pub(super) fn parse_duration(text: &str) -> Result<Self, jiff::Error> {
        text.parse().map(Self::Duration)
    }

    /// Reads a point in time as RFC 3339 writes it.
    pub(super) fn parse_timestamp(text: &str) -> Result<Self, jiff::Error> {
        text.parse().map(Self::Timestamp)
    }
}

impl Comparer for Moment {
    fn compare(&self, other: &dyn Val) -> Result<Ordering, ExecutionError> {
        match (self, other.downcast_ref::<Self>()) {
            (Self::Duration(one), Some(Self::Duration(other))) => Ok(one.cmp(other)),
            (Self::Timestamp(one), Some(Self::Timestamp(other))) => Ok(one.cmp(other)),
            (Self::Duration(_), Some(Self::Timestamp(_)) | None)
            | (Self::Timestamp(_), Some(Self::Duration(_)) | None) => Err(ExecutionError::UnexpectedType {
                got: other.get_type().name().to_owned(),
                want: self.get_type().name().to_owned(),
            }),
        }
    }
}

impl Val for Moment {
    fn get_type(&self) -> &Type {
        match self {
            Self::Duration(_) => &DURATION,
            Self::Timestamp(_) => &TIMESTAMP,
        }
    }

    /// Only used for arguments of functions, and none takes a moment.
    fn cel_type() -> &'static Type {
        &DURATION
    }

    fn as_comparer(&self) -> Option<&dyn Comparer> {
        Some(self)
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>() == Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(*self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Moment {}
