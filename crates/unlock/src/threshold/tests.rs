//! The table of `cold-start.md`, and the enumeration that its order of steps was checked by.

use super::*;

#[test]
fn the_table() {
    // Voters, quorum, shares needed of the others, how many may stay dead, how many a thief may hold and open nothing.
    let table = [(1, 1, 0, 0, 0), (3, 2, 1, 1, 1), (4, 3, 2, 1, 2), (5, 3, 2, 2, 2), (6, 4, 3, 2, 3), (7, 4, 3, 3, 3)];
    for (voters, quorum_of, needed, dead, stolen) in table.into_iter().chain([(8, 5, 4, 3, 4), (9, 5, 4, 4, 4)]) {
        let scheme = Scheme::of(voters, false).unwrap();
        assert_eq!((quorum(voters), scheme.shares_needed()), (quorum_of, needed), "{voters}");
        assert_eq!(voters - quorum(voters), dead, "{voters}");
        assert_eq!(usize::from(scheme.shares_needed()), stolen, "{voters}");
        assert_eq!(Scheme::with_shares(scheme.shares_needed()), scheme);
        assert_eq!(Scheme::of(voters, true), Ok(scheme), "the word about two says nothing about {voters}");
    }
    assert_eq!((quorum(2), Scheme::of(2, false), Scheme::of(2, true)), (2, Ok(Scheme::Local), Ok(Scheme::Copies)));
    assert_eq!(Scheme::of(0, false), Err(NoScheme::NoVoters));
    assert_eq!(Scheme::of(10, true), Err(NoScheme::TooMany { voters: 10 }));
    assert_eq!(NoScheme::TooMany { voters: 10 }.to_string(), "10 voters are more than the 9 that a cluster may have");
}

#[test]
fn people_read_what_it_takes() {
    let describe = |voters, confirmed| Scheme::of(voters, confirmed).unwrap().describe(voters);
    assert_eq!(describe(3, false), "3 members, any 2 open");
    assert_eq!(describe(9, false), "9 members, any 5 open");
    assert_eq!(describe(2, true), "2 members, any 2 open");
    assert_eq!(describe(2, false), describe(1, false));
}

#[test]
fn each_member_of_a_change_is_asked_for_what_its_part_needs() {
    use crate::scene::{Node, at, cluster};
    let scheme = |standings: &[Standing], confirmed, standing| {
        let members = (1..)
            .zip(standings)
            .map(|(node, standing)| crate::MemberEntry { standing: *standing, ..Node(node).entry() });
        let list = MemberList::new(cluster(), at(1, 2), members.collect()).with_two_confirmed(confirmed);
        Scheme::for_member(&list, standing).map(Scheme::shares_needed)
    };
    use Standing::{Joins, Leaves, Stays};
    let grows = [Stays, Stays, Stays, Joins];
    assert_eq!([Stays, Joins].map(|standing| scheme(&grows, false, standing)), [Ok(1), Ok(1)]);
    let shrinks = [Stays, Stays, Stays, Leaves];
    assert_eq!([Stays, Leaves].map(|standing| scheme(&shrinks, false, standing)), [Ok(1), Ok(2)]);
    // To two: those who stay get local copies, and the one that goes none.
    let shrinks = [Stays, Stays, Leaves];
    assert_eq!([Stays, Leaves].map(|standing| scheme(&shrinks, false, standing)), [Ok(0), Ok(1)]);
    // From two: the local copies stay until the third has its vote.
    assert_eq!([false, true].map(|confirmed| scheme(&[Stays, Stays, Joins], confirmed, Stays)), [Ok(0), Ok(1)]);
    assert_eq!(scheme(&[Stays; 9], false, Stays), Ok(4));
    assert_eq!(scheme(&[Stays; 10], false, Stays), Err(NoScheme::TooMany { voters: 10 }));
}

/// Whether each member of `machines` opens, when its shares are with `holders` (which it is one of, or not) and `needed` give the
/// key. Sets are bits.
fn all_open(machines: u16, holders: u16, needed: u8) -> bool {
    (0..16).filter(|owner| machines & 1 << owner != 0).all(|owner: u16| {
        let shares = machines & holders & !(1 << owner);
        shares.count_ones() >= u32::from(needed)
    })
}

fn every_quorum_opens(voters: u16, holders: u16, needed: u8) -> bool {
    let least = quorum(voters.count_ones() as usize);
    // With fewer than a quorum nothing is asked for; with more, a quorum is among them.
    (1..=voters)
        .filter(|machines| machines & !voters == 0 && machines.count_ones() as usize >= least)
        .all(|machines| all_open(machines, holders, needed))
}

#[test]
fn every_quorum_opens_before_during_and_after_each_addition_and_removal() {
    let mut checked = 0;
    for voters in 1..=VOTERS_LIMIT {
        let now = (1_u16 << voters) - 1;
        let added = (voters < VOTERS_LIMIT).then_some(now | 1 << voters);
        let removed = (0..voters).filter(|_| voters > 1).map(|member| now & !(1 << member));
        for (after, two_confirmed) in added.into_iter().chain(removed).flat_map(|after| [(after, false), (after, true)])
        {
            let count = after.count_ones() as usize;
            let [first, last] = [voters, count].map(|voters| Scheme::of(voters, two_confirmed).unwrap());
            let during = Scheme::during(voters, count, two_confirmed).unwrap();
            let both = now | after;
            // Each member's file is the old one or that of step B while the old voters decide, and that of B or of D while the new do.
            for (electorate, files) in [(now, [(now, first), (both, during)]), (after, [(both, during), (after, last)])]
            {
                for (holders, scheme) in files {
                    assert!(every_quorum_opens(electorate, holders, scheme.shares_needed()), "{now:b} to {after:b}");
                    checked += 1;
                }
            }
            assert!(during <= first && during <= last);
        }
    }
    assert_eq!(checked, 4 * 2 * (8 + (2..=9).sum::<usize>()));
}

#[test]
fn the_scheme_of_the_many_is_too_much_during_the_change() {
    // What step B is for: with the greater number of shares some quorum does not open.
    let (three, four) = (0b111, 0b1111);
    assert!(!every_quorum_opens(three, four, Scheme::of(4, false).unwrap().shares_needed()));
    assert!(every_quorum_opens(three, four, Scheme::during(3, 4, false).unwrap().shares_needed()));
    // And what the holders of both lists are for: a joiner that holds nothing is of no use to a quorum with it.
    assert!(!every_quorum_opens(four, three, Scheme::of(4, false).unwrap().shares_needed()));
}
