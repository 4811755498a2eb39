//! How a node opens its data partition at a start: where the keys come from, decided from the journal alone.
//!
//! The key has two halves (metropolis.md, C.5). This machine's half is always in the journal; the cluster's half is there only
//! for as long as nobody else could give it. [`keys_at_start`] is the one place that decides about that.

use polis_secret::Secret32;
use polis_storage::Journal;
use polis_storage::journal::{ClusterUnlockKey, StorageSecurity};

use crate::failure::Failure;

/// How a node opens its data at a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColdStart {
    /// By itself.
    Local,
    /// With a key that a running cluster gives it.
    Cluster,
}

/// Where the keys of a data partition come from.
pub(crate) enum KeysAtStart {
    /// It has none.
    NotNeeded,
    /// The node has them.
    Own {
        /// The node unlock key.
        node: Secret32,
        /// The cluster unlock key: any of these may be the one that opens, and they are tried in this order.
        cluster: Vec<Secret32>,
    },
    /// The node has one half. The other comes from a running cluster, or from the other members ([`crate::cold_start`]).
    FromOthers {
        /// The node unlock key.
        node: Secret32,
    },
}

/// Decides where the keys come from.
///
/// # Errors
///
/// When the journal is not one that a node could have written.
pub(crate) fn keys_at_start(journal: &Journal) -> Result<KeysAtStart, Failure> {
    match journal.storage_security {
        None | Some(StorageSecurity::Insecure) => return Ok(KeysAtStart::NotNeeded),
        Some(StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted) => {}
    }
    let Some(node) = &journal.node_unlock_key else {
        return Err(Failure::Disk {
            what: "the enrolment journal cannot be used",
            source: "the data partition is encrypted, and the journal does not hold this machine's half of its key"
                .into(),
        });
    };
    Ok(match &journal.cluster_unlock_key {
        None => KeysAtStart::FromOthers { node: node.clone() },
        // A change of the key that was cut off may have got as far as making the old one useless, or not as far as making the
        // new one useful.
        Some(ClusterUnlockKey { current, pending }) => {
            KeysAtStart::Own { node: node.clone(), cluster: pending.iter().chain([current]).cloned().collect() }
        }
    })
}

/// How the node opens its data at its next start, for people; nothing if that is not decided.
pub(crate) fn cold_start(journal: &Journal) -> Option<ColdStart> {
    journal.storage_security?;
    match keys_at_start(journal).ok()? {
        KeysAtStart::NotNeeded | KeysAtStart::Own { .. } => Some(ColdStart::Local),
        KeysAtStart::FromOthers { .. } => Some(ColdStart::Cluster),
    }
}

/// Gives a node the keys that its data partition will be opened with, if it will have any. A node that has them keeps them.
pub(crate) fn with_keys(mut journal: Journal, security: StorageSecurity) -> Journal {
    journal.storage_security = Some(security);
    match security {
        StorageSecurity::Insecure => {}
        StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted => {
            journal.node_unlock_key.get_or_insert_with(Secret32::random);
            journal
                .cluster_unlock_key
                .get_or_insert_with(|| ClusterUnlockKey { current: Secret32::random(), pending: None });
        }
    }
    journal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enrolment::intent;

    #[test]
    fn the_journal_alone_decides_where_the_keys_come_from() {
        let secret = |byte| Secret32::new([byte; 32]);
        let journal = |security, cluster_unlock_key| {
            let mut journal = intent(b"parameters".to_vec());
            journal.storage_security = security;
            if !matches!(security, None | Some(StorageSecurity::Insecure)) {
                journal.node_unlock_key = Some(secret(1));
            }
            journal.cluster_unlock_key = cluster_unlock_key;
            journal
        };
        let told = |journal: &Journal| match keys_at_start(journal).unwrap() {
            KeysAtStart::NotNeeded => "none".to_owned(),
            KeysAtStart::FromOthers { node } => format!("cluster, {}", node.expose()[0]),
            KeysAtStart::Own { node, cluster } => {
                let keys = cluster.iter().map(|key| format!("{}+{}", node.expose()[0], key.expose()[0]));
                keys.collect::<Vec<_>>().join(" ")
            }
        };
        let key = |pending: Option<u8>| Some(ClusterUnlockKey { current: secret(2), pending: pending.map(secret) });
        for (security, cluster_key, expected, cold) in [
            (None, None, "none", None),
            (Some(StorageSecurity::Insecure), None, "none", Some(ColdStart::Local)),
            (Some(StorageSecurity::Encrypted), key(None), "1+2", Some(ColdStart::Local)),
            (Some(StorageSecurity::AuthenticatedEncrypted), key(Some(3)), "1+3 1+2", Some(ColdStart::Local)),
            (Some(StorageSecurity::AuthenticatedEncrypted), None, "cluster, 1", Some(ColdStart::Cluster)),
        ] {
            let journal = journal(security, cluster_key);
            assert_eq!((told(&journal).as_str(), cold_start(&journal)), (expected, cold));
        }
        let mut broken = journal(Some(StorageSecurity::Encrypted), key(None));
        broken.node_unlock_key = None;
        assert!(matches!(keys_at_start(&broken), Err(Failure::Disk { .. })));
    }

    #[test]
    fn keys_are_made_once_and_only_where_they_are_used() {
        let new = || intent(b"parameters".to_vec());
        let insecure = with_keys(new(), StorageSecurity::Insecure);
        assert!(insecure.node_unlock_key.is_none() && insecure.cluster_unlock_key.is_none());
        for security in [StorageSecurity::Encrypted, StorageSecurity::AuthenticatedEncrypted] {
            let first = with_keys(new(), security);
            let (node, cluster) = (first.node_unlock_key.clone(), first.cluster_unlock_key.clone());
            assert!(node.is_some() && cluster.as_ref().is_some_and(|key| Some(&key.current) != node.as_ref()));
            let again = with_keys(first, security);
            assert!(again.node_unlock_key == node && again.cluster_unlock_key == cluster);
        }
    }
}
