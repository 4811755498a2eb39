//! `polis cluster snapshot status`: what there is.

use std::fs::File;
use std::io::BufReader;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use polis_control::Status;
use polis_identity::NodeId;
use polis_proto::node_api::GetStatusRequest;
use polis_proto::node_api::node_client::NodeClient;
use polis_recovery::snapshot::{Protection, SnapshotReader};
use polis_rpc::{NODE_MANAGEMENT_PORT, describe};
use serde::Serialize;

use crate::arguments::{OutputFormat, Role, ShowClusterArguments};
use crate::failure::Failure;
use crate::fleet::{age, get_nodes};
use crate::operator::{Operator, at};
use crate::view::{Fields, Paint, Table, print_value, safe};

/// Longest time that a member may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A consensus member that can be asked.
pub(super) struct Member {
    pub(super) id: NodeId,
    pub(super) address: IpAddr,
}

/// The consensus members of the cluster, those that are healthy first.
///
/// # Errors
///
/// When no leader names them.
pub(super) async fn members(operator: &Operator) -> Result<Vec<Member>, Failure> {
    let mut nodes = get_nodes(operator, "").await?;
    nodes.retain(|node| node.is_up() && node.has_role(Role::ConsensusMember));
    nodes.sort_by_key(|node| !node.is_healthy());
    let member = |node: &crate::fleet::NodeDocument| {
        Some(Member { id: node.node_id.parse().ok()?, address: node.address.as_ref()?.parse().ok()? })
    };
    Ok(nodes.iter().filter_map(member).collect())
}

/// The newest snapshot of one member.
#[derive(Debug, Serialize)]
struct MemberDocument {
    node_id: String,
    /// When its state was last known to be what is in it; absent when there is none, or the member does not answer.
    taken_at: Option<Timestamp>,
    age_seconds: Option<u64>,
    /// Everything up to this revision is in it.
    revision: Option<i64>,
    kept: Option<usize>,
    /// Whether it was restored once for trial, besides the check of its hash.
    verified: Option<bool>,
    /// Why the member could not be asked.
    problem: Option<String>,
}

pub(super) fn of_members(arguments: &ShowClusterArguments) -> Result<ExitCode, Failure> {
    let documents = Operator::run(&arguments.connection, "cluster snapshot status", async |operator| {
        let members = members(operator).await?;
        Ok(join_all(members.iter().map(|member| of_member(operator, member))).await)
    })?;
    print_value(arguments.output, &documents, |_| table(&documents).render(Paint::for_stdout()))?;
    let complete = documents.iter().all(|document| document.problem.is_none());
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn of_member(operator: &Operator, member: &Member) -> MemberDocument {
    let address = SocketAddr::new(member.address, NODE_MANAGEMENT_PORT);
    let mut client = NodeClient::new(operator.node_channel(member.id, address));
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, client.get_status(GetStatusRequest {})).await;
    let status = match answer {
        Ok(Ok(answer)) => serde_json::from_str::<Status>(&answer.into_inner().status_json)
            .map_err(|error| format!("it answers in a form that this version does not read: {error}")),
        Ok(Err(status)) => Err(at(address, &describe(&status))),
        Err(_) => Err(at(address, "no answer in time")),
    };
    document(member.id.to_string(), status, Timestamp::now())
}

fn document(node_id: String, status: Result<Status, String>, now: Timestamp) -> MemberDocument {
    let (snapshots, problem) = match status {
        Ok(status) => (status.snapshots, None),
        Err(problem) => (None, Some(problem)),
    };
    MemberDocument {
        node_id,
        taken_at: snapshots.as_ref().map(|snapshots| snapshots.newest),
        age_seconds: snapshots.as_ref().map(|snapshots| seconds_since(snapshots.newest, now)),
        revision: snapshots.as_ref().map(|snapshots| snapshots.revision),
        kept: snapshots.as_ref().map(|snapshots| snapshots.kept),
        verified: snapshots.as_ref().map(|snapshots| snapshots.tried),
        problem,
    }
}

fn table(documents: &[MemberDocument]) -> Table {
    let mut table = Table::new(["NODE", "AGE", "REVISION", "KEPT", "VERIFIED", "PROBLEM"]);
    for document in documents {
        let verified = |verified: bool| if verified { "restored for trial" } else { "hash only" };
        table.row([
            safe(&document.node_id).into_owned(),
            document.age_seconds.map(|seconds| age(seconds as f64)).unwrap_or_default(),
            document.revision.map(|revision| revision.to_string()).unwrap_or_default(),
            document.kept.map(|kept| kept.to_string()).unwrap_or_default(),
            document.verified.map(verified).unwrap_or_default().to_owned(),
            match (&document.problem, document.taken_at) {
                (Some(problem), _) => safe(problem).into_owned(),
                (None, None) => "it has taken none yet".to_owned(),
                (None, Some(_)) => String::new(),
            },
        ]);
    }
    table
}

/// What a snapshot file says of itself.
#[derive(Debug, Serialize)]
struct FileDocument {
    cluster_id: String,
    revision: u64,
    /// Absent if the clock of its node was never right.
    taken_at: Option<Timestamp>,
    age_seconds: Option<u64>,
    members: Vec<String>,
    polis_version: String,
    etcd_version: String,
    /// Fingerprint of the recovery key that opens it; absent if anybody can read it.
    recovery_key: Option<String>,
    file_bytes: u64,
    /// Whether the content was read and is what the header says; one that is encrypted is not read.
    verified: bool,
}

pub(super) fn of_file(path: &Path, output: OutputFormat) -> Result<ExitCode, Failure> {
    let what = || format!("{} is of no use as a snapshot", path.display());
    let open = || File::open(path).map(BufReader::new);
    let file = open()
        .map_err(|error| Failure::failed(format!("the snapshot {} cannot be read", path.display())).because(&error))?;
    let file_bytes = file.get_ref().metadata().map(|metadata| metadata.len()).unwrap_or_default();
    let reader = SnapshotReader::new(file).map_err(|error| Failure::failed(what()).because(&error))?;
    if reader.file_length() != file_bytes {
        return Err(Failure::failed(what())
            .because_of(format!("it has {file_bytes} bytes, and its header says {}", reader.file_length()))
            .hint("it was cut short or changed; take another, or another copy"));
    }
    let (header, protection) = (reader.header().clone(), reader.protection());
    let recovery_key = match protection {
        Protection::Sealed(fingerprint) => Some(fingerprint.to_string()),
        Protection::Plaintext => {
            let mut content = reader.open(None).map_err(|error| Failure::failed(what()).because(&error))?;
            std::io::copy(&mut content, &mut std::io::sink())
                .map_err(|error| Failure::failed(what()).because(&error))?;
            None
        }
    };
    let taken_at = Timestamp::from_second(header.taken_at_seconds).ok().filter(|_| header.taken_at_seconds > 0);
    let document = FileDocument {
        cluster_id: header.cluster.to_string(),
        revision: header.revision,
        taken_at,
        age_seconds: taken_at.map(|taken_at| seconds_since(taken_at, Timestamp::now())),
        members: header.members.iter().map(|member| member.node.to_string()).collect(),
        polis_version: header.polis_version,
        etcd_version: header.etcd_version,
        verified: recovery_key.is_none(),
        recovery_key,
        file_bytes,
    };
    print_value(output, &document, |_| fields(&document).render(Paint::for_stdout()))?;
    Ok(ExitCode::SUCCESS)
}

fn fields(document: &FileDocument) -> Fields {
    let mut fields = Fields::default();
    fields.add("Cluster", document.cluster_id.clone());
    fields.add("Revision", document.revision.to_string());
    fields.add("Age", document.age_seconds.map_or_else(|| "not known".to_owned(), |seconds| age(seconds as f64)));
    fields.add("Members", document.members.join(", "));
    fields.add("Versions", safe(&format!("Polis {}, etcd {}", document.polis_version, document.etcd_version)));
    fields.add(
        "Protection",
        match &document.recovery_key {
            Some(fingerprint) => format!("encrypted to the recovery key {fingerprint}"),
            None => "none: whoever has the file has the cluster".to_owned(),
        },
    );
    fields.add("Verified", if document.verified { "read to its end" } else { "its length; the rest needs the key" });
    fields
}

fn seconds_since(then: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(now.as_second().saturating_sub(then.as_second())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_has_a_row_and_its_problem_if_it_has_one() {
        let now = Timestamp::from_second(10_000).unwrap();
        let documents = [
            MemberDocument {
                taken_at: Timestamp::from_second(6_400).ok(),
                age_seconds: Some(3_600),
                revision: Some(42),
                kept: Some(3),
                verified: Some(true),
                ..document("a".into(), Err(String::new()), now)
            },
            document("b".into(), Err("it refuses connections".into()), now),
        ];
        let text = table(&documents).render(Paint::plain());
        assert!(text.contains("restored for trial") && text.contains("42"), "{text}");
        assert!(text.contains("it refuses connections"), "{text}");
    }
}
