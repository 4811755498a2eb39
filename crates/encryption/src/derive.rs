//! From the two keys of a node to the one that opens a backend.

use hkdf::Hkdf;
use polis_secret::Secret32;
use polis_storage::data::UnlockKeys;
use sha2::Sha256;
use zeroize::Zeroizing;

/// What a derived key is for. Keys for different purposes tell nothing about each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A key slot of gocryptfs.
    Gocryptfs,
    /// A key slot of LUKS.
    Luks,
}

impl Purpose {
    /// The label. It never changes: what was encrypted with it could not be opened any more.
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Gocryptfs => b"polis data partition gocryptfs v1",
            Self::Luks => b"polis data partition luks v1",
        }
    }
}

/// HKDF-SHA256 over the node unlock key and the cluster unlock key, in this order: who has only one of them knows nothing
/// of the result.
///
/// # Panics
///
/// Never: 32 bytes are a length that HKDF-SHA256 gives.
#[must_use]
pub fn derive(keys: &UnlockKeys, purpose: Purpose) -> Secret32 {
    let mut material = Zeroizing::new([0; 64]);
    let (node, cluster) = material.split_at_mut(32);
    node.copy_from_slice(keys.node.expose());
    cluster.copy_from_slice(keys.cluster.expose());
    let mut output = Zeroizing::new([0; 32]);
    Hkdf::<Sha256>::new(None, &*material).expand(purpose.label(), &mut *output).expect("32 bytes can be derived");
    Secret32::new(*output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(node: u8, cluster: u8) -> UnlockKeys {
        UnlockKeys { node: Secret32::new([node; 32]), cluster: Secret32::new([cluster; 32]) }
    }

    /// The values were computed by another implementation of RFC 5869. They never change: nodes could not open their data.
    #[test]
    fn the_derived_keys_are_those_that_formatted_partitions_have() {
        let table = [
            (Purpose::Gocryptfs, "c2a734a2847e4ccf3546979e9f23868a0762e46f23879df79f71cc6da27b4cbb"),
            (Purpose::Luks, "7407b281e70b8cf5489dda40b50ab8164932a920f881f309a0264d689a434790"),
        ];
        for (purpose, expected) in table {
            let key = derive(&keys(1, 2), purpose);
            let digits: String = key.expose().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(digits, expected, "{purpose:?}");
        }
    }

    #[test]
    fn each_half_and_the_purpose_matter() {
        let all = [
            derive(&keys(1, 2), Purpose::Gocryptfs),
            derive(&keys(2, 1), Purpose::Gocryptfs),
            derive(&keys(1, 1), Purpose::Gocryptfs),
            derive(&keys(2, 2), Purpose::Gocryptfs),
            derive(&keys(1, 2), Purpose::Luks),
        ];
        for (index, key) in all.iter().enumerate() {
            assert!(!all[..index].contains(key), "{index}");
        }
    }
}
