//! Pages for those who speak HTTP and not gRPC: monitoring.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::{HeaderValue, Method, Response, StatusCode, header, request};
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::{Code, Status};

use super::body::{ResponseBody, panicked};
use super::connection::Connection;
use super::contained::Contained;
use super::room::Holder;
use crate::Caller;
use crate::authorize::{may_be_answered, stands};

/// Makes the page that is asked for.
pub(super) type Pages = dyn Fn(Caller, request::Parts) -> BoxFuture<'static, Response<String>> + Send + Sync;

/// Stands for the path of a page in the log, as a path is whatever somebody sent.
const PAGE: &str = "page";

/// Answers a request.
pub(super) async fn handle(
    connection: Arc<Connection>,
    pages: Arc<Pages>,
    request: http::Request<Incoming>,
) -> Response<ResponseBody> {
    let open = connection.open_call();
    let response = match refusal(&connection, &request) {
        Some(refusal) => refusal,
        None => make(&connection, pages, request).await,
    };
    ResponseBody::new(response.map(Body::new), PAGE, connection.ending.clone(), None, open)
}

/// Why there is no page for this caller, if there is none. Every node and user of the cluster may see all pages (metropolis.md J.4).
fn refusal(connection: &Connection, request: &http::Request<Incoming>) -> Option<Response<String>> {
    if connection.is_stranger {
        let holder = Holder::at(connection.caller.address.ip());
        if !connection.server.buckets.take(holder, std::time::Instant::now()) {
            return Some(page(StatusCode::TOO_MANY_REQUESTS, "too many requests without a certificate of the cluster"));
        }
    }
    let trust = connection.server.trust();
    if let Err(status) = stands(&connection.judgement, &trust).and_then(|peer| may_be_answered(peer, &trust)) {
        return Some(refused(&status));
    }
    if !connection.caller.peer.is_authenticated() {
        return Some(page(StatusCode::UNAUTHORIZED, "this page is for clients with a certificate of the cluster"));
    }
    (request.method() != Method::GET).then(|| page(StatusCode::METHOD_NOT_ALLOWED, "there are only pages to get"))
}

async fn make(connection: &Connection, pages: Arc<Pages>, request: http::Request<Incoming>) -> Response<String> {
    let caller = connection.caller.clone();
    let (parts, _) = request.into_parts();
    let page = Contained::new(async move { pages(caller, parts).await });
    tokio::select! {
        biased;
        page = page => page.unwrap_or_else(|panic| refused(&panicked(PAGE, &panic))),
        () = connection.ending.grace_is_over() => refused(&connection.ending.status()),
    }
}

fn refused(status: &Status) -> Response<String> {
    let code = if status.code() == Code::Unauthenticated {
        StatusCode::UNAUTHORIZED
    } else if status.code() == Code::Unavailable {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    page(code, status.message())
}

fn page(code: StatusCode, text: &str) -> Response<String> {
    let mut response = Response::new(format!("{text}\n"));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
