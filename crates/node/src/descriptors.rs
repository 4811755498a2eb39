//! How many files this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open files to as many as the system allows this user. The soft limit of 1,024 that processes get by
/// default is there for programs that use `select`; a node with a thousand others to serve needs more.
///
/// Returns what holds now; `None` is no limit.
pub(crate) fn raise_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Refused only when the hard limit is lowered at the same moment; then what was there before still holds.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if raised.is_ok() { maximum } else { current }
}

/// The limit that holds now; `None` is no limit.
pub(crate) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_what_the_system_allows() {
        let hard = getrlimit(Resource::Nofile).maximum;
        assert_eq!(raise_limit(), hard);
        assert_eq!(limit(), hard);
    }
}
