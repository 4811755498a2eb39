//! One node that is to be opened: what it says of itself, who it is, and how it is told.

use std::net::SocketAddr;
use std::time::Duration;

use polis_identity::{OwnerKey, PublicKey};
use polis_proto::unlock::get_lock_response::State;
use polis_proto::unlock::unlock_client::UnlockClient;
use polis_proto::unlock::{GetLockRequest, GetLockResponse, RecoverRequest};
use polis_recovery::{Blob, BlobError, ContentKey, Fingerprint, OpenBlobError};
use polis_rpc::{ClientIdentity, ConnectError, Connector, ExpectedServer, describe};
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;

use crate::duration;

/// How a node stands.
pub(super) enum Standing {
    /// It needs nothing.
    Open { node_id: String },
    /// It offers a blob, and it is the node that the blob is of.
    Locked(Box<Locked>),
}

/// A locked node that is known to be the right one.
pub(super) struct Locked {
    pub(super) blob: Blob,
    pub(super) lock: GetLockResponse,
    pub(super) known_by: KnownBy,
    /// To whoever holds the key by which it is known.
    channel: Channel,
}

/// Why a node is believed to be the one that its blob is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownBy {
    JoinKey,
    Fingerprint(Fingerprint),
}

impl KnownBy {
    pub(super) fn text(self) -> String {
        match self {
            Self::JoinKey => "its own key, which stands in its recovery blob".to_owned(),
            Self::Fingerprint(fingerprint) => format!("the fingerprint that was given, {fingerprint}"),
        }
    }
}

/// Why a node was not opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnlockError {
    #[error("it cannot be reached")]
    Connect(#[source] ConnectError),
    #[error("it did not answer within {}", duration::show(*.0))]
    TimedOut(Duration),
    #[error("it answered: {}", describe(.0))]
    Asked(Status),
    #[error("it says of itself what this build of polis does not know; take the polis of a version that the node has")]
    UnknownState,
    #[error("it has no recovery blob: {0}")]
    NoBlob(String),
    #[error("what it offers cannot be used")]
    BadBlob(#[source] BlobError),
    #[error(
        "it shows another key than that of the node of which it offers the blob: it is a stranger, or a node that cannot unseal \
         its own key any more"
    )]
    FreshKey,
    #[error(
        "it shows neither the key of the node of which it offers the blob nor one with a fingerprint that was given"
    )]
    Stranger,
    #[error("the words do not open it")]
    WrongKey(#[source] OpenBlobError),
    #[error("it was sent the right key and refused: {}", describe(.0))]
    Refused(Status),
    #[error("it was to be sent the right key, and the connection was lost before it had answered: {}", describe(.0))]
    Lost(Status),
}

impl UnlockError {
    /// What to do next.
    pub(super) const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Connect(_) | Self::TimedOut(_) => Some(
                "check that a node runs there (polis node status --root DIR on it) and that its port 7836 can be reached",
            ),
            Self::FreshKey => Some(
                "read the fingerprint on the node's own console, in its log or in polis node status, and give it with\n\
                 --fingerprint. Do not take it from anywhere else: whoever is asked instead of the node could tell you theirs",
            ),
            Self::Stranger => Some(
                "compare the fingerprint with what the node's own console shows now: a node that starts anew makes a new key.\n\
                 If it is the same, then what answers at this address is not that node",
            ),
            Self::NoBlob(_) => Some(
                "bring back enough members of the cluster for it to open by itself, or restore it from a snapshot:\n\
                 polis cluster recover --snapshot FILE",
            ),
            Self::Lost(_) => {
                Some("see whether it has opened: run the command again, or look at polis node status on it")
            }
            Self::Asked(_) | Self::UnknownState | Self::BadBlob(_) | Self::WrongKey(_) | Self::Refused(_) => None,
        }
    }
}

/// Asks the node at `address` how it stands, and makes sure who it is.
///
/// # Errors
///
/// When it does not answer, offers nothing, or is not known to be the node that it offers a blob of.
pub(super) async fn survey(
    address: SocketAddr,
    fingerprints: &[Fingerprint],
    longest: Duration,
) -> Result<Standing, UnlockError> {
    let late = |_| UnlockError::TimedOut(longest);
    // The service knows its callers by keys, and any key will do for these calls.
    let identity = ClientIdentity::ephemeral(&OwnerKey::generate());
    let anybody = Connector::new(&identity, ExpectedServer::Anybody);
    let shown = timeout(longest, anybody.learn_key(address)).await.map_err(late)?.map_err(UnlockError::Connect)?;
    let channel = Connector::new(&identity, ExpectedServer::Key(shown)).channel(address);
    let mut client = UnlockClient::new(channel.clone());
    let lock = timeout(longest, client.get_lock(GetLockRequest {})).await.map_err(late)?;
    let lock = lock.map_err(UnlockError::Asked)?.into_inner();
    match lock.state() {
        State::Open => return Ok(Standing::Open { node_id: lock.node_id }),
        State::Invalid => return Err(UnlockError::UnknownState),
        State::Locked | State::Sealed => {}
    }
    if lock.recovery_blob.is_empty() {
        return Err(UnlockError::NoBlob(lock.no_recovery));
    }
    let blob = Blob::from_bytes(&lock.recovery_blob).map_err(UnlockError::BadBlob)?;
    let known_by = identify(&shown, &blob.subject().join_key, fingerprints)?;
    Ok(Standing::Locked(Box::new(Locked { blob, lock, known_by, channel })))
}

/// Why who shows the key `shown` is believed to be the node whose join key is `expected`. Where the two are the same, fingerprints do
/// not count: they are of other nodes, or from before this one could unseal its key again.
fn identify(shown: &PublicKey, expected: &PublicKey, fingerprints: &[Fingerprint]) -> Result<KnownBy, UnlockError> {
    let fingerprint = Fingerprint::of_fresh_key(shown);
    if shown == expected {
        Ok(KnownBy::JoinKey)
    } else if fingerprints.contains(&fingerprint) {
        Ok(KnownBy::Fingerprint(fingerprint))
    } else if fingerprints.is_empty() {
        Err(UnlockError::FreshKey)
    } else {
        Err(UnlockError::Stranger)
    }
}

impl Locked {
    /// Sends the node the key of the content of its blob. Gives what it says that it did.
    ///
    /// # Errors
    ///
    /// When it refuses, or no answer comes.
    pub(super) async fn recover(&self, key: &ContentKey, longest: Duration) -> Result<String, UnlockError> {
        let request =
            RecoverRequest { content_key: key.secret().expose().to_vec(), blob_sha256: self.blob.digest().to_vec() };
        let mut client = UnlockClient::new(self.channel.clone());
        let answer = timeout(longest, client.recover(request)).await.map_err(|_| UnlockError::TimedOut(longest))?;
        match answer {
            Ok(answer) => Ok(answer.into_inner().done),
            Err(status) if polis_rpc::is_transport_failure(&status) => Err(UnlockError::Lost(status)),
            Err(status) => Err(UnlockError::Refused(status)),
        }
    }
}
