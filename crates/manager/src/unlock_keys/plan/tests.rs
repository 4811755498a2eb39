//! One step for each of what can be found, in a table.

use super::*;

/// The key that opens the data, the next one, and one that nobody knows.
const OPENED: KeyCheckValue = KeyCheckValue::new([1; 32]);
const NEXT: KeyCheckValue = KeyCheckValue::new([2; 32]);
const OTHER: KeyCheckValue = KeyCheckValue::new([3; 32]);

const SHARES: Demand = Demand::Shares { needed: 2 };

/// A node on whose keys nothing is to be done, if nothing is asked.
const NODE: View = View {
    demand: Demand::Unsaid,
    opened: OPENED,
    next: None,
    copy: None,
    file: None,
    kept: Some(Some(OPENED)),
    keys: 1,
    is_rekey_asked: false,
    may_have_been_member: true,
};

const COPY: Option<Copied> = Some(Copied { current: OPENED, pending: None });
const BOTH_COPIES: Option<Copied> = Some(Copied { current: OPENED, pending: Some(NEXT) });

const fn piece(key: KeyCheckValue) -> Piece {
    Piece { key, needed: 2, fits: true, is_verified: true }
}

const fn file(current: Piece, pending: Option<Piece>) -> Option<Filed> {
    Some(Filed { current, pending })
}

/// A member whose key is where it belongs.
const MEMBER: View = View { demand: SHARES, file: file(piece(OPENED), None), ..NODE };

#[track_caller]
fn check(name: &str, view: View, expected: Step) {
    assert_eq!(plan(&view), expected, "{name}");
}

#[test]
fn a_member_of_a_small_cluster_has_a_copy_before_anything_else() {
    let node = View { demand: Demand::Copy, ..NODE };
    let alone = View { kept: None, ..node };
    check("it has none", alone, Step::Copy);
    check(
        "the copy is of another key",
        View { copy: Some(Copied { current: OTHER, pending: None }), ..alone },
        Step::Copy,
    );
    let node = View { copy: COPY, ..node };
    check("it has one", node, Step::Settled);
    check("nobody says what the cluster keeps", View { kept: None, ..node }, Step::Wait(Waiting::Cluster));
    check("the cluster has forgotten it", View { kept: Some(None), ..node }, Step::Tell);
    check("the shares of others are of no use", View { file: MEMBER.file, ..node }, Step::Forget);
    check("a key that nobody knows opens, too", View { keys: 2, ..node }, Step::RemoveOthers);

    let begin = Step::Begin { in_journal: true };
    check("a new key is asked for", View { is_rekey_asked: true, ..node }, begin);
    let changing = View { next: Some(NEXT), copy: BOTH_COPIES, ..node };
    check("the next one is written down", changing, Step::AddKey);
    let added = View { opened: NEXT, next: None, keys: 2, ..changing };
    check("it opens the data", added, Step::Tell);
    let told = View { kept: Some(Some(NEXT)), ..added };
    check("the cluster keeps it", told, Step::RemoveOthers);
    check("the old one opens nothing", View { keys: 1, ..told }, Step::Copy);
}

#[test]
fn a_member_of_a_larger_cluster_drops_its_copy_when_others_have_opened_their_shares() {
    let node = View { copy: COPY, file: None, ..MEMBER };
    check("it is not split", View { kept: None, ..node }, Step::Split);
    let unverified = Piece { is_verified: false, ..piece(OPENED) };
    let node = View { file: file(unverified, None), ..node };
    check("nobody has opened anything", node, Step::Wait(Waiting::Drill(OPENED)));
    check("not without contact either", View { kept: None, ..node }, Step::Wait(Waiting::Drill(OPENED)));
    let node = View { file: MEMBER.file, ..node };
    check("without the cluster's word nothing goes", View { kept: None, ..node }, Step::Wait(Waiting::Cluster));
    check("what was readable for long is replaced", node, Step::Begin { in_journal: false });
    let node = View { next: Some(NEXT), ..node };
    check("the next one is split", node, Step::Split);
    let untried = Piece { is_verified: false, ..piece(NEXT) };
    let node = View { file: file(piece(OPENED), Some(untried)), ..node };
    check("and tried", node, Step::Wait(Waiting::Drill(NEXT)));
    let node = View { file: file(piece(OPENED), Some(piece(NEXT))), ..node };
    check("it may open the data", node, Step::AddKey);
    let node = View { opened: NEXT, next: None, keys: 2, ..node };
    check("the cluster is to keep it", node, Step::Tell);
    let node = View { kept: Some(Some(NEXT)), ..node };
    check("the copy is of the old one", node, Step::DropCopy);
    let node = View { copy: None, ..node };
    check("the old one is to open nothing", node, Step::RemoveOthers);
    check("and is forgotten", View { keys: 1, ..node }, Step::Split);
    check("that is all", MEMBER, Step::Settled);
}

#[test]
fn a_split_is_kept_as_long_as_it_is_what_the_list_asks_for() {
    let fits = |needed, fits| Piece { needed, fits, ..piece(OPENED) };
    check("other members, as many shares", View { file: file(fits(2, false), None), ..MEMBER }, Step::Split);
    check("fewer shares are needed now", View { file: file(fits(4, false), None), ..MEMBER }, Step::Split);
    let begin = Step::Begin { in_journal: false };
    check("more shares are needed now", View { file: file(fits(1, false), None), ..MEMBER }, begin);
    let rising = View { next: Some(NEXT), file: file(fits(1, false), None), ..MEMBER };
    check("and both keys are split in one write", rising, Step::Split);
    check("a change was cut off", View { file: file(piece(OPENED), Some(piece(OTHER))), ..MEMBER }, begin);
    check("the file knows other keys", View { file: file(piece(OTHER), None), ..MEMBER }, begin);
    let ahead = View { file: file(piece(OTHER), Some(piece(OPENED))), ..MEMBER };
    check("it was opened with the next key", View { keys: 2, ..ahead }, Step::RemoveOthers);
    check("a new key is asked for", View { is_rekey_asked: true, ..MEMBER }, begin);
    check("the cluster was brought back from an older time", View { kept: Some(Some(OTHER)), ..MEMBER }, Step::Tell);
}

#[test]
fn who_is_no_member_has_nothing_but_the_clusters_word() {
    let guest = View { demand: Demand::Guest, may_have_been_member: false, ..NODE };
    check("it has nothing", guest, Step::Settled);
    check("it has just come in", View { copy: COPY, ..guest }, Step::DropCopy);
    check("the cluster keeps another key", View { copy: COPY, kept: Some(None), ..guest }, Step::Tell);
    check("nobody says", View { copy: COPY, kept: None, ..guest }, Step::Wait(Waiting::Cluster));
    let begin = Step::Begin { in_journal: false };
    check("it was a member of few", View { copy: COPY, may_have_been_member: true, ..guest }, begin);
    check("it was a member of many", View { file: MEMBER.file, ..guest }, begin);
    let replaced =
        View { file: file(piece(OTHER), None), copy: Some(Copied { current: OTHER, pending: None }), ..guest };
    check("its key was replaced", replaced, Step::Forget);
    check("and then the copy goes", View { file: None, ..replaced }, Step::DropCopy);
    check("a new key is asked for", View { is_rekey_asked: true, ..guest }, begin);
}

#[test]
fn as_long_as_nobody_has_said_what_is_asked_everything_stays() {
    for copy in [None, COPY] {
        for file in [None, MEMBER.file] {
            check("it stays", View { copy, file, ..NODE }, Step::Settled);
        }
    }
    let asked = View { is_rekey_asked: true, ..NODE };
    check("nobody knows where a new key would belong", asked, Step::Wait(Waiting::List));
    check("beside the old one", View { copy: COPY, ..asked }, Step::Begin { in_journal: true });
}
