//! Who believes what.

use polis_identity::{CertificateAuthority, JoinKey, NodeId, NodeKey, ShareKey, StatementKind};
use polis_proto::curator_state;
use polis_secret::Secret32;
use proptest::prelude::*;
use prost::Message as _;

use super::{InvalidMemberList, MemberEntry, MemberList, SignedMemberList, Standing};
use crate::Epoch;

const LIST: StatementKind = StatementKind::new("polis member list v1");

fn member(seed: u8) -> MemberEntry {
    let public_key = NodeKey::from_secret(Secret32::new([seed; 32])).public();
    MemberEntry {
        node_id: NodeId::of(&public_key),
        public_key,
        join_key: JoinKey::from_secret(Secret32::new([seed ^ 0xff; 32])).public(),
        share_key: seed.is_multiple_of(2).then(|| ShareKey::from_secret(Secret32::new([seed; 32])).public()),
        addresses: (0..seed % 3).map(|last| [127, 3, seed, last].into()).collect(),
        standing: [Standing::Stays, Standing::Joins, Standing::Leaves][usize::from(seed) % 3],
    }
}

fn sign(authority: &CertificateAuthority, message: &curator_state::MemberList) -> curator_state::SignedMemberList {
    let list = message.encode_to_vec();
    let signature = authority.key().sign_statement(LIST, &list).to_vec();
    curator_state::SignedMemberList { list, signature }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_signed_list_is_read_again_and_no_changed_one_is(
        seeds in prop::collection::vec(any::<u8>(), 0..9),
        (incarnation, epoch) in any::<(u64, u64)>(),
        change in any::<(prop::sample::Index, u8)>(),
    ) {
        let authority = CertificateAuthority::generate("Test CA");
        let cluster_id = authority.certificate().cluster_id();
        let list = MemberList::new(cluster_id, Epoch { incarnation, epoch }, seeds.iter().copied().map(member).collect());
        let list = list.with_two_confirmed(epoch.is_multiple_of(2));
        prop_assert!(list.members().is_sorted_by(|one, next| one.node_id < next.node_id));
        for seed in seeds {
            prop_assert_eq!(list.member(&member(seed).node_id), Some(&member(seed)));
        }
        let signed = list.clone().sign(&authority);
        let wire = curator_state::SignedMemberList::decode(&signed.encode()[..]).unwrap();
        let read = SignedMemberList::verify(wire.clone(), authority.certificate()).unwrap();
        prop_assert_eq!(read.list(), &list);
        prop_assert_eq!(&read, &signed);

        let mut changed = wire;
        let bits = change.1.max(1);
        let part = if bits.is_multiple_of(2) { &mut changed.list } else { &mut changed.signature };
        let place = change.0.index(part.len());
        part[place] ^= bits;
        let outcome = SignedMemberList::verify(changed, authority.certificate());
        let is_refused = matches!(outcome, Err(InvalidMemberList::Signature { .. }));
        prop_assert!(is_refused);
    }
}

#[test]
fn a_list_says_who_votes_before_and_after_its_change() {
    let cluster_id = CertificateAuthority::generate("Test CA").certificate().cluster_id();
    let standing = |seed, standing| MemberEntry { standing, ..member(seed) };
    let entries = vec![standing(1, Standing::Stays), standing(2, Standing::Joins), standing(3, Standing::Leaves)];
    let list = MemberList::new(cluster_id, Epoch::FIRST, entries);
    let votes =
        |voters: Vec<&MemberEntry>| [1, 2, 3].map(|seed| voters.iter().any(|it| it.node_id == member(seed).node_id));
    assert_eq!(votes(list.voters_before().collect()), [true, false, true]);
    assert_eq!(votes(list.voters_after().collect()), [true, true, false]);
}

#[test]
fn what_the_authority_should_not_have_signed_is_refused() {
    let authority = CertificateAuthority::generate("Test CA");
    let cluster_id = authority.certificate().cluster_id();
    let whole = || MemberList::new(cluster_id, Epoch::FIRST, vec![member(1), member(2)]).to_wire();
    type Change = fn(&mut curator_state::MemberList);
    let cases: [(&str, Change); 9] = [
        ("it is about the cluster \"0\"", |list| list.cluster_id = "0".into()),
        ("it has no epoch", |list| list.epoch = None),
        ("the public key of", |list| list.members[0].public_key.truncate(31)),
        ("the join key of", |list| list.members[1].join_key.clear()),
        ("the share key of", |list| list.members[1].share_key = vec![0; 33]),
        ("the standing of", |list| list.members[1].standing = 9),
        ("it calls", |list| list.members[0].node_id = "metropolis-0".into()),
        ("its members are not in order", |list| list.members.reverse()),
        ("its members are not in order", |list| list.members[1] = list.members[0].clone()),
    ];
    for (expected, change) in cases {
        let mut message = whole();
        change(&mut message);
        let error = SignedMemberList::verify(sign(&authority, &message), authority.certificate()).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error:?} instead of {expected:?}");
    }
    let mut message = whole();
    message.members[0].addresses = vec!["nowhere".into()];
    let error = SignedMemberList::verify(sign(&authority, &message), authority.certificate()).unwrap_err();
    assert!(matches!(error, InvalidMemberList::Address { .. }), "{error:?}");
    SignedMemberList::verify(sign(&authority, &whole()), authority.certificate()).unwrap();
}
