//! One change of members in every order in which its messages, two crashes and one roll-back can happen.
//!
//! What is on the disks is kept as small as the rules allow: which of the three lists a member has made durable, and for which of
//! them it has split its key. The numbers of shares are those of the crate. Lists and reports are messages that lie in a set: each
//! may arrive at any time, late, and any number of times. A power failure of everybody is possible in every state, and what would
//! open after it is asked there.

use std::hash::Hash;

use polis_unlock::{Scheme, quorum};
use stateright::{Checker, Model, Property};

use crate::rules::Broken;

/// Most members that are enumerated before a change.
const MEMBERS: usize = 5;
/// Machines that may lose power on their own.
const CRASHES: u8 = 2;

/// A change that is checked.
#[derive(Clone, Copy, Debug)]
struct Case {
    before: usize,
    adds: bool,
    two_confirmed: bool,
    broken: Broken,
}

/// The lists in their order. The file of a member is split to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum List {
    Before,
    Both,
    After,
}

/// What a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Node {
    list: Option<List>,
    file: Option<List>,
    /// What the leader has been told, which lies among the messages.
    reported: Option<List>,
    is_up: bool,
    /// Out of reach when the consensus was told, or put back, and has not reported since.
    is_excused: bool,
    is_put_back: bool,
}

/// How far the leader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Leader {
    Idle,
    Listed,
    Called,
    Completed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    leader: Leader,
    /// Those who stay, in the order of their content, as none differs from another.
    stay: Vec<Node>,
    /// The one that comes or goes.
    changes: Node,
    is_finished: bool,
    crashes: u8,
    is_put_back: bool,
}

/// A member by its place: those who stay come first.
type Place = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Lead,
    Finish,
    /// A list arrives.
    Learn(Place, List),
    Split(Place),
    Report(Place),
    Crash(Place),
    Start(Place),
    PutBack(Place),
}

impl Case {
    fn stay(&self) -> usize {
        if self.adds { self.before } else { self.before - 1 }
    }

    fn after(&self) -> usize {
        if self.adds { self.before + 1 } else { self.before - 1 }
    }

    /// The list that step A gives out.
    fn first_list(&self) -> Option<List> {
        match self.broken {
            Broken::ListOfBoth => None,
            Broken::CallBeforeList => Some(List::After),
            Broken::Nothing
            | Broken::FewerShares
            | Broken::WaitForReports
            | Broken::SplitAfterwards
            | Broken::CountBeforeFinished => Some(List::Both),
        }
    }

    /// Shares that a file takes, by the list that it was split to.
    fn needed(&self, place: Place, file: List) -> usize {
        let of = |voters| Scheme::of(voters, self.two_confirmed).expect("a few");
        let leaves = !self.adds && place == self.stay();
        let scheme = match file {
            List::Before => of(self.before),
            List::Both if self.broken == Broken::FewerShares => of(self.after()),
            List::Both if leaves => of(self.before),
            List::Both => Scheme::during(self.before, self.after(), self.two_confirmed).expect("a few"),
            List::After => of(self.after()),
        };
        scheme.shares_needed().into()
    }

    /// Whether the node at `place` is on a list.
    fn is_on(&self, place: Place, list: List) -> bool {
        match (place < self.stay(), list) {
            (true, _) | (false, List::Both) => true,
            (false, List::Before) => !self.adds,
            (false, List::After) => self.adds,
        }
    }
}

impl State {
    fn node(&self, place: Place) -> &Node {
        self.stay.get(place).unwrap_or(&self.changes)
    }

    fn node_mut(&mut self, place: Place) -> &mut Node {
        self.stay.get_mut(place).unwrap_or(&mut self.changes)
    }

    fn places(&self) -> std::ops::RangeInclusive<Place> {
        0..=self.stay.len()
    }

    fn is_called(&self) -> bool {
        match self.leader {
            Leader::Idle | Leader::Listed => false,
            Leader::Called | Leader::Completed => true,
        }
    }

    fn voters(&self, case: &Case) -> Vec<Place> {
        let list = if self.is_called() { List::After } else { List::Before };
        self.places().filter(|place| case.is_on(*place, list)).collect()
    }

    /// A quorum is up.
    fn runs(&self, case: &Case) -> bool {
        let voters = self.voters(case);
        voters.iter().filter(|place| self.node(**place).is_up).count() >= quorum(voters.len())
    }

    /// Those of `machines` that open by themselves when all have lost power: by their shares, and then by a quorum that runs.
    fn opens(&self, case: &Case, machines: u8) -> u8 {
        let has = |place: Place| machines >> place & 1 == 1;
        let by_shares = |place: &Place| {
            let Some(file) = self.node(*place).file else { return false };
            let helpers = self.places().filter(|holder| holder != place && has(*holder) && case.is_on(*holder, file));
            helpers.count() >= case.needed(*place, file)
        };
        let open = self.places().filter(|place| has(*place)).filter(by_shares).fold(0, |set, place| set | 1 << place);
        let voters = self.voters(case);
        let running = voters.iter().filter(|place| open >> **place & 1 == 1).count() >= quorum(voters.len());
        if running { machines } else { open }
    }

    fn sets_of_voters(&self, case: &Case) -> impl Iterator<Item = (u8, usize)> + use<> {
        let all = self.voters(case).into_iter().fold(0_u8, |set, place| set | 1 << place);
        (1..=all).filter(move |set| set & !all == 0).map(|set| (set, set.count_ones() as usize))
    }

    /// As soon as a quorum is up after a power failure, every member of it opens.
    fn every_quorum_opens(&self, case: &Case) -> bool {
        let least = quorum(self.voters(case).len());
        let is_excused = |set: u8| self.places().any(|place| set >> place & 1 == 1 && self.node(place).is_excused);
        self.sets_of_voters(case)
            .filter(|(set, size)| *size == least && !is_excused(*set))
            .all(|(set, _)| self.opens(case, set) == set)
    }

    /// Once all is done, fewer than a quorum open nothing.
    fn fewer_open_nothing(&self, case: &Case) -> bool {
        let voters = self.voters(case);
        let keeps_copies = case.needed(0, List::After) == 0;
        let is_done = |place: &Place| {
            let node = self.node(*place);
            let is_split = node.file == Some(List::After) || case.broken == Broken::SplitAfterwards;
            node.list == Some(List::After) && is_split && !node.is_excused
        };
        keeps_copies
            || self.leader != Leader::Completed
            || !voters.iter().all(is_done)
            || self
                .sets_of_voters(case)
                .filter(|(_, size)| *size < quorum(voters.len()))
                .all(|(set, _)| self.opens(case, set) == 0)
    }

    /// Once its removal is finished, too few have not heard of it to help the removed node, unless somebody has put one of them back.
    fn removed_stays_out(&self, case: &Case) -> bool {
        let Some(file) = self.changes.file else { return true };
        let lacking = self.stay.iter().filter(|node| node.list != Some(List::After) && !node.is_put_back).count();
        let needed = case.needed(self.stay.len(), file);
        case.adds || !self.is_finished || needed == 0 || lacking < needed
    }

    fn is_ready(&self, case: &Case) -> bool {
        let Some(list) = case.first_list() else { return true };
        let has_reported = |place: &Place| self.node(*place).reported == Some(list);
        let after: Vec<_> = self.places().filter(|place| case.is_on(*place, List::After)).collect();
        case.broken == Broken::WaitForReports
            || (self
                .places()
                .filter(|place| case.is_on(*place, list))
                .all(|place| !self.node(place).is_up || has_reported(&place))
                && after.iter().filter(|place| has_reported(place)).count() >= quorum(after.len()))
    }

    fn lead(&mut self, case: &Case) -> bool {
        match self.leader {
            Leader::Idle => self.leader = Leader::Listed,
            Leader::Listed => {
                let after = self.places().filter(|place| case.is_on(*place, List::After));
                let up = after.filter(|place| self.node(*place).is_up).count();
                if !self.is_ready(case) || up < quorum(case.after()) {
                    return false;
                }
                self.leader = Leader::Called;
                for place in self.places() {
                    let node = self.node_mut(place);
                    node.is_excused |= !node.is_up;
                }
            }
            Leader::Called => self.leader = Leader::Completed,
            Leader::Completed => return false,
        }
        true
    }

    /// E, counted by what has been reported: a member has the list when its report says so.
    fn may_finish(&self, case: &Case) -> bool {
        let needed = match self.changes.reported {
            Some(List::Both) => case.needed(self.stay.len(), List::Both),
            Some(List::Before | List::After) | None => 1,
        };
        let lacking = self.stay.iter().filter(|node| node.list != Some(List::After)).count();
        case.broken == Broken::CountBeforeFinished || lacking < needed.max(1)
    }
}

impl Model for Case {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let member = Node {
            list: Some(List::Before),
            file: Some(List::Before),
            reported: Some(List::Before),
            is_up: true,
            is_excused: false,
            is_put_back: false,
        };
        let joiner = Node { list: None, file: None, reported: None, ..member };
        vec![State {
            leader: Leader::Idle,
            stay: vec![member; self.stay()],
            changes: if self.adds { joiner } else { member },
            is_finished: false,
            crashes: 0,
            is_put_back: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Lead);
        if !self.adds && state.leader == Leader::Completed && !state.is_finished {
            actions.push(Action::Finish);
        }
        for place in state.places() {
            actions.extend([List::Both, List::After].map(|list| Action::Learn(place, list)));
            actions.extend(
                [Action::Split, Action::Report, Action::Crash, Action::Start, Action::PutBack].map(|make| make(place)),
            );
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Lead if state.runs(self) => state.lead(self).then_some(())?,
            Action::Finish if state.runs(self) && state.may_finish(self) => state.is_finished = true,
            Action::Learn(place, list) => {
                let is_given_out = match list {
                    List::Before => false,
                    List::Both => self.first_list() == Some(List::Both) && state.leader != Leader::Idle,
                    List::After => {
                        let is_early = self.first_list() == Some(List::After) && state.leader != Leader::Idle;
                        is_early || state.leader == Leader::Completed
                    }
                };
                let node = state.node_mut(place);
                // The newer list wins. Who is not on it does not need it.
                if !is_given_out || !node.is_up || node.list >= Some(list) || !self.is_on(place, list) {
                    return None;
                }
                node.list = Some(list);
            }
            Action::Split(place) => {
                let node = state.node_mut(place);
                let is_late =
                    self.broken == Broken::SplitAfterwards && node.list == Some(List::After) && node.file.is_some();
                if !node.is_up || node.file >= node.list || is_late {
                    return None;
                }
                node.file = node.list;
            }
            Action::Report(place) => {
                let runs = state.runs(self);
                let node = state.node_mut(place);
                if !runs || !node.is_up || node.reported >= node.file || node.file < node.list {
                    return None;
                }
                node.reported = node.file;
                node.is_excused = false;
            }
            Action::Crash(place) => {
                let node = state.node_mut(place);
                if !node.is_up || last.crashes == CRASHES {
                    return None;
                }
                node.is_up = false;
                state.crashes += 1;
            }
            Action::Start(place) => {
                // It opens by those that are up, or waits for them.
                let up = state
                    .places()
                    .filter(|other| state.node(*other).is_up)
                    .fold(1_u8 << place, |set, other| set | 1 << other);
                let is_up = state.node(place).is_up;
                if is_up || !(state.runs(self) || state.opens(self, up) >> place & 1 == 1) {
                    return None;
                }
                state.node_mut(place).is_up = true;
            }
            Action::PutBack(place) => {
                let first = self.init_states().remove(0);
                let node = state.node_mut(place);
                if node.is_up || last.is_put_back {
                    return None;
                }
                (node.list, node.file) = (first.node(place).list, first.node(place).file);
                (node.is_excused, node.is_put_back) = (true, true);
                state.is_put_back = true;
            }
            Action::Lead | Action::Finish => return None,
        }
        state.stay.sort();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(OPENS, |case: &Self, state: &State| state.every_quorum_opens(case)),
            Property::always(STAYS_SHUT, |case: &Self, state: &State| state.fewer_open_nothing(case)),
            Property::always(STAYS_OUT, |case: &Self, state: &State| state.removed_stays_out(case)),
            Property::sometimes(COMPLETES, |_: &Self, state: &State| state.leader == Leader::Completed),
        ]
    }
}

const OPENS: &str = "every quorum opens";
const STAYS_SHUT: &str = "fewer than a quorum open nothing";
const STAYS_OUT: &str = "a removed node does not open once that is finished";
const COMPLETES: &str = "the change can be completed";

fn cases(broken: Broken) -> impl Iterator<Item = Case> {
    let changes = (1..=MEMBERS).flat_map(|before| [(before, true), (before, false)]);
    let changes = changes.filter(|(before, adds)| *adds || *before > 1);
    changes
        .flat_map(move |(before, adds)| [false, true].map(|two_confirmed| Case { before, adds, two_confirmed, broken }))
}

#[test]
fn no_order_of_one_change_breaks_an_invariant() {
    let mut states = 0;
    for case in cases(Broken::Nothing) {
        let checker = case.checker().spawn_dfs().join();
        println!("{case:?}: {} states", checker.unique_state_count());
        checker.assert_properties();
        states += checker.unique_state_count();
    }
    println!(
        "{states} states of one change of members, from 1 to {MEMBERS}, with at most {CRASHES} crashes and one roll-back"
    );
}

/// Breaking a rule breaks what it is for, in some change and some order.
fn breaks(broken: Broken, property: &'static str) {
    let found = cases(broken).find_map(|case| {
        let checker = case.checker().spawn_bfs().join();
        let path = checker.discovery(property)?;
        Some((case, path.into_actions()))
    });
    let (case, actions) = found.expect("some order breaks it");
    println!("{broken:?}: not {property:?} after {actions:?} from {} members", case.before);
}

#[test]
fn each_rule_that_is_broken_breaks_what_it_is_for() {
    let table = [
        (Broken::ListOfBoth, OPENS),
        (Broken::FewerShares, OPENS),
        (Broken::WaitForReports, OPENS),
        (Broken::CallBeforeList, OPENS),
        (Broken::SplitAfterwards, STAYS_SHUT),
        (Broken::CountBeforeFinished, STAYS_OUT),
    ];
    for (broken, property) in table {
        breaks(broken, property);
    }
}
