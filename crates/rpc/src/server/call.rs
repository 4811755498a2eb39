//! One call: whether it may be made, making it, and what is left of it.

use std::sync::Arc;
use std::time::Instant;

use hyper::body::Incoming;
use polis_proto::authorization::Method;
use tonic::Status;
use tonic::service::Routes;
use tower::Service as _;

use super::audit::{AuditLine, AuditObject};
use super::body::{RequestBody, ResponseBody, panicked};
use super::connection::Connection;
use super::contained::Contained;
use super::room::Holder;
use crate::authorize;

/// Stands for methods that are not in the table.
const UNKNOWN_METHOD: &str = "unknown";

/// Answers a request.
pub(super) async fn handle(
    connection: Arc<Connection>,
    routes: Routes,
    request: http::Request<Incoming>,
) -> http::Response<ResponseBody> {
    let began = Instant::now();
    let open = connection.open_call();
    let method = match method(&connection, &request, began) {
        Ok(method) => method,
        Err(status) => {
            return ResponseBody::new(status.into_http(), UNKNOWN_METHOD, connection.ending.clone(), None, open);
        }
    };
    let audit = authorize::is_mutating(method).then(|| AuditLine::new(&connection, method.path, began));
    let response = match authorize::authorize(method, &connection.judgement, &connection.server.trust()) {
        Ok(()) => {
            let object = audit.as_ref().map(AuditLine::object).unwrap_or_default();
            make(&connection, method, object, routes, request).await
        }
        Err(status) => status.into_http(),
    };
    ResponseBody::new(response, method.path, connection.ending.clone(), audit, open)
}

/// The method that is called, unless this caller makes too many calls.
fn method(connection: &Connection, request: &http::Request<Incoming>, now: Instant) -> Result<&'static Method, Status> {
    if connection.is_stranger && !connection.server.buckets.take(Holder::at(connection.caller.address.ip()), now) {
        return Err(Status::resource_exhausted(
            "too many calls from this address without a certificate of the cluster; try again in a second",
        ));
    }
    authorize::method(request.uri().path())
}

/// Makes a call that may be made.
async fn make(
    connection: &Connection,
    method: &'static Method,
    object: AuditObject,
    mut routes: Routes,
    request: http::Request<Incoming>,
) -> http::Response<tonic::body::Body> {
    let limits = &connection.server.limits;
    let (message_limit, deadline) = if connection.is_stranger {
        (limits.message_of_stranger, Some(tokio::time::Instant::now() + limits.request_timeout_of_stranger))
    } else {
        (limits.message_of_member, None)
    };
    let (mut parts, body) = request.into_parts();
    parts.extensions.insert(connection.caller.clone());
    parts.extensions.insert(object);
    let request = http::Request::from_parts(parts, RequestBody::new(body, message_limit, deadline));
    let handler = Contained::new(async move { routes.call(request).await });
    tokio::select! {
        biased;
        response = handler => match response {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(panic) => panicked(method.path, &panic).into_http(),
        },
        () = connection.ending.grace_is_over() => connection.ending.status().into_http(),
    }
}
