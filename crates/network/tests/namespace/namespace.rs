//! Network namespaces for tests: the test runs itself again inside of one.

use std::env;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Set for a test that runs inside: the namespace that it must not be in.
const OUTSIDE: &str = "POLIS_TEST_OUTER_NETWORK_NAMESPACE";

/// Runs `body`, which is that of the test `name`, in a network namespace that ends with it. Root is not needed, but
/// user namespaces are.
pub(crate) fn in_namespace(name: &str, body: impl AsyncFnOnce()) {
    let here = fs::read_link("/proc/self/ns/net").unwrap();
    if let Some(outside) = env::var_os(OUTSIDE) {
        // Whatever happens, the tests must not touch the interfaces of the machine.
        assert_ne!(here, PathBuf::from(outside), "{OUTSIDE} is for this test's own use");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        return runtime.block_on(body());
    }
    let output = unshare()
        .arg(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(OUTSIDE, here)
        .output()
        .unwrap();
    assert!(output.status.success() && text(&output).contains("1 passed"), "{}", text(&output));
}

/// A command that runs another one in a network namespace.
fn unshare() -> Command {
    let mut complaints = String::new();
    // As an ordinary user, then as root in a container that may make no user namespaces.
    for arguments in [&["--map-root-user", "--net"][..], &["--net"]] {
        let command = || {
            let mut command = Command::new("unshare");
            command.args(arguments);
            command
        };
        let output = command().arg("true").output().unwrap_or_else(|error| {
            panic!("this test needs the command `unshare` ({error}): sudo apt-get install --yes util-linux")
        });
        if output.status.success() {
            return command();
        }
        complaints += &text(&output);
    }
    panic!(
        "this kernel lets this user make no network namespaces: {complaints}\
         run the test as root, or allow it: sudo sysctl -w \
         kernel.unprivileged_userns_clone=1 user.max_user_namespaces=1000"
    );
}

/// Runs iproute2's `ip` with arguments that are separated by blanks, and returns what it wrote.
pub(crate) fn ip(arguments: &str) -> String {
    let output = ip_command().args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", text(&output));
    text(&output)
}

/// Runs `ip` once for many commands, one a line.
pub(crate) fn ip_batch(commands: &str) {
    let mut child = ip_command().args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

fn ip_command() -> Command {
    // Debian's ordinary users do not have /usr/sbin in their PATH.
    let path = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"].into_iter().find(|path| Path::new(path).exists());
    Command::new(path.expect("this test needs the command `ip`: sudo apt-get install --yes iproute2"))
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}
