//! Which members have called lately, and from where: a member that calls is up, and is to be asked at once.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use polis_identity::PublicKey;
use tokio::sync::watch;

/// Most members that are remembered. Only holders of keys in the member list are, so that a cluster of nine with its changes in
/// one life of a node fits many times.
const MAX_CONTACTS: usize = 64;

/// The last contact of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contact {
    /// Where it called from.
    pub(crate) from: IpAddr,
    /// Which call of all it was: another number is another call.
    pub(crate) number: u64,
}

/// Which members have called lately, and from where. Who serves notes it, and who asks watches it. Clones share it.
#[derive(Clone, Debug)]
pub struct Contacts(watch::Sender<Arc<BTreeMap<PublicKey, Contact>>>);

impl Default for Contacts {
    fn default() -> Self {
        Self(watch::Sender::new(Arc::default()))
    }
}

impl Contacts {
    /// The member with this join key has called.
    pub(crate) fn note(&self, key: PublicKey, from: IpAddr) {
        self.0.send_modify(|contacts| {
            let contacts = Arc::make_mut(contacts);
            let number = 1 + contacts.values().map(|contact| contact.number).max().unwrap_or_default();
            contacts.insert(key, Contact { from, number });
            if contacts.len() > MAX_CONTACTS {
                let oldest = contacts.iter().min_by_key(|(_, contact)| contact.number).map(|(key, _)| *key);
                oldest.map(|oldest| contacts.remove(&oldest));
            }
        });
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Arc<BTreeMap<PublicKey, Contact>>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::JoinKey;

    use super::*;

    #[test]
    fn the_last_ones_are_remembered() {
        let contacts = Contacts::default();
        let from = IpAddr::from([10, 0, 0, 1]);
        let first = JoinKey::generate().public();
        contacts.note(first, from);
        let before = contacts.watch().borrow()[&first];
        contacts.note(first, from);
        assert_ne!(contacts.watch().borrow()[&first], before);
        let second = JoinKey::generate().public();
        contacts.note(second, from);
        for _ in 2..MAX_CONTACTS {
            contacts.note(JoinKey::generate().public(), from);
        }
        contacts.note(second, from);
        contacts.note(JoinKey::generate().public(), from);
        let known = Arc::clone(&contacts.watch().borrow());
        assert_eq!(known.len(), MAX_CONTACTS);
        assert!(known.contains_key(&second) && !known.contains_key(&first));
    }
}
