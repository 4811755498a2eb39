//! `polis node metrics`.

use std::process::ExitCode;

use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use polis_rpc::METRICS_PORT;
use tonic::body::Body;
use tower::ServiceExt as _;

use super::reach;
use crate::arguments::MetricsArguments;
use crate::duration;
use crate::failure::Failure;
use crate::operator::{Operator, at};
use crate::view::{print, safe};

/// Largest answer that is read, in bytes: the metrics of a node are some hundred kilobytes, those of etcd as well.
const MAX_SIZE: usize = 64 << 20;

/// Longest text of a refusal that is repeated, in characters.
const MAX_REFUSAL: usize = 300;

pub(super) fn run(arguments: &MetricsArguments) -> Result<ExitCode, Failure> {
    let exporter = &arguments.exporter;
    let is_name = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    if exporter.is_empty() || !exporter.chars().all(is_name) {
        return Err(Failure::usage(format!("{exporter:?} is no exporter")).hint("known are core, node and etcd"));
    }
    let text = Operator::run(&arguments.connection, "node metrics", async |operator| {
        let node = reach::to_ask(operator, &arguments.id, METRICS_PORT).await?;
        let address = node.address;
        let failed = || Failure::failed(format!("the metrics of {} could not be fetched", node.id));
        let hint = format!("see how the node is: polis cluster health{}", operator.options());
        let path = format!("/metrics/{exporter}");
        let uri = format!("https://{address}{path}");
        let request = Request::builder().method(Method::GET).uri(uri).body(Body::empty());
        let request = request.map_err(|error| failed().because(&error))?;
        let answer = async {
            let answer = operator.node_channel(node.id, address).oneshot(request).await.map_err(|error| {
                let status = tonic::Status::from_error(Box::new(error));
                failed().because_of(at(address, &polis_rpc::describe(&status))).hint(hint.clone())
            })?;
            let code = answer.status();
            let mut body = http_body_util::Limited::new(answer.into_body(), MAX_SIZE);
            let mut bytes = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| {
                    failed().because_of(format!("{address} did not send all of them: {error}")).hint(hint.clone())
                })?;
                if let Some(data) = frame.data_ref() {
                    bytes.extend_from_slice(data);
                }
            }
            Ok((code, String::from_utf8_lossy(&bytes).into_owned()))
        };
        let late =
            || failed().because_of(format!("{address} did not answer within {}", duration::show(operator.timeout())));
        let answer = tokio::time::timeout(operator.timeout(), answer).await;
        let (code, text) = answer.unwrap_or_else(|_| Err(late().hint(hint.clone())))?;
        match code {
            StatusCode::OK => Ok(text),
            StatusCode::NOT_FOUND => Err(Failure::usage(format!("there is no exporter {exporter} on {}", node.id))
                .hint("known are core, node and etcd")),
            other => {
                let words: String = text.trim().chars().take(MAX_REFUSAL).collect();
                Err(failed().because_of(format!("{address} answered {other}: {words}")).hint(hint.clone()))
            }
        }
    })?;
    print(&safe(&text))?;
    Ok(ExitCode::SUCCESS)
}
