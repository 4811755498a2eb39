//! The table: every site that a joiner passes on its way, and every one that its leader passes for it, with the windows of
//! `crash-windows.md` that a kill there falls into; and what needs more than a kill.
//!
//! A recorded life must pass these sites and no other, so a durable write or a transaction that is added or taken away changes
//! this table.

use std::sync::LazyLock;

use polis_testkit::{Steps, StorageSecurity};

use crate::scene::{FOUNDER, Goal, JOINER};
use crate::{deleted, other_leader, prepared};

/// A call site, and so all points around one durable step.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    /// The node that passes it.
    pub(crate) node: usize,
    pub(crate) name: &'static str,
    pub(crate) steps: Steps,
    /// Which of its passes the node is to die in.
    pub(crate) pass: usize,
    /// Whether it is passed so often for sure.
    pub(crate) is_certain: bool,
    /// How far the joiner must come for it to be passed.
    pub(crate) goal: Goal,
    pub(crate) windows: &'static [&'static str],
}

use Goal::{Member, Up};
use Steps::{Call, Child, Directory, Removal, Settle, Write};

const fn joiner(name: &'static str, steps: Steps, goal: Goal, windows: &'static [&'static str]) -> Site {
    Site { node: JOINER, name, steps, pass: 1, is_certain: true, goal, windows }
}

const fn leader(name: &'static str, goal: Goal, windows: &'static [&'static str]) -> Site {
    Site { node: FOUNDER, name, steps: Call, pass: 1, is_certain: true, goal, windows }
}

const fn at_pass(pass: usize, site: Site) -> Site {
    Site { pass, ..site }
}

const fn perhaps(site: Site) -> Site {
    Site { is_certain: false, ..site }
}

/// All windows of this stage.
pub(crate) const WINDOWS: [&str; 13] =
    ["W7", "W8", "W9", "W11", "W14", "W17", "W19", "W21", "W22", "W23", "W24", "W25", "W26"];

/// Windows that a kill at a point alone does not open: what must be prepared, and the test that does.
pub(crate) const PREPARED: [(&str, fn()); 7] = [
    ("W19", prepared::w19_a_full_esp_after_the_commit_is_waited_for),
    ("W21", prepared::w21_a_leader_that_is_away_is_asked_again_and_again),
    ("W22", deleted::w22_a_node_that_is_deleted_while_it_commits_or_joins_stops),
    ("W23", prepared::w23_a_role_that_is_given_back_starts_clean),
    ("W24", prepared::w24_a_node_that_is_not_up_gets_no_consensus_role),
    ("W25", prepared::w25_the_founder_gives_its_role_up_in_the_same_boot),
    ("W26", other_leader::w26_another_leader_ends_what_one_that_stays_dead_has_begun),
];

/// Windows that other test programs show as well: the window, the text of the program, and the test.
pub(crate) const ELSEWHERE: [(&str, &str, &str); 4] = [
    ("W11", include_str!("../crash_matrix/prepared.rs"), "w11_a_directory_that_is_rewritten_always_has_this_node"),
    ("W14", include_str!("../crash_matrix/prepared.rs"), "w14_roles_that_were_not_saved_are_healed"),
    ("W22", include_str!("../cluster/deletion.rs"), "a_deleted_node_stops_with_that_reason_and_never_starts_again"),
    ("W22", include_str!("../cluster/deletion.rs"), "a_node_that_is_deleted_while_it_waits_or_sleeps_learns_of_it"),
];

/// The sites, each node's in their order. What the joiner passes for its data depends on how they are protected.
pub(crate) static SITES: LazyLock<Vec<Site>> = LazyLock::new(|| {
    let [format, running, voting]: [&[Site]; 3] = match StorageSecurity::of_this_run() {
        StorageSecurity::Insecure => [PLAIN_FORMAT, &[], &[]],
        StorageSecurity::Authenticated => [ENCRYPTED_FORMAT, KEY_DROPPED, KEY_KEPT],
    };
    [BEFORE_FORMAT, format, UNTIL_RUNNING, running, UNTIL_GONE, voting].concat()
});

const BEFORE_FORMAT: &[Site] = &[
    // Nobody knows of the joiner yet.
    joiner("root/create", Directory, Up, &[]),
    joiner("layout/esp", Directory, Up, &[]),
    joiner("layout/esp/polis", Directory, Up, &[]),
    joiner("peers/load", Settle, Up, &[]),
    joiner("journal/load", Settle, Up, &[]),
    joiner("last-state", Write, Up, &[]),
    joiner("journal/intent", Write, Up, &[]),
    joiner("register/call", Call, Up, &["W7", "W17"]),
    // It is registered.
    joiner("journal/admitted", Write, Up, &["W7", "W17"]),
];

const PLAIN_FORMAT: &[Site] = &[
    joiner("data/partition/load", Settle, Up, &["W7"]),
    joiner("data/format", Directory, Up, &["W7"]),
    joiner("data/format/directories", Directory, Up, &["W7"]),
    joiner("data/format/etcd/data", Directory, Up, &["W7"]),
    joiner("data/format/partition", Write, Up, &["W7"]),
];

const ENCRYPTED_FORMAT: &[Site] = &[
    joiner("data/partition/load", Settle, Up, &["W7"]),
    joiner("data/gocryptfs/directory", Directory, Up, &["W7"]),
    joiner("data/gocryptfs/directories", Directory, Up, &["W7"]),
    joiner("data/gocryptfs/initialize", Child, Up, &["W7"]),
    joiner("data/gocryptfs/slot", Write, Up, &["W7"]),
    joiner("data/gocryptfs/mount-point", Directory, Up, &["W7"]),
    joiner("data/gocryptfs/mount", Child, Up, &["W7"]),
    joiner("data/format", Directory, Up, &["W7"]),
    joiner("data/format/directories", Directory, Up, &["W7"]),
    joiner("data/format/etcd/data", Directory, Up, &["W7"]),
    joiner("data/format/partition", Write, Up, &["W7"]),
    joiner("data/gocryptfs/partition", Write, Up, &["W7"]),
];

/// A node that is known to the cluster leaves the cluster's half of its key to it, in both generations of its journal.
const KEY_DROPPED: &[Site] = &[
    joiner("journal/unlock-key", Write, Up, &["W9"]),
    perhaps(at_pass(2, joiner("journal/unlock-key", Write, Up, &["W9"]))),
    joiner("unlock/load", Settle, Up, &["W9"]),
];

/// A second member must come back alone, and keeps it again, before it could have a vote.
const KEY_KEPT: &[Site] = &[
    at_pass(3, joiner("journal/unlock-key", Write, Member, &["W14"])),
    // Members tell each other since which epoch they have split their keys.
    perhaps(joiner("journal/floors", Write, Member, &["W14"])),
    // Once enough of them have heard that it is gone.
    perhaps(leader("membership/finish", Member, &["W14", "W26"])),
];

const UNTIL_RUNNING: &[Site] = &[
    joiner("node/roles/load", Settle, Up, &["W7"]),
    joiner("roles/first", Write, Up, &["W7"]),
    joiner("journal/formatted", Write, Up, &["W7"]),
    joiner("node/credentials/load", Settle, Up, &["W7"]),
    // It asks to be let in, first as a node that waits for approval, then as one that is approved.
    joiner("commit/call", Call, Up, &["W7"]),
    at_pass(2, joiner("commit/call", Call, Up, &["W8"])),
    joiner("directory/load", Settle, Up, &["W9"]),
    joiner("directory/first", Write, Up, &["W9", "W11"]),
    joiner("node/credentials", Write, Up, &["W9"]),
    joiner("journal/enrolled", Write, Up, &["W9"]),
    // Once more, over the older generation, which has the node key and the ticket still.
    // A start after that makes both generations alike at another site.
    perhaps(at_pass(2, joiner("journal/enrolled", Write, Up, &["W9"]))),
    // It runs.
    joiner("members/load", Settle, Up, &[]),
    joiner("recovery/load", Settle, Up, &[]),
    joiner("node/revocations/load", Settle, Up, &[]),
    joiner("etcd/joining/load", Settle, Up, &[]),
    joiner("etcd/credentials/load", Settle, Up, &[]),
    joiner("node/revocations", Write, Up, &[]),
    joiner("members/newest", Write, Up, &[]),
    joiner("journal/members", Write, Up, &[]),
    joiner("directory", Write, Up, &["W11"]),
    perhaps(at_pass(2, joiner("directory", Write, Member, &["W11"]))),
];

const UNTIL_GONE: &[Site] = &[
    // It becomes a consensus member.
    joiner("etcd/joining/begin", Write, Member, &["W14"]),
    joiner("roles/recorded", Write, Member, &["W14"]),
    joiner("etcd/credentials/issued", Write, Member, &["W14"]),
    joiner("etcd/member-directory", Directory, Member, &["W14"]),
    perhaps(joiner("curator/read", Call, Member, &[])),
    joiner("etcd/joining/finish", Removal, Member, &[]),
    perhaps(at_pass(3, joiner("members/newest", Write, Member, &[]))),
    // What the leader does about it, until it runs.
    leader("curator/node/register", Up, &["W7", "W17", "W26"]),
    leader("curator/node/approve", Up, &["W7", "W26"]),
    leader("curator/node/commit", Up, &["W8", "W26"]),
    perhaps(at_pass(2, leader("curator/node/status", Up, &["W26"]))),
    leader("curator/node/report", Up, &["W26"]),
    // Until it votes.
    leader("membership/enqueue", Member, &["W14", "W26"]),
    leader("membership/begin", Member, &["W14", "W26"]),
    leader("membership/add-learner", Member, &["W14", "W26"]),
    leader("membership/certificate", Member, &["W14", "W26"]),
    leader("membership/grant-role", Member, &["W14", "W26"]),
    leader("membership/promote", Member, &["W14", "W26"]),
    leader("membership/complete", Member, &["W14", "W26"]),
    // Until it is gone again.
    leader("membership/request-removal", Member, &["W14", "W26"]),
    leader("membership/remove", Member, &["W14", "W26"]),
    at_pass(2, leader("membership/complete", Member, &["W14", "W26"])),
    leader("curator/node/delete", Up, &["W26"]),
];

/// What the leader passes for itself, or at times that have nothing to do with the joiner: these points are those of a node
/// alone, at which `crash_matrix` kills.
pub(crate) const OF_A_NODE_ALONE: [&str; 22] = [
    "curator/leadership/alive",
    "curator/leadership/claim",
    "curator/read",
    "data/gocryptfs/mount",
    "data/gocryptfs/mount-point",
    "data/partition/load",
    "directory",
    "directory/load",
    "etcd/credentials/load",
    "etcd/joining/load",
    "etcd/member-directory",
    "journal/floors",
    "journal/load",
    "journal/members",
    "last-state",
    "layout/esp",
    "layout/esp/polis",
    "members/newest",
    "peers/load",
    "recovery/load",
    "start-record",
    "unlock/load",
];

/// A place to die at.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) site: &'static Site,
    /// The points with their passes, as `POLIS_FAULT` takes them: one for each start of the node, one after the other.
    pub(crate) faults: Vec<String>,
    /// Whether the other node is killed at that moment, too.
    pub(crate) is_together: bool,
}

impl Site {
    fn fault(&self, step: &str, pass: usize) -> String {
        format!("{}/{step}#{pass}", self.name)
    }

    /// To die before it, and then, in the next start, after it. That start passes it anew.
    fn both_sides(&self) -> Vec<String> {
        let names = self.steps.names();
        vec![self.fault(names[0], self.pass), self.fault(names[names.len() - 1], 1)]
    }

    /// To die at each of its points, each in a life of its own.
    fn each_point(&self) -> impl Iterator<Item = Vec<String>> {
        self.steps.names().iter().map(|step| vec![self.fault(step, self.pass)])
    }

    /// Whether both nodes are killed there also in a short run: where the one waits for the other, and where each has told the
    /// other something that it may not have written down.
    fn is_shared(&self) -> bool {
        const SHARED: [&str; 7] = [
            "register/call",
            "commit/call",
            "node/credentials",
            "etcd/joining/begin",
            "curator/node/register",
            "curator/node/commit",
            "membership/promote",
        ];
        SHARED.contains(&self.name)
    }
}

/// Every place to die at: on both sides of each site, and in a long run at each point alone.
pub(crate) fn places(is_soak: bool) -> Vec<Place> {
    let mut places = Vec::new();
    for site in SITES.iter() {
        let place = |faults, is_together| Place { site, faults, is_together };
        places.push(place(site.both_sides(), false));
        if site.is_shared() {
            places.push(place(site.both_sides(), true));
        }
        if is_soak {
            places.extend(site.each_point().map(|faults| place(faults, false)));
            places.extend(site.each_point().map(|faults| place(faults, true)));
        }
    }
    places
}

#[test]
fn every_window_of_this_stage_is_named() {
    for (window, program, test) in ELSEWHERE {
        assert!(program.contains(&format!("fn {test}()")), "{window}: there is no test {test}");
    }
    let of_sites = SITES.iter().flat_map(|site| site.windows).copied();
    let others = PREPARED.map(|(window, _)| window).into_iter().chain(ELSEWHERE.map(|(window, ..)| window));
    let mut named: Vec<&str> = of_sites.chain(others).collect();
    named.sort_unstable();
    named.dedup();
    let mut wanted = WINDOWS.to_vec();
    wanted.sort_unstable();
    assert_eq!(named, wanted);
}

#[test]
fn a_short_run_has_both_sides_of_every_site() {
    let places = places(false);
    for site in SITES.iter() {
        let of_site = places.iter().filter(|place| std::ptr::eq(place.site, site) && !place.is_together);
        let faults: Vec<&String> = of_site.flat_map(|place| &place.faults).collect();
        let ends = [site.steps.names()[0], site.steps.names()[site.steps.names().len() - 1]];
        let is_there = |step| faults.iter().any(|fault| fault.starts_with(&format!("{}/{step}#", site.name)));
        assert!(ends.iter().all(is_there), "{}: {faults:?}", site.name);
    }
}
