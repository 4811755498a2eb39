//! A tree with a clock that the test moves, and with names instead of keys.

use std::collections::BTreeMap;
use std::time::Duration;

use polis_logtree::DistinguishedName;

use super::{Action, Life, MAX_CHILDREN, Outcome, StartError, Tree};
use crate::backoff::BackoffSettings;
use crate::settings::Settings;

/// Backoff of exactly 1 s, 2 s, 4 s ..., at most 16 s; 10 s to stop, then 5 s of grace; four deaths are often.
pub(super) fn settings() -> Settings {
    Settings {
        backoff: BackoffSettings {
            initial: Duration::from_secs(1),
            multiplier: 2.0,
            randomization: 0.0,
            maximum: Duration::from_secs(16),
        },
        stop_deadline: Duration::from_secs(10),
        stop_grace: Duration::from_secs(5),
        restarts_often: 4,
        max_children: MAX_CHILDREN,
        seed: Some(1),
    }
}

pub(super) struct Simulation {
    pub(super) tree: Tree<()>,
    pub(super) now: Duration,
    /// Every life that was started and is not over.
    pub(super) lives: BTreeMap<String, Life>,
    /// What was to be done since the last [`Simulation::events`], in words.
    events: Vec<String>,
}

impl Simulation {
    /// A tree whose root has been started.
    pub(super) fn new() -> Self {
        let root = DistinguishedName::parse("root").unwrap();
        let tree = Tree::new(settings(), 1, root, (), Duration::ZERO);
        let mut simulation = Self { tree, now: Duration::ZERO, lives: BTreeMap::new(), events: Vec::new() };
        simulation.drain();
        simulation
    }

    pub(super) fn group(&mut self, parent: &str, names: &[&str]) -> Result<(), StartError> {
        let members = names.iter().map(|name| ((*name).to_string(), ())).collect();
        let (life, owner) = (self.lives[parent], DistinguishedName::parse(parent).unwrap());
        let result = self.tree.run_group(life, &owner, members, self.now);
        self.drain();
        result
    }

    pub(super) fn reserve(&mut self, parent: &str, name: &str) -> Result<(), StartError> {
        self.tree.reserve(self.lives[parent], &DistinguishedName::parse(parent).unwrap(), name)
    }

    pub(super) fn healthy(&mut self, name: &str) -> Result<(), String> {
        let result = self.tree.healthy(self.lives[name], self.now).map_err(|error| error.to_string());
        self.drain();
        result
    }

    pub(super) fn done(&mut self, name: &str) -> Result<(), String> {
        self.tree.done(self.lives[name]).map_err(|error| error.to_string())
    }

    /// Its future comes back, but something of it stays.
    pub(super) fn returns(&mut self, name: &str, outcome: Outcome) {
        self.tree.returned(self.lives[name], outcome, self.now);
        self.drain();
    }

    /// What was left of it after it came back is gone.
    pub(super) fn ends(&mut self, name: &str) {
        let life = self.lives.remove(name).unwrap();
        self.tree.ended(life, self.now);
        self.drain();
    }

    /// It comes back and nothing of it stays.
    pub(super) fn leaves(&mut self, name: &str, outcome: Outcome) {
        self.returns(name, outcome);
        self.ends(name);
    }

    pub(super) fn dies(&mut self, name: &str) {
        self.leaves(name, Outcome::Failed("broken".into()));
    }

    pub(super) fn heeds(&mut self, names: &[&str]) {
        for name in names {
            self.leaves(name, Outcome::Cancelled);
        }
    }

    /// Lets time pass; everything that is due happens at its time.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.tree.next_timer().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.tree.advance(self.now);
            self.drain();
        }
        self.now = end;
    }

    pub(super) fn shut_down(&mut self) {
        self.tree.shut_down(self.now);
        self.drain();
    }

    /// What was to be done since the last call.
    pub(super) fn events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// As [`Simulation::events`], without the transitions.
    pub(super) fn acts(&mut self) -> Vec<String> {
        self.events().into_iter().filter(|event| !event.contains("->")).collect()
    }

    fn drain(&mut self) {
        while let Some(action) = self.tree.next_action() {
            let event = match action {
                Action::Start { life, distinguished_name, payload: () } => {
                    let earlier = self.lives.insert(distinguished_name.to_string(), life);
                    assert_eq!(earlier, None, "{distinguished_name} was started while it lives");
                    format!("start {distinguished_name}")
                }
                Action::Cancel(key) => format!("cancel {}", self.tree.node(key).distinguished_name),
                Action::Abort(key) => format!("abort {}", self.tree.node(key).distinguished_name),
                Action::Ended(_) => continue,
                Action::Transition(transition) => {
                    let from = transition.from.map_or("none".into(), |state| state.to_string());
                    format!("{} {from}->{}", transition.distinguished_name, transition.to)
                }
                Action::Died { distinguished_name, error } => format!("died {distinguished_name}: {error}"),
                Action::Late(distinguished_name) => format!("late {distinguished_name}"),
                Action::Overdue(listed) => format!("overdue {}", join(&listed.first)),
                Action::RestartsOften(listed) => format!("often {}", join(&listed.first)),
            };
            self.events.push(event);
        }
    }
}

fn join(names: &[DistinguishedName]) -> String {
    format!("[{}]", names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
}
