//! [`Steps`]: what is done at a site, and so what its fault points are called. The tables of the tests that kill nodes are made of it.

/// What is done at a site, and with it the names of its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// A file is replaced.
    Write,
    /// A directory is made.
    Directory,
    /// A file is taken away.
    Removal,
    /// What an earlier process may have left half durable is made durable, before it is read.
    Settle,
    /// Somebody else carries out a change: etcd in a transaction, or the leader in a call.
    Call,
    /// A child process does something to the disk, or takes hold of it.
    Child,
}

impl Steps {
    /// The names of the steps, in the order in which they are passed.
    #[must_use]
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Write => &["begin", "created", "synced", "renamed", "named", "done"],
            Self::Directory => &["begin", "created", "done"],
            Self::Removal => &["begin", "removed", "done"],
            Self::Settle | Self::Child => &["begin", "done"],
            Self::Call => &["before", "after"],
        }
    }

    /// The names of the points of a site that is called so.
    pub fn points(self, site: &str) -> impl Iterator<Item = String> {
        self.names().iter().map(move |step| format!("{site}/{step}"))
    }
}
