use super::*;
use crate::survey::SurveyedMember;
use crate::version::Version;

const QUOTA: u64 = 1000;
const FULL: Sizes = Sizes { file: 1000, in_use: 100 };
const ROOMY: Sizes = Sizes { file: 100, in_use: 100 };

fn surveyed(id: u64, is_learner: bool, is_up: bool) -> SurveyedMember {
    let member = Member { id, node_id: None, address: None, is_learner, is_started: true };
    let version = is_up.then_some(Version::new(3, 4, 23));
    SurveyedMember { member, version, failure: None, lag: Some(0), database_bytes: None }
}

/// Members with the ids 1, 2 and so on: `v` is one with a vote, `l` a learner, `x` one with a vote that does not answer.
fn survey(members: &str) -> Survey {
    let members = (1..).zip(members.chars()).map(|(id, kind)| surveyed(id, kind == 'l', kind != 'x')).collect();
    Survey { members, leader: Some(2), raft_term: 1, alarms: Vec::new() }
}

/// Members, sizes, whether there is an hourly turn, turns, who has had one, and what comes next.
type Case<'a> = (&'a str, Sizes, bool, &'a [u64], &'a [u64], Step);

#[test]
fn one_member_after_the_other_has_its_turn_and_then_writes_are_let_in() {
    const IN_USE: Step = Step::Stop("nearly all of it is in use: nothing helps but deleting something");
    const HOURLY: Step = Step::Stop("a member rewrites its database in the hourly round");
    const LAST: Step = Step::Stop("the only healthy member is not stopped for it");
    const NO_HELP: Step = Step::Stop("rewriting it has made no room");
    let used = Sizes { file: 1000, in_use: 901 };
    let nearly = Sizes { file: 1000, in_use: 900 };
    // Members, sizes of the leader's, an hourly turn, whose turns there are, who has had one, and what the leader, the second, does.
    let cases: [Case; 20] = [
        ("vvv", FULL, false, &[], &[], Step::Give(1)),
        ("vvv", FULL, false, &[1], &[], Step::Wait(1)),
        ("vvv", FULL, false, &[], &[1], Step::Give(3)),
        ("vvv", FULL, false, &[], &[3], Step::Give(1)),
        ("vvv", FULL, false, &[], &[1, 3], Step::Give(2)),
        ("vvv", ROOMY, false, &[], &[1, 3, 2], Step::Disarm),
        ("vvv", FULL, false, &[], &[1, 3, 2], NO_HELP),
        // A turn of another leader is waited for, whatever else there is.
        ("vvv", FULL, false, &[3], &[], Step::Wait(3)),
        ("vvv", used, true, &[3], &[], Step::Wait(3)),
        // One that is no member any more has none.
        ("vvv", FULL, false, &[7], &[], Step::Give(1)),
        ("vvv", used, false, &[], &[], IN_USE),
        ("vvv", nearly, false, &[], &[], Step::Give(1)),
        ("vvv", FULL, true, &[], &[], HOURLY),
        // Who does not answer has no turn, and who only learns has none.
        ("xvv", FULL, false, &[], &[], Step::Give(3)),
        ("lvx", FULL, false, &[], &[], LAST),
        ("xvx", FULL, false, &[], &[], LAST),
        ("xvx", ROOMY, false, &[], &[3, 1], LAST),
        ("vvl", FULL, false, &[], &[1], Step::Give(2)),
        ("xvv", ROOMY, false, &[], &[3, 2], Step::Disarm),
        ("vv", FULL, false, &[], &[1], Step::Give(2)),
    ];
    for (members, sizes, hourly, turns, done, expected) in cases {
        // The member itself has its alarm, too, which is no turn.
        let alarms: Vec<u64> = turns.iter().map(|id| turn_of(*id)).chain([2]).collect();
        let survey = survey(members);
        let moment = Moment { survey: &survey, own: 2, sizes, quota: QUOTA, hourly, alarms: &alarms, done };
        assert_eq!(moment.step(), expected, "{members} {sizes:?} {hourly} {turns:?} {done:?}");
    }
}

#[test]
fn the_only_member_does_it_as_it_takes_no_writes_anyway() {
    let survey = survey("v");
    for (sizes, done, expected) in
        [(FULL, &[][..], Step::Give(1)), (ROOMY, &[1], Step::Disarm), (ROOMY, &[], Step::Give(1))]
    {
        let moment = Moment { survey: &survey, own: 1, sizes, quota: QUOTA, hourly: false, alarms: &[1], done };
        assert_eq!(moment.step(), expected, "{sizes:?} {done:?}");
    }
}

#[test]
fn nobody_is_at_work_beside_another() {
    let members: Vec<Member> = survey("vvv").members.into_iter().map(|surveyed| surveyed.member).collect();
    for (turns, expected) in [
        (&[][..], Part::None),
        (&[1], Part::Take),
        (&[2], Part::None),
        (&[1, 3], Part::GiveBack),
        // No member any more.
        (&[1, 7], Part::Take),
    ] {
        let alarms: Vec<u64> = turns.iter().map(|id| turn_of(*id)).chain([1, 2]).collect();
        assert_eq!(part(1, &members, &alarms), expected, "{turns:?}");
    }
}
