//! Who is given what.

use polis_identity::CertificateAuthority;

use super::*;
use crate::MemberList;
use crate::scene::{Node, Peer, at, list};

const OWNER: Node = Node(1);

/// What the owner asks peer 2, with a share of this list.
fn request(list: &SignedMemberList) -> UnlockRequest {
    let file = OWNER.file(list);
    let held = file.current.held_by(&Node(2).id()).unwrap();
    UnlockRequest {
        owner: OWNER.id(),
        share: Some(SealedShare { x: held.x, epoch: file.current.epoch, ciphertext: held.ciphertext.clone() }),
        list_epoch: Some(list.list().epoch()),
        want: Want::Any,
        list: None,
    }
}

fn reason(answer: &UnlockReply) -> Reason {
    match answer {
        UnlockReply::Refused(refusal) => refusal.reason,
        UnlockReply::Full(_) | UnlockReply::Share(_) | UnlockReply::NewerMembers(_) | UnlockReply::OlderMembers(_) => {
            panic!("{answer:?} is no refusal")
        }
    }
}

#[test]
fn a_locked_peer_opens_the_share_that_was_made_for_it() {
    let list = list(at(1, 3), &[1, 2, 3, 4, 5]);
    let request = request(&list);
    let hash = |share: &Share| share.hash();
    let answer = Peer::locked(2, &list).decide(OWNER, &request);
    let UnlockReply::Share(share) = &answer.answer else { panic!("{answer:?}") };
    assert_eq!((share.x(), answer.persist.is_none()), (request.share.as_ref().unwrap().x, true));
    // What comes back is what was split, and for the same request always the same.
    let again = Peer::locked(2, &list).answer(OWNER, &request);
    assert!(matches!(again, UnlockReply::Share(again) if hash(&again) == hash(share)));
}

#[test]
fn a_peer_with_quorum_gives_the_key_whatever_the_age_of_share_and_list() {
    let (old, new) = (list(at(1, 3), &[1, 2, 3]), list(at(1, 5), &[1, 2, 3]));
    let mut peer = Peer::locked(2, &new);
    peer.floors.raise(OWNER.id(), at(1, 5));
    peer.word = ClusterWord::Key(OWNER.key_of_data());
    let stale = UnlockRequest { share: None, list_epoch: None, ..request(&old) };
    for request in [request(&old), stale] {
        assert_eq!(peer.answer(OWNER, &request), UnlockReply::Full(OWNER.key_of_data()));
        let drill = UnlockRequest { want: Want::Share, ..request };
        assert_eq!(peer.answer(OWNER, &drill), UnlockReply::NewerMembers(new.wire().clone()));
    }
    // A drill is given its share also by a peer that could give the key.
    let drill = UnlockRequest { want: Want::Share, ..request(&new) };
    assert!(matches!(peer.answer(OWNER, &drill), UnlockReply::Share(_)));
    peer.word = ClusterWord::NotUp;
    assert_eq!(reason(&peer.answer(OWNER, &request(&new))), Reason::NotUp);
    assert_eq!(reason(&peer.answer(OWNER, &drill)), Reason::NotUp);
}

#[test]
fn each_wrong_request_is_refused_for_its_reason() {
    let members = list(at(1, 3), &[1, 2, 3, 4, 5]);
    let good = request(&members);
    let share = |change: fn(&mut SealedShare)| {
        let mut request = good.clone();
        change(request.share.as_mut().unwrap());
        request
    };
    let other = list(at(1, 4), &[1, 2, 3, 4, 5]);
    let of_other_epoch = UnlockRequest { share: request(&other).share, ..good.clone() };
    let file = OWNER.file(&members);
    let for_third = file.current.held_by(&Node(3).id()).unwrap().ciphertext.clone();
    let mut for_another = good.clone();
    for_another.share.as_mut().unwrap().ciphertext = for_third;
    let cases = [
        ("another owner's name", OWNER, UnlockRequest { owner: Node(3).id(), ..good.clone() }, Reason::OtherOwner),
        ("a replay by another member", Node(3), good.clone(), Reason::OtherOwner),
        ("a replay as its own", Node(3), UnlockRequest { owner: Node(3).id(), ..good.clone() }, Reason::NotForMe),
        ("a stranger", Node(9), good.clone(), Reason::UnknownKey),
        ("a share for another node", OWNER, for_another, Reason::NotForMe),
        ("another number", OWNER, share(|share| share.x += 1), Reason::NotForMe),
        ("another epoch than it was made for", OWNER, share(|share| share.epoch = at(1, 4)), Reason::NotForMe),
        ("another incarnation", OWNER, share(|share| share.epoch = at(2, 3)), Reason::NotForMe),
        ("a cut share", OWNER, share(|share| share.ciphertext.truncate(79)), Reason::NotForMe),
        ("a changed share", OWNER, share(|share| share.ciphertext[40] ^= 1), Reason::NotForMe),
        ("no share", OWNER, UnlockRequest { share: None, ..good.clone() }, Reason::NothingToGive),
    ];
    for (what, caller, request, expected) in cases {
        let decision = Peer::locked(2, &members).decide(caller, &request);
        assert_eq!(reason(&decision.answer), expected, "{what}");
        assert_eq!(decision.persist, None, "{what}");
    }
    // It is good in itself: what it is refused for is what was changed.
    assert!(matches!(Peer::locked(2, &members).answer(OWNER, &good), UnlockReply::Share(_)));
    assert!(matches!(Peer::locked(2, &members).answer(OWNER, &of_other_epoch), UnlockReply::Share(_)));
}

#[test]
fn a_share_below_the_floor_is_not_opened() {
    let members = list(at(1, 3), &[1, 2, 3]);
    let mut peer = Peer::locked(2, &members);
    let table = [(at(1, 2), true), (at(1, 3), true), (at(1, 4), false), (at(2, 1), false)];
    for (floor, is_opened) in table {
        assert_eq!(peer.floors.raise(OWNER.id(), floor), floor > at(1, 2));
        let answer = peer.answer(OWNER, &request(&members));
        assert_eq!(matches!(answer, UnlockReply::Share(_)), is_opened, "{floor}");
        if !is_opened {
            assert_eq!(reason(&answer), Reason::OldShare);
        }
    }
    assert!(!peer.floors.raise(OWNER.id(), at(1, 9)), "a floor never sinks");
    assert_eq!(peer.floors.of(&OWNER.id()), Some(at(2, 1)));
    let copy: Floors = peer.floors.iter().map(|(owner, epoch)| (*owner, *epoch)).collect();
    assert_eq!(copy, peer.floors);
}

#[test]
fn too_many_requests_are_refused_last_of_all() {
    let members = list(at(1, 3), &[1, 2, 3]);
    let mut peer = Peer::locked(2, &members);
    peer.rate = Rate::Exceeded { per_minute: 7 };
    let answer = peer.answer(OWNER, &request(&members));
    assert!(matches!(&answer, UnlockReply::Refused(refusal) if refusal.detail == "it answers 7 requests a minute"));
    let wrong = UnlockRequest { share: None, ..request(&members) };
    assert_eq!(reason(&peer.answer(OWNER, &wrong)), Reason::NothingToGive);
    peer.word = ClusterWord::Key(OWNER.key_of_data());
    assert_eq!(reason(&peer.answer(OWNER, &request(&members))), Reason::TooOften);
    // And what a stranger shows is not even looked at.
    let newer = list(at(1, 4), &[1, 2, 3, 9]);
    let shown = UnlockRequest { list: Some(newer.wire().clone()), ..request(&members) };
    let decision = peer.decide(Node(9), &UnlockRequest { owner: Node(9).id(), ..shown });
    assert_eq!((reason(&decision.answer), decision.persist), (Reason::TooOften, None));
}

#[test]
fn the_newer_list_wins_in_both_directions() {
    let (old, new) = (list(at(1, 3), &[1, 2, 3]), list(at(1, 4), &[1, 2, 3]));
    let mut peer = Peer::locked(2, &new);
    assert_eq!(peer.answer(OWNER, &request(&old)), UnlockReply::NewerMembers(new.wire().clone()));
    let blank = UnlockRequest { list_epoch: None, ..request(&old) };
    assert_eq!(peer.answer(OWNER, &blank), UnlockReply::NewerMembers(new.wire().clone()));

    let mut peer = Peer::locked(2, &old);
    assert_eq!(peer.answer(OWNER, &request(&new)), UnlockReply::OlderMembers(Some(at(1, 3))));
    let shown = UnlockRequest { list: Some(new.wire().clone()), ..request(&new) };
    let decision = peer.decide(OWNER, &shown);
    assert_eq!(decision.persist.as_ref(), Some(&new));
    assert!(matches!(decision.answer, UnlockReply::Share(_)), "{decision:?}");
    // An older one that a member shows is of no use, and does no harm.
    let shown = UnlockRequest { list: Some(old.wire().clone()), ..request(&new) };
    let decision = peer.decide(OWNER, &shown);
    assert_eq!(decision.persist, None);
    assert!(matches!(decision.answer, UnlockReply::Share(_)));
}

#[test]
fn an_unknown_key_may_show_a_list_that_names_it_and_nothing_else() {
    let (old, new) = (list(at(1, 3), &[1, 2, 3]), list(at(1, 4), &[1, 2, 3, 9]));
    let stranger = Node(9);
    let ask = |shown: Option<&SignedMemberList>| UnlockRequest {
        owner: stranger.id(),
        list: shown.map(|list| list.wire().clone()),
        ..UnlockRequest { share: None, list_epoch: Some(at(1, 4)), ..request(&old) }
    };
    let mut peer = Peer::locked(2, &old);
    assert_eq!(reason(&peer.answer(stranger, &ask(None))), Reason::UnknownKey);
    // The peer slept through the addition.
    let decision = peer.decide(stranger, &ask(Some(&new)));
    assert_eq!(decision.persist, Some(new.clone()));
    assert_eq!(reason(&decision.answer), Reason::NothingToGive);

    let bad = |shown: &SignedMemberList| {
        let mut wire = shown.wire().clone();
        wire.signature[5] ^= 1;
        UnlockRequest { list: Some(wire), ..ask(None) }
    };
    let forged = MemberList::new(crate::scene::cluster(), at(1, 9), vec![stranger.entry()]);
    let others = CertificateAuthority::generate("Other CA");
    let forged = MemberList::new(others.certificate().cluster_id(), at(1, 9), forged.members().to_vec()).sign(&others);
    let cases = [
        ("not signed", bad(&list(at(1, 9), &[1, 2, 9]))),
        ("of another cluster", ask(Some(&forged))),
        ("without its name", ask(Some(&list(at(1, 9), &[1, 2, 3])))),
    ];
    for (what, request) in cases {
        let decision = Peer::locked(2, &old).decide(stranger, &request);
        assert_eq!((reason(&decision.answer), decision.persist), (Reason::BadList, None), "{what}");
    }
    // One that was a member sees that it is not any more.
    let decision = Peer::locked(2, &list(at(1, 5), &[1, 2, 3])).decide(stranger, &ask(Some(&new)));
    assert_eq!(decision.persist, None);
    assert!(matches!(decision.answer, UnlockReply::NewerMembers(_)));
}

#[test]
fn a_list_of_a_cluster_that_was_recovered_without_the_holder_is_refused() {
    let old = list(at(1, 3), &[1, 2, 3]);
    let shown = |list: &SignedMemberList| UnlockRequest { list: Some(list.wire().clone()), ..request(&old) };
    let lost = || Peer { list: None, ..Peer::locked(2, &old) };
    for (name, peer, nodes, is_taken) in [
        ("it names the holder", Peer::locked(2, &old), &[1, 2][..], true),
        ("it does not", Peer::locked(2, &old), &[1, 3], false),
        ("it does not, and the holder has lost its list", lost(), &[1], false),
        ("it does, and the holder has lost its list", lost(), &[1, 2], true),
    ] {
        let mut peer = peer;
        let new = list(at(2, 1), nodes);
        let decision = peer.decide(OWNER, &shown(&new));
        assert_eq!(decision.persist.is_some(), is_taken, "{name}");
        if !is_taken {
            assert_eq!(reason(&decision.answer), Reason::BadList, "{name}");
        }
    }
}

#[test]
fn a_peer_whose_list_was_lost_or_put_back_waits_for_a_newer_one() {
    let (old, new) = (list(at(1, 3), &[1, 2, 3]), list(at(1, 5), &[1, 2, 3]));
    let put_back = || Peer { highest: Some(at(1, 5)), ..Peer::locked(2, &old) };
    assert_eq!(reason(&put_back().answer(OWNER, &request(&old))), Reason::NothingToGive);
    assert_eq!(put_back().answer(OWNER, &request(&new)), UnlockReply::OlderMembers(Some(at(1, 3))));

    let lost = || Peer { list: None, ..put_back() };
    assert_eq!(reason(&lost().answer(OWNER, &request(&old))), Reason::UnknownKey);
    let show = |list: &SignedMemberList| UnlockRequest { list: Some(list.wire().clone()), ..request(list) };
    assert_eq!(reason(&lost().answer(OWNER, &show(&old))), Reason::NothingToGive);
    let decision = lost().decide(OWNER, &show(&new));
    assert_eq!(decision.persist, Some(new));
    assert!(matches!(decision.answer, UnlockReply::Share(_)));
}
