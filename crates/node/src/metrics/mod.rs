//! What monitoring reads, on port 7840 (metropolis.md J.4): for nodes and users of the cluster, and for nobody else.
//!
//! | path | what |
//! |---|---|
//! | `/metrics`, `/metrics/node`, `/metrics/core` | this node: supervisor, state, consensus member, curator, process |
//! | `/metrics/etcd` | etcd's own, passed on; 502 while it does not answer |
//! | `/discovery` | the nodes of the cluster for Prometheus; 503 while none is known |
//!
//! Nothing is counted for the readers: each page is made of what the parts of the node know at the moment.

#[cfg(test)]
mod alert_tests;
mod deaths;
mod discovery;
mod process;
mod snapshot;
mod text;

use std::io;

use http::{Response, StatusCode, header};

pub(crate) use deaths::Deaths;
pub(crate) use discovery::Discovered;
pub(crate) use process::ProcessSample;
pub(crate) use snapshot::{LeadingSample, QuorumSample, Snapshot};
pub(crate) use text::render;

/// Media type of what is said in words.
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// Media type of etcd's metrics (Prometheus text format 0.0.4).
const ETCD_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Where the pages get what is on them.
#[tonic::async_trait]
pub(crate) trait Measured: Send + Sync + 'static {
    /// All that is measured on this node.
    async fn snapshot(&self) -> Snapshot;

    /// etcd's own metrics.
    ///
    /// # Errors
    ///
    /// When there is no etcd, or it does not answer.
    async fn etcd(&self) -> io::Result<Vec<u8>>;

    /// The nodes of the cluster that have an address.
    async fn discover(&self) -> Vec<Discovered>;
}

/// The page at `path`.
pub(crate) async fn page(path: &str, measured: &impl Measured) -> Response<String> {
    match path {
        "/metrics" | "/metrics/node" | "/metrics/core" => match render(&measured.snapshot().await) {
            Ok(text) => answer(StatusCode::OK, text::CONTENT_TYPE, text),
            Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, PLAIN_TEXT, format!("{error}\n")),
        },
        "/metrics/etcd" => match measured.etcd().await {
            Ok(text) => answer(StatusCode::OK, ETCD_TEXT, String::from_utf8_lossy(&text).into_owned()),
            Err(error) => {
                let text = format!("the etcd of this node gives no metrics: {error}\n");
                answer(StatusCode::BAD_GATEWAY, PLAIN_TEXT, text)
            }
        },
        "/discovery" => match discovery::render(measured.discover().await) {
            Ok(Some(text)) => answer(StatusCode::OK, "application/json", text),
            Ok(None) => {
                let text =
                    "this node does not know the nodes of its cluster yet; ask again, or ask a consensus member\n";
                answer(StatusCode::SERVICE_UNAVAILABLE, PLAIN_TEXT, text.to_owned())
            }
            Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, PLAIN_TEXT, format!("{error}\n")),
        },
        _ => {
            let text = "there is /metrics, /metrics/node, /metrics/etcd and /discovery\n";
            answer(StatusCode::NOT_FOUND, PLAIN_TEXT, text.to_owned())
        }
    }
}

fn answer(status: StatusCode, content_type: &'static str, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
