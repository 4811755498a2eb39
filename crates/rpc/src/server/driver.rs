//! HTTP on one connection, with the calls on it, in one task: when that is dropped, all of them are.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::body::ResponseBody;

/// Pause after which a quiet connection is asked whether it still lives. Clients of ours ask twice as often; this one is for the others.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);

/// How long the answer to that may take. A node that is gone is noticed by its heartbeat; this frees its seat.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of one request that may be on their way, and of all requests of a connection. Messages are longer and arrive in pieces; this
/// bounds what one connection makes us hold that no handler has asked for.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Bytes of one answer that are held for a reader who does not read. The handler waits with the rest.
const SEND_BUFFER: usize = 64 * 1024;

/// Longest list of headers of a request, in bytes. gRPC's are some hundred.
const MAX_HEADER_LIST: u32 = 16 * 1024;

/// How long one who speaks HTTP/1.1 may take for the headers of a request, and may be quiet between two: a scrape begins anew
/// every 15 s or more, and a new connection for it costs little.
const OLD_HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of the headers of a request over HTTP/1.1, and of an answer that are held for a reader who does not read.
const OLD_BUFFER: usize = 16 * 1024;

type Io = TokioIo<TlsStream<TcpStream>>;

/// What the other end speaks.
enum Protocol<S>
where
    S: HttpService<Incoming, ResBody = ResponseBody, Error = Infallible>,
    S::Future: Send + 'static,
{
    /// HTTP/2.
    New(Pin<Box<http2::Connection<Io, S, Calls>>>),
    /// HTTP/1.1.
    Old(Pin<Box<http1::Connection<Io, S>>>),
}

/// One connection being served. A future in effect, with a way to say that no more calls are wanted.
pub(super) struct Driver<S>
where
    S: HttpService<Incoming, ResBody = ResponseBody, Error = Infallible>,
    S::Future: Send + 'static,
{
    connection: Protocol<S>,
    started: Calls,
    calls: FuturesUnordered<BoxFuture<'static, ()>>,
}

impl<S> Driver<S>
where
    S: HttpService<Incoming, ResBody = ResponseBody, Error = Infallible>,
    S::Future: Send + 'static,
{
    pub(super) fn new(stream: TlsStream<TcpStream>, max_streams: u32, service: S) -> Self {
        let started = Calls::default();
        let connection = http2::Builder::new(started.clone())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .max_concurrent_streams(max_streams)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(MAX_HEADER_LIST)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), service);
        Self { connection: Protocol::New(Box::pin(connection)), started, calls: FuturesUnordered::new() }
    }

    /// For those who know nothing newer than HTTP/1.1: one request after the other.
    pub(super) fn new_old(stream: TlsStream<TcpStream>, service: S) -> Self {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(OLD_HEADER_TIMEOUT)
            .max_buf_size(OLD_BUFFER)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), service);
        let calls = FuturesUnordered::new();
        Self { connection: Protocol::Old(Box::pin(connection)), started: Calls::default(), calls }
    }

    /// Tells the other end that no more calls are taken. The connection is over when the present ones are.
    pub(super) fn refuse_more_calls(&mut self) {
        match &mut self.connection {
            Protocol::New(connection) => connection.as_mut().graceful_shutdown(),
            Protocol::Old(connection) => connection.as_mut().graceful_shutdown(),
        }
    }

    /// Goes on until the connection is over.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        let polled = match &mut self.connection {
            Protocol::New(connection) => connection.as_mut().poll(context),
            Protocol::Old(connection) => connection.as_mut().poll(context),
        };
        if let Poll::Ready(result) = polled {
            return Poll::Ready(result);
        }
        self.calls.extend(self.started.take());
        // What a call has to say wakes this task again by way of the connection.
        while let Poll::Ready(Some(())) = self.calls.poll_next_unpin(context) {}
        Poll::Pending
    }
}

/// Calls that hyper has begun and that nobody runs yet.
#[derive(Clone, Default)]
pub(super) struct Calls(Arc<Mutex<Vec<BoxFuture<'static, ()>>>>);

impl Calls {
    fn take(&self) -> Vec<BoxFuture<'static, ()>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(call));
    }
}
