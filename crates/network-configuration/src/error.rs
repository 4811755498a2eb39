//! What can be wrong with a configuration.

use std::fmt;

/// Why bytes are not a usable configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigurationError {
    /// Not a message of this kind.
    #[error("the bytes are not a Net message, or were cut short")]
    Malformed(#[source] prost::DecodeError),
    /// A field is wrong.
    #[error("{field} {problem}")]
    Field {
        /// Its name on the wire, with the numbers of repeated ones: `interface[0].address[1]`.
        field: String,
        /// What is wrong.
        problem: Problem,
    },
}

/// What is wrong with a field. As text it follows the name of the field.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// Nothing is given where something has to be.
    Missing {
        /// What.
        what: &'static str,
    },
    /// More of them than there may be.
    TooMany {
        /// How many there are.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// It cannot be what it should be.
    Unusable {
        /// What was given.
        found: String,
        /// What would be good.
        expected: &'static str,
    },
    /// No interface has this name.
    NoSuchInterface {
        /// The name.
        name: String,
    },
    /// A second one of what there may be one of.
    Again {
        /// What was given.
        found: String,
        /// Where it is already.
        already: String,
    },
    /// Interfaces are built on each other in a circle.
    Circle {
        /// Their names.
        names: Vec<String>,
    },
    /// An interface in a bond has addresses, routes or DHCP of its own.
    MemberWithAddresses {
        /// Name of the bond.
        bond: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { what } => write!(formatter, "is missing; give {what}"),
            Self::TooMany { found, limit } => write!(formatter, "has {found} entries; there may be {limit}"),
            Self::Unusable { found, expected } => write!(formatter, "is \"{found}\", which is not {expected}"),
            Self::NoSuchInterface { name } => {
                write!(formatter, "names the interface \"{name}\", which the configuration does not have")
            }
            Self::Again { found, already } => write!(formatter, "is \"{found}\", which {already} is already"),
            Self::Circle { names } => {
                write!(formatter, "has interfaces that are built on each other in a circle: {}", names.join(", "))
            }
            Self::MemberWithAddresses { bond } => write!(
                formatter,
                "belongs to the bond \"{bond}\" and has addresses, routes or automatic configuration of its own; give them to \
                 the bond"
            ),
        }
    }
}

impl Problem {
    pub(crate) fn at(self, field: impl Into<String>) -> ConfigurationError {
        ConfigurationError::Field { field: field.into(), problem: self }
    }

    pub(crate) fn unusable(found: impl fmt::Display, expected: &'static str) -> Self {
        Self::Unusable { found: found.to_string(), expected }
    }
}

/// What names of interfaces are.
pub(crate) const NAME_RULE: &str =
    "a name of an interface: 1 to 15 printable ASCII characters without blanks, `/`, `:` and `%`";
