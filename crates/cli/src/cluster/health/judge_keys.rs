//! What the observations mean for the start after a power failure of all members. Nothing here asks anybody.

use super::finding::{Finding, Level};
use super::judge::Judge;

impl Judge<'_> {
    pub(super) fn cold_start(&self, findings: &mut Vec<Finding>) {
        let Some(status) = self.status() else { return };
        if let Some(cold_start) = &status.cold_start {
            let summary = &cold_start.summary;
            let finding = |level| Finding::new(level, "cold-start", format!("after a power failure: {summary}"));
            let is_settled = cold_start.behind.is_empty();
            let is_enough = cold_start.members_needed == Some(cold_start.members_needed_settled);
            findings.push(match (is_settled, is_enough, cold_start.members_needed) {
                (true, _, _) => finding(Level::Ok),
                // It opens as it should, and the last step has not been tried.
                (false, true, _) => finding(Level::Notice)
                    .cause(cold_start.remark.clone())
                    .quorum("none while the members run"),
                (false, false, needed) => finding(if needed.is_some() { Level::Warning } else { Level::Error })
                    .cause(cold_start.remark.clone())
                    .quorum("none while the members run; after a power failure of all of them it takes more than a quorum to come back")
                    .next(format!(
                        "bring these back, or look at what they say of it: {}; then look again: {}",
                        cold_start.behind.iter().map(|id| self.command(&format!("node logs {id}"))).collect::<Vec<_>>().join(", "),
                        self.command("cluster status")
                    )),
            });
        }
        for removal in &status.unfinished_removals {
            findings.push(
                Finding::new(Level::Warning, "removal", "its removal is not finished")
                    .node(&removal.node_id)
                    .cause(removal.text.clone())
                    .quorum("none: it has no vote any more")
                    .next(
                        "start the members that have not heard of it, or remove them, too; until then keep the removed machine \
                         off the network",
                    ),
            );
        }
    }
}
