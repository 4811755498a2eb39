//! What holds for every tree, whatever the runnables do; and that the tree heals when they stop doing it.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::simulation::Simulation;
use super::tree::{Node, Phase, Pressure};
use super::{NodeKey, Outcome, Tree};
use crate::report::State;

/// What a runnable does, or time does. The number chooses one of the lives there are.
#[derive(Clone, Debug)]
enum Step {
    Group(usize, u8),
    Healthy(usize),
    Done(usize),
    Returns(usize, u8),
    Ends(usize),
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0_usize..64;
    prop_oneof![
        3 => (which.clone(), 1_u8..4).prop_map(|(which, members)| Step::Group(which, members)),
        3 => which.clone().prop_map(Step::Healthy),
        2 => which.clone().prop_map(Step::Done),
        3 => (which.clone(), 0_u8..4).prop_map(|(which, outcome)| Step::Returns(which, outcome)),
        5 => which.prop_map(Step::Ends),
        4 => (0_u16..20_000).prop_map(Step::Pass),
    ]
}

fn take(simulation: &mut Simulation, step: &Step, fresh: &mut u32) {
    let names: Vec<String> = simulation.lives.keys().cloned().collect();
    let choose = |which: &usize| (!names.is_empty()).then(|| names[which % names.len()].clone());
    match step {
        Step::Group(which, members) => {
            let Some(name) = choose(which) else { return };
            *fresh += 1;
            let members: Vec<String> = (0..*members).map(|number| format!("n{fresh}-{number}")).collect();
            let members: Vec<&str> = members.iter().map(String::as_str).collect();
            // An error is an answer too: it is cancelled, healthy already, or too deep.
            let _ = simulation.group(&name, &members);
        }
        Step::Healthy(which) => {
            let Some(name) = choose(which) else { return };
            let _ = simulation.healthy(&name);
        }
        Step::Done(which) => {
            let Some(name) = choose(which) else { return };
            let _ = simulation.done(&name);
        }
        Step::Returns(which, outcome) => {
            let Some(name) = choose(which) else { return };
            let outcome = match outcome {
                0 => Outcome::Finished,
                1 => Outcome::Cancelled,
                2 => Outcome::Anew,
                _ => Outcome::Failed("broken".into()),
            };
            simulation.returns(&name, outcome);
        }
        Step::Ends(which) => {
            let Some(name) = choose(which) else { return };
            let node = simulation.tree.node(simulation.lives[&name].node);
            if node.phase == Phase::Leaving {
                simulation.ends(&name);
            }
        }
        Step::Pass(milliseconds) => simulation.pass(Duration::from_millis(u64::from(*milliseconds))),
    }
}

fn check(simulation: &Simulation) {
    let tree = &simulation.tree;
    let living: BTreeSet<String> = tree
        .nodes
        .values()
        .filter(|node| node.phase != Phase::Idle)
        .map(|node| node.distinguished_name.to_string())
        .collect();
    assert_eq!(living, simulation.lives.keys().cloned().collect(), "the tree knows who lives");
    assert_eq!(tree.observe(simulation.now).len(), tree.nodes.len(), "every node hangs in the tree");
    for (&key, node) in &tree.nodes {
        let name = &node.distinguished_name;
        assert_eq!(node.live, live(tree, key), "the count of lives at {name}");
        assert_eq!(
            node.stopping.is_some(),
            node.phase == Phase::Leaving || (node.phase == Phase::Running && node.cancelled)
        );
        for child in node.children.values() {
            assert!(!node.cancelled || tree.node(*child).cancelled, "{name} is cancelled, a child is not");
        }
        assert!(node.phase != Phase::Running || node.state == Some(State::New) || node.state == Some(State::Healthy));
    }
    for group in tree.groups.values() {
        assert_eq!(group.live, group.members.iter().map(|member| tree.node(*member).live).sum::<usize>());
        let parent_cancelled = group.parent.is_some_and(|parent| tree.node(parent).cancelled);
        if group.restart.is_some() {
            assert!(group.falling && group.live == 0 && !parent_cancelled, "a group waits for its start too early");
        } else if group.falling && !parent_cancelled && !tree.shutting_down {
            assert!(group.live > 0, "a group has fallen and nobody will start it");
        }
        for member in &group.members {
            assert_eq!(tree.node(*member).cancelled, group.falling || parent_cancelled || tree.shutting_down);
        }
    }
    let given_up = |node: &&Node<()>| node.stopping.is_some_and(|stopping| stopping.pressure == Pressure::GivenUp);
    assert_eq!(tree.given_up, tree.nodes.values().filter(given_up).count());
    // Every timer is somebody's, so that nothing wakes the loop for nothing.
    let owners = tree.nodes.values().filter(|node| node.review.is_some()).count()
        + tree.nodes.values().filter(|node| node.stopping.is_some_and(|stopping| stopping.timer.is_some())).count()
        + tree.groups.values().filter(|group| group.restart.is_some()).count();
    assert_eq!(tree.timers.len(), owners);
}

fn live(tree: &Tree<()>, key: NodeKey) -> usize {
    let node = tree.node(key);
    let below: usize = node.children.values().map(|child| live(tree, *child)).sum();
    usize::from(node.phase != Phase::Idle) + below
}

/// From now on everybody who is asked to stop stops, and what is left of those who returned goes.
fn behave(simulation: &mut Simulation) {
    loop {
        let leaving = simulation.lives.iter().find_map(|(name, life)| {
            let node = simulation.tree.node(life.node);
            match node.phase {
                Phase::Leaving => Some((name.clone(), false)),
                Phase::Running if node.cancelled => Some((name.clone(), true)),
                Phase::Running | Phase::Idle => None,
            }
        });
        match leaving {
            Some((name, true)) => simulation.leaves(&name, Outcome::Cancelled),
            Some((name, false)) => simulation.ends(&name),
            None => return,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_tree_is_consistent_and_heals(steps in prop::collection::vec(step(), 1..120)) {
        let mut simulation = Simulation::new();
        let mut fresh = 0;
        for step in &steps {
            take(&mut simulation, step, &mut fresh);
            check(&simulation);
        }

        behave(&mut simulation);
        simulation.pass(Duration::from_secs(60));
        check(&simulation);
        for node in simulation.tree.nodes.values() {
            prop_assert!(!node.cancelled, "{} stays cancelled", node.distinguished_name);
            let lives = node.phase == Phase::Running;
            prop_assert!(lives || node.state == Some(State::Done), "{} did not come back", node.distinguished_name);
        }
        prop_assert!(simulation.tree.overdue.is_empty());

        simulation.shut_down();
        check(&simulation);
        behave(&mut simulation);
        check(&simulation);
        prop_assert!(simulation.tree.is_stopped());
        prop_assert_eq!(simulation.tree.next_timer(), None);
    }
}
