//! The text of a systemd unit that runs a node.
//!
//! Its KillMode is `process`, and not `mixed`, which would have systemd kill all that is left of a node when its own process has ended,
//! be that in order, by a signal or by the watchdog. That is what must not happen to gocryptfs, which may be writing: it ends by itself
//! when nobody uses its mount, and the next start waits for it. etcd needs no help of systemd, as the kernel kills it together with the
//! node. The unit is the same where data are not encrypted, as an installed unit does not change when a partition is made encrypted.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use polis_control::Peer;

/// What the unit is to run. Paths are absolute.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) program: PathBuf,
    pub(super) root: PathBuf,
    pub(super) parameters: Option<PathBuf>,
    pub(super) address: Option<IpAddr>,
    pub(super) etcd: Option<PathBuf>,
    pub(super) peers: Vec<Peer>,
    pub(super) user: Option<String>,
}

/// What systemd makes read-only with ProtectSystem=full.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr", "/boot", "/efi", "/etc"];

/// What systemd makes read-only with ProtectHome=read-only.
const HOME_DIRECTORIES: [&str; 3] = ["/home", "/root", "/run/user"];

/// What systemd hides with PrivateTmp=yes.
const TEMPORARY_DIRECTORIES: [&str; 2] = ["/tmp", "/var/tmp"];

impl Unit {
    /// The text of the unit.
    pub(super) fn render(&self) -> String {
        let mut text = String::from(HEAD);
        if let Some(user) = &self.user {
            text.push_str(&format!("User={user}\n"));
        }
        text.push_str(&format!("ExecStart={}\n", self.command().join(" ")));
        text.push_str(SERVICE);
        text.push_str(&self.hardening());
        text.push_str(TAIL);
        text
    }

    fn command(&self) -> Vec<String> {
        let mut words = vec![word(&self.program), "node".into(), "run".into(), "--root".into(), word(&self.root)];
        let mut option = |name: &str, value: Option<String>| {
            words.extend(value.map(|value| [name.to_owned(), value]).into_iter().flatten());
        };
        option("--parameters", self.parameters.as_deref().map(word));
        option("--address", self.address.map(|address| address.to_string()));
        option("--etcd", self.etcd.as_deref().map(word));
        for peer in &self.peers {
            option("--peer", Some(peer.to_string()));
        }
        words
    }

    /// Whatever keeps a node that was broken into from the rest of the machine, and leaves it what it needs: its own root, mounts,
    /// loop devices and the device mapper, the TPM, children with another priority.
    fn hardening(&self) -> String {
        // For another user than root systemd takes these for a ban on programs that gain privileges, and where data are encrypted such
        // a node mounts them through one.
        let is_root = self.user.as_deref().is_none_or(|user| ["root", "0"].contains(&user));
        let mut text = String::from(if is_root { HARDENING } else { "" });
        let is_below =
            |path: &Path, directories: &[&str]| directories.iter().any(|directory| path.starts_with(directory));
        let paths = [Some(&self.program), Some(&self.root), self.parameters.as_ref(), self.etcd.as_ref()];
        if !paths.into_iter().flatten().any(|path| is_below(path, &TEMPORARY_DIRECTORIES)) {
            text.push_str("PrivateTmp=yes\n");
        }
        if !is_below(&self.root, &HOME_DIRECTORIES) {
            text.push_str("ProtectHome=read-only\n");
        }
        text.push_str("ProtectSystem=full\n");
        if is_below(&self.root, &SYSTEM_DIRECTORIES) {
            text.push_str(&format!("ReadWritePaths={}\n", word(&self.root)));
        }
        text
    }
}

/// One word of a command in a unit (systemd.service(5), command lines).
fn word(path: &Path) -> String {
    let text = path.to_string_lossy().replace('%', "%%").replace('$', "$$");
    let plain = |character: char| character.is_ascii_alphanumeric() || "/._-+:@%,=$".contains(character);
    if text.chars().all(plain) {
        return text;
    }
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n"))
}

const HEAD: &str = "\
[Unit]
Description=Polis node
Wants=network-online.target
After=network-online.target time-sync.target

[Service]
# The node says when it is Running. Until then it may have to wait for somebody who approves it, for days.
Type=notify
NotifyAccess=main
TimeoutStartSec=infinity
";

const SERVICE: &str = "\
# A sign of life comes three times in this time; without one the node is killed and started again.
WatchdogSec=30s
# Signals go to the node alone, which stops its children in order. Without it all of them end by themselves; gocryptfs, which holds
# encrypted data, must not be killed meanwhile, as it may be writing.
KillMode=process
TimeoutStopSec=30s
# Exit code 1 is a reason that only a person can deal with, 2 a mistake in this file or something that is missing.
Restart=on-failure
RestartPreventExitStatus=1 2
RestartSec=2s
# When memory runs out, others go first: without this node its cluster may lose its quorum.
OOMScoreAdjust=-500
OOMPolicy=continue
LimitNOFILE=1048576
TasksMax=infinity
UMask=0077

";

const HARDENING: &str = "\
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
";

const TAIL: &str = "
[Install]
WantedBy=multi-user.target
";

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(root: &str) -> Unit {
        Unit {
            program: "/usr/bin/polis".into(),
            root: root.into(),
            parameters: None,
            address: None,
            etcd: None,
            peers: vec![],
            user: None,
        }
    }

    fn line<'a>(text: &'a str, key: &str) -> Option<&'a str> {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    }

    #[test]
    fn the_command_is_the_one_that_was_asked_for() {
        let plain = unit("/var/lib/polis").render();
        assert_eq!(line(&plain, "ExecStart"), Some("/usr/bin/polis node run --root /var/lib/polis"));
        let full = Unit {
            parameters: Some("/etc/polis/my node.pb".into()),
            address: Some("192.0.2.1".parse().unwrap()),
            etcd: Some("/opt/50%/$etcd".into()),
            peers: vec!["metropolis-00112233445566778899aabbccddeeff=::1".parse().unwrap()],
            user: Some("polis".into()),
            ..unit("/srv/a\"b\\c")
        };
        assert_eq!(
            line(&full.render(), "ExecStart"),
            Some(
                r#"/usr/bin/polis node run --root "/srv/a\"b\\c" --parameters "/etc/polis/my node.pb" --address 192.0.2.1 --etcd /opt/50%%/$$etcd --peer metropolis-00112233445566778899aabbccddeeff=::1"#
            )
        );
        assert_eq!(line(&full.render(), "User"), Some("polis"));
    }

    #[test]
    fn it_can_always_write_to_its_root() {
        let table = [
            ("/var/lib/polis", Some("read-only"), None),
            ("/home/me/polis", None, None),
            ("/root/polis", None, None),
            ("/etc/polis/root", Some("read-only"), Some("/etc/polis/root")),
            ("/homework", Some("read-only"), None),
        ];
        for (root, home, writable) in table {
            let text = unit(root).render();
            assert_eq!((line(&text, "ProtectHome"), line(&text, "ReadWritePaths")), (home, writable), "{root}");
        }
    }

    #[test]
    fn a_user_without_rights_can_mount_encrypted_data() {
        // systemd.exec(5), NoNewPrivileges=: what implies it for who has not CAP_SYS_ADMIN.
        let implying = [
            "DynamicUser",
            "LockPersonality",
            "MemoryDenyWriteExecute",
            "PrivateDevices",
            "ProtectClock",
            "ProtectHostname",
            "ProtectKernelLogs",
            "ProtectKernelModules",
            "ProtectKernelTunables",
            "RestrictAddressFamilies",
            "RestrictNamespaces",
            "RestrictRealtime",
            "RestrictSUIDSGID",
            "SystemCallArchitectures",
            "SystemCallFilter",
            "SystemCallLog",
        ];
        let text = Unit { user: Some("polis".into()), ..unit("/var/lib/polis") }.render();
        for key in implying {
            assert_eq!(line(&text, key), None, "{key}");
        }
        for user in [None, Some("root".into())] {
            let text = Unit { user, ..unit("/var/lib/polis") }.render();
            assert_eq!(line(&text, "RestrictSUIDSGID"), Some("yes"));
        }
    }

    #[test]
    fn what_lies_in_a_temporary_directory_is_not_hidden() {
        assert_eq!(line(&unit("/var/lib/polis").render(), "PrivateTmp"), Some("yes"));
        assert_eq!(line(&unit("/tmp/trial").render(), "PrivateTmp"), None);
        let parameters = Unit { parameters: Some("/var/tmp/node.pb".into()), ..unit("/var/lib/polis") };
        assert_eq!(line(&parameters.render(), "PrivateTmp"), None);
    }

    #[test]
    fn it_says_what_the_node_relies_on() {
        let text = unit("/var/lib/polis").render();
        for (key, value) in [
            ("Type", "notify"),
            ("KillMode", "process"),
            ("Restart", "on-failure"),
            ("RestartPreventExitStatus", "1 2"),
            ("TimeoutStartSec", "infinity"),
            ("WantedBy", "multi-user.target"),
        ] {
            assert_eq!(line(&text, key), Some(value));
        }
        // What would take away devices, mounts or the helpers of file systems.
        for key in ["PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "PrivateMounts", "NoNewPrivileges"]
        {
            assert_eq!(line(&text, key), None, "{key}");
        }
    }
}
