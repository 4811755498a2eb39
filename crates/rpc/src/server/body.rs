//! The bodies of a call: requests that stay within the limits, and responses that end when the call has to.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Code, Status};

use super::audit::AuditLine;
use super::connection::{Ending, OpenCall};
use super::contained::{Contained, Panic};
use super::framing::Framing;

/// A request body that ends with an error when a message is announced to be too long, or when it takes too long.
pub(super) struct RequestBody {
    inside: Incoming,
    framing: Framing,
    deadline: Option<Pin<Box<Sleep>>>,
    failed: bool,
}

impl RequestBody {
    pub(super) fn new(inside: Incoming, message_limit: usize, deadline: Option<Instant>) -> Self {
        let deadline = deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline)));
        Self { inside, framing: Framing::new(message_limit), deadline, failed: false }
    }

    fn fail(&mut self, status: Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.failed = true;
        Poll::Ready(Some(Err(status)))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.failed {
            return Poll::Ready(None);
        }
        match Pin::new(&mut this.inside).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => match frame.data_ref().map_or(Ok(()), |data| this.framing.advance(data)) {
                Ok(()) => Poll::Ready(Some(Ok(frame))),
                Err(too_long) => this.fail(Status::resource_exhausted(too_long.to_string())),
            },
            Poll::Ready(Some(Err(error))) => this.fail(Status::from_error(Box::new(error))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => match this.deadline.as_mut().map(|deadline| deadline.as_mut().poll(context)) {
                Some(Poll::Ready(())) => this.fail(Status::deadline_exceeded("the request was not sent in time")),
                Some(Poll::Pending) | None => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.failed || self.inside.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inside.size_hint()
    }
}

/// A response body: that of a handler for as long as all goes well, and a status of ours when it panics or the connection is to
/// end. The call is open for as long as it lives.
pub(super) struct ResponseBody {
    inside: Contained<tonic::body::Body>,
    path: &'static str,
    ending: Ending,
    ended: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    audit: Option<AuditLine>,
    done: bool,
    _open: OpenCall,
}

impl ResponseBody {
    pub(super) fn new(
        response: http::Response<tonic::body::Body>,
        path: &'static str,
        ending: Ending,
        mut audit: Option<AuditLine>,
        open: OpenCall,
    ) -> http::Response<Self> {
        let (parts, inside) = response.into_parts();
        if let (Some(audit), Some(code)) = (&mut audit, result_in(&parts.headers)) {
            audit.set_result(code);
        }
        let inside = Contained::new(inside);
        let body = Self { inside, path, ending, ended: None, audit, done: false, _open: open };
        http::Response::from_parts(parts, body)
    }

    /// The last frame: the status of the call.
    fn end(&mut self, status: &Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.inside.discard();
        self.done = true;
        self.set_result(status.code());
        let mut trailers = HeaderMap::new();
        // A message that is too long for a header would be lost, and ours are not.
        let _ = status.add_header(&mut trailers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn set_result(&mut self, code: Code) {
        if let Some(audit) = &mut self.audit {
            audit.set_result(code);
        }
    }

    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let ending = &self.ending;
        let ended = self.ended.get_or_insert_with(|| Box::pin(ending.begun()));
        ended.as_mut().poll(context).map(|()| ending.status())
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.done {
            return Poll::Ready(None);
        }
        match this.inside.touch(|inside| inside.poll_frame(context)) {
            Some(Ok(Poll::Ready(Some(Ok(frame))))) => {
                if let Some(code) = frame.trailers_ref().and_then(result_in) {
                    this.set_result(code);
                    this.done = true;
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Ok(Poll::Ready(Some(Err(status))))) => this.end(&status),
            Some(Ok(Poll::Ready(None))) | None => {
                this.done = true;
                Poll::Ready(None)
            }
            Some(Ok(Poll::Pending)) => match this.poll_ended(context) {
                Poll::Ready(status) => this.end(&status),
                Poll::Pending => Poll::Pending,
            },
            Some(Err(panic)) => {
                let status = panicked(this.path, &panic);
                this.end(&status)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.done || self.inside.get().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inside.get().map(Body::size_hint).unwrap_or_default()
    }
}

/// Logs that a handler panicked, and makes of it what the caller is told: that, and no more.
pub(super) fn panicked(path: &'static str, Panic(panic): &Panic) -> Status {
    tracing::error!(method = path, panic, "a handler panicked; the call failed, and everything else goes on");
    Status::internal("the handler of this call panicked; the log of the node has the reason")
}

/// The result of a call, if these headers or trailers have it.
fn result_in(headers: &HeaderMap) -> Option<Code> {
    headers.get(Status::GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()))
}
