//! The decisions of the supervisor, case by case.

use std::time::Duration;

use super::simulation::Simulation;
use super::{Action, MAX_CHILDREN, MAX_DEPTH, Outcome, StartError};
use crate::report::State;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A healthy root with one group of these members, and nothing in the events.
fn with_group(names: &[&str]) -> Simulation {
    let mut simulation = Simulation::new();
    simulation.group("root", names).unwrap();
    simulation.healthy("root").unwrap();
    simulation.events();
    simulation
}

#[test]
fn transitions_come_one_by_one_in_order() {
    let mut simulation = Simulation::new();
    simulation.group("root", &["a"]).unwrap();
    simulation.healthy("root").unwrap();
    simulation.healthy("root.a").unwrap();
    simulation.done("root.a").unwrap();
    simulation.leaves("root.a", Outcome::Finished);
    simulation.dies("root");
    simulation.pass(SECOND);
    assert_eq!(
        simulation.events(),
        [
            "root none->new",
            "start root",
            "root.a none->new",
            "start root.a",
            "root new->healthy",
            "root.a new->healthy",
            "root.a healthy->done",
            "root healthy->dead",
            "died root: broken",
            "root dead->new",
            "start root",
        ]
    );
}

#[test]
fn the_death_of_a_member_takes_its_group_and_no_other() {
    let mut simulation = Simulation::new();
    simulation.group("root", &["a", "b"]).unwrap();
    simulation.group("root", &["c"]).unwrap();
    simulation.healthy("root").unwrap();
    simulation.events();

    simulation.dies("root.a");
    assert_eq!(simulation.acts(), ["died root.a: broken", "cancel root.b"]);
    simulation.heeds(&["root.b"]);
    simulation.pass(SECOND);
    assert_eq!(simulation.acts(), ["start root.a", "start root.b"]);
}

#[test]
fn the_backoff_begins_when_the_last_below_the_group_has_ended() {
    let mut simulation = with_group(&["a", "b"]);
    simulation.group("root.b", &["x"]).unwrap();
    simulation.group("root.b.x", &["y"]).unwrap();
    simulation.acts();

    simulation.dies("root.a");
    assert_eq!(simulation.acts(), ["died root.a: broken", "cancel root.b", "cancel root.b.x", "cancel root.b.x.y"]);
    simulation.heeds(&["root.b", "root.b.x"]);
    simulation.pass(5 * SECOND);
    assert_eq!(simulation.acts(), [""; 0], "a member started while a descendant of its group lives");
    simulation.heeds(&["root.b.x.y"]);
    simulation.pass(SECOND - MILLISECOND);
    assert_eq!(simulation.acts(), [""; 0], "the backoff was cut short");
    simulation.pass(MILLISECOND);
    assert_eq!(simulation.acts(), ["start root.a", "start root.b"]);
    assert_eq!(simulation.tree.observe(simulation.now).len(), 3, "children of the earlier life are forgotten");
}

#[test]
fn of_several_deaths_in_a_group_the_longest_backoff_counts() {
    let mut simulation = with_group(&["a", "b"]);
    simulation.dies("root.a");
    simulation.heeds(&["root.b"]);
    simulation.pass(SECOND);
    simulation.events();
    // The backoff of a is 2 s now, that of b still 1 s.
    simulation.dies("root.b");
    simulation.dies("root.a");
    simulation.pass(2 * SECOND - MILLISECOND);
    assert_eq!(simulation.acts(), ["died root.b: broken", "cancel root.a", "died root.a: broken"]);
    simulation.pass(MILLISECOND);
    assert_eq!(simulation.acts(), ["start root.a", "start root.b"]);
}

#[test]
fn who_asks_for_its_next_life_gets_it_without_a_backoff_and_its_group_as_well() {
    let mut simulation = with_group(&["a", "b"]);
    simulation.dies("root.b");
    simulation.heeds(&["root.a"]);
    simulation.pass(2 * SECOND);
    simulation.events();
    simulation.leaves("root.a", Outcome::Anew);
    assert_eq!(simulation.acts(), ["cancel root.b"]);
    simulation.pass(MILLISECOND);
    assert_eq!(simulation.acts(), [""; 0], "its sibling still lives");
    simulation.heeds(&["root.b"]);
    simulation.pass(Duration::ZERO);
    assert_eq!(simulation.acts(), ["start root.a", "start root.b"]);
    let report = &simulation.tree.observe(simulation.now)[1];
    assert_eq!((report.failures_in_a_row, report.last_error.as_deref()), (0, None));
}

#[test]
fn how_a_runnable_may_come_back() {
    use Outcome::{Aborted, Anew, Cancelled, Failed, Finished};
    let cases = [
        // (signalled done, cancelled, outcome) -> (state, what the last error begins with)
        (false, false, Finished, State::Dead, "returned without having signalled Done"),
        (true, false, Finished, State::Done, ""),
        (true, true, Finished, State::Done, ""),
        (false, true, Finished, State::Canceled, ""),
        (false, true, Cancelled, State::Canceled, ""),
        (true, true, Cancelled, State::Canceled, ""),
        (false, false, Cancelled, State::Dead, "returned the error of a cancelled context, but"),
        (true, false, Cancelled, State::Dead, "returned the error of a cancelled context, but"),
        (false, false, Anew, State::Canceled, ""),
        (true, false, Anew, State::Canceled, ""),
        (false, true, Anew, State::Canceled, ""),
        (true, false, Failed("no".into()), State::Dead, "no"),
        (false, true, Failed("no".into()), State::Dead, "no"),
        (false, true, Aborted, State::Dead, "was aborted"),
    ];
    for (done, cancelled, outcome, state, error) in cases {
        let mut simulation = with_group(&["a", "b"]);
        simulation.healthy("root.a").unwrap();
        if done {
            simulation.done("root.a").unwrap();
        }
        if cancelled {
            simulation.dies("root.b");
        }
        let case = format!("done {done}, cancelled {cancelled}, {outcome:?}");
        simulation.leaves("root.a", outcome);
        let report = &simulation.tree.observe(simulation.now)[1];
        assert_eq!(report.state, state, "{case}");
        let last_error = report.last_error.clone().unwrap_or_default();
        assert!(last_error.starts_with(error) && last_error.is_empty() == error.is_empty(), "{case}: {last_error}");
    }
}

#[test]
fn done_is_done_only_on_return_and_children_go_on() {
    let mut simulation = with_group(&["a"]);
    simulation.group("root.a", &["x"]).unwrap();
    simulation.healthy("root.a").unwrap();
    simulation.done("root.a").unwrap();
    simulation.pass(60 * SECOND);
    assert_eq!(simulation.tree.observe(simulation.now)[1].state, State::Healthy);
    simulation.leaves("root.a", Outcome::Finished);
    simulation.pass(60 * SECOND);
    simulation.acts();

    // The child of a runnable that is done is started again as any other.
    simulation.dies("root.a.x");
    simulation.pass(SECOND);
    assert_eq!(simulation.acts(), ["died root.a.x: broken", "start root.a.x"]);
    assert_eq!(simulation.tree.observe(simulation.now)[1].state, State::Done);
}

#[test]
fn a_done_member_is_started_again_when_a_sibling_dies() {
    let mut simulation = with_group(&["a", "b"]);
    simulation.healthy("root.a").unwrap();
    simulation.done("root.a").unwrap();
    simulation.leaves("root.a", Outcome::Finished);
    simulation.dies("root.b");
    simulation.acts();
    simulation.pass(SECOND);
    assert_eq!(simulation.acts(), ["start root.a", "start root.b"]);
}

#[test]
fn the_death_of_a_parent_ends_the_backoff_of_its_children() {
    let mut simulation = with_group(&["a"]);
    simulation.group("root.a", &["x"]).unwrap();
    for _ in 0..4 {
        simulation.dies("root.a.x");
        simulation.pass(16 * SECOND);
    }
    simulation.dies("root.a.x");
    assert_eq!(simulation.tree.observe(simulation.now)[2].starts_in, Some(16 * SECOND));
    simulation.events();
    simulation.dies("root.a");
    simulation.pass(SECOND);
    // The child is forgotten, and so is the complaint about it.
    assert_eq!(simulation.acts(), ["died root.a: broken", "often []", "start root.a"]);
    assert_eq!(simulation.tree.next_timer(), None);
}

#[test]
fn signals_are_valid_once_and_in_order() {
    let mut simulation = with_group(&["a"]);
    assert!(simulation.done("root.a").unwrap_err().starts_with("signalled Done while new"));
    simulation.healthy("root.a").unwrap();
    assert!(simulation.healthy("root.a").unwrap_err().starts_with("signalled Healthy while healthy"));
    simulation.done("root.a").unwrap();
    assert!(simulation.done("root.a").unwrap_err().starts_with("signalled Done twice"));
    assert!(simulation.healthy("root.a").unwrap_err().starts_with("signalled Healthy while healthy"));
}

#[test]
fn an_earlier_life_is_not_heard() {
    let mut simulation = with_group(&["a"]);
    let earlier = simulation.lives["root.a"];
    simulation.dies("root.a");
    simulation.pass(SECOND);
    simulation.events();
    let name = simulation.tree.node(earlier.node).distinguished_name.clone();
    assert_eq!(simulation.tree.healthy(earlier, simulation.now), Ok(()));
    assert_eq!(simulation.tree.done(earlier), Ok(()));
    simulation.tree.returned(earlier, Outcome::Failed("late".into()), simulation.now);
    simulation.tree.ended(earlier, simulation.now);
    assert_eq!(
        simulation.tree.run_group(earlier, &name, vec![("x".into(), ())], simulation.now),
        Err(StartError::Ended(name.clone()))
    );
    assert_eq!(simulation.tree.reserve(earlier, &name, "x"), Err(StartError::Ended(name)));
    simulation.pass(60 * SECOND);
    assert_eq!(simulation.events(), [""; 0]);
}

#[test]
fn children_are_started_only_while_new_and_not_cancelled() {
    let mut simulation = with_group(&["a", "b"]);
    let error = simulation.group("root", &["late"]).unwrap_err();
    assert!(matches!(error, StartError::NotNew(_, State::Healthy)), "{error}");
    simulation.dies("root.a");
    let error = simulation.group("root.b", &["x"]).unwrap_err();
    assert!(crate::is_cancellation(&error), "{error}");
    let error = simulation.reserve("root.b", "x").unwrap_err();
    assert!(crate::is_cancellation(&error), "{error}");
}

#[test]
fn names_are_checked_all_or_nothing() {
    let mut simulation = Simulation::new();
    simulation.reserve("root", "log").unwrap();
    simulation.group("root", &["a"]).unwrap();
    for (names, in_use) in [
        (&["b", "a"][..], Some("a")),
        (&["b", "log"], Some("log")),
        (&["b", "b"], Some("b")),
        (&["b", "B"], None),
        (&["b", ""], None),
        (&["b", "console-/dev/tty0"], None),
    ] {
        let error = simulation.group("root", names).unwrap_err();
        match in_use {
            Some(name) => assert!(matches!(&error, StartError::NameInUse(used, _) if used == name), "{error}"),
            None => assert!(matches!(&error, StartError::BadName(..)), "{error}"),
        }
        assert!(!simulation.lives.contains_key("root.b"), "{names:?} was started in part");
    }
    assert!(matches!(simulation.reserve("root", "a"), Err(StartError::NameInUse(..))));
    assert!(matches!(simulation.reserve("root", "log"), Err(StartError::NameInUse(..))));
    assert!(matches!(simulation.reserve("root", "a.b"), Err(StartError::BadName(..))));
    simulation.group("root", &[]).unwrap();
}

#[test]
fn a_new_life_reserves_its_names_anew() {
    let mut simulation = Simulation::new();
    simulation.reserve("root", "log").unwrap();
    simulation.dies("root");
    simulation.pass(SECOND);
    simulation.reserve("root", "log").unwrap();
}

#[test]
fn the_tree_is_bounded() {
    let mut simulation = Simulation::new();
    let names: Vec<String> = (0..=MAX_CHILDREN).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(matches!(simulation.group("root", &names), Err(StartError::Limit(_, MAX_CHILDREN, _))));
    simulation.group("root", &names[1..]).unwrap();
    assert!(matches!(simulation.reserve("root", "log"), Err(StartError::Limit(_, MAX_CHILDREN, _))));

    let longest = "a".repeat(crate::MAX_NAME_LENGTH);
    let mut name = String::from("root.n1");
    for _ in 2..MAX_DEPTH {
        simulation.group(&name, &[&longest]).unwrap();
        name = format!("{name}.{longest}");
    }
    assert!(matches!(simulation.group(&name, &["a"]), Err(StartError::Limit(_, MAX_DEPTH, _))));
}

#[test]
fn a_runnable_that_does_not_stop_is_named_then_aborted_then_given_up() {
    let mut simulation = with_group(&["a", "b"]);
    simulation.dies("root.a");
    simulation.acts();
    simulation.pass(10 * SECOND - MILLISECOND);
    assert_eq!(simulation.acts(), [""; 0]);
    simulation.pass(MILLISECOND);
    assert_eq!(simulation.acts(), ["late root.b", "overdue [root.b]"]);
    simulation.pass(5 * SECOND);
    assert_eq!(simulation.acts(), ["abort root.b"]);
    simulation.pass(60 * SECOND);
    assert_eq!(simulation.acts(), [""; 0], "the group starts while a member lives");
    assert_eq!(simulation.tree.next_timer(), None);

    simulation.leaves("root.b", Outcome::Aborted);
    simulation.pass(SECOND);
    assert_eq!(
        simulation.acts(),
        [
            "died root.b: was aborted because it did not stop after it was cancelled",
            "overdue []",
            "start root.a",
            "start root.b"
        ]
    );
}

#[test]
fn what_stays_after_the_return_has_a_deadline_too() {
    let mut simulation = with_group(&["a"]);
    simulation.returns("root.a", Outcome::Failed("broken".into()));
    simulation.pass(10 * SECOND);
    assert_eq!(simulation.acts(), ["died root.a: broken", "late root.a", "overdue [root.a]"]);
    simulation.ends("root.a");
    simulation.pass(SECOND);
    assert_eq!(simulation.acts(), ["overdue []", "start root.a"]);
}

#[test]
fn healthy_at_once_and_then_dead_does_back_off() {
    let mut simulation = with_group(&["a"]);
    let mut waits = Vec::new();
    for _ in 0..6 {
        simulation.healthy("root.a").unwrap();
        simulation.dies("root.a");
        waits.push(simulation.tree.next_timer().unwrap() - simulation.now);
        simulation.pass(16 * SECOND);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 16].map(Duration::from_secs));
}

#[test]
fn the_backoff_is_reset_by_staying_healthy_for_longer_than_it() {
    for (healthy_for, wait) in [(3, 4), (4, 4), (5, 1)] {
        let mut simulation = with_group(&["a"]);
        for _ in 0..2 {
            simulation.dies("root.a");
            simulation.pass(2 * SECOND);
        }
        simulation.healthy("root.a").unwrap();
        simulation.pass(Duration::from_secs(healthy_for));
        simulation.dies("root.a");
        let starts = simulation.tree.next_timer().unwrap() - simulation.now;
        assert_eq!(starts, Duration::from_secs(wait), "healthy for {healthy_for} s");
    }
}

#[test]
fn a_runnable_that_dies_again_and_again_is_named_until_it_stays_up() {
    let mut simulation = with_group(&["a"]);
    let die = |simulation: &mut Simulation| {
        simulation.dies("root.a");
        simulation.pass(16 * SECOND);
        simulation.acts().into_iter().filter(|act| act.starts_with("often")).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert_eq!(die(&mut simulation), [""; 0]);
    }
    assert_eq!(die(&mut simulation), ["often [root.a]"]);
    assert_eq!(die(&mut simulation), [""; 0], "told again without a change");
    assert_eq!(simulation.tree.next_timer(), None, "nothing is pending while it is not healthy");
    // At 80 s it becomes healthy. Its backoff is 16 s; it died at 0, 16, 32, 48 and 64 s.
    simulation.healthy("root.a").unwrap();
    simulation.acts();
    simulation.pass(16 * SECOND);
    assert_eq!(simulation.acts(), [""; 0]);
    simulation.pass(MILLISECOND);
    assert_eq!(simulation.acts(), ["often []"]);
    let report = &simulation.tree.observe(simulation.now)[1];
    assert_eq!((report.failures_in_a_row, report.restarts), (0, 5));
    assert_eq!(report.last_error.as_deref(), Some("broken"));
}

#[test]
fn a_runnable_that_stays_up_a_little_each_time_is_named_by_its_rate() {
    let mut simulation = with_group(&["a"]);
    for _ in 0..4 {
        simulation.healthy("root.a").unwrap();
        simulation.pass(5 * SECOND);
        simulation.dies("root.a");
        assert_eq!(simulation.tree.observe(simulation.now)[1].failures_in_a_row, 1);
        simulation.pass(SECOND);
    }
    let acts = simulation.acts();
    assert_eq!(acts.iter().filter(|act| act.starts_with("often")).collect::<Vec<_>>(), ["often [root.a]"]);
    // The deaths were at 5, 11, 17 and 23 s, it is 24 s now: at 65 s three are left in the window.
    simulation.healthy("root.a").unwrap();
    simulation.pass(41 * SECOND - MILLISECOND);
    assert_eq!(simulation.acts(), [""; 0]);
    simulation.pass(MILLISECOND);
    assert_eq!(simulation.acts(), ["often []"]);
    assert_eq!(simulation.tree.observe(simulation.now)[1].recent_restarts, 4);
}

#[test]
fn a_runnable_that_is_done_is_not_held_to_its_past() {
    let mut simulation = with_group(&["a"]);
    for _ in 0..4 {
        simulation.dies("root.a");
        simulation.pass(16 * SECOND);
    }
    simulation.acts();
    simulation.healthy("root.a").unwrap();
    simulation.done("root.a").unwrap();
    simulation.leaves("root.a", Outcome::Finished);
    assert_eq!(simulation.acts(), ["often []"]);
    assert_eq!(simulation.tree.next_timer(), None);
}

#[test]
fn a_shutdown_cancels_all_and_starts_nothing() {
    let mut simulation = with_group(&["a", "b"]);
    simulation.group("root.a", &["x"]).unwrap();
    simulation.dies("root.a.x");
    simulation.acts();
    simulation.shut_down();
    let mut acts = simulation.acts();
    acts.sort();
    assert_eq!(acts, ["cancel root", "cancel root.a", "cancel root.b"]);
    assert!(!simulation.tree.is_stopped());
    simulation.leaves("root.b", Outcome::Failed("late".into()));
    simulation.heeds(&["root.a", "root"]);
    assert!(simulation.tree.is_stopped());
    assert_eq!(simulation.tree.next_timer(), None);
    simulation.pass(60 * SECOND);
    assert_eq!(simulation.acts(), ["died root.b: late"]);
}

#[test]
fn a_shutdown_while_the_root_waits_to_start_ends_at_once() {
    let mut simulation = Simulation::new();
    simulation.dies("root");
    simulation.shut_down();
    assert!(simulation.tree.is_stopped());
    assert_eq!(simulation.tree.next_timer(), None);
}

#[test]
fn a_shutdown_gives_up_when_nothing_more_can_be_done() {
    let mut simulation = with_group(&["a", "b"]);
    simulation.shut_down();
    simulation.heeds(&["root"]);
    simulation.pass(20 * SECOND - MILLISECOND);
    assert_eq!(simulation.tree.given_up(), None);
    simulation.pass(MILLISECOND);
    let names = simulation.tree.given_up().unwrap();
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["root.a", "root.b"]);
    simulation.leaves("root.a", Outcome::Aborted);
    simulation.leaves("root.b", Outcome::Aborted);
    assert_eq!(simulation.tree.given_up(), None);
    assert!(simulation.tree.is_stopped());
}

#[test]
fn thousands_that_are_late_at_once_are_told_of_once() {
    let mut simulation = Simulation::new();
    let names: Vec<String> = (0..MAX_CHILDREN).map(|number| format!("n{number:05}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    simulation.group("root", &names).unwrap();
    simulation.acts();
    simulation.tree.shut_down(simulation.now);
    // All of it is due at one moment.
    simulation.now += 10 * SECOND;
    simulation.tree.advance(simulation.now);
    let (mut late, mut told) = (0, Vec::new());
    while let Some(action) = simulation.tree.next_action() {
        if let Action::Overdue(listed) = &action {
            told.push((listed.first.len(), listed.count));
        }
        late += usize::from(matches!(action, Action::Late(_)));
    }
    assert_eq!((late, told), (MAX_CHILDREN + 1, vec![(10, MAX_CHILDREN + 1)]));
}

#[test]
fn the_last_error_is_bounded() {
    let mut simulation = with_group(&["a"]);
    simulation.leaves("root.a", Outcome::Failed("ä".repeat(10_000)));
    let error = simulation.tree.observe(simulation.now)[1].last_error.clone().unwrap();
    assert!(error.len() < 5000 && error.ends_with("ä [cut]"));
}
