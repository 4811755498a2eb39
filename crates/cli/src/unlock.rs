//! `polis unlock`: opening locked nodes with the recovery key.
//!
//! The nodes are asked first, so that nobody is asked for words that nothing needs. The words stay here: a node is sent the key of
//! the one blob that it has offered, and only over a connection on which it has shown that it is that node.

mod node;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::process::ExitCode;

use futures::future::join_all;
use polis_recovery::{Fingerprint, RecoveryKey};

use crate::arguments::UnlockArguments;
use crate::failure::Failure;
use crate::node_status::runtime;
use crate::operator::at;
use crate::recovery_key::read_words;
use crate::view::{Fields, Paint, Progress, print, safe};

use node::{Locked, Standing, UnlockError, survey};

const WHAT: &str = "not every node was opened";

pub(crate) fn run(arguments: &UnlockArguments) -> Result<ExitCode, Failure> {
    let fingerprints = fingerprints(&arguments.fingerprint)?;
    let runtime = runtime()?;
    let mut problems = Vec::new();
    let mut locked = Vec::new();
    let surveys = arguments
        .endpoints
        .iter()
        .map(|address| async { (*address, survey(*address, &fingerprints, arguments.timeout).await) });
    for (address, standing) in runtime.block_on(join_all(surveys)) {
        match standing {
            Ok(Standing::Open { node_id }) => {
                print(&safe(&format!("{node_id} at {address} is open: there is nothing to do\n")))?;
            }
            Ok(Standing::Locked(node)) => {
                print(&safe(&describe(address, &node)))?;
                locked.push((address, node));
            }
            Err(error) => problems.push((address, error)),
        }
    }
    if !locked.is_empty() {
        let key = read_words(&arguments.recovery)?;
        for (address, node) in locked {
            match open(&runtime, address, &node, &key, arguments) {
                Ok(done) => print(&safe(&format!("{} at {address}: {done}\n", node.blob.subject().node)))?,
                Err(error) => problems.push((address, error)),
            }
        }
    }
    if problems.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(failure(&problems)) }
}

fn open(
    runtime: &tokio::runtime::Runtime,
    address: SocketAddr,
    node: &Locked,
    key: &RecoveryKey,
    arguments: &UnlockArguments,
) -> Result<String, UnlockError> {
    let content_key = node.blob.content_key(key).map_err(UnlockError::WrongKey)?;
    Progress::start().line(&format!("{} at {address} opens its data", node.blob.subject().node));
    runtime.block_on(node.recover(&content_key, arguments.timeout))
}

/// Takes all of them, or names the bad one.
fn fingerprints(texts: &[String]) -> Result<Vec<Fingerprint>, Failure> {
    let parse = |text: &String| {
        text.parse().map_err(|error| {
            Failure::usage(format!("--fingerprint {} cannot be what a node shows", text.escape_debug())).because(&error)
        })
    };
    texts.iter().map(parse).collect()
}

/// What a node says of itself, before it is opened.
fn describe(address: SocketAddr, node: &Locked) -> String {
    let (blob, lock) = (&node.blob, &node.lock);
    let mut fields = Fields::default();
    fields.add("Node", format!("{} at {address}", blob.subject().node));
    fields.add("Cluster", blob.subject().cluster.to_string());
    fields.add("Locked", lock.reason.clone());
    fields.add_some("Shares", lock.counts.map(|counts| format!("{} of {}", counts.have, counts.need)));
    fields.add("Known by", node.known_by.text());
    fields.add("Recovery key", blob.recipient().to_string());
    fields.render(Paint::for_stdout())
}

fn failure(problems: &[(SocketAddr, UnlockError)]) -> Failure {
    let mut failure = Failure::failed(WHAT);
    for (address, error) in problems {
        let mut chain = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            chain.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        failure = failure.because_of(at(*address, &chain));
    }
    let failure = failure.quorum("none: a node that stays locked changes nothing for the others");
    match problems.iter().find_map(|(_, error)| error.hint()) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
