//! Where the etcd for tests is.

use std::path::{Path, PathBuf};

/// The etcd binary: `POLIS_ETCD`, else the one that `scripts/setup` unpacks, else the first in `PATH`.
///
/// # Panics
///
/// When there is none, with the line that brings it.
#[must_use]
pub fn binary() -> PathBuf {
    tool("etcd", "POLIS_ETCD")
}

/// The `etcdctl` beside it: `POLIS_ETCDCTL`, else the unpacked one, else the first in `PATH`.
///
/// # Panics
///
/// When there is none, with the line that brings it.
#[must_use]
pub fn control() -> PathBuf {
    tool("etcdctl", "POLIS_ETCDCTL")
}

fn tool(name: &str, variable: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/etcd/usr/bin").join(name);
    if let Ok(path) = unpacked.canonicalize() {
        return path;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("there is no {name}; bring it with: scripts/setup test"))
}
