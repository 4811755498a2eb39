//! The DHCP server that most small networks have.

use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use polis_network::machine::{DHCP_LEASE_LOST, MachineNetwork, VENDOR_CLASS};
use tokio::time::timeout;

use crate::namespace::{in_namespace, ip};
use crate::node::{DEADLINE, History, Node};
use crate::outside::{Outside, hardware};

struct Dnsmasq {
    process: Child,
    directory: tempfile::TempDir,
}

impl Dnsmasq {
    /// Starts one that gives addresses of a range, to be renewed after 3 s. Its shortest lease is one of two minutes.
    fn start(outside: &Outside, range: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name).display().to_string();
        let mut command = outside.command("dnsmasq");
        // In this mode it stays in the foreground, and who it is: in a user namespace it cannot become somebody else.
        command.args(["--no-daemon", "--port=0", "--conf-file=/dev/null", "--no-ping"]);
        command.args(["--log-dhcp", "--dhcp-authoritative", "--interface=one-far", "--bind-interfaces"]);
        command.args([
            format!("--dhcp-range={range},255.255.255.0,2m"),
            format!("--dhcp-leasefile={}", file("leases")),
            format!("--log-facility={}", file("log")),
            format!("--pid-file={}", file("pid")),
        ]);
        command.args(["--dhcp-option-force=58,3s", "--dhcp-option-force=59,60s"]);
        command.args(["--dhcp-option=3,10.1.0.1", "--dhcp-option=6,10.1.0.53", "--dhcp-option=42,10.1.0.123"]);
        command.args(["--dhcp-option=121,0.0.0.0/0,10.1.0.254,192.0.2.0/24,10.1.0.253"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self { process: command.spawn().unwrap(), directory };
        server.wait_for_log("sockets bound", 1);
        server
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    fn wait_for_log(&self, text: &str, count: usize) {
        let deadline = Instant::now() + DEADLINE;
        while self.log().matches(text).count() < count {
            assert!(Instant::now() < deadline, "{count} times {text:?} in {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Whether the tools of these tests are there.
fn available() -> bool {
    let is_there = ["/usr/sbin/dnsmasq", "/usr/bin/dnsmasq"].iter().any(|path| std::path::Path::new(path).exists());
    if !is_there {
        assert!(std::env::var_os("CI").is_none(), "nothing is skipped where CI is set, but dnsmasq is not installed");
        eprintln!("skipped: it needs the command `dnsmasq`: scripts/setup test");
    }
    is_there
}

#[test]
fn dnsmasq_gives_renews_and_changes_an_address() {
    if !available() {
        return;
    }
    in_namespace("dnsmasq::dnsmasq_gives_renews_and_changes_an_address", async || {
        let outside = Outside::new();
        outside.cable("one", 1, "10.1.0.1/24");
        let server = Dnsmasq::start(&outside, "10.1.0.10,10.1.0.10");
        let mut node = Node::start(MachineNetwork::default());
        node.has("10.1.0.10").await;
        let servers = |text: &str| vec![text.parse::<IpAddr>().unwrap()];
        timeout(DEADLINE, node.nameservers.wait_for(|found| *found == servers("10.1.0.53"))).await.unwrap().unwrap();
        timeout(DEADLINE, node.time_servers.wait_for(|found| *found == servers("10.1.0.123"))).await.unwrap().unwrap();
        node.all_is_well().await;
        // Option 121 counts, and the router option does not.
        let routes = ip("route show proto dhcp");
        assert!(
            routes.contains("default via 10.1.0.254 dev one") && routes.contains("192.0.2.0/24 via 10.1.0.253"),
            "{routes}"
        );
        assert!(!routes.contains("via 10.1.0.1 "), "{routes}");
        // The kernel knows when the lease ends.
        let address = ip("-4 address show dev one");
        assert!(address.contains("valid_lft 1"), "{address}");
        // Who asks is what it says it is.
        let log = server.log();
        assert!(log.contains(&format!("vendor class: {VENDOR_CLASS}")), "{log}");
        assert!(log.contains(&hardware(1)), "{log}");
        server.wait_for_log("DHCPACK(one-far)", 3);
        assert_eq!(server.log().matches("DHCPDISCOVER(one-far)").count(), 1);

        // Another server with other addresses refuses the next renewal.
        let history = History::of(&node);
        drop(server);
        let server = Dnsmasq::start(&outside, "10.1.0.20,10.1.0.20");
        node.has("10.1.0.20").await;
        server.wait_for_log("DHCPNAK(one-far)", 1);
        assert_eq!(history.end().await, [Some("10.1.0.20".parse().unwrap())]);
        node.all_is_well().await;

        // A node that starts again is the same for the server, with the same address, and leaves nothing of its first life.
        node.stop().await;
        let mut node = Node::start(MachineNetwork::default());
        node.has("10.1.0.20").await;
        assert_eq!(ip("-4 -o address show dev one").lines().count(), 1);

        if std::env::var_os("POLIS_SOAK").is_some() {
            // The server is gone, and its lease of two minutes runs out.
            drop(server);
            let lost = Duration::from_secs(150);
            timeout(lost, node.address.wait_for(Option::is_none)).await.unwrap().unwrap();
            assert!(node.conditions().contains(&DHCP_LEASE_LOST.to_owned()), "{:?}", node.conditions());
        }
        node.stop().await;
    });
}
