//! The other end of the machine's cables: a network namespace that a process holds, which ends with the test.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::namespace::ip_batch;

pub(crate) struct Outside {
    holder: Child,
}

impl Outside {
    pub(crate) fn new() -> Self {
        let here = std::fs::read_link("/proc/self/ns/net").unwrap();
        // It ends when its input does, which is with this process at the latest.
        let holder = Command::new("unshare").args(["--net", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
        let outside = Self { holder };
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::read_link(outside.path()).ok().is_none_or(|there| there == here) {
            assert!(Instant::now() < deadline, "the namespace is made");
            std::thread::sleep(Duration::from_millis(5));
        }
        outside.ip("link set lo up");
        outside
    }

    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.holder.id()).into()
    }

    pub(crate) fn open(&self) -> File {
        File::open(self.path()).unwrap()
    }

    /// A command that runs there.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        // It dies with this process, also when that is killed.
        command.arg(format!("--net={}", self.path().display())).args(["setpriv", "--pdeathsig", "KILL", program]);
        command
    }

    /// Runs `ip` there.
    pub(crate) fn ip(&self, arguments: &str) -> String {
        let output = self.command("ip").args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Lays a cable: interface `name` here, down, with this last byte of its hardware address; `NAME-far` there, up, with
    /// `address`.
    pub(crate) fn cable(&self, name: &str, number: u8, address: &str) {
        let there = self.holder.id();
        let hardware = hardware(number);
        ip_batch(&format!(
            "link add {name} address {hardware} type veth peer name {name}-far netns {there}\n\
             link set {name} addrgenmode none\n"
        ));
        self.ip(&format!("link set {name}-far addrgenmode none"));
        self.ip(&format!("address add {address} dev {name}-far"));
        self.ip(&format!("link set {name}-far up"));
    }
}

pub(crate) fn hardware(number: u8) -> String {
    format!("02:00:00:00:00:{number:02x}")
}

impl Drop for Outside {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        self.holder.wait().unwrap();
    }
}
