//! What etcd's lines do to what is known of its run.

use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::consensus::Inner;
use crate::health::Run;
use crate::log_line::{Hint, NOT_AMONG_THE_MEMBERS, complaint};
use crate::status::Phase;

/// Complaints of etcd that are kept for the message about its death.
const KEPT_COMPLAINTS: usize = 5;

/// Characters of a complaint that are kept.
const KEPT_COMPLAINT_LENGTH: usize = 300;

impl Inner {
    /// What etcd has said in its last run about its data, if it could not read them.
    pub(crate) fn damage(&self) -> Option<String> {
        self.child.borrow().run.as_ref().and_then(|run| run.damage.clone())
    }

    /// What etcd has complained about in its last run.
    pub(crate) fn complaints(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether etcd has said in its last run that the cluster has removed this member.
    pub(crate) fn was_removed(&self) -> bool {
        self.child.borrow().run.as_ref().is_some_and(|run| run.removed)
    }

    /// Whether etcd has ended because it did not find itself among the members.
    pub(crate) fn does_not_find_itself(&self) -> bool {
        self.complaints().iter().any(|complaint| complaint.contains(NOT_AMONG_THE_MEMBERS))
    }

    /// Says that etcd does not run.
    pub(crate) fn take_down(&self) {
        self.child.send_modify(|child| child.run = None);
        // The observer may be gone already, and what it found out about the last run no longer counts.
        self.status.send_if_modified(|status| {
            // That it was removed holds also when the runnable ends.
            let phase = if status.phase == Phase::Removed { Phase::Removed } else { Phase::Down };
            let down = (phase, None, None);
            let is_news = (status.phase, status.process_id, status.leader) != down;
            (status.phase, status.process_id, status.leader) = down;
            is_news
        });
    }

    pub(crate) fn take_hint(&self, hint: Hint, line: &str, started: Instant) {
        match hint {
            Hint::Nothing => {}
            Hint::Complaint => self.complain(line),
            Hint::NoSpace => {
                self.complain(line);
                self.update_run(started, |run| run.no_space_at = Some(Instant::now()));
            }
            Hint::ServingPeers => self.update_run(started, |run| run.serving_peers = true),
            Hint::Serving => self.update_run(started, |run| run.serving = true),
            Hint::Elected => self.update_run(started, |run| run.electing_since = None),
            Hint::Electing => self.update_run(started, |run| {
                run.electing_since.get_or_insert_with(Instant::now);
            }),
            Hint::Changed => self.update_run(started, |_| {}),
            Hint::Removed => self.update_run(started, |run| run.removed = true),
            Hint::Damaged => {
                self.complain(line);
                let said = shortened(line);
                self.update_run(started, |run| {
                    run.damage.get_or_insert(said);
                });
            }
        }
    }

    fn update_run(&self, started: Instant, update: impl FnOnce(&mut Run)) {
        self.child.send_modify(|child| {
            if child.run.as_ref().is_none_or(|run| run.started < started) {
                child.run = Some(Run::new(started));
            }
            if let Some(run) = child.run.as_mut().filter(|run| run.started == started) {
                update(run);
            }
            child.hints += 1;
        });
    }

    fn complain(&self, line: &str) {
        let mut complaints = self.complaints();
        if complaints.len() == KEPT_COMPLAINTS {
            complaints.pop_front();
        }
        complaints.push_back(shortened(line));
    }
}

fn shortened(line: &str) -> String {
    complaint(line).chars().take(KEPT_COMPLAINT_LENGTH).collect()
}
