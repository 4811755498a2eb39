//! The table: every site that a node alone passes for a change of its key, in order.

use polis_testkit::Steps;

/// A call site, and how its points are called.
pub(crate) struct Site {
    name: &'static str,
    steps: Steps,
    /// How often one change passes it.
    pub(crate) times: usize,
}

use Steps::{Call, Removal, Write};

const fn site(name: &'static str, steps: Steps, times: usize) -> Site {
    Site { name, steps, times }
}

/// The sites.
pub(crate) const SITES: &[Site] = &[
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

impl Site {
    /// Its points.
    pub(crate) fn points(&self) -> impl Iterator<Item = String> {
        self.steps.points(self.name)
    }
}

/// Every place to die at, as `POLIS_FAULT` takes it.
pub(crate) fn places() -> Vec<String> {
    let of_site = |site: &'static Site| {
        (1..=site.times).flat_map(move |pass| site.points().map(move |point| format!("{point}#{pass}")))
    };
    SITES.iter().flat_map(of_site).collect()
}

/// Whether a point belongs to changes of keys.
pub(crate) fn is_of_a_change(point: &str) -> bool {
    const PARTS: [&str; 4] = ["journal/", "rekey/", "data/gocryptfs/slot", "curator/node/unlock-key"];
    PARTS.iter().any(|part| point.starts_with(part)) && !point.starts_with("journal/load")
}
