//! A network of machines: a switch in a namespace of the test's own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use super::tools;
use crate::processes;
use crate::scratch::Scratch;
use crate::world::World;

/// First three octets of the network. It exists in the test's own namespace only.
const NETWORK: &str = "10.78.0";

/// A switch with ports for machines, and a DHCP server on it. Machines on it see each other and the server, and nobody else.
#[derive(Debug)]
pub struct VmNetwork {
    world: Arc<World>,
    server: Option<Child>,
    directory: Scratch,
}

impl VmNetwork {
    /// A switch with `ports` ports, numbered from 0, and the address 10.78.0.1.
    ///
    /// # Panics
    ///
    /// When the system does not give what it takes.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        let network = Self { world: Arc::new(World::new(1)), server: None, directory: Scratch::new() };
        let mut lines =
            format!("link add switch0 type bridge\naddress add {NETWORK}.1/24 dev switch0\nlink set switch0 up\n");
        for port in 0..ports {
            let name = port_name(port);
            lines += &format!("tuntap add dev {name} mode tap\nlink set {name} master switch0\nlink set {name} up\n");
        }
        network.ip(&lines);
        network
    }

    /// Starts the DHCP server: leases of `seconds`, and the port of number N always gets 10.78.0.(10 + N).
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn start_dhcp(&mut self, seconds: u32) {
        self.stop_dhcp();
        let mut command = self.command(&tools::program("dnsmasq"));
        command.args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--port=0",
            "--interface=switch0",
            "--bind-interfaces",
        ]);
        command.args(["--dhcp-authoritative", "--no-ping", "--log-facility=-", "--user=root"]);
        command.arg(format!("--dhcp-range={NETWORK}.100,{NETWORK}.200,255.255.255.0,{seconds}"));
        command.arg(format!("--dhcp-option=option:router,{NETWORK}.1"));
        command.arg(format!("--dhcp-leasefile={}", self.directory.path().join("leases").display()));
        for port in 0..90 {
            command.arg(format!("--dhcp-host={},{NETWORK}.{}", hardware_address(port), 10 + port));
        }
        let log = File::create(self.log()).expect("a file can be made");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.server = Some(processes::spawn(command));
    }

    /// What the DHCP server of this network, or the last one, said.
    ///
    /// # Panics
    ///
    /// When none was started.
    #[must_use]
    pub fn dhcp_log(&self) -> String {
        std::fs::read_to_string(self.log()).expect("a server was started")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Stops the DHCP server.
    pub fn stop_dhcp(&mut self) {
        if let Some(mut server) = self.server.take() {
            // Both fail only when it has ended already.
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Pulls the cable of a port.
    ///
    /// # Panics
    ///
    /// When there is no such port.
    pub fn unplug(&self, port: usize) {
        self.ip(&format!("link set {} down\n", port_name(port)));
    }

    /// Plugs the cable of a port in again.
    ///
    /// # Panics
    ///
    /// When there is no such port.
    pub fn plug(&self, port: usize) {
        self.ip(&format!("link set {} up\n", port_name(port)));
    }

    /// Runs a closure on a thread that is in this network, at 10.78.0.1: sockets that it makes reach the machines.
    ///
    /// # Panics
    ///
    /// When the closure does.
    pub fn inside<T: Send>(&self, closure: impl FnOnce() -> T + Send) -> T {
        self.world.host(0).inside(closure)
    }

    /// A command in this network that ends with the test process; start it with [`processes::spawn`].
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        self.world.host(0).command(program)
    }

    /// What QEMU is told about the network of the machine at a port.
    pub(super) fn arguments(port: usize) -> Vec<String> {
        let backend = format!("tap,id=network0,ifname={},script=no,downscript=no", port_name(port));
        let device = format!("virtio-net-pci,netdev=network0,mac={}", hardware_address(port));
        ["-netdev", &backend, "-device", &device].map(str::to_owned).to_vec()
    }

    fn ip(&self, lines: &str) {
        let program = tools::program("ip");
        for line in lines.lines() {
            let mut command = self.world.host(0).plain_command(&program);
            let output = command.args(line.split(' ')).stdin(Stdio::null()).output().expect("nsenter can be started");
            assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

impl Drop for VmNetwork {
    fn drop(&mut self) {
        self.stop_dhcp();
    }
}

fn port_name(port: usize) -> String {
    format!("tap{port}")
}

/// Locally administered, and the same for a port in each test.
pub(super) fn hardware_address(port: usize) -> String {
    format!("52:54:00:78:00:{port:02x}")
}
