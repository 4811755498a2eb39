//! Each situation has its step; and every sequence of steps, crashes and deaths ends well.

use super::super::simulation::cluster::Cluster;
use super::super::simulation::node;
use super::*;

/// A cluster of `voters` nodes in which all is well, and one more node that is up.
fn world(voters: usize) -> World {
    let up = NodeFacts { is_up: true, has_role: false };
    let mut nodes: BTreeMap<NodeId, NodeFacts> =
        (0..voters).map(|index| (node(index), NodeFacts { has_role: true, ..up })).collect();
    nodes.insert(node(voters), up);
    World {
        leader: Some(node(0)),
        members: (0..voters).map(|index| member(index, false)).collect(),
        nodes,
        listed: (0..voters).map(node).collect(),
        network_timing: voters > 1,
        ..World::default()
    }
}

fn member(index: usize, is_learner: bool) -> MemberFacts {
    MemberFacts { id: index as u64 + 1, node: Some(node(index)), is_learner }
}

fn waiter(index: usize, is_ready: bool) -> Waiter {
    Waiter { node: node(index), is_ready }
}

fn intent(operation: Operation) -> Option<Intent> {
    Some(Intent { operation })
}

/// The step for a world of `voters` that is changed.
fn check(name: &str, voters: usize, change: impl FnOnce(&mut World), expected: Step) {
    let mut world = world(voters);
    change(&mut world);
    assert_eq!(plan(&world), expected, "{name}");
}

#[test]
fn a_join_takes_its_steps_in_order() {
    let add = Operation::Add(node(3));
    check("nothing to do", 3, |_| {}, Step::Idle);
    check("in the queue", 3, |world| world.queue = vec![waiter(3, true)], Step::Begin(add));
    check("begun", 3, |world| world.intent = intent(add), Step::AddLearner(node(3)));
    let learner = |world: &mut World| {
        world.intent = intent(add);
        world.members.push(member(3, true));
    };
    check("a learner", 3, learner, Step::GrantRole(node(3)));
    let granted = |world: &mut World| {
        learner(world);
        world.nodes.get_mut(&node(3)).unwrap().has_role = true;
    };
    check("with its role", 3, granted, Step::Promote(node(3)));
    let promoted = |world: &mut World| {
        granted(world);
        world.members[3].is_learner = false;
    };
    check("with a vote", 3, promoted, Step::Complete(add));
    let done = |world: &mut World| {
        promoted(world);
        world.intent = None;
        world.listed.insert(node(3));
    };
    check("completed", 3, done, Step::Idle);
}

#[test]
fn the_second_member_needs_another_timing_first() {
    let joiner = node(1);
    check("in the queue", 1, |world| world.queue = vec![waiter(1, true)], Step::UseNetworkTiming { joiner });
    let begun = |world: &mut World| world.intent = intent(Operation::Add(joiner));
    check("begun", 1, begun, Step::UseNetworkTiming { joiner });
    let with_timing = |world: &mut World| {
        world.queue = vec![waiter(1, true)];
        world.network_timing = true;
    };
    check("with the timing", 1, with_timing, Step::Begin(Operation::Add(joiner)));
    let learner = |world: &mut World| {
        begun(world);
        world.members.push(member(1, true));
    };
    check("too late for it", 1, learner, Step::GrantRole(joiner));
}

#[test]
fn the_queue_is_worked_off_in_order_and_nobody_who_is_down_holds_up_the_others() {
    let with = |waiters: &[Waiter]| {
        let waiters = waiters.to_vec();
        move |world: &mut World| {
            for index in 4..7 {
                world.nodes.insert(node(index), NodeFacts { is_up: true, ..NodeFacts::default() });
            }
            world.queue = waiters;
        }
    };
    let begin = |index| Step::Begin(Operation::Add(node(index)));
    check("in order", 3, with(&[waiter(5, true), waiter(4, true)]), begin(5));
    check("the first is not ready", 3, with(&[waiter(5, false), waiter(4, true)]), begin(4));
    check("nobody is ready", 3, with(&[waiter(5, false)]), Step::Wait(Waiting::NobodyReady));
    check("a member already", 3, with(&[waiter(5, true), waiter(2, true)]), Step::Dequeue(node(2)));
    check("deleted", 3, with(&[waiter(5, true), waiter(9, true)]), Step::Dequeue(node(9)));
    let not_up = |world: &mut World| {
        with(&[waiter(5, true), waiter(4, true)])(world);
        world.nodes.get_mut(&node(5)).unwrap().is_up = false;
    };
    check("not up", 3, not_up, begin(4));
    check("no room", 9, |world| world.queue = vec![waiter(9, true)], Step::Wait(Waiting::Full));
    check("room for one", 8, |world| world.queue = vec![waiter(8, true)], begin(8));
}

#[test]
fn a_joiner_that_does_not_come_is_given_up() {
    let learner = |attempt: Attempt| {
        move |world: &mut World| {
            world.intent = intent(Operation::Add(node(3)));
            world.members.push(member(3, true));
            world.nodes.get_mut(&node(3)).unwrap().has_role = true;
            world.attempt = attempt;
        }
    };
    let attempt = |has_started, stalled_for| Attempt { has_started, stalled_for, ..Attempt::default() };
    let moment = Duration::from_millis(1);
    let Budgets { start, catch_up, .. } = Budgets::default();
    let give_up = |reason| Step::GiveUp { node: node(3), reason };
    check("about to start", 3, learner(attempt(false, start - moment)), Step::Promote(node(3)));
    check("never started", 3, learner(attempt(false, start)), give_up(GaveUp::NotStarted));
    check("catching up", 3, learner(attempt(true, catch_up - moment)), Step::Promote(node(3)));
    check("no progress", 3, learner(attempt(true, catch_up)), give_up(GaveUp::NoProgress));
    for (name, gone) in [("not up", false), ("deleted", true)] {
        let change = |world: &mut World| {
            learner(Attempt::default())(world);
            world.nodes.get_mut(&node(3)).unwrap().is_up = false;
            if gone {
                world.nodes.remove(&node(3));
            }
        };
        check(name, 3, change, give_up(GaveUp::NodeGone));
    }
    let given_up = |world: &mut World| {
        learner(Attempt::default())(world);
        world.intent = intent(Operation::Remove(node(3)));
    };
    check("given up", 3, given_up, Step::Remove(node(3)));
}

#[test]
fn a_removal_takes_its_steps_in_order() {
    let remove = Operation::Remove(node(2));
    check("begun", 3, |world| world.intent = intent(remove), Step::Remove(node(2)));
    let gone = |world: &mut World| {
        world.intent = intent(remove);
        world.members.pop();
    };
    check("removed", 3, gone, Step::Complete(remove));
    check("the leader", 3, |world| world.intent = intent(Operation::Remove(node(0))), Step::HandOver);
    let refused = |world: &mut World| {
        world.intent = intent(remove);
        world.attempt.refused_for = world.budgets.refused;
    };
    check("refused for too long", 3, refused, Step::Withdraw(node(2)));
}

#[test]
fn what_is_not_as_it_should_be_is_mended_one_by_one() {
    let stranger = MemberFacts { id: 77, node: None, is_learner: false };
    let change = |world: &mut World| {
        world.members.push(stranger.clone());
        world.nodes.get_mut(&node(1)).unwrap().has_role = false;
    };
    check("a member without a node", 3, change, Step::RemoveStranger { id: 77, is_learner: false });
    let deleted = |world: &mut World| {
        world.nodes.remove(&node(2));
    };
    check("the node of a member was deleted", 3, deleted, Step::RemoveStranger { id: 3, is_learner: false });
    let no_role = |world: &mut World| world.nodes.get_mut(&node(1)).unwrap().has_role = false;
    check("a member without the role", 3, no_role, Step::GiveRole(node(1)));
    let role = |world: &mut World| world.nodes.get_mut(&node(3)).unwrap().has_role = true;
    check("a role without a member", 3, role, Step::TakeRole(node(3)));
    let learner = |world: &mut World| world.members.push(member(3, true));
    let wanted = |world: &mut World| {
        learner(world);
        world.queue = vec![waiter(3, false)];
    };
    check("a learner that waited", 3, wanted, Step::Begin(Operation::Add(node(3))));
    let granted = |world: &mut World| {
        learner(world);
        world.nodes.get_mut(&node(3)).unwrap().has_role = true;
    };
    check("a learner with the role", 3, granted, Step::Begin(Operation::Add(node(3))));
    check(
        "a learner that a deposed leader has brought back",
        3,
        learner,
        Step::RemoveStranger { id: 4, is_learner: true },
    );
    let in_the_way = |world: &mut World| {
        learner(world);
        world.nodes.insert(node(4), NodeFacts { is_up: true, ..NodeFacts::default() });
        world.intent = intent(Operation::Add(node(4)));
    };
    check("the same while another joins", 3, in_the_way, Step::RemoveStranger { id: 4, is_learner: true });
    let unlisted = |world: &mut World| {
        world.listed.remove(&node(1));
    };
    check("not in the list", 3, unlisted, Step::Relist);
    let overlisted = |world: &mut World| {
        world.listed.insert(node(3));
    };
    check("in the list without a vote", 3, overlisted, Step::Relist);
}

#[test]
fn a_leader_that_is_not_a_node_and_a_member_does_nothing() {
    let wait = Step::Wait(Waiting::LeaderDoubtful);
    let change = |world: &mut World| {
        world.queue = vec![waiter(3, true)];
        world.leader = Some(node(3));
    };
    check("no member", 3, change, wait.clone());
    let learner = |world: &mut World| {
        change(world);
        world.members.push(member(3, true));
    };
    check("a learner", 3, learner, wait.clone());
    let no_node = |world: &mut World| {
        world.nodes.remove(&node(0));
        world.intent = intent(Operation::Remove(node(1)));
    };
    check("no node", 3, no_node, wait.clone());
    check("nobody", 3, |world| world.leader = None, wait);
}

/// Nodes, requests, crashes of leaders, deaths and returns in any order. While it goes on, no call of ours costs the quorum,
/// and each list has the next epoch; once faults stop, everybody who was to be a member is one, and nothing is left over.
#[test]
fn whatever_happens_the_members_end_up_as_they_were_wanted() {
    let mut finished = [0; 2];
    for seed in 0..400 {
        let mut cluster = Cluster::new(seed);
        // Most of what can go wrong with keys takes five members.
        cluster.grow_by(usize::try_from(seed % 8).unwrap());
        for _ in 0..180 {
            cluster.something_happens();
        }
        cluster.faults_stop();
        cluster.check_settled();
        finished[0] += cluster.finished[0];
        finished[1] += cluster.finished[1];
    }
    // It is of no use if it does not come to that.
    assert!(finished[0] > 20 && finished[1] > 200, "{finished:?}");
}
