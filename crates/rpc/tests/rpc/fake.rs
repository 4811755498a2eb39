//! A server that answers every method as a test wants, and a client that calls any.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, Stream, StreamExt as _};
use http::uri::PathAndQuery;
use polis_rpc::{AuditObject, Caller};
use tonic::codegen::Service;
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// How long a test waits for what should take well under a second.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A method that needs READ_CLUSTER_STATUS, which nodes and the owner have.
pub(crate) const READ: &str = "/metropolis.node.core.curator.proto.api.Curator/GetConsensusStatus";
/// A method that needs UPDATE_NODE_SELF, which nodes and the owner have.
pub(crate) const UPDATE_SELF: &str = "/metropolis.node.core.curator.proto.api.Curator/UpdateNodeStatus";
/// A method that anybody may call, and that changes something.
pub(crate) const REGISTER: &str = "/metropolis.node.core.curator.proto.api.Curator/RegisterNode";
/// A method that anybody may call.
pub(crate) const ANYBODY: &str = "/metropolis.node.core.curator.proto.api.CuratorLocal/GetCACertificate";

/// Messages are strings of bytes on the wire.
pub(crate) type Message = Vec<u8>;
pub(crate) type Answers = BoxStream<'static, Result<Message, Status>>;
type Handle = dyn Fn(AuditObject, Caller, String, Streaming<Message>) -> BoxFuture<'static, Result<Answers, Status>>
    + Send
    + Sync;

/// Handles all methods.
#[derive(Clone)]
pub(crate) struct Fake(Arc<Handle>);

impl Fake {
    /// Routes that lead every path to `handle`.
    pub(crate) fn routes<F, R>(handle: F) -> Routes
    where
        F: Fn(Caller, String, Streaming<Message>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Answers, Status>> + Send + 'static,
    {
        Self::all(Arc::new(move |_, caller, path, messages| Box::pin(handle(caller, path, messages))))
    }

    /// The same for a handler that says what a call is about.
    pub(crate) fn routes_with_object<F, R>(handle: F) -> Routes
    where
        F: Fn(AuditObject, String, Streaming<Message>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Answers, Status>> + Send + 'static,
    {
        Self::all(Arc::new(move |object, _, path, messages| Box::pin(handle(object, path, messages))))
    }

    fn all(handle: Arc<Handle>) -> Routes {
        Routes::from(Routes::default().into_axum_router().fallback_service(Self(handle)))
    }

    /// Routes that read the request to its end and answer with one message that tells the caller.
    pub(crate) fn answering() -> Routes {
        Self::routes(|caller, _, mut messages| async move {
            while messages.message().await?.is_some() {}
            Ok(one(caller.peer.to_string()))
        })
    }
}

/// One message.
pub(crate) fn one(message: impl Into<Vec<u8>>) -> Answers {
    stream::iter([Ok(message.into())]).boxed()
}

impl<B> Service<http::Request<B>> for Fake
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let method = Method { handle: Arc::clone(&self.0), path: request.uri().path().to_owned() };
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<Message, Message>::default());
            Ok(grpc.streaming(method, request).await)
        })
    }
}

struct Method {
    handle: Arc<Handle>,
    path: String,
}

impl tonic::server::StreamingService<Message> for Method {
    type Response = Message;
    type ResponseStream = Answers;
    type Future = BoxFuture<'static, Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<Streaming<Message>>) -> Self::Future {
        let caller = Caller::of(&request).clone();
        let object = AuditObject::of(&request);
        let answers = (self.handle)(object, caller, self.path.clone(), request.into_inner());
        Box::pin(async move { answers.await.map(Response::new) })
    }
}

/// Begins a call of any method with these messages.
pub(crate) async fn begin(
    channel: &Channel,
    path: &'static str,
    messages: impl Stream<Item = Message> + Send + 'static,
) -> Result<Streaming<Message>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    let path = PathAndQuery::from_static(path);
    let codec = ProstCodec::<Message, Message>::default();
    let response = grpc.streaming(Request::new(messages), path, codec).await?;
    Ok(response.into_inner())
}

/// Calls any method with one message, and returns the last message of the answer.
pub(crate) async fn call(channel: &Channel, path: &'static str, message: &[u8]) -> Result<Message, Status> {
    let mut answers = begin(channel, path, stream::iter([message.to_vec()])).await?;
    let mut last = Message::new();
    while let Some(message) = answers.message().await? {
        last = message;
    }
    Ok(last)
}

/// Waits until something is so.
pub(crate) async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(tokio::time::Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A stream that is dropped when this is.
pub(crate) struct Ended(pub(crate) Arc<std::sync::atomic::AtomicUsize>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Never says anything, and counts when it is dropped.
pub(crate) struct Silent(#[expect(dead_code, reason = "it is there to be dropped")] pub(crate) Ended);

impl Stream for Silent {
    type Item = Result<Message, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Pending
    }
}
