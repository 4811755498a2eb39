//! Why the keys of a node are not in order.

use polis_storage::data::DataError;
use polis_unlock::SplitError;

use crate::cluster_access::CallFailure;
use crate::failure::Failure;
use crate::recovery::BlobError;
use crate::trouble::Ended;

/// Why the keys were not brought into order to the end. It is gone on with later.
#[derive(Debug, thiserror::Error)]
pub(super) enum SettleError {
    /// The data partition.
    #[error("the data partition does not take the change")]
    Data(#[from] DataError),
    /// The cluster.
    #[error("the cluster does not say which key it keeps, or does not take one")]
    Cluster(#[from] CallFailure),
    /// There is no contact with a leader.
    #[error("there is no contact with the leader of the cluster, which keeps the key as well")]
    NoContact,
    /// No list names the node, and it has no copy of its key.
    #[error("no list of the members of the cluster says yet who is to hold the shares of the key")]
    NoList,
    /// The slot that was made is not one.
    #[error("the new key does not open the data partition, although a slot was made for it; the old one stays")]
    DoesNotOpen,
    /// The newest list does not allow to split the key.
    #[error("the key cannot be split among the members of the cluster")]
    Split(#[from] SplitError),
    /// The unlock file is not as it was written.
    #[error(
        "the unlock file was written, and reads as another one: the disk is not to be trusted; the local copy of the key stays"
    )]
    ReadBack,
    /// Whoever has the recovery key could not open the node with the key that is left.
    #[error("the recovery blob of this node does not take the change")]
    Recoverable(#[from] BlobError),
    /// The journal, or another file.
    #[error("the disk of this node does not take the change")]
    Disk(#[source] Failure),
    /// The node is being stopped.
    #[error("the node is stopping")]
    Stopping,
}

impl From<Ended> for SettleError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Cancelled => Self::Stopping,
            Ended::Failed(failure) => Self::Disk(failure),
        }
    }
}
