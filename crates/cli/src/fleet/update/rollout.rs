//! [`Rollout`]: which node is updated when. Pure: what the cluster is comes in, and what to do next goes out.
//!
//! A node is taken only when the cluster can do without it right then: never more than so many are away, those counted that were down
//! before; the members that stay and answer are a quorum; and whoever leads now is the last. The first node that does not come back
//! as it should ends it all.

use std::time::Duration;

/// Longest time that a node may be away: a large machine takes some minutes to get through its firmware, and an image that hangs must
/// be given the time in which a watchdog, or a person, starts the machine again with the one before.
pub(crate) const AWAY_TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// How long the cluster may take to do without the next node after one has come back: its member has to catch up.
pub(crate) const SETTLE_TIMEOUT: Duration = Duration::from_secs(3 * 60);

/// What the cluster is like now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// All ordinary nodes of the cluster, and whether the leader hears of them.
    pub(crate) nodes: Vec<(String, bool)>,
    /// Consensus members with a vote, by node, and whether they answer. One that no node is known for has no name.
    pub(crate) voters: Vec<(Option<String>, bool)>,
    /// How many of them must answer.
    pub(crate) quorum: usize,
    /// The node that leads.
    pub(crate) leader: String,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Install the image on this node; it goes on working.
    Install(String),
    /// Restart this node, at once: the decision holds for the moment.
    Restart(String),
    /// Look again in a while, because of this.
    Wait(String),
    /// Give up: it would endanger the cluster, because of this.
    Refuse(String),
    /// All is done.
    Finished,
}

/// How a node that is away looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The leader hears of it.
    pub(crate) healthy: bool,
    /// It has started again since it was told to.
    pub(crate) started_again: bool,
    /// SHA-256 of the image that it says it runs, and whether that image has proven itself.
    pub(crate) image: Option<(Vec<u8>, bool)>,
}

/// Why a node has not come back as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It runs the image that it had before.
    PreviousImage,
    /// It has not started again.
    NotStarted,
    /// It has started and is not healthy.
    NotHealthy,
    /// It is healthy with the new image, which does not count as good.
    NotProven,
}

/// How far one node is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Installed { image: Vec<u8> },
    Away { image: Vec<u8>, since: Duration },
    Done,
}

/// An update of several nodes. Times are those since its beginning.
#[derive(Clone, Debug)]
pub(crate) struct Rollout {
    nodes: Vec<(String, Stage)>,
    max_unavailable: usize,
    /// The quorum does not count.
    bypass_quorum: bool,
    /// Nodes are installed and not restarted.
    install_only: bool,
    /// Since when the cluster could not do without the next node, and nobody was away.
    blocked_since: Option<Duration>,
    has_restarted_any: bool,
}

impl Rollout {
    pub(crate) fn new(
        nodes: impl IntoIterator<Item = String>,
        max_unavailable: usize,
        bypass_quorum: bool,
        install_only: bool,
    ) -> Self {
        let nodes = nodes.into_iter().map(|id| (id, Stage::Waiting)).collect();
        Self { nodes, max_unavailable, bypass_quorum, install_only, blocked_since: None, has_restarted_any: false }
    }

    /// What to do next.
    pub(crate) fn next(&mut self, view: &View, now: Duration) -> Decision {
        let is_away = self.away().next().is_some();
        let open: Vec<&str> = self.nodes.iter().filter(|(_, stage)| is_open(stage)).map(|(id, _)| &**id).collect();
        let Some(candidate) = open.iter().find(|id| **id != view.leader).or(open.first()).map(|id| (*id).to_owned())
        else {
            return if is_away {
                Decision::Wait("the last nodes are on their way back".into())
            } else {
                Decision::Finished
            };
        };
        if candidate == view.leader && is_away && !self.install_only {
            return Decision::Wait("the leader comes last".into());
        }
        if !self.install_only
            && let Some(obstacle) = self.obstacle(&candidate, view)
        {
            if is_away {
                return Decision::Wait(obstacle);
            }
            let since = *self.blocked_since.get_or_insert(now);
            // Before the first node nothing that we have done can pass.
            let passes = self.has_restarted_any && now.saturating_sub(since) < SETTLE_TIMEOUT;
            return if passes { Decision::Wait(obstacle) } else { Decision::Refuse(obstacle) };
        }
        self.blocked_since = None;
        match self.stage(&candidate) {
            Some(Stage::Installed { .. }) => Decision::Restart(candidate),
            Some(Stage::Waiting | Stage::Away { .. } | Stage::Done) | None => Decision::Install(candidate),
        }
    }

    /// The image with this SHA-256 is installed on a node. `runs` is whether it runs there already.
    pub(crate) fn installed(&mut self, id: &str, image: Vec<u8>, runs: bool) {
        let done = runs || self.install_only;
        self.set(id, if done { Stage::Done } else { Stage::Installed { image } });
    }

    /// A node was told to restart.
    pub(crate) fn restarted(&mut self, id: &str, now: Duration) {
        if let Some(Stage::Installed { image }) = self.stage(id).cloned() {
            self.has_restarted_any = true;
            self.set(id, Stage::Away { image, since: now });
        }
    }

    /// What was seen of a node that is away. Returns whether it is back.
    ///
    /// # Errors
    ///
    /// When it has not come back as it should.
    pub(crate) fn seen(&mut self, id: &str, seen: &Seen, now: Duration) -> Result<bool, Lost> {
        let Some(Stage::Away { image, since }) = self.stage(id) else { return Ok(false) };
        let late = now.saturating_sub(*since) >= AWAY_TIMEOUT;
        let problem = match &seen.image {
            _ if !seen.started_again => Lost::NotStarted,
            Some((running, _)) if running != image => return Err(Lost::PreviousImage),
            Some((_, true)) if seen.healthy => {
                self.set(id, Stage::Done);
                return Ok(true);
            }
            Some((_, false)) if seen.healthy => Lost::NotProven,
            Some(_) | None => Lost::NotHealthy,
        };
        if late { Err(problem) } else { Ok(false) }
    }

    /// Nodes that are away because of this.
    pub(crate) fn away(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter(|(_, stage)| matches!(stage, Stage::Away { .. })).map(|(id, _)| &**id)
    }

    /// How many are done, of how many.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.nodes.iter().filter(|(_, stage)| *stage == Stage::Done).count(), self.nodes.len())
    }

    /// Nodes that were not touched.
    pub(crate) fn left(&self) -> Vec<&str> {
        self.nodes.iter().filter(|(_, stage)| is_open(stage)).map(|(id, _)| &**id).collect()
    }

    /// Why the cluster cannot do without this node now.
    fn obstacle(&self, candidate: &str, view: &View) -> Option<String> {
        let is_away = |id: &str| self.away().any(|away| away == id);
        let down: Vec<&str> = view
            .nodes
            .iter()
            .filter(|(id, healthy)| id != candidate && (!healthy || is_away(id)))
            .map(|(id, _)| &**id)
            .collect();
        if down.len() >= self.max_unavailable {
            return Some(format!(
                "{} down already ({}), and with {candidate} it would be more than the {} that may be",
                if down.len() == 1 { "one node is".to_owned() } else { format!("{} nodes are", down.len()) },
                down.join(", "),
                self.max_unavailable
            ));
        }
        let is_voter = view.voters.iter().any(|(id, _)| id.as_deref() == Some(candidate));
        // The only member comes back by itself, and nobody is there to be surprised.
        if self.bypass_quorum || !is_voter || view.voters.len() == 1 {
            return None;
        }
        let stay = |id: &Option<String>| id.as_deref().is_none_or(|id| id != candidate && !is_away(id));
        let others = view.voters.iter().filter(|(id, reachable)| *reachable && stay(id)).count();
        (others < view.quorum).then(|| {
            format!(
                "without {candidate} {others} of {} members with a vote would answer, and {} must",
                view.voters.len(),
                view.quorum
            )
        })
    }

    fn stage(&self, id: &str) -> Option<&Stage> {
        self.nodes.iter().find(|(known, _)| known == id).map(|(_, stage)| stage)
    }

    fn set(&mut self, id: &str, new: Stage) {
        if let Some((_, stage)) = self.nodes.iter_mut().find(|(known, _)| known == id) {
            *stage = new;
        }
    }
}

fn is_open(stage: &Stage) -> bool {
    match stage {
        Stage::Waiting | Stage::Installed { .. } => true,
        Stage::Away { .. } | Stage::Done => false,
    }
}

#[cfg(test)]
mod tests;
