//! `polis cluster snapshot save`: a snapshot as a file, whole or not at all.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use polis_identity::NodeId;
use polis_proto::node_api::node_client::NodeClient;
use polis_proto::node_api::{SaveSnapshotRequest, SaveSnapshotResponse};
use polis_recovery::snapshot::{Protection, SnapshotReader};
use polis_rpc::{NODE_MANAGEMENT_PORT, describe};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

use super::status::members;
use crate::arguments::ConnectionArguments;
use crate::atomic_file::{Existing, NewFile};
use crate::failure::Failure;
use crate::operator::{Operator, at, node_failure};
use crate::view::{Progress, print, safe};

/// Longest pause in which nothing comes of a file. Taking the snapshot is the longest: it is read, written, checked and restored for
/// trial first, with 2 GiB on a slow disk.
const PAUSE: Duration = Duration::from_secs(300);

/// Only the operator reads it.
const MODE: u32 = 0o600;

/// How much comes between two lines of progress, in bytes.
const PROGRESS: u64 = 16 << 20;

const WHAT: &str = "no snapshot was saved";

pub(super) fn run(file: &Path, plaintext: bool, connection: &ConnectionArguments) -> Result<ExitCode, Failure> {
    if file.symlink_metadata().is_ok() {
        return Err(Failure::failed(format!("{WHAT}: {} is there already", file.display()))
            .hint("name another file, or remove that one"));
    }
    let done = Operator::run(connection, "cluster snapshot save", async |operator| {
        let progress = Progress::start();
        let mut last = None;
        // Any member can do it. One that does not answer, or has no quorum, leaves it to another.
        for member in members(operator).await? {
            let address = SocketAddr::new(member.address, NODE_MANAGEMENT_PORT);
            progress.waiting(&format!("{} takes a snapshot", member.id));
            let mut client = NodeClient::new(operator.node_channel(member.id, address));
            let opened = timeout(PAUSE, client.save_snapshot(SaveSnapshotRequest { plaintext })).await;
            let status = match opened.unwrap_or_else(|_| Err(late())) {
                Ok(stream) => {
                    let from = From { id: member.id, address, progress: &progress };
                    return from.receive(stream.into_inner(), file, plaintext).await;
                }
                Err(status) => status,
            };
            let failure = node_failure(WHAT, &member.id, address, &status);
            // The others would say the same.
            if matches!(status.code(), Code::FailedPrecondition | Code::PermissionDenied | Code::Unauthenticated) {
                return Err(failure);
            }
            progress.line(&format!("{} takes none: {}", member.id, at(address, &describe(&status))));
            last = Some(failure);
        }
        Err(last
            .unwrap_or_else(|| Failure::failed(format!("{WHAT}: no consensus member is known that could take one"))))
    })?;
    print(&safe(&done))?;
    Ok(ExitCode::SUCCESS)
}

/// The member that hands it out.
struct From<'a> {
    id: NodeId,
    address: SocketAddr,
    progress: &'a Progress,
}

impl From<'_> {
    /// Receives the file, sees that it is what the member has sent, and gives it its name.
    async fn receive(
        &self,
        mut stream: Streaming<SaveSnapshotResponse>,
        path: &Path,
        plaintext: bool,
    ) -> Result<String, Failure> {
        let local = |error: &std::io::Error| {
            Failure::failed(format!("{WHAT}: {} could not be written", path.display())).because(error)
        };
        let mut file = NewFile::begin(path, MODE).map_err(|error| local(&error))?;
        let (mut digest, mut length, mut announced, mut told) = (Sha256::new(), 0_u64, 0_u64, Vec::new());
        while told.is_empty() {
            let next = timeout(PAUSE, stream.message()).await.unwrap_or_else(|_| Err(late()));
            let next = next.map_err(|status| node_failure(WHAT, &self.id, self.address, &status))?;
            let Some(SaveSnapshotResponse { file_length, data, sha256 }) = next else { break };
            digest.update(&data);
            file.write_all(&data).map_err(|error| local(&error))?;
            announced = announced.max(file_length);
            let before = length / PROGRESS;
            length += u64::try_from(data.len()).unwrap_or(u64::MAX);
            if length / PROGRESS > before {
                self.progress.line(&format!("{} of {} MiB", length >> 20, announced.div_ceil(1 << 20)));
            }
            told = sha256;
        }
        if told != digest.finalize()[..] || length != announced {
            return Err(Failure::failed(format!(
                "{WHAT}: what {} has sent was cut short or changed on its way",
                self.id
            ))
            .because_of(format!("{length} of {announced} bytes have come, or not with the hash that was told"))
            .hint("repeat the command"));
        }
        let written = file.so_far().map_err(|error| local(&error))?;
        let said = check(written, plaintext)?;
        file.finish(Existing::Keep).map_err(|error| local(&error))?;
        Ok(format!("{}: {said}, {} KiB, taken by {}\n", path.display(), length.div_ceil(1 << 10), self.id))
    }
}

/// Whether the file is one that a recovery will take, as far as that can be seen without the key; and what it is.
fn check(file: std::fs::File, plaintext: bool) -> Result<String, Failure> {
    let unfit =
        |error: &dyn std::error::Error| Failure::failed(format!("{WHAT}: what has come is none")).because(error);
    let reader = SnapshotReader::new(std::io::BufReader::new(file)).map_err(|error| unfit(&error))?;
    let revision = reader.header().revision;
    match reader.protection() {
        Protection::Sealed(fingerprint) if !plaintext => {
            Ok(format!("the state of revision {revision}, encrypted to the recovery key {fingerprint}"))
        }
        Protection::Plaintext if plaintext => {
            let mut content = reader.open(None).map_err(|error| unfit(&error))?;
            std::io::copy(&mut content, &mut std::io::sink()).map_err(|error| unfit(&error))?;
            Ok(format!("the state of revision {revision}, not encrypted: whoever has the file has the cluster"))
        }
        Protection::Sealed(_) | Protection::Plaintext => {
            Err(Failure::failed(format!("{WHAT}: it is protected in another way than was asked for")))
        }
    }
}

fn late() -> Status {
    Status::deadline_exceeded(format!("nothing has come for {} s", PAUSE.as_secs()))
}
