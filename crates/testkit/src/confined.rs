//! Commands that run with fewer powers, or in namespaces of their own, which end with them.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Whether the tests run as root, whom permission bits do not bind.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The command bound by permission bits: as it is for an ordinary user; for root, without any of root's powers. It stays the same
/// user, so that it owns what the test makes and reaches where the test works.
#[must_use]
pub fn without_powers(command: Command) -> Command {
    if !is_root() {
        return command;
    }
    let mut outer = Command::new("setpriv");
    outer.args(["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--"]);
    append(outer, command)
}

/// Gives everything below a directory, and the directory, to a user.
///
/// # Panics
///
/// When that is not possible: only root can.
pub fn give(path: &Path, user: u32) {
    let ids = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(user));
    rustix::fs::chown(path, Some(ids.0), Some(ids.1)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.is_dir() && !path.is_symlink() {
        for entry in std::fs::read_dir(path).expect("a directory of the test can be listed") {
            give(&entry.expect("a directory of the test can be listed").path(), user);
        }
    }
}

/// What a command gets a view of its own of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// What is mounted where.
    Mounts,
    /// Interfaces and addresses.
    Network,
}

/// The command in a namespace of its own, in which the shell line `preparation` is run first, as root of that namespace. It
/// finds `arguments` as `$1` and so on. The namespace ends with the command.
///
/// # Panics
///
/// When this user may make no such namespaces, with what to do about it.
#[must_use]
pub fn in_namespace(namespace: Namespace, preparation: &str, arguments: &[&Path], command: Command) -> Command {
    if namespace == Namespace::Network {
        require_ip();
    }
    let mut outer = unshare(namespace);
    outer.args(["sh", "-c"]);
    let shifts = arguments.len();
    outer.arg(format!("PATH=$PATH:/usr/sbin:/sbin; set -e; {preparation}; shift {shifts}; exec \"$@\"")).arg("sh");
    outer.args(arguments);
    append(outer, command)
}

/// Runs a command in the network namespace of a process that was started by [`in_namespace`].
///
/// # Panics
///
/// When it fails.
pub fn enter_network(process: u32, command: &[&str]) {
    let same_user_namespace = {
        let inode = |id: &str| std::fs::metadata(format!("/proc/{id}/ns/user")).map(|data| data.ino()).ok();
        inode("self") == inode(&process.to_string())
    };
    let mut enter = Command::new("nsenter");
    enter.args(["--target", &process.to_string(), "--net"]);
    if !same_user_namespace {
        enter.args(["--user", "--preserve-credentials"]);
    }
    enter.arg("--").args(["sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; exec \"$@\"", "sh"]).args(command);
    let output = enter.stdin(Stdio::null()).output().expect("nsenter is part of util-linux, as is setpriv");
    assert!(output.status.success(), "{enter:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A path as a process in a mount namespace sees it.
#[must_use]
pub fn seen_by(process: u32, path: &Path) -> PathBuf {
    let below_root = path.strip_prefix("/").unwrap_or(path);
    Path::new("/proc").join(process.to_string()).join("root").join(below_root)
}

/// `unshare` with the arguments that work for this user.
fn unshare(namespace: Namespace) -> Command {
    let kind = match namespace {
        Namespace::Mounts => "--mount",
        Namespace::Network => "--net",
    };
    let mut complaints = String::new();
    // As an ordinary user; then as root in a container that may make no user namespaces.
    for arguments in [&["--map-root-user", kind][..], &[kind]] {
        let command = || {
            let mut command = Command::new("unshare");
            command.args(arguments).arg("--");
            command
        };
        let tried =
            command().arg("true").stdin(Stdio::null()).output().expect("unshare is part of util-linux, as is setpriv");
        if tried.status.success() {
            return command();
        }
        complaints += &String::from_utf8_lossy(&tried.stderr);
    }
    panic!(
        "this kernel lets this user make no namespaces: {complaints}run the test as root, or allow it: sudo sysctl -w \
         kernel.unprivileged_userns_clone=1 user.max_user_namespaces=1000"
    );
}

/// Without iproute2 there is no address to give.
fn require_ip() {
    let mut command = Command::new("sh");
    command.args(["-c", "PATH=$PATH:/usr/sbin:/sbin; exec ip -Version"]);
    let there = command.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success());
    assert!(there, "there is no ip; bring it with: scripts/setup test");
}

/// The command `inner` as the last arguments of `outer`.
fn append(mut outer: Command, inner: Command) -> Command {
    outer.arg(inner.get_program());
    outer.args(inner.get_args().map(OsString::from));
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    if let Some(directory) = inner.get_current_dir() {
        outer.current_dir(directory);
    }
    outer
}
