//! Which points a change of members passes, and where: the places at which `changes` lets the power fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use crate::scene::Scene;

/// What is passed all the time, whatever happens to the members. `crash_matrix` kills there.
const OF_EVERY_DAY: [&str; 12] = [
    "curator/leadership/",
    "curator/node/labels",
    "curator/node/status",
    "curator/read",
    "directory",
    "last-state",
    "layout/",
    "node/",
    "peers/",
    "root/",
    "snapshots/",
    "start-record",
];

/// Sites that a change of members passes: it is none without them.
pub(crate) const NAMED: [&str; 16] = [
    // The leader's.
    "membership/begin",
    "membership/add-learner",
    "membership/grant-role",
    "membership/promote",
    "membership/request-removal",
    "membership/remove",
    "membership/complete",
    "curator/node/report",
    "curator/node/unlock-key",
    // Each member's: it knows the list, has split its key, tried it, and changed it.
    "members/newest",
    "journal/members",
    "journal/unlock-key",
    "unlock/split",
    "rekey/slot",
    "rekey/cluster",
    "rekey/old-slot",
];

/// A change of members: one comes, or one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Change {
    /// Members of the smaller cluster. The node with this number is the one that comes and goes.
    pub(crate) smaller: usize,
    pub(crate) direction: Direction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    Grows,
    Shrinks,
}

/// Who passes a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// The node that comes or goes.
    Moving,
    /// One of those that stay: for what the leader does, whichever leads.
    Staying,
}

/// A place to die at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) change: Change,
    pub(crate) who: Who,
    /// As `POLIS_FAULT` takes it, without the number of the pass.
    pub(crate) point: String,
    /// Which pass since the start of the node it is.
    pub(crate) pass: usize,
}

impl Change {
    pub(crate) fn before(self) -> usize {
        match self.direction {
            Direction::Grows => self.smaller,
            Direction::Shrinks => self.smaller + 1,
        }
    }

    pub(crate) fn after(self) -> usize {
        match self.direction {
            Direction::Grows => self.smaller + 1,
            Direction::Shrinks => self.smaller,
        }
    }

    /// What an operator calls for it.
    pub(crate) fn command(self, id: &str) -> String {
        match self.direction {
            Direction::Grows => format!("node add role ConsensusMember {id} --timeout 30s"),
            Direction::Shrinks => format!("node remove role ConsensusMember {id} --timeout 30s"),
        }
    }
}

impl Place {
    /// The site, without the step.
    pub(crate) fn site(&self) -> &str {
        self.point.rsplit_once('/').map_or(&self.point, |(site, _)| site)
    }

    pub(crate) fn fault(&self) -> String {
        format!("{}#{}", self.point, self.pass)
    }
}

/// Where a node logs the points that it passes.
pub(crate) fn log(scene: &Scene, number: usize) -> PathBuf {
    scene.cluster.hosts[number].directory().join("fault-points")
}

/// Carries out a change in a cluster that is settled, with all nodes started anew, and returns the places that it passes: each point
/// once for each side, at its first pass in the change.
pub(crate) fn record(scene: &mut Scene, change: Change) -> BTreeSet<Place> {
    let nodes = 0..=change.smaller;
    scene.power_cut();
    for number in nodes.clone() {
        fs::write(log(scene, number), "").expect("the log of fault points can be emptied");
        let mut command = scene.cluster.hosts[number].command();
        command.env("POLIS_FAULT_LOG", log(scene, number));
        scene.cluster.nodes[number] = Some(scene.cluster.hosts[number].spawn(command));
    }
    scene.wait_settled();
    let before: Vec<usize> = nodes.clone().map(|number| passed(scene, number).len()).collect();
    let id = scene.cluster.id(change.smaller);
    let _ = scene.polis(&change.command(&id));
    scene.members = change.after();
    scene.wait_settled();
    let mut places = BTreeMap::new();
    for (number, before) in nodes.zip(before) {
        let who = if number == change.smaller { Who::Moving } else { Who::Staying };
        let passed = passed(scene, number);
        for (index, point) in passed.iter().enumerate().skip(before) {
            if OF_EVERY_DAY.iter().any(|prefix| point.starts_with(prefix)) {
                continue;
            }
            let pass = passed[..=index].iter().filter(|other| *other == point).count();
            places.entry((who, point.clone())).or_insert(pass);
        }
    }
    places.into_iter().map(|((who, point), pass)| Place { change, who, point, pass }).collect()
}

fn passed(scene: &Scene, number: usize) -> Vec<String> {
    fs::read_to_string(log(scene, number)).unwrap_or_default().lines().map(str::to_owned).collect()
}
