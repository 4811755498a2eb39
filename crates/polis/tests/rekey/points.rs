//! The tables: every site that a node passes for a change of its key, alone, with a copy of its key in its journal, and as one of three,
//! with its key split among the others.

use polis_testkit::Steps;

/// A call site, and how its points are called.
pub(crate) struct Site {
    name: &'static str,
    steps: Steps,
    /// How often one change passes it.
    pub(crate) times: usize,
}

use Steps::{Call, Removal, Write};

/// What the leader passes: a member that does not lead does not die there.
pub(crate) const OF_THE_LEADER: &str = "curator/";

const fn site(name: &'static str, steps: Steps, times: usize) -> Site {
    Site { name, steps, times }
}

/// The sites of a node alone.
pub(crate) const ALONE: &[Site] = &[
    // The next key is in the journal, beside the present one.
    site("journal/rekey/begin", Write, 1),
    // It opens the partition, as the present one does.
    site("rekey/slot", Call, 1),
    site("data/gocryptfs/slot/add", Write, 1),
    // The cluster keeps it.
    site("rekey/cluster", Call, 1),
    site("curator/node/unlock-key", Call, 1),
    // The old one opens nothing any more.
    site("rekey/old-slot", Call, 1),
    site("data/gocryptfs/slot/remove", Removal, 1),
    // Nor is it in the journal, in neither generation.
    site("journal/rekey/done", Write, 2),
];

/// The sites of a member of three. No key is in its journal.
pub(crate) const OF_THREE: &[Site] = &[
    // The next key is split, beside the present one; later it is alone in the file.
    site("unlock/split", Write, 2),
    site("rekey/slot", Call, 1),
    site("data/gocryptfs/slot/add", Write, 1),
    site("rekey/cluster", Call, 1),
    site("curator/node/unlock-key", Call, 1),
    site("rekey/old-slot", Call, 1),
    site("data/gocryptfs/slot/remove", Removal, 1),
];

impl Site {
    /// Its points.
    pub(crate) fn points(&self) -> impl Iterator<Item = String> {
        self.steps.points(self.name)
    }

    /// Whether only the member that leads passes it.
    pub(crate) fn is_of_the_leader(&self) -> bool {
        self.name.starts_with(OF_THE_LEADER)
    }
}

/// Every place to die at, as `POLIS_FAULT` takes it.
pub(crate) fn places(sites: &'static [Site]) -> Vec<String> {
    let of_site = |site: &'static Site| {
        (1..=site.times).flat_map(move |pass| site.points().map(move |point| format!("{point}#{pass}")))
    };
    sites.iter().flat_map(of_site).collect()
}

/// Whether a point belongs to changes of keys.
pub(crate) fn is_of_a_change(point: &str) -> bool {
    const PARTS: [&str; 5] = ["journal/", "unlock/", "rekey/", "data/gocryptfs/slot", "curator/node/unlock-key"];
    const LOADS: [&str; 2] = ["journal/load", "unlock/load"];
    let is_any = |parts: &[&str]| parts.iter().any(|part| point.starts_with(part));
    is_any(&PARTS) && !is_any(&LOADS)
}
