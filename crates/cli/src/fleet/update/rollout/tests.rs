//! The promise: the cluster can always do without the nodes that are away, and nothing goes on after one that does not come back.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A cluster of nodes `0`, `1`, ..., of which the first `voters` are members.
fn view(nodes: usize, voters: usize, leader: usize) -> View {
    View {
        nodes: (0..nodes).map(|index| (index.to_string(), true)).collect(),
        voters: (0..voters).map(|index| (Some(index.to_string()), true)).collect(),
        quorum: voters / 2 + 1,
        leader: leader.to_string(),
    }
}

fn down(mut view: View, index: usize) -> View {
    view.nodes[index].1 = false;
    if let Some(voter) = view.voters.get_mut(index) {
        voter.1 = false;
    }
    view
}

fn all(nodes: usize, max_unavailable: usize) -> Rollout {
    Rollout::new((0..nodes).map(|index| index.to_string()), max_unavailable, false, false)
}

fn install(id: &str) -> Decision {
    Decision::Install(id.to_owned())
}

fn back() -> Seen {
    Seen { healthy: true, started_again: true, image: Some((vec![1], true)) }
}

/// Takes a node through installation and to its restart.
fn take(rollout: &mut Rollout, id: &str, view: &View, now: Duration) {
    assert_eq!(rollout.next(view, now), install(id));
    rollout.installed(id, vec![1], false);
    assert_eq!(rollout.next(view, now), Decision::Restart(id.to_owned()));
    rollout.restarted(id, now);
}

#[test]
fn one_after_the_other_and_the_leader_last() {
    let mut rollout = all(3, 1);
    let cluster = view(3, 3, 0);
    take(&mut rollout, "1", &cluster, SECOND);
    for seen in [&cluster, &down(cluster.clone(), 1)] {
        assert!(matches!(rollout.next(seen, SECOND), Decision::Wait(_)));
    }
    assert_eq!(rollout.seen("1", &Seen::default(), 2 * SECOND), Ok(false));
    assert_eq!(rollout.seen("1", &back(), 3 * SECOND), Ok(true));
    take(&mut rollout, "2", &cluster, 4 * SECOND);
    assert_eq!(rollout.seen("2", &back(), 5 * SECOND), Ok(true));
    take(&mut rollout, "0", &cluster, 6 * SECOND);
    assert_eq!(rollout.seen("0", &back(), 7 * SECOND), Ok(true));
    assert_eq!(rollout.next(&cluster, 8 * SECOND), Decision::Finished);
    assert_eq!(rollout.count(), (3, 3));
}

#[test]
fn whoever_leads_now_is_the_last() {
    let mut rollout = all(3, 1);
    take(&mut rollout, "1", &view(3, 3, 0), SECOND);
    rollout.seen("1", &back(), SECOND).unwrap();
    // Another one leads meanwhile.
    take(&mut rollout, "0", &view(3, 3, 2), SECOND);
    assert_eq!(rollout.seen("0", &back(), SECOND), Ok(true));
    take(&mut rollout, "2", &view(3, 3, 2), SECOND);
}

#[test]
fn the_leader_waits_for_all_others_to_be_back() {
    let mut rollout = Rollout::new(["3".to_owned(), "0".to_owned()], 2, false, false);
    let cluster = view(5, 3, 0);
    take(&mut rollout, "3", &cluster, SECOND);
    assert_eq!(rollout.next(&cluster, SECOND), Decision::Wait("the leader comes last".into()));
}

#[test]
fn what_would_cost_the_quorum_is_refused_before_anything_is_installed() {
    for (view, refused) in [
        (view(1, 1, 0), false),
        (view(2, 2, 0), true),
        (view(3, 3, 0), false),
        (down(view(3, 3, 0), 2), true),
        (view(4, 3, 0), false),
    ] {
        let mut rollout = Rollout::new(["0".to_owned()], 3, false, false);
        let decision = rollout.next(&view, SECOND);
        assert_eq!(matches!(decision, Decision::Refuse(_)), refused, "{view:?} {decision:?}");
        let mut bypassing = Rollout::new(["0".to_owned()], 3, true, false);
        assert_eq!(bypassing.next(&view, SECOND), install("0"));
    }
    let mut rollout = Rollout::new(["0".to_owned()], 3, false, false);
    let Decision::Refuse(reason) = rollout.next(&down(view(3, 3, 0), 2), SECOND) else { unreachable!() };
    assert_eq!(reason, "without 0 1 of 3 members with a vote would answer, and 2 must");
}

#[test]
fn nodes_that_were_down_before_count() {
    let cluster = down(view(5, 3, 0), 4);
    let mut rollout = Rollout::new(["1".to_owned()], 1, false, false);
    let Decision::Refuse(reason) = rollout.next(&cluster, SECOND) else { unreachable!() };
    assert!(reason.contains("one node is down already (4)"), "{reason}");
    let mut rollout = Rollout::new(["1".to_owned()], 2, false, false);
    assert_eq!(rollout.next(&cluster, SECOND), install("1"));
    // The one that is down may itself be the one.
    let mut rollout = Rollout::new(["4".to_owned()], 1, false, false);
    assert_eq!(rollout.next(&cluster, SECOND), install("4"));
}

#[test]
fn a_member_that_catches_up_is_waited_for_but_not_for_ever() {
    let mut rollout = all(3, 1);
    let cluster = view(3, 3, 0);
    take(&mut rollout, "1", &cluster, SECOND);
    rollout.seen("1", &back(), SECOND).unwrap();
    let mut catching_up = cluster.clone();
    catching_up.voters[1].1 = false;
    assert!(matches!(rollout.next(&catching_up, 2 * SECOND), Decision::Wait(_)));
    assert!(matches!(rollout.next(&catching_up, SETTLE_TIMEOUT), Decision::Wait(_)));
    assert!(matches!(rollout.next(&catching_up, SETTLE_TIMEOUT + 3 * SECOND), Decision::Refuse(_)));
    // Had it caught up, the time would have begun anew.
    assert_eq!(rollout.next(&cluster, SETTLE_TIMEOUT + 3 * SECOND), install("2"));
    rollout.installed("2", vec![1], false);
    assert!(matches!(rollout.next(&catching_up, SETTLE_TIMEOUT + 4 * SECOND), Decision::Wait(_)));
    assert_eq!(rollout.left(), ["0", "2"]);
}

#[test]
fn the_first_that_does_not_come_back_ends_it() {
    let image = |number: u8, good| Some((vec![number], good));
    let seen = |healthy, started_again, image| Seen { healthy, started_again, image };
    let late = AWAY_TIMEOUT + SECOND;
    for (seen, after, expected) in [
        (seen(false, false, None), late, Err(Lost::NotStarted)),
        // The old image still answers: it has not even stopped.
        (seen(true, false, image(0, true)), 2 * SECOND, Ok(false)),
        (seen(true, false, image(0, true)), late, Err(Lost::NotStarted)),
        (seen(true, true, image(0, true)), 2 * SECOND, Err(Lost::PreviousImage)),
        (seen(false, true, image(0, true)), 2 * SECOND, Err(Lost::PreviousImage)),
        (seen(false, true, image(1, false)), 2 * SECOND, Ok(false)),
        (seen(false, true, image(1, false)), late, Err(Lost::NotHealthy)),
        (seen(true, true, None), late, Err(Lost::NotHealthy)),
        (seen(true, true, image(1, false)), 2 * SECOND, Ok(false)),
        (seen(true, true, image(1, false)), late, Err(Lost::NotProven)),
        (seen(true, true, image(1, true)), late, Ok(true)),
    ] {
        let mut rollout = all(3, 1);
        take(&mut rollout, "1", &view(3, 3, 0), SECOND);
        assert_eq!(rollout.seen("1", &seen, after), expected, "{seen:?} after {after:?}");
    }
}

#[test]
fn what_runs_already_is_not_restarted_and_installing_alone_asks_for_no_margin() {
    let mut rollout = all(2, 1);
    let cluster = view(3, 3, 2);
    assert_eq!(rollout.next(&cluster, SECOND), install("0"));
    rollout.installed("0", vec![1], true);
    assert_eq!(rollout.next(&cluster, SECOND), install("1"));

    let mut rollout = Rollout::new(["0".to_owned(), "1".to_owned()], 1, false, true);
    let weak = down(view(3, 3, 0), 2);
    assert_eq!(rollout.next(&weak, SECOND), install("1"));
    rollout.installed("1", vec![1], false);
    assert_eq!(rollout.next(&weak, SECOND), install("0"));
    rollout.installed("0", vec![1], false);
    assert_eq!(rollout.next(&weak, SECOND), Decision::Finished);
}

/// What happens beside the update.
#[derive(Clone, Debug)]
enum Event {
    Look,
    Fail(usize),
    Recover(usize),
    Lead(usize),
    ComeBack(usize),
}

proptest! {
    #[test]
    fn never_more_are_away_than_may_be_and_the_quorum_stays(
        nodes in 1..7_usize,
        voters in 1..6_usize,
        max_unavailable in 1..4_usize,
        events in prop::collection::vec((0..5_u8, 0..7_usize), 1..120),
    ) {
        let voters = voters.min(nodes);
        let mut rollout = all(nodes, max_unavailable);
        let (mut failed, mut away, mut done) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut leader = 0;
        let mut now = Duration::ZERO;
        for (kind, index) in events {
            now += SECOND;
            let index = index % nodes;
            let event = match kind {
                0 | 1 => Event::Look,
                2 => if failed.contains(&index) { Event::Recover(index) } else { Event::Fail(index) },
                3 => Event::Lead(index % voters),
                _ => Event::ComeBack(index),
            };
            let mut cluster = view(nodes, voters, leader);
            for index in failed.iter().chain(&away) {
                cluster = down(cluster, *index);
            }
            match event {
                Event::Fail(index) => drop(failed.insert(index)),
                Event::Recover(index) => drop(failed.remove(&index)),
                Event::Lead(index) => leader = index,
                Event::ComeBack(index) => {
                    if away.remove(&index) {
                        prop_assert_eq!(rollout.seen(&index.to_string(), &back(), now), Ok(true));
                        done.insert(index);
                    }
                }
                Event::Look => match rollout.next(&cluster, now) {
                    Decision::Install(id) => rollout.installed(&id, vec![1], false),
                    Decision::Restart(id) => {
                        let index: usize = id.parse().unwrap();
                        prop_assert!(!done.contains(&index) && !away.contains(&index), "{} is taken twice", id);
                        prop_assert!(
                            index != leader || done.len() + 1 == nodes,
                            "the leader goes before {:?} are done", done
                        );
                        let gone = failed.union(&away).filter(|other| **other != index).count();
                        prop_assert!(gone < max_unavailable, "{} are away already", gone);
                        let answer = (0..voters).filter(|voter| *voter != index && !failed.contains(voter) && !away.contains(voter));
                        prop_assert!(index >= voters || voters == 1 || answer.count() > voters / 2, "the quorum is lost");
                        rollout.restarted(&id, now);
                        away.insert(index);
                    }
                    Decision::Finished => prop_assert_eq!(done.len(), nodes),
                    Decision::Wait(_) | Decision::Refuse(_) => {}
                },
            }
        }
        // Once nothing fails any more, it comes to its end.
        for round in 0..4 * nodes {
            for index in std::mem::take(&mut away) {
                prop_assert_eq!(rollout.seen(&index.to_string(), &back(), now), Ok(true));
            }
            match rollout.next(&view(nodes, voters, 0), now) {
                Decision::Install(id) => rollout.installed(&id, vec![1], false),
                Decision::Restart(id) => {
                    rollout.restarted(&id, now);
                    away.insert(id.parse().unwrap());
                }
                Decision::Finished => return Ok(()),
                other @ (Decision::Wait(_) | Decision::Refuse(_)) => {
                    prop_assert!(voters == 2, "round {}: {:?}", round, other);
                    return Ok(());
                }
            }
        }
        prop_assert!(false, "it does not come to an end");
    }
}
