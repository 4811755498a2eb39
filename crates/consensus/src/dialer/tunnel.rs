//! One connection of the dialer: its request, its way to the peer, and the bytes in both directions.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::complaints::Complaints;
use super::request::{MAX_HEAD, Refusal, head_end, target};
use super::{Authorization, PeerMap};

/// How long a caller may take to send its request. etcd sends it in one piece, over loopback.
const HEAD_DEADLINE: Duration = Duration::from_secs(1);

/// How long a peer may take to accept. A CONNECT that stays silent can hold etcd for a minute.
const CONNECT_DEADLINE: Duration = Duration::from_secs(1);

/// How long the answer to a refused caller may take to leave.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(1);

/// How long sent bytes may stay unacknowledged, and an idle connection unanswered, before it counts as dead.
const DEAD_AFTER: Duration = Duration::from_secs(5);

/// Idle time after which the kernel probes, and between probes: dead after [`DEAD_AFTER`] in both cases.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes that are buffered in each direction, besides the kernel's.
const BUFFER: usize = 16 * 1024;

/// One connection from its acceptance to its end.
pub(super) struct Tunnel<'a> {
    client: TcpStream,
    authorization: &'a Authorization,
    peers: watch::Receiver<PeerMap>,
    complaints: &'a Complaints,
}

impl<'a> Tunnel<'a> {
    pub(super) const fn new(
        client: TcpStream,
        authorization: &'a Authorization,
        peers: watch::Receiver<PeerMap>,
        complaints: &'a Complaints,
    ) -> Self {
        Self { client, authorization, peers, complaints }
    }

    /// Serves the connection. It ends with the first of: a refusal, the end of either leg, a change of the address.
    pub(super) async fn run(mut self) {
        let outcome = match self.request().await {
            Ok(target) => self.connect(target).await.map(|(address, peer)| (target, address, peer)),
            Err(refusal) => Err(refusal),
        };
        match outcome {
            Ok((target, address, peer)) => self.carry(target, address, peer).await,
            Err(Some(refusal)) => {
                let answer = async {
                    self.client.write_all(refusal.response().as_bytes()).await?;
                    self.client.shutdown().await
                };
                // A caller that does not take its refusal is simply left.
                let _ = timeout(REFUSAL_DEADLINE, answer).await;
            }
            Err(None) => {}
        }
    }

    /// Reads the request. `Err(None)`: the caller is gone, or too slow to deserve an answer.
    async fn request(&mut self) -> Result<Ipv6Addr, Option<Refusal>> {
        let mut head = [0; MAX_HEAD];
        let mut filled = 0;
        let read = async {
            loop {
                match self.client.read(&mut head[filled..]).await {
                    Ok(0) | Err(_) => return Err(None),
                    Ok(count) => filled += count,
                }
                match head_end(&head[..filled]) {
                    // The caller speaks first only after it was let through.
                    Some(end) if end < filled => return Err(Some(Refusal::Malformed)),
                    Some(end) => return Ok(end),
                    None if filled == head.len() => return Err(Some(Refusal::TooLong)),
                    None => {}
                }
            }
        };
        let end = timeout(HEAD_DEADLINE, read).await.unwrap_or(Err(None))?;
        target(&head[..end], self.authorization).map_err(Some)
    }

    async fn connect(&mut self, target: Ipv6Addr) -> Result<(SocketAddr, TcpStream), Option<Refusal>> {
        let address = self.peers.borrow_and_update().get(&target).copied().ok_or(Some(Refusal::Unmapped))?;
        let complaint = match timeout(CONNECT_DEADLINE, outer_leg(address)).await {
            Ok(Ok(peer)) => {
                self.complaints.forget(target);
                return Ok((address, peer));
            }
            Ok(Err(error)) => format!("no connection to the peer at {address} ({target}): {error}"),
            Err(_) => format!("no connection to the peer at {address} ({target}) within {CONNECT_DEADLINE:?}"),
        };
        if self.complaints.is_news(target, &complaint, Instant::now()) {
            tracing::info!("{complaint}");
        }
        Err(Some(Refusal::Unreachable))
    }

    /// Carries bytes until either leg ends or the peer is somewhere else. Both legs are closed on return: what travels
    /// here is TLS, of which one direction alone is of no use.
    async fn carry(mut self, target: Ipv6Addr, address: SocketAddr, mut peer: TcpStream) {
        if self.client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.is_err() {
            return;
        }
        // Both legs carry small messages that wait for answers.
        let _ = self.client.set_nodelay(true);
        let (from_client, to_client) = self.client.split();
        let (from_peer, to_peer) = peer.split();
        tokio::select! {
            () = copy(from_client, to_peer) => {}
            () = copy(from_peer, to_client) => {}
            _ = self.peers.wait_for(|peers| peers.get(&target) != Some(&address)) => {
                tracing::info!("the peer {target} is no longer at {address}: its connections are closed");
            }
        }
    }
}

async fn copy(from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    // How a leg ended does not matter to the other: it ends as well.
    let _ = tokio::io::copy_buf(&mut BufReader::with_capacity(BUFFER, from), &mut to).await;
}

/// Connects to a peer, over a connection that notices within seconds when the peer has vanished.
pub(crate) async fn outer_leg(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
    rustix::net::sockopt::set_tcp_keepidle(&socket, PROBE_INTERVAL)?;
    rustix::net::sockopt::set_tcp_keepintvl(&socket, PROBE_INTERVAL)?;
    let probes = DEAD_AFTER.as_secs() / PROBE_INTERVAL.as_secs() - 1;
    rustix::net::sockopt::set_tcp_keepcnt(&socket, u32::try_from(probes).unwrap_or(1))?;
    let dead_after = u32::try_from(DEAD_AFTER.as_millis()).unwrap_or(u32::MAX);
    rustix::net::sockopt::set_tcp_user_timeout(&socket, dead_after)?;
    socket.connect(address).await
}
