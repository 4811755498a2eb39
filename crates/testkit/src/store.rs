//! What a node's etcd holds, read by etcd's own tool: a witness that shares no code with the node.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::{etcd, processes};

/// Address of etcd's client socket, relative to the directory it is in.
const ENDPOINT: &str = "unix://client.sock:0";

/// Name of the file of that socket.
const SOCKET: &str = "client.sock:0";

/// Calls that change nothing. Every other call counts as a change, also one that nobody has thought of.
const READS: [&str; 5] = ["Range", "MemberList", "Status", "Watch", "ServerReflectionInfo"];

/// The etcd of a running node.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
}

/// All that an etcd holds.
#[derive(Clone, Debug)]
pub struct Content {
    /// All keys with their values.
    pub entries: BTreeMap<String, Entry>,
    /// The members.
    pub members: Vec<Member>,
    /// Term of the raft algorithm: each election of a leader raises it.
    pub raft_term: u64,
}

/// A value and when it came to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Vec<u8>,
    /// Revision of the store that made the key.
    pub created: u64,
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Revision of the store that it has made.
    pub revision: u64,
    /// The key.
    pub key: String,
    /// The value from then on; empty when the key was deleted.
    pub value: Vec<u8>,
}

/// A member of the consensus cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: u64,
    /// Its name; empty while it has never started.
    pub name: String,
    /// Where its peers find it.
    pub peer_urls: Vec<String>,
}

impl Store {
    /// The etcd of the node with this root.
    #[must_use]
    pub fn of_node(root: &Path) -> Self {
        Self { directory: root.join("ephemeral/consensus") }
    }

    /// Everything in it.
    ///
    /// # Panics
    ///
    /// When etcd does not tell.
    #[must_use]
    pub fn read(&self) -> Content {
        let listing = self.control(&["get", "", "--prefix"]);
        let entries = listing["kvs"].as_array().map(Vec::as_slice).unwrap_or_default().iter().map(|pair| {
            let key = String::from_utf8(bytes(&pair["key"])).expect("our keys are text");
            (key, Entry { value: bytes(&pair["value"]), created: number(&pair["create_revision"]) })
        });
        let entries = entries.collect();
        let listing = self.control(&["member", "list"]);
        let members = listing["members"].as_array().expect("a list of members").iter().map(|member| Member {
            id: number(&member["ID"]),
            name: member["name"].as_str().unwrap_or_default().to_owned(),
            peer_urls: member["peerURLs"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|url| url.as_str().unwrap().to_owned())
                .collect(),
        });
        Content { entries, members: members.collect(), raft_term: number(&listing["header"]["raft_term"]) }
    }

    /// Writes a key. When this returns, the write is acknowledged.
    ///
    /// # Panics
    ///
    /// When etcd refuses.
    pub fn put(&self, key: &str, value: &str) {
        self.control(&["put", key, value]);
    }

    /// All changes of keys that etcd still has, up to now, in their order. It forgets those of more than an hour ago.
    ///
    /// # Panics
    ///
    /// When etcd does not tell, or has forgotten some.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        let last = number(&self.control(&["get", "", "--prefix", "--keys-only", "--limit=1"])["header"]["revision"]);
        let mut command = processes::bound_to_test(&etcd::control());
        command.current_dir(&self.directory).env("ETCDCTL_API", "3").args([
            "--endpoints",
            ENDPOINT,
            "--write-out",
            "json",
        ]);
        command.args(["watch", "", "--prefix", "--rev=1"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut watch = processes::spawn(command);
        let lines = BufReader::new(watch.stdout.take().expect("its output is a pipe")).lines();
        let mut changes = Vec::new();
        for line in lines {
            let answer: Value = serde_json::from_str(&line.expect("etcdctl tells")).expect("etcdctl answers in JSON");
            changes.extend(answer["Events"].as_array().map(Vec::as_slice).unwrap_or_default().iter().map(|event| {
                Change {
                    revision: number(&event["kv"]["mod_revision"]),
                    key: String::from_utf8(bytes(&event["kv"]["key"])).expect("our keys are text"),
                    value: bytes(&event["kv"]["value"]),
                }
            }));
            if changes.last().is_some_and(|change| change.revision >= last) {
                break;
            }
        }
        // It would go on for ever.
        watch.kill().expect("a child can be killed");
        watch.wait().expect("a child can be waited for");
        assert!(changes.last().is_some_and(|change| change.revision >= last), "etcd has not told all up to {last}");
        changes
    }

    /// Has the member with this id lead raft. Only the etcd that leads it now can do that. Returns whether it has.
    ///
    /// # Panics
    ///
    /// When etcd's tool cannot be started.
    pub fn hand_over(&self, member: u64) -> bool {
        let output =
            self.tool().arg("move-leader").arg(format!("{member:x}")).output().expect("etcdctl can be started");
        output.status.success()
    }

    /// How many calls that could change something etcd has been asked for since it was started, by their names.
    ///
    /// # Panics
    ///
    /// When etcd does not tell.
    #[must_use]
    pub fn changes_asked(&self) -> BTreeMap<String, u64> {
        changes(&self.metrics())
    }

    fn metrics(&self) -> String {
        // Through its directory, opened, as the path of a socket may be 107 bytes long at most.
        let directory = std::fs::File::open(&self.directory).expect("etcd has a directory");
        let short = format!("/proc/self/fd/{}/{SOCKET}", std::os::fd::AsRawFd::as_raw_fd(&directory));
        let mut stream = UnixStream::connect(short).expect("etcd listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("etcd takes a request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("etcd answers");
        assert!(text.starts_with("HTTP/1.0 200") || text.starts_with("HTTP/1.1 200"), "{text}");
        text
    }

    fn control(&self, arguments: &[&str]) -> Value {
        let output = self.tool().args(arguments).output().expect("etcdctl can be started");
        assert!(output.status.success(), "etcdctl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("etcdctl answers in JSON")
    }

    fn tool(&self) -> Command {
        let mut command = Command::new(etcd::control());
        command.env_clear().current_dir(&self.directory).args(["--endpoints", ENDPOINT, "--write-out", "json"]);
        command.stdin(Stdio::null());
        command
    }
}

impl Content {
    /// Entries whose keys begin with `prefix`.
    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        self.entries.iter().map(|(key, entry)| (key.as_str(), entry)).filter(move |(key, _)| key.starts_with(prefix))
    }
}

/// The calls that could change something, from the text of etcd's metrics.
fn changes(metrics: &str) -> BTreeMap<String, u64> {
    let calls = metrics.lines().filter_map(|line| {
        let (labels, count) = line.strip_prefix("grpc_server_started_total{")?.split_once("} ")?;
        let method = labels.split(',').find_map(|label| label.strip_prefix("grpc_method=\"")?.strip_suffix('"'))?;
        // Large counts are written as 1e+06.
        let count: f64 = count.trim().parse().expect("a count is a number");
        (count > 0.0 && !READS.contains(&method)).then(|| (method.to_owned(), count as u64))
    });
    calls.collect()
}

fn bytes(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap_or_default()).expect("etcdctl writes keys and values in base64")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_not_known_to_read_is_a_change() {
        let metrics = "# TYPE grpc_server_started_total counter\n\
            grpc_server_started_total{grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 2\n\
            grpc_server_started_total{grpc_method=\"Range\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 7\n\
            grpc_server_started_total{grpc_method=\"Txn\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 0\n\
            grpc_server_started_total{grpc_method=\"Sing\",grpc_service=\"etcdserverpb.New\",grpc_type=\"unary\"} 1\n\
            grpc_server_handled_total{grpc_method=\"Delete\"} 1\n";
        assert_eq!(changes(metrics), BTreeMap::from([("Put".into(), 2), ("Sing".into(), 1)]));
    }
}
