//! The table: every fault point of a first start and of a later one, in the order in which it is passed, with the windows of
//! `crash-windows.md` that a kill there falls into.
//!
//! A recorded start must pass exactly these points, so a durable write or a transaction that is added or taken away changes
//! this table.

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

/// A start: what its main line passes in order, and the last state, which another runnable writes beside it.
pub(crate) struct Start {
    pub(crate) name: &'static str,
    pub(crate) sites: &'static [Site],
    /// How often `last_state.json` is written: at least for the first state and for Running, at most for every transition.
    /// Transitions that follow each other quickly are written as one.
    pub(crate) last_state: (usize, usize),
}

/// The site of the last state.
pub(crate) const LAST_STATE: Site = Site { name: "last-state", steps: Write, windows: &["S1", "W20"] };

/// All windows of stage 1.
pub(crate) const WINDOWS: [&str; 16] =
    ["S1", "S2", "S3", "S4", "S5", "S6", "W1", "W2", "W3", "W4", "W6", "W10", "W12", "W13", "W18", "W20"];

/// Windows that a kill at a point alone does not open: what must be prepared, and the test that does.
pub(crate) const PREPARED: [(&str, fn()); 6] = [
    ("S1", prepared::s1_parameters_that_are_still_present_are_ignored),
    ("S5", prepared::s5_a_slow_etcd_is_waited_for),
    ("S6", prepared::s6_a_founding_that_etcd_had_only_begun_is_begun_again),
    ("W12", prepared::w12_torn_roles_are_mended),
    ("W18", prepared::w18_a_failed_format_is_tried_again_in_the_same_process),
    ("W20", prepared::w20_a_longer_stale_temporary_is_swept),
];

use Steps::{Directory, Settle, Transaction, Write};

const fn site(name: &'static str, steps: Steps, windows: &'static [&'static str]) -> Site {
    Site { name, steps, windows }
}

pub(crate) const FIRST_START: Start = Start {
    name: "first start",
    sites: &[
        // Nothing of value exists yet: the next start begins anew.
        site("root/create", Directory, &["S2", "W1"]),
        site("layout/esp", Directory, &["S2", "W1"]),
        site("layout/esp/polis", Directory, &["S2", "W1"]),
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
    last_state: (2, 6),
};

pub(crate) const LATER_START: Start = Start {
    name: "later start",
    sites: &[
        // Once before anything is touched, and once by the Manager.
        site("journal/load", Settle, &["S1", "W10"]),
        site("layout/esp", Directory, &["S1"]),
        site("layout/esp/polis", Directory, &["S1"]),
        site("journal/load", Settle, &["S1", "W10"]),
        site("data/partition/load", Settle, &["S1", "W10"]),
        site("node/credentials/load", Settle, &["S1", "W10"]),
        site("node/roles/load", Settle, &["S1", "W10", "W12"]),
        site("etcd/credentials/load", Settle, &["S1", "W10"]),
        site("etcd/member-directory", Directory, &["S1", "W10"]),
        site("node/credentials/load", Settle, &["S1"]),
        site("start-record", Transaction, &["S1"]),
    ],
    last_state: (2, 4),
};

/// A place to die at: a point, passed for the `pass`-th time.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) point: String,
    pub(crate) pass: usize,
    /// Whether each start passes it. Only the last state may be written less often than at most.
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

impl Start {
    /// The points of the main line, in order.
    pub(crate) fn points(&self) -> Vec<String> {
        self.sites.iter().flat_map(Site::points).collect()
    }

    /// Every place to die at.
    pub(crate) fn places(&self) -> Vec<Place> {
        let mut passes = std::collections::HashMap::<String, usize>::new();
        let main = self.sites.iter().flat_map(|site| site.points().map(|point| (point, site.windows)));
        let mut places: Vec<Place> = main
            .map(|(point, windows)| {
                let pass = passes.entry(point.clone()).or_default();
                *pass += 1;
                Place { point, pass: *pass, certain: true, windows }
            })
            .collect();
        let (least, most) = self.last_state;
        for pass in 1..=most {
            let windows = LAST_STATE.windows;
            places.extend(LAST_STATE.points().map(|point| Place { point, pass, certain: pass <= least, windows }));
        }
        places
    }
}

#[test]
fn every_window_of_stage_1_is_named() {
    let sites = FIRST_START.sites.iter().chain(LATER_START.sites).chain([&LAST_STATE]);
    let mut named: Vec<&str> =
        sites.flat_map(|site| site.windows).copied().chain(PREPARED.map(|(window, _)| window)).collect();
    named.sort_unstable();
    named.dedup();
    let mut wanted = WINDOWS.to_vec();
    wanted.sort_unstable();
    assert_eq!(named, wanted);
}
