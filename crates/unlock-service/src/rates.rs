//! How often members are answered.

use std::collections::HashMap;
use std::time::Instant;

use polis_identity::PublicKey;
use polis_rpc::Bucket;
use polis_unlock::Rate;

use crate::limits::{MEMBER_RATE, REQUESTS_PER_MINUTE};
use crate::members::KnownMembers;

/// How often each member is answered. Strangers are kept to their rate before they get here, by their address: there is no end of
/// keys.
#[derive(Default)]
pub(crate) struct Rates(HashMap<PublicKey, Bucket>);

impl Rates {
    /// Takes down a request.
    pub(crate) fn take(&mut self, known: &KnownMembers, key: PublicKey, now: Instant) -> Rate {
        if !known.has_key(&key) {
            return Rate::Within;
        }
        self.0.retain(|key, _| known.has_key(key));
        let bucket = self.0.entry(key).or_insert_with(|| Bucket::full(MEMBER_RATE, now));
        if bucket.take(MEMBER_RATE, now) { Rate::Within } else { Rate::Exceeded { per_minute: REQUESTS_PER_MINUTE } }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority, JoinKey, NodeId, NodeKey};
    use polis_unlock::{Epoch, MemberEntry, MemberList, Standing};

    use super::*;

    #[test]
    fn one_that_asks_without_end_has_to_wait_and_nobody_else() {
        let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
        let entry = |_| {
            let public_key = NodeKey::generate().public();
            MemberEntry {
                node_id: NodeId::of(&public_key),
                public_key,
                join_key: JoinKey::generate().public(),
                share_key: None,
                addresses: Vec::new(),
                standing: Standing::Stays,
            }
        };
        let members: Vec<MemberEntry> = (0..2).map(entry).collect();
        let [first, second] = [members[0].join_key, members[1].join_key];
        let list = MemberList::new(authority.certificate().cluster_id(), Epoch::FIRST, members).sign(&authority);
        let known = KnownMembers { list: Some(list), ..KnownMembers::default() };
        let mut rates = Rates::default();
        let now = Instant::now();
        let mut within =
            |key, now, count: usize| (0..count).filter(|_| rates.take(&known, key, now) == Rate::Within).count();
        assert_eq!(within(first, now, 400), 200);
        assert_eq!(within(second, now, 1), 1);
        assert_eq!(within(first, now + Duration::from_secs(1), 400), 20);
        // A stranger's key is not counted, and none is remembered.
        assert_eq!(within(JoinKey::generate().public(), now, 400), 400);
        assert_eq!(rates.0.len(), 2);
        rates.take(&known, second, now);
        let nobody = KnownMembers::default();
        assert_eq!(rates.take(&nobody, first, now), Rate::Within);
    }
}
