//! One connection: handshake, seat, calls, end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use polis_supervisor::Context;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;

use super::body::ResponseBody;
use super::contained::{Contained, Panic};
use super::driver::Driver;
use super::room::Holder;
use super::seat::Seat;
use super::{FLUSH_GRACE, STOP_GRACE, Served, Server, call, pages};
use crate::tls::{Judgement, ServerTls};
use crate::{Caller, Peer};

/// Serves a connection from its first byte to its last.
pub(super) async fn serve(server: Arc<Server>, context: Context, stream: TcpStream, address: SocketAddr) {
    let name = server.name;
    if let Err(Panic(panic)) = Contained::new(serve_inside(server, context, stream, address)).await {
        tracing::error!(server = name, %address, panic, "serving a connection panicked; the connection is closed");
    }
}

async fn serve_inside(server: Arc<Server>, context: Context, stream: TcpStream, address: SocketAddr) {
    // It costs latency only, and a socket that refuses will not live for long.
    let _ = stream.set_nodelay(true);
    let Some(stream) = shake_hands(&server, &context, stream, address).await else { return };
    let judgement = server.acquaintance.judge(stream.get_ref().1.peer_certificates());
    let connection = Arc::new(Connection::new(server, judgement, address));
    connection.run(&context, stream).await;
}

async fn answer(connection: Arc<Connection>, request: http::Request<Incoming>) -> http::Response<ResponseBody> {
    let server = Arc::clone(&connection.server);
    match &server.served {
        Served::Calls(routes) => call::handle(connection, routes.clone(), request).await,
        Served::Pages(pages) => pages::handle(connection, Arc::clone(pages), request).await,
    }
}

/// The TLS handshake. `None` when it failed, took too long, or had to make room.
async fn shake_hands(
    server: &Server,
    context: &Context,
    stream: TcpStream,
    address: SocketAddr,
) -> Option<TlsStream<TcpStream>> {
    let place = Holder::at(address.ip());
    let seat = server.handshakes_with(place).take(place);
    let handshake = timeout(server.limits.handshake_timeout, server.tls.acceptor.accept(stream));
    tokio::select! {
        biased;
        _ = context.cancelled() => None,
        () = seat.evicted() => None,
        handshake = handshake => match handshake {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(server = server.name, %address, %error, "TLS handshake failed");
                None
            }
            Err(_) => {
                tracing::debug!(server = server.name, %address, "TLS handshake took too long");
                None
            }
        }
    }
}

/// What the calls of a connection share.
pub(super) struct Connection {
    pub(super) server: Arc<Server>,
    pub(super) judgement: Judgement,
    /// As handlers see it.
    pub(super) caller: Caller,
    /// Was no member when it connected: it had no certificate of the cluster, one that was worth nothing, or a key that is not known.
    pub(super) is_stranger: bool,
    pub(super) ending: Ending,
    seat: Seat,
    open_calls: AtomicUsize,
    activity: Mutex<Activity>,
}

/// When something happened last.
struct Activity {
    last: Instant,
    ever_called: bool,
}

impl Connection {
    fn new(server: Arc<Server>, judgement: Judgement, address: SocketAddr) -> Self {
        let peer = match &judgement {
            Judgement::Believed { peer, .. } => peer.clone(),
            Judgement::NotBelieved(_) => Peer::Anonymous,
        };
        let is_stranger = server.acquaintance.is_member(&judgement).is_err();
        if !is_stranger {
            server.familiar.note(Holder::at(address.ip()));
        }
        let seat = match peer.public_key() {
            Some(key) if !is_stranger => server.members.take(Holder::Key(key)),
            Some(_) | None => server.strangers.take(Holder::at(address.ip())),
        };
        Self {
            server,
            judgement,
            caller: Caller { peer, address },
            is_stranger,
            ending: Ending::default(),
            seat,
            open_calls: AtomicUsize::new(0),
            activity: Mutex::new(Activity { last: Instant::now(), ever_called: false }),
        }
    }

    async fn run(self: Arc<Self>, context: &Context, stream: TlsStream<TcpStream>) {
        let limits = self.server.limits;
        let max_streams = if self.is_stranger { limits.streams_of_stranger } else { limits.streams_of_member };
        let mut acquaintance = self.server.acquaintance.clone();
        let mut members_change = true;
        let mut end: Option<Instant> = None;
        let service = {
            let connection = Arc::clone(&self);
            service_fn(move |request: http::Request<Incoming>| {
                let connection = Arc::clone(&connection);
                async move { Ok::<_, Infallible>(answer(connection, request).await) }
            })
        };
        let is_old = ServerTls::is_old(stream.get_ref().1.alpn_protocol());
        let mut driver = match self.server.served {
            Served::Pages(_) if is_old => Driver::new_old(stream, service),
            Served::Pages(_) | Served::Calls(_) => Driver::new(stream, max_streams, service),
        };
        loop {
            let ends = end.is_some();
            tokio::select! {
                biased;
                () = self.seat.evicted() => return,
                _ = context.cancelled(), if !ends => {
                    self.ending.begin(Status::unavailable("the server is stopping"));
                    driver.refuse_more_calls();
                    end = Some(Instant::now() + STOP_GRACE + FLUSH_GRACE);
                }
                changed = acquaintance.changed(), if !ends && members_change => {
                    // Without a sender nothing changes any more.
                    members_change = changed;
                    let judged = acquaintance.is_member(&self.judgement);
                    if let Err(status) = judged && !self.is_stranger {
                        tracing::info!(
                            server = self.server.name,
                            caller = %self.caller,
                            reason = status.message(),
                            "a connection is closed because the cluster has let its caller go"
                        );
                        self.ending.begin(status);
                        driver.refuse_more_calls();
                        end = Some(Instant::now() + STOP_GRACE + FLUSH_GRACE);
                    }
                }
                result = poll_fn(|context| driver.poll(context)) => {
                    if let Err(error) = result {
                        tracing::debug!(server = self.server.name, caller = %self.caller, %error, "connection lost");
                    }
                    return;
                }
                () = sleep_until(end.unwrap_or_else(Instant::now)), if ends => return,
                () = sleep(self.until_idle()), if !ends && self.may_be_idle() => {
                    // Something may have happened since.
                    if self.may_be_idle() && self.until_idle().is_zero() {
                        self.ending.begin(Status::unavailable("the connection was quiet for too long"));
                        driver.refuse_more_calls();
                        end = Some(Instant::now() + FLUSH_GRACE);
                    }
                }
            }
        }
    }

    /// A call begins. It is open until what is returned is dropped.
    pub(super) fn open_call(self: &Arc<Self>) -> OpenCall {
        self.note(true);
        if self.open_calls.fetch_add(1, Ordering::Relaxed) == 0 {
            self.seat.set_busy(true);
        }
        OpenCall(Arc::clone(self))
    }

    fn close_call(&self) {
        self.note(false);
        if self.open_calls.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.seat.set_busy(false);
        }
    }

    fn note(&self, call: bool) {
        let mut activity = self.activity.lock().unwrap_or_else(PoisonError::into_inner);
        activity.last = Instant::now();
        activity.ever_called |= call;
    }

    /// Whether this connection is closed when it is quiet for too long. Nodes and users may be quiet once they have made a call.
    fn may_be_idle(&self) -> bool {
        self.is_stranger || !self.activity.lock().unwrap_or_else(PoisonError::into_inner).ever_called
    }

    /// How long until it has been quiet for too long, if nothing happens. Zero: it has.
    fn until_idle(&self) -> Duration {
        let idle_timeout = self.server.limits.idle_timeout;
        if self.open_calls.load(Ordering::Relaxed) > 0 {
            return idle_timeout;
        }
        let last = self.activity.lock().unwrap_or_else(PoisonError::into_inner).last;
        idle_timeout.saturating_sub(last.elapsed())
    }
}

/// A call that is open; dropping it closes it.
pub(super) struct OpenCall(Arc<Connection>);

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.close_call();
    }
}

/// The end of a connection: streams end with its status at once, calls when their grace is over.
#[derive(Clone, Default)]
pub(super) struct Ending {
    begun: CancellationToken,
    status: Arc<OnceLock<Status>>,
}

impl Ending {
    /// The first one counts.
    fn begin(&self, status: Status) {
        let _ = self.status.set(status);
        self.begun.cancel();
    }

    /// Waits until the end has begun.
    pub(super) fn begun(&self) -> WaitForCancellationFutureOwned {
        self.begun.clone().cancelled_owned()
    }

    /// Waits until the end has begun and calls have had their grace.
    pub(super) async fn grace_is_over(&self) {
        self.begun.cancelled().await;
        sleep(STOP_GRACE).await;
    }

    /// What callers are told.
    pub(super) fn status(&self) -> Status {
        self.status.get().cloned().unwrap_or_else(|| Status::unavailable("the connection is being closed"))
    }
}
