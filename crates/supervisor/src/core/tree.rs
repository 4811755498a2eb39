//! The tree itself: its nodes and groups, and how they come to be.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use polis_logtree::DistinguishedName;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::intensity::Intensity;
use super::timers::Timers;
use super::{Action, GroupKey, Life, Moment, NodeKey};
use crate::backoff::Backoff;
use crate::name::{self, is_valid_name};
use crate::report::{State, Transition};
use crate::runnable::Cancelled;
use crate::settings::Settings;

/// Most children of one runnable, and most names it may reserve. A runnable that starts children without end must not
/// take the room of the others.
pub const MAX_CHILDREN: usize = 16_384;

/// Most runnables of one supervisor. A node has some dozens; a cluster's bookkeeping may come to thousands.
pub const MAX_RUNNABLES: usize = 131_072;

/// Most levels of the tree. So many names of the greatest length still make a distinguished name that is not too long
/// ([`NAME_BYTES`](polis_logtree::NAME_BYTES)).
pub const MAX_DEPTH: usize = 16;

/// The longest error that is kept and logged, in bytes; the rest is cut off.
const MAX_ERROR_LENGTH: usize = 4096;

/// Why a runnable may not start children or reserve a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The name breaks the rule.
    #[error("the name {0:?} under {1} is not allowed: a name has {rule}", rule = name::RULE)]
    BadName(String, DistinguishedName),
    /// The name is taken by a child or a sub-logger.
    #[error("the name {0:?} is already used under {1}")]
    NameInUse(String, DistinguishedName),
    /// Children are started before the runnable signals that it is healthy.
    #[error("{0} is {1}, and may start children only while it is new, before it signals that it is healthy")]
    NotNew(DistinguishedName, State),
    /// The runnable was cancelled, so nothing is started any more. Counts as a cancellation.
    #[error("{0} was cancelled")]
    Cancelled(DistinguishedName, #[source] Cancelled),
    /// The context is that of a life that is over.
    #[error("this life of {0} is over")]
    Ended(DistinguishedName),
    /// The context is that of another runnable than the one that uses it.
    #[error("only {0} itself may start something under its name")]
    Foreign(DistinguishedName),
    /// There are too many runnables, or the tree is too deep.
    #[error("{0} may not start more: a limit of {1} {2} is reached")]
    Limit(DistinguishedName, usize, &'static str),
}

/// Why a signal is not allowed. It is the death of the runnable that gave it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignalError {
    #[error("signalled Healthy while {0}, which is allowed once, and only while new")]
    Healthy(State),
    #[error("signalled Done while {0}, which is allowed once, and only while healthy")]
    Done(State),
    #[error("signalled Done twice, which is allowed once")]
    DoneTwice,
    #[error("gave a signal in the name of {0}, which is another runnable")]
    Foreign(DistinguishedName),
}

/// What of a runnable still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing.
    Idle,
    /// Its future.
    Running,
    /// Its future came back, tasks, closures or processes of it are still there.
    Leaving,
}

/// How far we have gone with a runnable that is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pressure {
    /// It was asked.
    Asked,
    /// It was named in a condition.
    Named,
    /// Its task was aborted.
    Aborted,
    /// Nothing more can be done.
    GivenUp,
}

/// A runnable that is to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopping {
    pub(crate) pressure: Pressure,
    /// When the pressure grows; `None` when it cannot.
    pub(crate) timer: Option<Moment>,
}

#[derive(Debug)]
pub(crate) struct Node<P> {
    pub(crate) distinguished_name: DistinguishedName,
    pub(crate) parent: Option<NodeKey>,
    pub(crate) depth: usize,
    pub(crate) group: GroupKey,
    pub(crate) payload: P,
    /// `None` until the first start.
    pub(crate) state: Option<State>,
    pub(crate) since: Moment,
    pub(crate) number: u64,
    pub(crate) phase: Phase,
    pub(crate) signalled_done: bool,
    /// Cancelled implies that all descendants are.
    pub(crate) cancelled: bool,
    pub(crate) stopping: Option<Stopping>,
    /// Lives that are not over, of this node and its descendants.
    pub(crate) live: usize,
    pub(crate) children: BTreeMap<String, NodeKey>,
    pub(crate) groups: Vec<GroupKey>,
    pub(crate) reserved: BTreeSet<String>,
    pub(crate) backoff: Backoff,
    pub(crate) healthy_since: Option<Moment>,
    pub(crate) restarts: u64,
    pub(crate) recent_restarts: Intensity,
    pub(crate) recent_deaths: Intensity,
    pub(crate) failures_in_a_row: u32,
    pub(crate) restarts_often: bool,
    /// When it is looked at again whether it still restarts often.
    pub(crate) review: Option<Moment>,
    pub(crate) last_error: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) parent: Option<NodeKey>,
    pub(crate) members: Vec<NodeKey>,
    /// Lives that are not over, of the members and their descendants.
    pub(crate) live: usize,
    /// A member died: all are to end, and then to start together.
    pub(crate) falling: bool,
    /// When the group starts again; `None` when it is not waiting for that.
    pub(crate) restart: Option<Moment>,
}

/// The tree of runnables. `P` is what the loop needs to start one.
#[derive(Debug)]
pub(crate) struct Tree<P> {
    pub(crate) settings: Settings,
    pub(crate) nodes: HashMap<NodeKey, Node<P>>,
    pub(crate) groups: HashMap<GroupKey, Group>,
    pub(crate) timers: Timers,
    pub(crate) actions: VecDeque<Action<P>>,
    pub(crate) overdue: BTreeSet<DistinguishedName>,
    /// The list of those has changed and nobody was told.
    pub(crate) overdue_changed: bool,
    pub(crate) restarts_often: BTreeSet<DistinguishedName>,
    /// The list of those has changed and nobody was told.
    pub(crate) restarts_often_changed: bool,
    /// Lives about which nothing more can be done.
    pub(crate) given_up: usize,
    pub(crate) shutting_down: bool,
    pub(crate) root: NodeKey,
    randomness: StdRng,
    next_key: u64,
}

impl<P: Clone> Tree<P> {
    /// A tree with a root that is to be started.
    pub(crate) fn new(settings: Settings, seed: u64, root: DistinguishedName, payload: P, now: Moment) -> Self {
        let mut tree = Self {
            settings,
            nodes: HashMap::new(),
            groups: HashMap::new(),
            timers: Timers::default(),
            actions: VecDeque::new(),
            overdue: BTreeSet::new(),
            overdue_changed: false,
            restarts_often: BTreeSet::new(),
            restarts_often_changed: false,
            given_up: 0,
            shutting_down: false,
            root: NodeKey(0),
            randomness: StdRng::seed_from_u64(seed),
            next_key: 0,
        };
        let group = tree.add_group(None);
        tree.root = tree.add_node(group, None, root, 1, payload, now);
        tree.start(tree.root, now);
        tree
    }

    /// Adds runnables that live and die together under the life `parent`, and starts them.
    ///
    /// # Errors
    ///
    /// All or nothing: with any error no runnable is added.
    pub(crate) fn run_group(
        &mut self,
        parent: Life,
        owner: &DistinguishedName,
        members: Vec<(String, P)>,
        now: Moment,
    ) -> Result<(), StartError> {
        let node = self.acting(parent, owner)?;
        if node.state != Some(State::New) {
            return Err(StartError::NotNew(owner.clone(), node.state.unwrap_or(State::New)));
        }
        if node.children.len() + node.reserved.len() + members.len() > self.max_children() {
            return Err(StartError::Limit(owner.clone(), self.max_children(), "names under one runnable"));
        }
        let mut names = BTreeSet::new();
        for (name, _) in &members {
            Self::check_name(node, name)?;
            if !names.insert(name.as_str()) {
                return Err(StartError::NameInUse(name.clone(), owner.clone()));
            }
        }
        if self.nodes.len() + members.len() > MAX_RUNNABLES {
            return Err(StartError::Limit(owner.clone(), MAX_RUNNABLES, "runnables"));
        }
        let depth = node.depth + 1;
        if depth > MAX_DEPTH {
            return Err(StartError::Limit(owner.clone(), MAX_DEPTH, "levels of the tree"));
        }
        if members.is_empty() {
            return Ok(());
        }
        let members = members
            .into_iter()
            .map(|(name, payload)| match owner.child(&name) {
                Ok(distinguished_name) => Ok((name, distinguished_name, payload)),
                Err(_) => Err(StartError::BadName(name, owner.clone())),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let group = self.add_group(Some(parent.node));
        for (name, distinguished_name, payload) in members {
            let key = self.add_node(group, Some(parent.node), distinguished_name, depth, payload, now);
            self.node_mut(parent.node).children.insert(name, key);
            self.start(key, now);
        }
        Ok(())
    }

    /// Reserves a name under the life `parent` for a sub-logger.
    pub(crate) fn reserve(&mut self, parent: Life, owner: &DistinguishedName, name: &str) -> Result<(), StartError> {
        let node = self.acting(parent, owner)?;
        if node.children.len() + node.reserved.len() >= self.max_children() {
            return Err(StartError::Limit(owner.clone(), self.max_children(), "names under one runnable"));
        }
        Self::check_name(node, name)?;
        self.node_mut(parent.node).reserved.insert(name.into());
        Ok(())
    }

    /// Goes to a state, and tells.
    pub(crate) fn set_state(&mut self, key: NodeKey, to: State, now: Moment) {
        let node = self.node_mut(key);
        let from = node.state.replace(to);
        node.since = now;
        let distinguished_name = node.distinguished_name.clone();
        self.actions.push_back(Action::Transition(Transition { distinguished_name, from, to }));
    }

    /// A random number from 0 up to 1.
    pub(crate) fn random(&mut self) -> f64 {
        self.randomness.random()
    }

    /// The node of this life, if the life is not over.
    pub(crate) fn living(&self, life: Life) -> Option<&Node<P>> {
        self.nodes.get(&life.node).filter(|node| node.number == life.number && node.phase != Phase::Idle)
    }

    pub(crate) fn node(&self, key: NodeKey) -> &Node<P> {
        self.nodes.get(&key).expect("a key is only held while its node is in the tree")
    }

    pub(crate) fn node_mut(&mut self, key: NodeKey) -> &mut Node<P> {
        self.nodes.get_mut(&key).expect("a key is only held while its node is in the tree")
    }

    pub(crate) fn group(&self, key: GroupKey) -> &Group {
        self.groups.get(&key).expect("a group is in the tree as long as its members are")
    }

    pub(crate) fn group_mut(&mut self, key: GroupKey) -> &mut Group {
        self.groups.get_mut(&key).expect("a group is in the tree as long as its members are")
    }

    /// The node of a life that may still act: its future runs and it was not cancelled.
    fn acting(&self, life: Life, owner: &DistinguishedName) -> Result<&Node<P>, StartError> {
        match self.living(life) {
            Some(node) if node.cancelled => Err(StartError::Cancelled(owner.clone(), Cancelled)),
            Some(node) if node.phase == Phase::Running => Ok(node),
            Some(_) | None => Err(StartError::Ended(owner.clone())),
        }
    }

    fn max_children(&self) -> usize {
        self.settings.max_children.min(MAX_CHILDREN)
    }

    fn check_name(node: &Node<P>, name: &str) -> Result<(), StartError> {
        if !is_valid_name(name) {
            return Err(StartError::BadName(name.into(), node.distinguished_name.clone()));
        }
        if node.children.contains_key(name) || node.reserved.contains(name) {
            return Err(StartError::NameInUse(name.into(), node.distinguished_name.clone()));
        }
        Ok(())
    }

    fn add_group(&mut self, parent: Option<NodeKey>) -> GroupKey {
        self.next_key += 1;
        let key = GroupKey(self.next_key);
        self.groups.insert(key, Group { parent, members: Vec::new(), live: 0, falling: false, restart: None });
        if let Some(parent) = parent {
            self.node_mut(parent).groups.push(key);
        }
        key
    }

    fn add_node(
        &mut self,
        group: GroupKey,
        parent: Option<NodeKey>,
        distinguished_name: DistinguishedName,
        depth: usize,
        payload: P,
        now: Moment,
    ) -> NodeKey {
        self.next_key += 1;
        let key = NodeKey(self.next_key);
        let node = Node {
            distinguished_name,
            parent,
            depth,
            group,
            payload,
            state: None,
            since: now,
            number: 0,
            phase: Phase::Idle,
            signalled_done: false,
            cancelled: false,
            stopping: None,
            live: 0,
            children: BTreeMap::new(),
            groups: Vec::new(),
            reserved: BTreeSet::new(),
            backoff: Backoff::new(self.settings.backoff),
            healthy_since: None,
            restarts: 0,
            recent_restarts: Intensity::default(),
            recent_deaths: Intensity::default(),
            failures_in_a_row: 0,
            restarts_often: false,
            review: None,
            last_error: None,
        };
        self.nodes.insert(key, node);
        self.group_mut(group).members.push(key);
        key
    }
}

/// At most [`MAX_ERROR_LENGTH`] bytes of an error, cut between characters.
pub(crate) fn bounded(mut error: String) -> String {
    if error.len() > MAX_ERROR_LENGTH {
        let end = (0..=MAX_ERROR_LENGTH).rev().find(|end| error.is_char_boundary(*end)).unwrap_or(0);
        error.truncate(end);
        error.push_str(" [cut]");
    }
    error
}
