//! The way to one peer: connecting to wherever it may be, and asking.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use polis_identity::PublicKey;
use polis_proto::unlock;
use polis_proto::unlock::unlock_client::UnlockClient;
use polis_rpc::{ConnectError, Connector, ExpectedServer, KeyIdentity, describe};
use polis_unlock::{InvalidUnlockMessage, UnlockReply, UnlockRequest};
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::limits::LONGEST_MESSAGE;

/// Addresses of one peer that are tried at the same time: where it called from, where it is said to be, and where it was before.
pub(crate) const MAX_ADDRESSES: usize = 6;

/// How long one attempt may take, connection included: less than a collector waits for, and far more than a peer needs that works,
/// with a slow disk and an overloaded processor.
const DEADLINE: Duration = Duration::from_secs(4);

/// The one who calls: the key that it shows, and the address from which it does, if that is given.
#[derive(Clone, Debug)]
pub(crate) struct Calling {
    pub(crate) identity: KeyIdentity,
    pub(crate) from: Option<IpAddr>,
}

/// A connection to a peer that has proved to be the one.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Where it is.
    pub(crate) address: SocketAddr,
    channel: Channel,
}

/// Why a peer did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// Nobody knows where it is.
    #[error("its address is not known")]
    NoAddress,
    /// No connection to any of its addresses; this is the last one that failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The call failed.
    #[error("{address}: {reason}")]
    Call {
        /// Where it was asked.
        address: SocketAddr,
        /// What went wrong.
        reason: String,
    },
    /// It answered, and not as a peer does.
    #[error("the answer of {address} cannot be read; is it of another version?")]
    Garbled {
        /// Where it was asked.
        address: SocketAddr,
        /// What is wrong with the answer.
        #[source]
        source: InvalidUnlockMessage,
    },
    /// It took too long.
    #[error("no answer within {DEADLINE:?}")]
    TimedOut,
}

/// Asks a peer once, over the line that is there or else over a new one. The line that comes back may be used again. `connected` is
/// set as soon as the peer is at the other end.
///
/// # Errors
///
/// When the peer does not answer; then the line is worth nothing any more.
pub(crate) async fn ask(
    calling: &Calling,
    key: PublicKey,
    addresses: &[SocketAddr],
    line: Option<Line>,
    request: UnlockRequest,
    connected: &AtomicBool,
) -> Result<(UnlockReply, Line), AskError> {
    let request = unlock::UnlockRequest::from(request);
    let asked = async {
        // Of a line that is there nobody knows whether it still is: the peer may have restarted meanwhile.
        if let Some(line) = line
            && let Ok(reply) = call(&line, request.clone()).await
        {
            return Ok((reply, line));
        }
        let line = connect(calling, key, addresses).await?;
        connected.store(true, Ordering::Relaxed);
        let reply = call(&line, request).await?;
        Ok((reply, line))
    };
    timeout(DEADLINE, asked).await.unwrap_or(Err(AskError::TimedOut))
}

async fn call(line: &Line, request: unlock::UnlockRequest) -> Result<UnlockReply, AskError> {
    let mut client = UnlockClient::new(line.channel.clone()).max_decoding_message_size(LONGEST_MESSAGE);
    let address = line.address;
    let response = client.unlock(request).await;
    let response = response.map_err(|status| AskError::Call { address, reason: describe(&status) })?;
    UnlockReply::try_from(response.into_inner()).map_err(|source| AskError::Garbled { address, source })
}

/// Connects to whichever address answers first as the peer.
async fn connect(calling: &Calling, key: PublicKey, addresses: &[SocketAddr]) -> Result<Line, AskError> {
    let mut connector = Connector::new(&calling.identity.client_identity(), ExpectedServer::Key(key));
    if let Some(from) = calling.from {
        connector = connector.from_address(from);
    }
    let connecting = addresses.iter().take(MAX_ADDRESSES).map(|address| {
        let connector = &connector;
        async move { connector.connect(*address).await.map(|channel| Line { address: *address, channel }) }
    });
    let mut connecting: FuturesUnordered<_> = connecting.collect();
    let mut failure = AskError::NoAddress;
    while let Some(connected) = connecting.next().await {
        match connected {
            Ok(line) => return Ok(line),
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}
