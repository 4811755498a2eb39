//! One listener: accepting connections, and stopping in order.

mod acquaintance;
mod audit;
mod body;
mod bucket;
mod call;
mod connection;
mod contained;
mod driver;
mod familiar;
mod framing;
mod pages;
mod room;
mod seat;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use polis_supervisor::{Cancelled, Context, RunnableResult};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tonic::service::Routes;

pub use audit::{AUDIT_TARGET, AuditObject};
pub use bucket::{Bucket, Rate};

use crate::tls::{Credential, ServerTls};
use crate::{Caller, KeyIdentity, KnownKeys, Limits, ServerIdentity, Trust};
use acquaintance::Acquaintance;
use audit::AuditLog;
use bucket::Buckets;
use familiar::Familiar;
use pages::Pages;
use room::{Holder, RoomLimits};
use seat::Seats;

/// How long calls that are under way may go on when the server stops. Long enough for a transaction that is being written, and short
/// enough that a node stops within a second. Streams end at once.
pub const STOP_GRACE: Duration = Duration::from_millis(150);

/// How long answers may take to reach their readers after that, and the farewell of a connection its other end.
const FLUSH_GRACE: Duration = Duration::from_millis(100);

/// Connections that the system holds for us until they are accepted, as far as it is set up for so many. A thousand nodes may come
/// back at the same moment.
const BACKLOG: u32 = 4_096;

/// Pause after an accept that failed. Most likely there are no file descriptors left, and trying faster makes none.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a server is and knows.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Names the server in the log, for example `curator`.
    pub name: &'static str,
    /// What it shows, and the cluster whose certificates it believes.
    pub identity: ServerIdentity,
    /// Whom the cluster has let go. Asked at each call; open connections are judged again when it changes.
    pub trust: watch::Receiver<Arc<Trust>>,
    /// What it allows.
    pub limits: Limits,
}

/// What a server is and knows that knows its callers by their keys.
#[derive(Clone, Debug)]
pub struct KeyServerSettings {
    /// Names the server in the log, for example `unlock`.
    pub name: &'static str,
    /// The key by which its clients know it.
    pub identity: KeyIdentity,
    /// Whom it knows. Open connections of members are closed when their key is no longer among them.
    pub known: watch::Receiver<Arc<KnownKeys>>,
    /// What it allows.
    pub limits: Limits,
}

/// Opens a listener: its address can be used again at once after a stop, and many connections may wait to be accepted.
///
/// # Errors
///
/// When the system refuses; most likely the address is not ours, or another process listens there.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until the context is cancelled, which takes at most [`STOP_GRACE`] and a tenth of a second more. Does not signal Healthy:
/// the runnable that calls it does, before.
///
/// # Errors
///
/// [`Cancelled`]. Whatever goes wrong with one connection ends that connection, and an accept that fails is tried again.
pub async fn serve(
    context: Context,
    listener: TcpListener,
    settings: ServerSettings,
    routes: Routes,
) -> RunnableResult {
    let server = Server::of_cluster(&context, settings, Served::Calls(routes.prepare()));
    accept(context, listener, server).await
}

/// Like [`serve`], for callers that are known by the key that they prove to hold, and by no certificate of a cluster. Each is a
/// [`Peer::Ephemeral`](crate::Peer::Ephemeral), a stranger or not; a call that needs a permission is refused.
///
/// # Errors
///
/// As [`serve`].
pub async fn serve_by_key(
    context: Context,
    listener: TcpListener,
    settings: KeyServerSettings,
    routes: Routes,
) -> RunnableResult {
    let KeyServerSettings { name, identity, known, limits } = settings;
    let served = Served::Calls(routes.prepare());
    let server = Server::new(&context, name, identity.credential(), Acquaintance::Keys { known }, limits, served);
    accept(context, listener, server).await
}

/// Serves pages to those who speak HTTP and not gRPC, as monitoring does: like [`serve`], over HTTP/2 or HTTP/1.1, to every node and user of the
/// cluster and to nobody else. `pages` makes a page of the request; only GET gets there.
///
/// # Errors
///
/// As [`serve`].
pub async fn serve_pages<F, R>(
    context: Context,
    listener: TcpListener,
    settings: ServerSettings,
    pages: F,
) -> RunnableResult
where
    F: Fn(Caller, http::request::Parts) -> R + Send + Sync + 'static,
    R: Future<Output = http::Response<String>> + Send + 'static,
{
    let pages: Arc<Pages> = Arc::new(move |caller, request| Box::pin(pages(caller, request)));
    let server = Server::of_cluster(&context, settings, Served::Pages(pages));
    accept(context, listener, server).await
}

async fn accept(context: Context, listener: TcpListener, server: Server) -> RunnableResult {
    let server = Arc::new(server);
    // Closed when the last connection has dropped its sender.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let mut fails = false;
    loop {
        let accepted = tokio::select! {
            biased;
            Cancelled = context.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => {
                fails = false;
                let connection = connection::serve(Arc::clone(&server), context.clone(), stream, address);
                let open = open.clone();
                context.spawn(async move {
                    connection.await;
                    drop(open);
                    Ok(())
                });
            }
            Err(error) => {
                // Told once, and again after it has worked.
                if !std::mem::replace(&mut fails, true) {
                    tracing::warn!(server = server.name, %error, "cannot accept connections; trying on");
                }
                // Most likely there are too many of them.
                if !server.handshakes.evict_oldest() {
                    server.strangers.evict_oldest();
                }
                // Cancellation is seen after it.
                let _ = context.unless_cancelled(sleep(ACCEPT_PAUSE)).await;
            }
        }
    }
    drop(listener);
    drop(open);
    // Those that are still open are dropped with the context.
    let _ = timeout(STOP_GRACE + FLUSH_GRACE, all_closed.recv()).await;
    Err(Cancelled.into())
}

/// What is served.
enum Served {
    Calls(Routes),
    Pages(Arc<Pages>),
}

/// What all connections of a server share.
struct Server {
    name: &'static str,
    tls: ServerTls,
    acquaintance: Acquaintance,
    limits: Limits,
    served: Served,
    /// Of those who come from anywhere.
    handshakes: Arc<Seats>,
    /// Of those who come from a familiar place.
    handshakes_kept: Arc<Seats>,
    familiar: Familiar,
    strangers: Arc<Seats>,
    members: Arc<Seats>,
    buckets: Buckets,
    audit: AuditLog,
}

impl Server {
    fn of_cluster(context: &Context, settings: ServerSettings, served: Served) -> Self {
        let ServerSettings { name, identity, trust, limits } = settings;
        let acquaintance = Acquaintance::Cluster { authority: Arc::clone(identity.shared_authority()), trust };
        Self::new(context, name, identity.credential(), acquaintance, limits, served)
    }

    fn new(
        context: &Context,
        name: &'static str,
        credential: &Credential,
        acquaintance: Acquaintance,
        limits: Limits,
        served: Served,
    ) -> Self {
        let seats = |all, each| Seats::new(RoomLimits { all, each });
        let limits = limits.checked();
        let handshakes_of_anybody = limits.handshakes - limits.handshakes_kept;
        Self {
            name,
            tls: ServerTls::new(credential, matches!(served, Served::Pages(_))),
            acquaintance,
            limits,
            served,
            handshakes: seats(handshakes_of_anybody, limits.handshakes_per_address),
            handshakes_kept: seats(limits.handshakes_kept, limits.handshakes_per_address),
            familiar: Familiar::default(),
            strangers: seats(limits.strangers, limits.strangers_per_address),
            members: seats(limits.members, limits.members_per_key),
            buckets: Buckets::new(Rate { per_second: limits.calls_per_second, at_once: limits.calls_at_once }),
            audit: AuditLog::new(context),
        }
    }

    fn trust(&self) -> Arc<Trust> {
        self.acquaintance.trust()
    }

    /// The seats for handshakes with those who come from this place.
    fn handshakes_with(&self, place: Holder) -> &Arc<Seats> {
        if self.familiar.contains(place) || self.acquaintance.is_told_of(place) {
            &self.handshakes_kept
        } else {
            &self.handshakes
        }
    }
}
