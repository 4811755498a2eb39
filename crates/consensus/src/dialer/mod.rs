//! The dialer: takes etcd's outgoing peer connections to where the peers are today.
//!
//! A peer URL names an address that no interface has (it is derived from the peer's key). etcd reaches it through
//! `HTTPS_PROXY`, which is this: a CONNECT proxy on loopback, inside the node process, that maps identity addresses to
//! real ones. All peer traffic of etcd 3.4 to 3.6 uses it: streams, snapshots, probing and version calls.
//!
//! It serves nobody but the etcd of this node: only callers with the random token of its proxy URL, only mapped
//! addresses, only the peer port. Everything that a caller can make it hold is bounded: the length of a request and the
//! time to send it, the number of connections, the bytes in flight. It holds no timer while nothing happens.

mod complaints;
mod request;
mod tunnel;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use futures::stream::{FuturesUnordered, StreamExt as _};
use polis_secret::{Secret, Secret32};
use tokio::net::TcpListener;
use tokio::sync::watch;

use complaints::Complaints;
use tunnel::Tunnel;

pub(crate) use tunnel::outer_leg;

/// Where the peers are: identity address to real address.
pub type PeerMap = BTreeMap<Ipv6Addr, SocketAddr>;

/// Most connections that are held at a time. Each peer of etcd uses about ten, and nine members are the most that etcd
/// is run with.
const MAX_CONNECTIONS: usize = 256;

/// Pause after `accept` has failed: that happens when the process is out of file descriptors, and trying again at once
/// would only burn the time that others need to give some back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// User name in the proxy URL. Only the token matters.
const USER: &str = "polis";

/// Length of the value of the header with which etcd proves that it knows the token: `Basic `, then `polis:` and 64
/// hexadecimal digits in base64.
const AUTHORIZATION_LENGTH: usize = 6 + (USER.len() + 1 + 64).div_ceil(3) * 4;

/// The value of the `Proxy-Authorization` header that is let in.
type Authorization = Secret<AUTHORIZATION_LENGTH>;

/// The CONNECT proxy. Clones share the socket, which stays bound as long as one of them lives: the port in etcd's
/// environment is right also when the serving runnable was restarted.
#[derive(Clone)]
pub struct Dialer(Arc<Inner>);

struct Inner {
    listener: TcpListener,
    local: SocketAddr,
    token: Secret32,
    authorization: Authorization,
    peers: watch::Receiver<PeerMap>,
    complaints: Complaints,
}

impl Dialer {
    /// Binds a free port on loopback. Call it within a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the kernel gives no socket.
    pub fn bind(peers: watch::Receiver<PeerMap>) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let local = listener.local_addr()?;
        let token = Secret32::random();
        let authorization = authorization(&token);
        let complaints = Complaints::default();
        Ok(Self(Arc::new(Inner { listener, local, token, authorization, peers, complaints })))
    }

    /// The URL for `HTTPS_PROXY`. It carries the token: hand it to etcd's environment and to nothing that prints.
    pub(crate) fn proxy_url(&self) -> String {
        format!("http://{USER}:{}@{}", hex::encode(self.0.token.expose()), self.0.local)
    }

    /// Where it listens.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.0.local
    }

    /// Serves until it is dropped; then every tunnel is closed.
    pub async fn serve(&self) {
        let mut connections = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = self.0.listener.accept() => match accepted {
                    Ok((client, _)) if connections.len() < MAX_CONNECTIONS => {
                        let Inner { authorization, peers, complaints, .. } = &*self.0;
                        connections.push(Tunnel::new(client, authorization, peers.clone(), complaints).run());
                    }
                    Ok((client, _)) => drop(client),
                    Err(error) => {
                        tracing::warn!("the dialer cannot accept a connection: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(()) = connections.next() => {}
            }
        }
    }
}

/// What etcd sends when it was given the proxy URL with `token`.
fn authorization(token: &Secret32) -> Authorization {
    let credentials = format!("{USER}:{}", hex::encode(token.expose()));
    let value = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(credentials));
    Secret::try_from(value.as_bytes()).expect("AUTHORIZATION_LENGTH is computed from the same parts")
}

#[cfg(test)]
mod tests;
