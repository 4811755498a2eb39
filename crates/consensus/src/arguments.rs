//! The command line and the environment of etcd: everything that decides how a member runs, as one pure function each.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use crate::peer_url::{self, PEER_PORT};
use crate::timing::Timing;
use crate::version::Version;

/// Name of the client socket in etcd's working directory. etcd 3.4 takes a unix socket only in the form host:port, and
/// names the file like that; a name relative to the working directory also escapes the limit of 108 bytes.
pub(crate) const CLIENT_SOCKET: &str = "client.sock:0";

/// The PEM files that etcd reads, in its working directory. The layout of the disk has the same names.
pub(crate) mod pem_files {
    /// Certificate of the peers' CA.
    pub(crate) const CA: &str = "peer-ca.pem";
    /// Revocations of the peers' CA.
    pub(crate) const CRL: &str = "peer-crl";
    /// This member's certificate.
    pub(crate) const CERTIFICATE: &str = "peer-certificate.pem";
    /// This member's private key.
    pub(crate) const KEY: &str = "peer-key.pem";
}

/// Mixed into the ids of cluster and members. One value for all: clusters are told apart by their members' addresses,
/// which are keys, and by their peer CA.
const CLUSTER_TOKEN: &str = "polis";

/// How long old revisions are kept. A watch that was away for longer must list again.
const COMPACTION_RETENTION: &str = "1h";

/// Size of the database at which etcd refuses writes: etcd's own default, given explicitly so that no version changes it.
pub const QUOTA_BYTES: u64 = 2 << 30;

/// Raft entries between two snapshots. etcd keeps them in memory; its former default of 100,000 costs more memory than
/// all of Polis for nothing, as a follower that is further behind gets a snapshot.
const SNAPSHOT_COUNT: u32 = 10_000;

/// Which members etcd expects when its data directory is empty; with data it looks there and ignores this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InitialCluster {
    /// A cluster of this member alone is created.
    New,
    /// The member belongs to a cluster that exists: every *other* member with its name.
    Existing(Vec<(String, Ipv6Addr)>),
}

/// Everything that the command line depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberArguments {
    /// Some flags were renamed between versions.
    pub(crate) version: Version,
    /// Name of the member: the node id.
    pub(crate) name: String,
    /// The peer URL's address, derived from the node's key.
    pub(crate) identity_address: Ipv6Addr,
    /// Where peers' connections are accepted: the node's real address.
    pub(crate) listen: IpAddr,
    /// etcd's data directory, absolute.
    pub(crate) data_directory: PathBuf,
    pub(crate) timing: Timing,
    /// Size of the database at which etcd refuses writes, in bytes.
    pub(crate) quota_bytes: u64,
    pub(crate) initial_cluster: InitialCluster,
}

/// The arguments, without the program's name.
pub(crate) fn arguments(member: &MemberArguments) -> Vec<String> {
    let listen = SocketAddr::new(member.listen, PEER_PORT);
    let own_url = peer_url::format(member.identity_address);
    let mut initial_cluster = format!("{}={own_url}", member.name);
    let state = match &member.initial_cluster {
        InitialCluster::New => "new",
        InitialCluster::Existing(others) => {
            for (name, address) in others {
                initial_cluster.push_str(&format!(",{name}={}", peer_url::format(*address)));
            }
            "existing"
        }
    };
    let skip_san = if (member.version.major, member.version.minor) >= (3, 6) {
        "--peer-skip-client-san-verification"
    } else {
        "--experimental-peer-skip-client-san-verification"
    };
    [
        ("--name", member.name.clone()),
        ("--data-dir", member.data_directory.display().to_string()),
        // Peers: an identity that never changes, served at the address of today.
        ("--initial-advertise-peer-urls", own_url),
        ("--listen-peer-urls", format!("https://{listen}")),
        ("--initial-cluster", initial_cluster),
        ("--initial-cluster-state", state.into()),
        ("--initial-cluster-token", CLUSTER_TOKEN.into()),
        ("--peer-client-cert-auth", "true".into()),
        ("--peer-trusted-ca-file", pem_files::CA.into()),
        ("--peer-crl-file", pem_files::CRL.into()),
        ("--peer-cert-file", pem_files::CERTIFICATE.into()),
        ("--peer-key-file", pem_files::KEY.into()),
        // A connection comes from the node's real address, which no certificate names.
        (skip_san, "true".into()),
        // Clients: this process, over a unix socket.
        ("--listen-client-urls", format!("unix://{CLIENT_SOCKET}")),
        ("--advertise-client-urls", format!("unix://{CLIENT_SOCKET}")),
        // The gateway would make etcd ask the dialer for the unix socket.
        ("--enable-grpc-gateway", "false".into()),
        // Raft. Off by default in 3.4: without it a joiner with another timing raises the term and leadership flaps.
        ("--pre-vote", "true".into()),
        ("--heartbeat-interval", member.timing.heartbeat().as_millis().to_string()),
        ("--election-timeout", member.timing.election().as_millis().to_string()),
        // It refuses a second member for five seconds; the caller checks the margin itself, and better.
        ("--strict-reconfig-check", "false".into()),
        // Size.
        ("--auto-compaction-mode", "periodic".into()),
        ("--auto-compaction-retention", COMPACTION_RETENTION.into()),
        ("--quota-backend-bytes", member.quota_bytes.to_string()),
        ("--snapshot-count", SNAPSHOT_COUNT.to_string()),
        // Log: JSON lines, which are parsed.
        ("--logger", "zap".into()),
        ("--log-outputs", "stderr".into()),
        ("--log-level", "info".into()),
    ]
    .into_iter()
    .map(|(name, value)| format!("{name}={value}"))
    .collect()
}

/// The environment, complete: nothing is inherited, as a `NO_PROXY` or an `ETCD_...` would change what etcd does.
/// `proxy` is the dialer's URL with its token.
pub(crate) fn environment(proxy: String) -> Vec<(String, String)> {
    let mut environment = vec![("HTTPS_PROXY".to_owned(), proxy)];
    if cfg!(target_arch = "aarch64") {
        // etcd 3.4 runs there, but wants to be told that one knows that it was not tested.
        environment.push(("ETCD_UNSUPPORTED_ARCH".into(), "arm64".into()));
    }
    environment
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Pace;

    fn member() -> MemberArguments {
        MemberArguments {
            version: Version::new(3, 4, 23),
            name: "metropolis-aa".into(),
            identity_address: "fd00::a".parse().unwrap(),
            listen: "192.0.2.1".parse().unwrap(),
            data_directory: "/data/etcd/data".into(),
            timing: Timing::Alone,
            quota_bytes: QUOTA_BYTES,
            initial_cluster: InitialCluster::New,
        }
    }

    /// Value of the flag `name`; exactly one is expected.
    fn flag(member: &MemberArguments, name: &str) -> Option<String> {
        let arguments = arguments(member);
        let mut values = arguments.iter().filter_map(|argument| argument.strip_prefix(name)?.strip_prefix('='));
        let value = values.next().map(str::to_owned);
        assert_eq!(values.next(), None, "{name} is given once");
        value
    }

    #[test]
    fn the_peer_url_is_the_identity_and_the_real_address_only_listens() {
        let mut member = member();
        assert_eq!(flag(&member, "--initial-advertise-peer-urls").unwrap(), "https://[fd00::a]:7834");
        assert_eq!(flag(&member, "--listen-peer-urls").unwrap(), "https://192.0.2.1:7834");
        member.listen = "2001:db8::1".parse().unwrap();
        assert_eq!(flag(&member, "--listen-peer-urls").unwrap(), "https://[2001:db8::1]:7834");
        assert_eq!(flag(&member, "--initial-advertise-peer-urls").unwrap(), "https://[fd00::a]:7834");
    }

    #[test]
    fn a_joiner_names_all_members_and_a_founder_itself() {
        let mut member = member();
        assert_eq!(flag(&member, "--initial-cluster").unwrap(), "metropolis-aa=https://[fd00::a]:7834");
        assert_eq!(flag(&member, "--initial-cluster-state").unwrap(), "new");
        let other = "fd00::b".parse().unwrap();
        member.initial_cluster = InitialCluster::Existing(vec![("metropolis-bb".into(), other)]);
        assert_eq!(
            flag(&member, "--initial-cluster").unwrap(),
            "metropolis-aa=https://[fd00::a]:7834,metropolis-bb=https://[fd00::b]:7834"
        );
        assert_eq!(flag(&member, "--initial-cluster-state").unwrap(), "existing");
    }

    #[test]
    fn timing_and_renamed_flags_follow_their_input() {
        let mut member = member();
        assert_eq!(flag(&member, "--heartbeat-interval").unwrap(), "10");
        assert_eq!(flag(&member, "--election-timeout").unwrap(), "50");
        member.timing = Timing::Network(Pace::Far);
        assert_eq!(flag(&member, "--heartbeat-interval").unwrap(), "100");
        assert_eq!(flag(&member, "--election-timeout").unwrap(), "1000");
        let (before, after) =
            ("--experimental-peer-skip-client-san-verification", "--peer-skip-client-san-verification");
        for (version, old) in [((3, 4, 23), true), ((3, 5, 21), true), ((3, 6, 0), false), ((4, 0, 0), false)] {
            member.version = Version::new(version.0, version.1, version.2);
            assert_eq!(flag(&member, before).is_some(), old, "{version:?}");
            assert_eq!(flag(&member, after).is_some(), !old, "{version:?}");
        }
    }

    #[test]
    fn the_files_are_where_the_layout_has_them() {
        let disk = polis_storage::simulation::SimulatedDisk::default();
        let files = polis_storage::Layout::new(std::sync::Arc::new(disk)).ephemeral.consensus;
        for (file, name) in [
            (files.client_socket, CLIENT_SOCKET),
            (files.peer_ca, pem_files::CA),
            (files.peer_crl, pem_files::CRL),
            (files.peer_certificate, pem_files::CERTIFICATE),
            (files.peer_key, pem_files::KEY),
        ] {
            assert_eq!(file.path().name(), Some(name));
        }
    }

    #[test]
    fn what_keeps_peers_out_and_terms_calm_is_always_there() {
        for (name, value) in [
            ("--peer-client-cert-auth", "true"),
            ("--peer-crl-file", "peer-crl"),
            ("--pre-vote", "true"),
            ("--enable-grpc-gateway", "false"),
            ("--strict-reconfig-check", "false"),
            ("--listen-client-urls", "unix://client.sock:0"),
        ] {
            assert_eq!(flag(&member(), name).as_deref(), Some(value), "{name}");
        }
        assert_eq!(
            environment("http://p@127.0.0.1:1".into())[0],
            ("HTTPS_PROXY".into(), "http://p@127.0.0.1:1".into())
        );
    }
}
