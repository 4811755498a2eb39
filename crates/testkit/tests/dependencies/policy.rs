//! What the workspace may depend on, as tables, each row with its reason. A new crate needs a row here, and that is the
//! moment to think about where it stands.

/// Where one crate of the workspace stands, and what of the workspace it may name. Its own tests may also use the testkit.
pub(crate) struct Room {
    pub(crate) package: &'static str,
    /// Counted from the ground. Nothing depends on a higher floor.
    pub(crate) floor: u8,
    pub(crate) may_use: &'static [&'static str],
}

/// A package that only some crates of the workspace may name themselves.
pub(crate) struct Reserved {
    pub(crate) package: &'static str,
    pub(crate) for_packages: &'static [&'static str],
    pub(crate) reason: &'static str,
}

/// A package that must not be there.
pub(crate) struct Ban {
    pub(crate) package: &'static str,
    pub(crate) reason: &'static str,
}

/// A package that may be there in one version only, except those that are listed.
pub(crate) struct OneVersion {
    pub(crate) package: &'static str,
    /// Versions beside the newest, by their beginning ("1." is any 1.x), each known to be needed by somebody else's crate.
    pub(crate) also: &'static [&'static str],
}

pub(crate) struct Policy {
    pub(crate) rooms: &'static [Room],
    /// The one package that may hold unsafe code.
    pub(crate) unsafe_code_in: &'static str,
    /// Helper of tests, which tests of every crate may use.
    pub(crate) testkit: &'static str,
    pub(crate) reserved: &'static [Reserved],
    /// Not even through others.
    pub(crate) banned: &'static [Ban],
    /// Not named by the workspace; somebody else's crate may use it.
    pub(crate) not_ours: &'static [Ban],
    pub(crate) one_version: &'static [OneVersion],
    /// SPDX names of licences that ask for no more than to be named.
    pub(crate) licences: &'static [&'static str],
    pub(crate) registry: &'static str,
}

pub(crate) const POLICY: Policy = Policy {
    rooms: &[
        // Ground: these know nothing of Polis.
        Room { package: "polis-condition", floor: 0, may_use: &[] },
        Room { package: "polis-fault", floor: 0, may_use: &[] },
        Room { package: "polis-logtree", floor: 0, may_use: &[] },
        Room { package: "polis-proto", floor: 0, may_use: &[] },
        Room { package: "polis-protoc", floor: 0, may_use: &[] },
        Room { package: "polis-secret", floor: 0, may_use: &[] },
        Room { package: "polis-sys", floor: 0, may_use: &[] },
        Room { package: "polis-version", floor: 0, may_use: &[] },
        // The supervisor knows nothing of what the runnables do, identity no files, storage, disks and network no cluster.
        Room { package: "polis-disks", floor: 1, may_use: &["polis-fault", "polis-sys"] },
        Room { package: "polis-identity", floor: 1, may_use: &["polis-secret"] },
        // The static network of a machine as values, which both those who read parameters and the network need.
        Room { package: "polis-network-configuration", floor: 1, may_use: &["polis-proto"] },
        Room {
            package: "polis-parameters",
            floor: 1,
            may_use: &[
                "polis-identity",
                "polis-network-configuration",
                "polis-proto",
                "polis-recovery",
                "polis-secret",
            ],
        },
        // The recovery key and what is sealed to it, as values: no files, no clock. Parameters carry its public half; its blobs and
        // snapshot files have the envelope of storage.
        Room {
            package: "polis-recovery",
            floor: 1,
            may_use: &["polis-identity", "polis-proto", "polis-secret", "polis-storage"],
        },
        Room {
            package: "polis-storage",
            floor: 1,
            may_use: &["polis-fault", "polis-proto", "polis-secret", "polis-version"],
        },
        Room { package: "polis-supervisor", floor: 1, may_use: &["polis-condition", "polis-logtree", "polis-sys"] },
        Room {
            package: "polis-network",
            floor: 1,
            may_use: &[
                "polis-condition",
                "polis-network-configuration",
                // Its tests write configurations as parameters carry them.
                "polis-proto",
                "polis-storage",
                "polis-supervisor",
                "polis-sys",
            ],
        },
        Room { package: "polis-control", floor: 1, may_use: &["polis-condition", "polis-identity", "polis-recovery"] },
        // Consensus knows nothing of nodes and roles.
        Room {
            package: "polis-consensus",
            floor: 2,
            may_use: &[
                "polis-condition",
                "polis-fault",
                "polis-identity",
                "polis-logtree",
                "polis-secret",
                "polis-storage",
                "polis-supervisor",
                "polis-sys",
            ],
        },
        // Copies of what a member has; nothing of what that means.
        Room {
            package: "polis-snapshots",
            floor: 3,
            may_use: &[
                "polis-condition",
                "polis-consensus",
                "polis-fault",
                "polis-identity",
                "polis-storage",
                "polis-supervisor",
            ],
        },
        // Encrypted data partitions know nothing of clusters.
        Room {
            package: "polis-encryption",
            floor: 2,
            may_use: &["polis-disks", "polis-fault", "polis-secret", "polis-storage", "polis-sys"],
        },
        // The seal by the TPM. Its helper, the one program that is linked to the TPM's library, has the messages from it.
        Room { package: "polis-tpm", floor: 2, may_use: &["polis-secret", "polis-storage", "polis-sys"] },
        Room {
            package: "polis-tpm-helper",
            floor: 3,
            may_use: &["polis-secret", "polis-storage", "polis-sys", "polis-tpm"],
        },
        // What a machine does as its first process knows nothing of clusters and nodes.
        Room {
            package: "polis-machine",
            floor: 2,
            may_use: &[
                "polis-condition",
                "polis-disks",
                "polis-logtree",
                "polis-storage",
                "polis-supervisor",
                "polis-sys",
            ],
        },
        // Who speaks and who may, and nothing of what is served.
        Room {
            package: "polis-rpc",
            floor: 2,
            may_use: &["polis-identity", "polis-logtree", "polis-proto", "polis-supervisor", "polis-version"],
        },
        // Who opens whose data, as values: no files, no connections, no clock.
        Room { package: "polis-unlock", floor: 2, may_use: &["polis-identity", "polis-proto", "polis-secret"] },
        // The unlock port and who asks there: connections and time around what polis-unlock decides, and nothing of disks and etcd.
        Room {
            package: "polis-unlock-service",
            floor: 3,
            may_use: &[
                "polis-identity",
                "polis-proto",
                "polis-rpc",
                "polis-secret",
                "polis-supervisor",
                "polis-unlock",
            ],
        },
        // The curator knows nothing of local disks; its tests do, since the real etcd that they run needs one.
        Room {
            package: "polis-curator",
            floor: 3,
            may_use: &[
                "polis-condition",
                "polis-consensus",
                "polis-identity",
                "polis-parameters",
                "polis-proto",
                "polis-recovery",
                "polis-rpc",
                "polis-secret",
                "polis-storage",
                "polis-supervisor",
                "polis-unlock",
            ],
        },
        // What a node does because of its roles knows nothing of enrolment.
        Room {
            package: "polis-roleserve",
            floor: 4,
            may_use: &[
                "polis-condition",
                "polis-consensus",
                "polis-curator",
                "polis-identity",
                "polis-network",
                "polis-proto",
                "polis-rpc",
                "polis-secret",
                "polis-storage",
                "polis-supervisor",
                "polis-unlock",
                "polis-unlock-service",
            ],
        },
        // The Manager knows nothing of how a part does its work: no system calls, no log format.
        Room {
            package: "polis-manager",
            floor: 4,
            may_use: &[
                "polis-condition",
                "polis-consensus",
                "polis-curator",
                "polis-fault",
                "polis-identity",
                "polis-parameters",
                "polis-proto",
                "polis-recovery",
                "polis-roleserve",
                "polis-rpc",
                "polis-secret",
                "polis-storage",
                "polis-supervisor",
                "polis-unlock",
                "polis-unlock-service",
                "polis-version",
            ],
        },
        // Who makes images knows disks, and nothing of nodes.
        Room { package: "polis-image", floor: 2, may_use: &["polis-disks"] },
        // Who brings an image onto a machine knows how images are made and kept, and nothing of nodes.
        Room {
            package: "polis-update",
            floor: 3,
            may_use: &["polis-fault", "polis-image", "polis-storage", "polis-sys"],
        },
        // The composition root of the daemon: it may know all below.
        Room {
            package: "polis-node",
            floor: 5,
            may_use: &[
                "polis-condition",
                "polis-consensus",
                "polis-control",
                "polis-curator",
                "polis-encryption",
                "polis-fault",
                "polis-identity",
                "polis-image",
                "polis-logtree",
                "polis-machine",
                "polis-manager",
                "polis-network",
                "polis-parameters",
                "polis-proto",
                "polis-recovery",
                "polis-roleserve",
                "polis-rpc",
                "polis-secret",
                "polis-snapshots",
                "polis-storage",
                "polis-supervisor",
                "polis-tpm",
                "polis-unlock",
                "polis-unlock-service",
                "polis-update",
                "polis-version",
            ],
        },
        // The commands know nothing of the inside of a node: they ask it over its socket, and a cluster over the network.
        Room {
            package: "polis-cli",
            floor: 5,
            may_use: &[
                "polis-condition",
                "polis-control",
                "polis-disks",
                "polis-identity",
                "polis-image",
                "polis-parameters",
                "polis-proto",
                "polis-recovery",
                "polis-rpc",
                "polis-update",
                "polis-version",
            ],
        },
        // Its tests ask the nodes that they run over their socket.
        Room {
            package: "polis",
            floor: 6,
            may_use: &["polis-cli", "polis-control", "polis-fault", "polis-node", "polis-sys", "polis-version"],
        },
        // The testkit looks at a node from outside: files, socket, processes. Only its client that writes through consensus is put
        // together from the inside, as a module of a node is, and its owner's client from the parts of the operator's. Nothing of it
        // ships.
        Room {
            package: "polis-testkit",
            floor: 6,
            may_use: &[
                "polis-condition",
                "polis-consensus",
                "polis-control",
                "polis-encryption",
                "polis-identity",
                "polis-manager",
                "polis-proto",
                "polis-roleserve",
                "polis-rpc",
                "polis-storage",
                "polis-supervisor",
                "polis-sys",
                "polis-tpm",
            ],
        },
    ],
    unsafe_code_in: "polis-sys",
    testkit: "polis-testkit",
    reserved: &[
        Reserved {
            package: "etcd-client",
            for_packages: &["polis-consensus", "polis-testkit"],
            reason: "all others use the namespaced client of polis-consensus, which names a fault point for each transaction",
        },
        Reserved {
            package: "rtnetlink",
            for_packages: &["polis-network"],
            reason: "addresses come as watched values from polis-network",
        },
        Reserved {
            package: "netlink-packet-route",
            for_packages: &["polis-network"],
            reason: "addresses come as watched values from polis-network",
        },
        Reserved {
            package: "libc",
            for_packages: &["polis-sys"],
            reason: "system calls that no safe crate offers live in polis-sys",
        },
        Reserved {
            package: "nix",
            for_packages: &["polis-sys"],
            reason: "rustix offers the same, and one crate for system calls is enough",
        },
        Reserved {
            package: "tss-esapi",
            for_packages: &["polis-tpm-helper"],
            reason: "it needs a C library, which is never linked into polis itself",
        },
        Reserved {
            package: "clap",
            for_packages: &["polis", "polis-cli", "polis-node", "polis-testkit"],
            reason: "the parts below take plain values, not a command line",
        },
    ],
    banned: &[
        Ban {
            package: "openssl",
            reason: "TLS, where it is needed, is ring's, and two providers would be one too many",
        },
        Ban {
            package: "openssl-sys",
            reason: "TLS, where it is needed, is ring's, and this one needs a C library of the system",
        },
        Ban { package: "native-tls", reason: "TLS, where it is needed, is ring's" },
        Ban {
            package: "aws-lc-rs",
            reason: "TLS, where it is needed, is ring's; a default feature of some other crate brings this one",
        },
        Ban { package: "aws-lc-sys", reason: "TLS, where it is needed, is ring's; this one compiles C for a minute" },
        Ban { package: "sharks", reason: "RUSTSEC-2024-0398: shares are biased; never mended" },
        Ban { package: "fatfs", reason: "writes directories that fsck.vfat reports as damaged" },
        Ban { package: "async-std", reason: "the runtime is tokio" },
        Ban { package: "protobuf", reason: "messages are prost's" },
    ],
    not_ours: &[
        Ban { package: "anyhow", reason: "one error enum per operation, with thiserror" },
        Ban { package: "eyre", reason: "one error enum per operation, with thiserror" },
        Ban { package: "log", reason: "events go through tracing, which knows the distinguished name" },
        Ban { package: "chrono", reason: "time is jiff's" },
        Ban { package: "lazy_static", reason: "no globals; std has OnceLock and LazyLock where one is needed" },
        Ban { package: "once_cell", reason: "no globals; std has OnceLock and LazyLock where one is needed" },
    ],
    one_version: &[
        OneVersion { package: "clap", also: &[] },
        OneVersion { package: "ed25519-dalek", also: &[] },
        OneVersion { package: "h2", also: &[] },
        OneVersion { package: "http", also: &[] },
        OneVersion { package: "hyper", also: &[] },
        OneVersion { package: "netlink-packet-route", also: &[] },
        OneVersion { package: "prost", also: &[] },
        OneVersion { package: "rcgen", also: &[] },
        OneVersion { package: "ring", also: &[] },
        OneVersion { package: "rustix", also: &[] },
        OneVersion { package: "rustls", also: &[] },
        OneVersion { package: "sha2", also: &[] },
        // Derive macros of several generations, at build time only.
        OneVersion { package: "syn", also: &["1.", "2."] },
        OneVersion { package: "tokio", also: &[] },
        OneVersion { package: "tonic", also: &[] },
        OneVersion { package: "tower", also: &[] },
        OneVersion { package: "x509-parser", also: &[] },
    ],
    licences: &[
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        // Of data: the certificates of the authorities of the web.
        "CDLA-Permissive-2.0",
        "ISC",
        "MIT",
        "MIT-0",
        "Unicode-3.0",
        "Unlicense",
        "Zlib",
    ],
    registry: "registry+https://github.com/rust-lang/crates.io-index",
};
