//! The table: every fault point of a first start and of a later one, with the windows of `crash-windows.md` that a kill there
//! falls into. The Manager's are passed in the order of the table. Beside it runs what a node does for its cluster, whose points
//! are passed when it is their turn.
//!
//! A recorded start must pass exactly these points, so a durable write or a transaction that is added or taken away changes
//! this table.

use std::collections::HashMap;

use crate::prepared;

/// A call site, and so all points around one durable step.
pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) steps: Steps,
    pub(crate) windows: &'static [&'static str],
}

/// What is done at a site, and with it the names of its points.
#[derive(Clone, Copy)]
pub(crate) enum Steps {
    /// A file is replaced.
    Write,
    /// A directory is made.
    Directory,
    /// What an earlier process may have left half durable is made durable, before it is read.
    Settle,
    /// etcd carries out a change.
    Transaction,
}

/// A start: what its main line passes in order, and what is passed beside it, at times that chance decides.
pub(crate) struct Start {
    pub(crate) name: &'static str,
    pub(crate) sites: &'static [Site],
    pub(crate) beside: &'static [Beside],
}

/// A site that other runnables pass beside the Manager. Its name may be one of the main line, too: what the Manager reads, others
/// read as well.
pub(crate) struct Beside {
    pub(crate) site: Site,
    pub(crate) often: Often,
}

/// How often a site is passed beside the main line of a start.
#[derive(Clone, Copy)]
pub(crate) enum Often {
    /// At least and at most so many times.
    Between(usize, usize),
    /// At least so many times until the node has come to rest, and again whenever something changes.
    AtLeast(usize),
    /// Only some seconds later, and then again and again.
    Later,
}

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
use Steps::{Directory, Settle, Transaction, Write};

const fn site(name: &'static str, steps: Steps, windows: &'static [&'static str]) -> Site {
    Site { name, steps, windows }
}

const fn beside(often: Often, name: &'static str, steps: Steps, windows: &'static [&'static str]) -> Beside {
    Beside { site: site(name, steps, windows), often }
}

pub(crate) const FIRST_START: Start = Start {
    name: "first start",
    sites: &[
        // Nothing of value exists yet: the next start begins anew.
        site("root/create", Directory, &["S2", "W1"]),
        site("layout/esp", Directory, &["S2", "W1"]),
        site("layout/esp/polis", Directory, &["S2", "W1"]),
        site("peers/load", Settle, &["S2", "W1"]),
        site("journal/load", Settle, &["S2", "W1", "W10"]),
        // From `renamed` on this is a node with an identity.
        site("journal/intent", Write, &["S2", "W1", "W2", "W10", "W20"]),
        site("data/partition/load", Settle, &["W10", "W18"]),
        site("data/format", Directory, &["W10", "W18"]),
        site("data/format/directories", Directory, &["W10", "W18"]),
        site("data/format/etcd/data", Directory, &["W10", "W18"]),
        site("data/format/partition", Write, &["W10", "W18", "W20"]),
        site("data/partition/load", Settle, &["W10", "W18"]),
        site("node/roles/load", Settle, &["W10", "W12"]),
        site("roles/first", Write, &["W10", "W12", "W13", "W20"]),
        site("journal/formatted", Write, &["W10", "W18", "W20"]),
        // Storage is ready, and the cluster does not exist.
        site("etcd/credentials/load", Settle, &["S6", "W3", "W13"]),
        site("etcd/credentials/found", Write, &["S3", "S4", "S6", "W3", "W4", "W10", "W13", "W20"]),
        site("etcd/member-directory", Directory, &["S6", "W3", "W13"]),
        site("birth", Transaction, &["S6", "W3", "W6", "W13"]),
        // The cluster exists, and this node does not know it yet.
        site("node/credentials/load", Settle, &["S6", "W10"]),
        site("node/credentials", Write, &["S3", "S4", "W4", "W10", "W20"]),
        site("etcd/credentials/without-authority", Write, &["S3", "S4", "W4", "W10", "W20"]),
        site("journal/enrolled", Write, &["W10", "W20"]),
        // A member, which is not Running yet.
        site("node/credentials/load", Settle, &["S1"]),
        site("start-record", Transaction, &["S1"]),
    ],
    beside: &[
        // At least for the first state and for Running, at most for every transition: those that follow each other quickly are
        // written as one.
        beside(Between(2, 6), "last-state", Write, &["S1", "W20"]),
        // From here on for a node that has an identity. What earlier starts have left of the cluster:
        beside(Between(1, 1), "node/revocations/load", Settle, &["S1", "W10"]),
        beside(Between(1, 1), "directory/load", Settle, &["S1", "W11"]),
        beside(Between(1, 1), "members/load", Settle, &["S1", "W10"]),
        beside(Between(1, 1), "node/roles/load", Settle, &["S1", "W12"]),
        beside(AtLeast(1), "etcd/joining/load", Settle, &["S1"]),
        beside(AtLeast(2), "etcd/credentials/load", Settle, &["S1"]),
        // Who leads, and what the leader is told.
        beside(Between(1, 1), "curator/leadership/claim", Transaction, &["S1"]),
        beside(AtLeast(3), "curator/read", Transaction, &["S1"]),
        // With and perhaps before it is known that this node has a curator. Each may come between a report and what that was
        // based on, which is then repeated.
        beside(Between(1, 2), "curator/node/status", Transaction, &["S1"]),
        beside(Between(1, 3), "curator/node/report", Transaction, &["S1"]),
        beside(Later, "curator/leadership/alive", Transaction, &["S1"]),
        // What the cluster has told.
        beside(Between(1, 3), "directory", Write, &["S1", "W11", "W20"]),
        beside(Between(1, 1), "node/revocations", Write, &["S1", "W10", "W20"]),
        beside(Between(1, 1), "members/newest", Write, &["S1", "W10", "W20"]),
    ],
};

pub(crate) const LATER_START: Start = Start {
    name: "later start",
    sites: &[
        // Once before anything is touched, and once by the Manager.
        site("journal/load", Settle, &["S1", "W10"]),
        site("layout/esp", Directory, &["S1"]),
        site("layout/esp/polis", Directory, &["S1"]),
        site("peers/load", Settle, &["S1"]),
        site("journal/load", Settle, &["S1", "W10"]),
        site("data/partition/load", Settle, &["S1", "W10"]),
        site("node/credentials/load", Settle, &["S1", "W10"]),
        site("node/roles/load", Settle, &["S1", "W10", "W12"]),
        site("etcd/joining/load", Settle, &["S1", "W10"]),
        site("etcd/credentials/load", Settle, &["S1", "W10"]),
        site("directory/load", Settle, &["S1", "W11"]),
        site("node/credentials/load", Settle, &["S1"]),
        site("start-record", Transaction, &["S1"]),
    ],
    beside: &[
        beside(Between(2, 4), "last-state", Write, &["S1", "W20"]),
        beside(Between(1, 1), "etcd/member-directory", Directory, &["S1", "W10"]),
        beside(Between(1, 1), "node/revocations/load", Settle, &["S1", "W10"]),
        beside(Between(1, 1), "directory/load", Settle, &["S1", "W11"]),
        beside(Between(1, 1), "members/load", Settle, &["S1", "W10"]),
        beside(Between(1, 1), "node/roles/load", Settle, &["S1", "W12"]),
        beside(AtLeast(1), "etcd/joining/load", Settle, &["S1"]),
        beside(AtLeast(2), "etcd/credentials/load", Settle, &["S1"]),
        beside(Between(1, 1), "curator/leadership/claim", Transaction, &["S1"]),
        beside(AtLeast(3), "curator/read", Transaction, &["S1"]),
        beside(Between(1, 2), "curator/node/status", Transaction, &["S1"]),
        beside(Later, "curator/leadership/alive", Transaction, &["S1"]),
    ],
};

/// A place to die at: a point, passed for the `pass`-th time.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) point: String,
    pub(crate) pass: usize,
    /// Whether each start passes it. What is passed beside the main line may be passed less often than at most.
    pub(crate) certain: bool,
    pub(crate) windows: &'static [&'static str],
}

impl Steps {
    pub(crate) const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Write => &["begin", "created", "synced", "renamed", "done"],
            Self::Directory => &["begin", "created", "done"],
            Self::Settle => &["begin", "done"],
            Self::Transaction => &["before", "after"],
        }
    }
}

impl Site {
    pub(crate) fn points(&self) -> impl Iterator<Item = String> {
        self.steps.names().iter().map(|step| format!("{}/{step}", self.name))
    }
}

impl Often {
    /// At least so often, and at most, until the node has come to rest. What is not bounded has no most.
    pub(crate) const fn until_rest(self) -> (usize, Option<usize>) {
        match self {
            Self::Between(least, most) => (least, Some(most)),
            Self::AtLeast(least) => (least, None),
            Self::Later => (0, None),
        }
    }

    /// How often a start that goes on for as long as is needed passes it for sure, and at which passes more it is worth trying.
    const fn to_die_at(self) -> (usize, usize) {
        match self {
            Self::Between(least, most) => (least, most),
            Self::AtLeast(least) => (least, least),
            Self::Later => (1, 1),
        }
    }
}

impl Start {
    /// The points of the main line, in order.
    pub(crate) fn points(&self) -> Vec<String> {
        self.sites.iter().flat_map(Site::points).collect()
    }

    /// Every place to die at.
    pub(crate) fn places(&self) -> Vec<Place> {
        let mut passes = HashMap::<String, usize>::new();
        let main = self.sites.iter().flat_map(|site| site.points().map(|point| (point, site.windows)));
        let mut places: Vec<Place> = main
            .map(|(point, windows)| {
                let pass = passes.entry(point.clone()).or_default();
                *pass += 1;
                Place { point, pass: *pass, certain: true, windows }
            })
            .collect();
        for Beside { site, often } in self.beside {
            let (least, most) = often.to_die_at();
            for point in site.points() {
                let in_main = passes.get(&point).copied().unwrap_or_default();
                places.extend((1..=most).map(|pass| Place {
                    point: point.clone(),
                    pass: in_main + pass,
                    certain: pass <= least,
                    windows: site.windows,
                }));
            }
        }
        places
    }

    /// The points that are passed only after a while.
    pub(crate) fn later(&self) -> impl Iterator<Item = String> {
        let is_later = |beside: &&Beside| match beside.often {
            Later => true,
            Between(..) | AtLeast(_) => false,
        };
        self.beside.iter().filter(is_later).flat_map(|beside| beside.site.points())
    }

    /// Whether a start that has passed these points has come to rest: its main line is at its end, and everything was passed
    /// beside it that will be for sure.
    pub(crate) fn is_at_rest(&self, passed: &[String]) -> bool {
        let count = |points: &[String], point: &str| points.iter().filter(|passed| *passed == point).count();
        let main = self.points();
        let beside = self.beside.iter().flat_map(|beside| {
            let (least, _) = beside.often.until_rest();
            beside.site.points().map(move |point| (point, least))
        });
        main.iter()
            .map(|point| (point.clone(), 0))
            .chain(beside)
            .all(|(point, least)| count(passed, &point) >= count(&main, &point) + least)
    }
}

#[test]
fn every_window_that_one_node_can_show_is_named() {
    let starts = [&FIRST_START, &LATER_START];
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
