//! Domain names of clusters.

use std::fmt;
use std::str::FromStr;

/// Longest domain, in characters (metropolis.md, G.8): room is left for names of nodes and services in front of it.
const MAX_DOMAIN_LENGTH: usize = 80;

/// Longest label of a domain name, in characters (RFC 1035, 2.3.4).
const MAX_DOMAIN_LABEL_LENGTH: usize = 63;

/// Domain of a cluster that names none.
const DEFAULT_DOMAIN: &str = "cluster.internal";

/// A valid cluster domain: lower-case DNS labels, at most 80 characters, the last label not a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDomain(String);

/// What is wrong with a domain.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
    /// Longer than allowed.
    #[error("the domain has {0} characters; at most {MAX_DOMAIN_LENGTH} are allowed")]
    TooLong(usize),
    /// One of its labels is malformed.
    #[error(
        "the domain part {0:?} is not a DNS label: 1 to {MAX_DOMAIN_LABEL_LENGTH} characters of a-z, 0-9 and -, \
         with no - at either end"
    )]
    Label(String),
    /// The last label is a number, which would make the name look like an IP address.
    #[error("the last part of the domain, {0:?}, is a number, so that names in it would look like IP addresses")]
    NumericEnd(String),
}

impl Default for ClusterDomain {
    fn default() -> Self {
        Self(DEFAULT_DOMAIN.into())
    }
}

impl fmt::Display for ClusterDomain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for ClusterDomain {
    type Err = DomainError;

    /// Takes a domain; an empty text means the default one.
    fn from_str(text: &str) -> Result<Self, DomainError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        if text.len() > MAX_DOMAIN_LENGTH {
            return Err(DomainError::TooLong(text.chars().count()));
        }
        let labels: Vec<&str> = text.split('.').collect();
        if let Some(bad) = labels.iter().find(|label| !is_dns_label(label)) {
            return Err(DomainError::Label((*bad).into()));
        }
        match labels.last() {
            Some(last) if last.bytes().all(|byte| byte.is_ascii_digit()) => {
                Err(DomainError::NumericEnd((*last).into()))
            }
            Some(_) | None => Ok(Self(text.into())),
        }
    }
}

/// Whether `label` is a lower-case DNS label (RFC 1123, 2.1).
pub(crate) fn is_dns_label(label: &str) -> bool {
    (1..=MAX_DOMAIN_LABEL_LENGTH).contains(&label.len())
        && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<&str, DomainError>) {
        let found = text.parse::<ClusterDomain>().map(|domain| domain.to_string());
        assert_eq!(found, expect.map(str::to_owned), "{text:?}");
    }

    #[test]
    fn domains() {
        let long_label = "a".repeat(64);
        check("", Ok("cluster.internal"));
        check("cluster.example.internal", Ok("cluster.example.internal"));
        check("a", Ok("a"));
        check("1.b", Ok("1.b"));
        check(
            &format!("{0}.{1}", "a".repeat(63), "b".repeat(16)),
            Ok(&format!("{}.{}", "a".repeat(63), "b".repeat(16))),
        );
        check(&format!("{0}.{1}", "a".repeat(63), "b".repeat(17)), Err(DomainError::TooLong(81)));
        check(&long_label, Err(DomainError::Label(long_label.clone())));
        check("a..b", Err(DomainError::Label(String::new())));
        check("a.b.", Err(DomainError::Label(String::new())));
        check("A.b", Err(DomainError::Label("A".into())));
        check("-a.b", Err(DomainError::Label("-a".into())));
        check("a-.b", Err(DomainError::Label("a-".into())));
        check("ä.b", Err(DomainError::Label("ä".into())));
        check("10.0.0.1", Err(DomainError::NumericEnd("1".into())));
    }
}
