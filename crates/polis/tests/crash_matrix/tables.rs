//! The tables: every fault point of a first start and of a later one, with the windows of `crash-windows.md` that a kill there
//! falls into. The Manager's are passed in the order of the table. Beside it runs what a node does for its cluster, whose points
//! are passed when it is their turn.
//!
//! A recorded start must pass exactly these points, so a durable write or a transaction that is added or taken away changes
//! these tables. What is passed for the data partition depends on how that is protected ([`StorageSecurity`]).

use polis_testkit::{Steps, StorageSecurity};

use crate::points::{Beside, Often, Site, Start};
use crate::prepared;

/// All windows that one node alone can show.
pub(crate) const WINDOWS: [&str; 18] =
    ["S1", "S2", "S3", "S4", "S5", "S6", "W1", "W2", "W3", "W4", "W6", "W10", "W11", "W12", "W13", "W14", "W18", "W20"];

/// Windows that a kill at a point alone does not open: what must be prepared, and the test that does.
pub(crate) const PREPARED: [(&str, fn()); 8] = [
    ("S1", prepared::s1_parameters_that_are_still_present_are_ignored),
    ("S5", prepared::s5_a_slow_etcd_is_waited_for),
    ("S6", prepared::s6_a_founding_that_etcd_had_only_begun_is_begun_again),
    ("W11", prepared::w11_a_directory_that_is_rewritten_always_has_this_node),
    ("W12", prepared::w12_torn_roles_are_mended),
    ("W14", prepared::w14_roles_that_were_not_saved_are_healed),
    ("W18", prepared::w18_a_failed_format_is_tried_again_in_the_same_process),
    ("W20", prepared::w20_a_longer_stale_temporary_is_swept),
];

use Often::{AtLeast, Between, Later};
use Steps::{Call, Child, Directory, Settle, Write};

const fn site(name: &'static str, steps: Steps, windows: &'static [&'static str]) -> Site {
    Site { name, steps, windows }
}

const fn beside(often: Often, name: &'static str, steps: Steps, windows: &'static [&'static str]) -> Beside {
    Beside { site: site(name, steps, windows), often }
}

/// The first start of a node.
pub(crate) fn first_start() -> Start {
    let (data, keys): (_, &[Beside]) = match StorageSecurity::of_this_run() {
        StorageSecurity::Insecure => (PLAIN_FORMAT, BESIDE_FIRST_PLAIN),
        StorageSecurity::Authenticated => (ENCRYPTED_FORMAT, BESIDE_FIRST_KEYS),
    };
    let sites = [BEFORE_FORMAT, data, AFTER_FORMAT].concat();
    Start { name: "first start", sites, beside: [BESIDE_FIRST, keys].concat() }
}

/// A start of a node that is a member already.
pub(crate) fn later_start() -> Start {
    let (data, keys): (_, &[Beside]) = match StorageSecurity::of_this_run() {
        StorageSecurity::Insecure => (PLAIN_OPEN, &[]),
        StorageSecurity::Authenticated => (ENCRYPTED_OPEN, BESIDE_KEYS),
    };
    let sites = [BEFORE_OPEN, data, AFTER_OPEN].concat();
    Start { name: "later start", sites, beside: [BESIDE_LATER, keys].concat() }
}

/// Whether the key of encrypted data is where it belongs, which is looked at whenever something is new in the cluster.
const BESIDE_KEYS: &[Beside] = &[
    beside(AtLeast(1), "journal/load", Settle, &["S1", "W10"]),
    beside(AtLeast(1), "unlock/load", Settle, &["S1", "W10"]),
];

/// What the leader is told of a node in its first start: what it can, and which list it holds.
const BESIDE_FIRST_PLAIN: &[Beside] = &[beside(Between(1, 2), "curator/node/report", Call, &["S1"])];

/// The same with the split of the key, and what the cluster says of that when it was told.
const BESIDE_FIRST_KEYS: &[Beside] = &[
    beside(Between(1, 6), "curator/node/report", Call, &["S1"]),
    beside(AtLeast(1), "unlock/load", Settle, &["S1", "W10"]),
    beside(Between(1, 1), "journal/floors", Write, &["S1", "W10", "W20"]),
];

const BEFORE_FORMAT: &[Site] = &[
    // Nothing of value exists yet: the next start begins anew.
    site("root/create", Directory, &["S2", "W1"]),
    site("layout/esp", Directory, &["S2", "W1"]),
    site("layout/esp/polis", Directory, &["S2", "W1"]),
    site("peers/load", Settle, &["S2", "W1"]),
    site("journal/load", Settle, &["S2", "W1", "W10"]),
    // From `renamed` on this is a node with an identity.
    site("journal/intent", Write, &["S2", "W1", "W2", "W10", "W20"]),
];

const PLAIN_FORMAT: &[Site] = &[
    site("data/partition/load", Settle, &["W10", "W18"]),
    site("data/format", Directory, &["W10", "W18"]),
    site("data/format/directories", Directory, &["W10", "W18"]),
    site("data/format/etcd/data", Directory, &["W10", "W18"]),
    site("data/format/partition", Write, &["W10", "W18", "W20"]),
    site("data/partition/load", Settle, &["W10", "W18"]),
];

const ENCRYPTED_FORMAT: &[Site] = &[
    site("data/partition/load", Settle, &["W10", "W18"]),
    site("data/gocryptfs/directory", Directory, &["W10", "W18"]),
    site("data/gocryptfs/directories", Directory, &["W10", "W18"]),
    // Until the slot is there nothing was made, and with its key that of the journal.
    site("data/gocryptfs/initialize", Child, &["W10", "W18"]),
    site("data/gocryptfs/slot", Write, &["W10", "W18", "W20"]),
    site("data/gocryptfs/mount-point", Directory, &["W10", "W18"]),
    // From here on a kill leaves a dead mount.
    site("data/gocryptfs/mount", Child, &["W10", "W18"]),
    site("data/partition/load", Settle, &["W10", "W18"]),
    site("data/format", Directory, &["W10", "W18"]),
    site("data/format/directories", Directory, &["W10", "W18"]),
    site("data/format/etcd/data", Directory, &["W10", "W18"]),
    site("data/format/partition", Write, &["W10", "W18", "W20"]),
    site("data/gocryptfs/partition", Write, &["W10", "W18", "W20"]),
    site("data/partition/load", Settle, &["W10", "W18"]),
    site("data/partition/load", Settle, &["W10", "W18"]),
];

const AFTER_FORMAT: &[Site] = &[
    site("node/roles/load", Settle, &["W10", "W12"]),
    site("roles/first", Write, &["W10", "W12", "W13", "W20"]),
    site("journal/formatted", Write, &["W10", "W18", "W20"]),
    // Storage is ready, and the cluster does not exist.
    site("etcd/credentials/load", Settle, &["S6", "W3", "W13"]),
    site("etcd/credentials/found", Write, &["S3", "S4", "S6", "W3", "W4", "W10", "W13", "W20"]),
    site("etcd/member-directory", Directory, &["S6", "W3", "W13"]),
    site("birth", Call, &["S6", "W3", "W6", "W13"]),
    // The cluster exists, and this node does not know it yet.
    site("node/credentials/load", Settle, &["S6", "W10"]),
    site("node/credentials", Write, &["S3", "S4", "W4", "W10", "W20"]),
    site("etcd/credentials/without-authority", Write, &["S3", "S4", "W4", "W10", "W20"]),
    site("journal/enrolled", Write, &["W10", "W20"]),
    // Once more, over the older generation, which has the node key still.
    site("journal/enrolled", Write, &["W10", "W20"]),
    // A member, which is not Running yet.
    site("members/load", Settle, &["S1", "W10"]),
    site("node/credentials/load", Settle, &["S1"]),
    site("start-record", Call, &["S1"]),
];

const BESIDE_FIRST: &[Beside] = &[
    // At least for the first state and for Running, at most for each of New, CreatingCluster before the journal and in its three
    // phases, Running, and the stop: those that follow each other quickly are written as one.
    beside(Between(2, 7), "last-state", Write, &["S1", "W20"]),
    // What would open the node with the recovery key, of which this one has none.
    beside(Between(1, 1), "recovery/load", Settle, &["S1"]),
    // From here on for a node that has an identity. What earlier starts have left of the cluster:
    beside(Between(1, 1), "node/revocations/load", Settle, &["S1", "W10"]),
    beside(Between(1, 1), "directory/load", Settle, &["S1", "W11"]),
    beside(Between(1, 1), "node/roles/load", Settle, &["S1", "W12"]),
    beside(AtLeast(1), "etcd/joining/load", Settle, &["S1"]),
    beside(AtLeast(2), "etcd/credentials/load", Settle, &["S1"]),
    // Who leads, and what the leader is told.
    beside(Between(1, 1), "curator/leadership/claim", Call, &["S1"]),
    beside(AtLeast(3), "curator/read", Call, &["S1"]),
    // With and perhaps before it is known that this node has a curator.
    beside(Between(1, 2), "curator/node/status", Call, &["S1"]),
    beside(Later, "curator/leadership/alive", Call, &["S1"]),
    // What the cluster has told.
    beside(Between(1, 3), "directory", Write, &["S1", "W11", "W20"]),
    beside(Between(1, 1), "node/revocations", Write, &["S1", "W10", "W20"]),
    beside(Between(1, 1), "members/newest", Write, &["S1", "W10", "W20"]),
    // That it was seen.
    beside(AtLeast(1), "journal/load", Settle, &["S1", "W10"]),
    beside(Between(1, 1), "journal/members", Write, &["S1", "W10", "W20"]),
];

const BEFORE_OPEN: &[Site] = &[
    // Once before anything is touched, and once by the Manager.
    site("journal/load", Settle, &["S1", "W10"]),
    site("layout/esp", Directory, &["S1"]),
    site("layout/esp/polis", Directory, &["S1"]),
    site("peers/load", Settle, &["S1"]),
    site("journal/load", Settle, &["S1", "W10"]),
    site("members/load", Settle, &["S1", "W10"]),
];

const PLAIN_OPEN: &[Site] = &[site("data/partition/load", Settle, &["S1", "W10"])];

const ENCRYPTED_OPEN: &[Site] = &[
    site("data/partition/load", Settle, &["S1", "W10"]),
    site("data/gocryptfs/mount-point", Directory, &["S1"]),
    site("data/gocryptfs/mount", Child, &["S1"]),
    site("data/partition/load", Settle, &["S1", "W10"]),
];

const AFTER_OPEN: &[Site] = &[
    site("node/credentials/load", Settle, &["S1", "W10"]),
    site("node/roles/load", Settle, &["S1", "W10", "W12"]),
    site("etcd/joining/load", Settle, &["S1", "W10"]),
    site("etcd/credentials/load", Settle, &["S1", "W10"]),
    site("directory/load", Settle, &["S1", "W11"]),
    site("node/credentials/load", Settle, &["S1"]),
    site("start-record", Call, &["S1"]),
];

const BESIDE_LATER: &[Beside] = &[
    // At most for New before and after the journal was read, Joining, Running, and the stop.
    beside(Between(2, 5), "last-state", Write, &["S1", "W20"]),
    beside(Between(1, 1), "recovery/load", Settle, &["S1"]),
    beside(Between(1, 1), "etcd/member-directory", Directory, &["S1", "W10"]),
    beside(Between(1, 1), "node/revocations/load", Settle, &["S1", "W10"]),
    beside(Between(1, 1), "directory/load", Settle, &["S1", "W11"]),
    beside(Between(1, 1), "node/roles/load", Settle, &["S1", "W12"]),
    beside(AtLeast(1), "etcd/joining/load", Settle, &["S1"]),
    beside(AtLeast(2), "etcd/credentials/load", Settle, &["S1"]),
    beside(Between(1, 1), "curator/leadership/claim", Call, &["S1"]),
    beside(AtLeast(3), "curator/read", Call, &["S1"]),
    beside(Between(1, 2), "curator/node/status", Call, &["S1"]),
    // The start before may have ended between the list and the report of it.
    beside(Between(0, 1), "curator/node/report", Call, &["S1"]),
    beside(Later, "curator/leadership/alive", Call, &["S1"]),
];

#[test]
fn every_window_that_one_node_can_show_is_named() {
    let starts = [first_start(), later_start()];
    let sites =
        starts.iter().flat_map(|start| start.sites.iter().chain(start.beside.iter().map(|beside| &beside.site)));
    let mut named: Vec<&str> =
        sites.flat_map(|site| site.windows).copied().chain(PREPARED.map(|(window, _)| window)).collect();
    named.sort_unstable();
    named.dedup();
    let mut wanted = WINDOWS.to_vec();
    wanted.sort_unstable();
    assert_eq!(named, wanted);
}
