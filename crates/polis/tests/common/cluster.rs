//! A cluster of `polis dev` that is gone when the test ends, however that ends.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Home, Run};

/// A home in which `polis dev` keeps its cluster in `dev`, on an address that no other test has.
pub(crate) struct Cluster {
    home: Home,
    address: Ipv4Addr,
    nodes: u32,
}

impl Cluster {
    /// A cluster of one node.
    pub(crate) fn new() -> Self {
        Self::of(1)
    }

    /// A cluster of `nodes` nodes, with room for one more.
    pub(crate) fn of(nodes: u32) -> Self {
        Self { home: Home::new(), address: own_addresses(nodes + 1), nodes }
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.home.join("dev/node-1/root")
    }

    /// The binary, to be given a command of `polis dev`.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.home.command();
        command.env("POLIS_DEV_DIR", self.home.join("dev"));
        command
    }

    /// `polis dev up`, to be given more arguments or run.
    pub(crate) fn up_command(&self) -> Command {
        let mut command = self.command();
        command.args(["dev", "up", "--nodes", &self.nodes.to_string(), "--base-address", &self.address.to_string()]);
        command.arg("--etcd").arg(etcd());
        command
    }

    pub(crate) fn up(&self) -> Run {
        self.up_command().output().unwrap().into()
    }

    pub(crate) fn polis(&self, line: &str) -> Run {
        self.command().args(line.split_ascii_whitespace()).output().unwrap().into()
    }

    /// The only node, as `polis dev status -o json` lists it.
    #[track_caller]
    pub(crate) fn node(&self) -> serde_json::Value {
        let run = self.polis("dev status -o json");
        run.succeeds();
        let nodes = run.json();
        assert_eq!(nodes.as_array().map(Vec::len), Some(1), "{nodes}");
        nodes[0].clone()
    }

    /// All nodes, as `polis dev status -o json` lists them.
    #[track_caller]
    pub(crate) fn all(&self) -> Vec<serde_json::Value> {
        let run = self.polis("dev status -o json");
        run.succeeds();
        run.json().as_array().cloned().unwrap_or_default()
    }

    /// A command of an operator, with what `polis dev env` says.
    pub(crate) fn operator(&self, line: &str) -> Run {
        let environment = self.polis("dev env");
        let mut command = self.command();
        for export in environment.succeeds().lines() {
            let (name, value) = export.strip_prefix("export ").and_then(|rest| rest.split_once('=')).unwrap();
            command.env(name, value);
        }
        command.args(line.split_ascii_whitespace()).output().unwrap().into()
    }

    /// Ids of processes that were started for this cluster, found by the home in their command line.
    pub(crate) fn processes(&self) -> Vec<String> {
        let mark = self.home.path().to_str().unwrap().as_bytes();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap() {
            let path = entry.unwrap().path();
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            if line.windows(mark.len()).any(|window| window == mark) {
                found.push(path.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
        found
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let run = self.polis("dev down --purge");
        if !std::thread::panicking() {
            assert_eq!(run.code, Some(0), "{run:#?}");
            assert_eq!(self.processes(), Vec::<String>::new());
        }
    }
}

/// The first of some loopback addresses of this test alone: from 127.32.0.0 upwards, by process and a counter.
fn own_addresses(count: u32) -> Ipv4Addr {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let number = COUNTER.fetch_add(count, Ordering::Relaxed);
    assert!(number + count <= 32, "one process has no more addresses");
    let above = (std::process::id() << 5 | number) % (96 << 16);
    Ipv4Addr::from_bits(Ipv4Addr::new(127, 32, 0, 0).to_bits() + above)
}

/// The etcd binary for tests.
pub(crate) fn etcd() -> PathBuf {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/etcd/usr/bin/etcd");
    let given = std::env::var_os("POLIS_ETCD").map(PathBuf::from);
    let search = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&search).map(|directory| directory.join("etcd"));
    let found = given.into_iter().chain([unpacked]).chain(in_path).find(|path| path.is_file());
    found.expect("etcd is needed: run `scripts/setup test`").canonicalize().unwrap()
}
