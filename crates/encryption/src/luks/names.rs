//! Names and numbers by which a node knows its own.

use sha2::{Digest as _, Sha256};
use uuid::{Builder, Uuid};

/// Label of a LUKS header of ours, and of an XFS whose format is finished. XFS has room for twelve characters.
pub(super) const LABEL: &str = "polis-data";
/// Label of an XFS of the insecure stack whose format is not finished.
pub(super) const UNFINISHED_LABEL: &str = "polis-new";
/// Type of the token that says that the format is finished.
pub(super) const TOKEN_TYPE: &str = "polis-data";
/// How names of mappings begin.
const MAPPING_PREFIX: &str = "polis-";

/// The UUID of the LUKS header of a node.
pub(super) fn luks_uuid(owner: &str) -> Uuid {
    uuid_of("polis luks v1", owner)
}

/// The UUID of the XFS of a node.
pub(super) fn xfs_uuid(owner: &str) -> Uuid {
    uuid_of("polis xfs v1", owner)
}

/// The name of the mapping of a LUKS header, in `/dev/mapper`.
pub(super) fn mapping(luks: Uuid) -> String {
    format!("{MAPPING_PREFIX}{}", luks.simple())
}

/// Whether a mapping has a name of ours.
pub(super) fn is_mapping(name: &str) -> bool {
    name.starts_with(MAPPING_PREFIX)
}

fn uuid_of(purpose: &str, owner: &str) -> Uuid {
    let hash = Sha256::new().chain_update(purpose).chain_update([0]).chain_update(owner).finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They never change: nodes would not know their own disks.
    #[test]
    fn names_of_a_node() {
        let owner = "metropolis-000102030405060708090a0b0c0d0e0f";
        assert_eq!(luks_uuid(owner).get_version_num(), 8);
        assert_ne!(luks_uuid(owner), xfs_uuid(owner));
        assert_ne!(luks_uuid(owner), luks_uuid("metropolis-000102030405060708090a0b0c0d0e0e"));
        assert_eq!(mapping(Uuid::from_u128(1)), "polis-00000000000000000000000000000001");
        assert!(LABEL.len() <= 12 && UNFINISHED_LABEL.len() <= 12);
    }
}
