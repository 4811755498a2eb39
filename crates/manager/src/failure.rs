//! Why a node has failed, in words for the operator.

use std::io;
use std::path::PathBuf;

use polis_parameters::ParametersError;
use polis_storage::journal::{SealError, SealTrouble};
use polis_storage::{DataUnavailable, NewerFile};
use polis_supervisor::BoxError;

use crate::parameter_source::ParametersOrigin;
use crate::state::State;

/// The reason of a node in the state Failed. Nothing transient is ever one: what may pass is retried, with a condition.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// There is neither a journal nor a parameters file.
    #[error(
        "this node has no cluster and was given no parameters: they were looked for at {} and {}. Name a file with \
         --parameters; `polis parameters bootstrap` makes one for a new cluster, `polis parameters register` one for a cluster that runs",
        firmware.display(), esp.display()
    )]
    NoParameters {
        /// Where the firmware would have them.
        firmware: PathBuf,
        /// Where the ESP would have them.
        esp: PathBuf,
    },
    /// The parameters file cannot be read.
    #[error("the parameters {} cannot be read; nothing was changed", path.display())]
    ParametersUnreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The parameters are bad.
    #[error("the parameters {origin} are not usable; nothing was changed")]
    Parameters {
        /// Where they came from.
        origin: ParametersOrigin,
        /// What is wrong with them.
        #[source]
        source: ParametersError,
    },
    /// The parameters ask for data that are protected as this host cannot protect them. Nothing weaker is done instead.
    #[error(
        "the parameters {} ask for what this host does not have; nothing was changed. {}; or ask for less, with \
         `polis parameters bootstrap --storage-security`",
        parameters.display(), source.remedy
    )]
    StorageUnavailable {
        /// Where they came from.
        parameters: PathBuf,
        /// What is missing.
        #[source]
        source: DataUnavailable,
    },
    /// The parameters ask for a TPM, and it cannot be used.
    #[error(
        "the parameters {} require a TPM (tpm_mode REQUIRED, which is also what an absent configuration means), and it cannot be \
         used; nothing was changed. For a machine without one: `polis parameters bootstrap --tpm-mode best-effort`",
        parameters.display()
    )]
    TpmUnavailable {
        /// Where they came from.
        parameters: PathBuf,
        /// Why it cannot be used.
        #[source]
        source: SealError,
    },
    /// The cluster has removed the node.
    #[error(
        "removed from the cluster: {reason}. The journal records it, so this node does not come back by itself, and a later \
         start changes nothing. To use the machine again, give it a new root directory, or delete what is left of the node with \
         `polis node reset --root DIR`"
    )]
    Removed {
        /// What the cluster said.
        reason: String,
    },
    /// The restoration of a snapshot was begun here, and not finished.
    #[error(
        "a snapshot was being restored at this root, and that was cut off before there was a node; nothing was changed. Repeat `polis cluster \
         recover --snapshot` as it was given, which begins anew, or delete what is left with `polis node reset --root DIR`"
    )]
    RestorationCutOff,
    /// There is no journal, and there are the data of a node.
    #[error(
        "the data directory {} belongs to {owner}, and there is no enrolment journal to say that this is that node: neither {} \
         nor {} exists. Nothing was changed. Bring the journal back, or give a new node a root of its own",
        path.display(), journal[0].display(), journal[1].display()
    )]
    DataWithoutJournal {
        /// Full path of the data directory.
        path: PathBuf,
        /// Where the journal would be.
        journal: [PathBuf; 2],
        /// Node in the marker of the data directory.
        owner: String,
    },
    /// A newer version of Polis has used this root, and may have meant by it what this build cannot know.
    #[error("this root was used by a newer Polis than this one, which is {}", polis_version::text())]
    NewerFile(#[source] NewerFile),
    /// A file cannot be used.
    #[error("the {what} {} cannot be used; nothing was changed", path.display())]
    File {
        /// What it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// What the disk holds cannot be used, and guessing could destroy it.
    #[error("{what}; nothing was changed")]
    Disk {
        /// What cannot be used.
        what: &'static str,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// The program was about to do what it must never do.
    #[error("internal error: {what}")]
    Internal {
        /// What it was about to do.
        what: &'static str,
        /// Why it must not.
        #[source]
        source: BoxError,
    },
    /// A step was tried in a state in which it has no place.
    #[error("internal error: the transition from {from} to {to} is not in the table")]
    IllegalTransition {
        /// The state before.
        from: State,
        /// The state that was asked for.
        to: State,
    },
    /// The Manager is gone.
    #[error("the node is stopping")]
    Gone,
}

impl Failure {
    /// Whether something is missing that can be installed.
    #[must_use]
    pub const fn is_missing_prerequisite(&self) -> bool {
        match self {
            Self::StorageUnavailable { .. } => true,
            Self::TpmUnavailable { source, .. } => {
                matches!(source.trouble, SealTrouble::HelperMissing | SealTrouble::NotPermitted)
            }
            Self::NoParameters { .. }
            | Self::ParametersUnreadable { .. }
            | Self::Parameters { .. }
            | Self::Removed { .. }
            | Self::RestorationCutOff
            | Self::DataWithoutJournal { .. }
            | Self::NewerFile(_)
            | Self::File { .. }
            | Self::Disk { .. }
            | Self::Internal { .. }
            | Self::IllegalTransition { .. }
            | Self::Gone => false,
        }
    }

    /// What to do next, where the text of the failure and of its causes does not say it.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Parameters { .. } => Some(
                "`polis parameters bootstrap` makes a good file for the first node of a cluster, `polis parameters register` for each \
                 that follows, and `polis parameters show FILE` tells what is in one",
            ),
            Self::ParametersUnreadable { .. } => Some(
                "check the path and its permissions; `polis parameters bootstrap` makes such a file for the first node of a \
                     cluster, `polis parameters register` one for each that follows",
            ),
            Self::Disk { .. } | Self::File { .. } => Some(
                "nothing on the disk is lost by this: bring back what the message names, from a backup if need be, and start \
                 the node again",
            ),
            Self::IllegalTransition { .. } | Self::Internal { .. } => {
                Some("this is a fault of Polis: please report it, with the log of the node")
            }
            Self::NoParameters { .. }
            | Self::StorageUnavailable { .. }
            | Self::TpmUnavailable { .. }
            | Self::Removed { .. }
            | Self::RestorationCutOff
            | Self::DataWithoutJournal { .. }
            | Self::NewerFile(_)
            | Self::Gone => None,
        }
    }
}
