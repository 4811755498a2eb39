//! [`Superblock`]: what an XFS says of itself before it is mounted.

use uuid::Uuid;

/// Bytes from the start of the device that are needed.
pub(super) const SUPERBLOCK_BYTES: usize = 512;
/// Offsets in the superblock (XFS Algorithms & Data Structures, "Superblocks"). Numbers are big-endian.
const UUID: std::ops::Range<usize> = 32..48;
const LABEL: std::ops::Range<usize> = 108..120;

/// The superblock of an XFS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) uuid: Uuid,
    pub(super) label: String,
}

impl Superblock {
    /// Reads it; none if this is none.
    pub(super) fn parse(sector: &[u8; SUPERBLOCK_BYTES]) -> Option<Self> {
        sector.strip_prefix(b"XFSB")?;
        let label = &sector[LABEL];
        let end = label.iter().position(|&byte| byte == 0).unwrap_or(label.len());
        let uuid = Uuid::from_slice(&sector[UUID]).ok()?;
        Some(Self { uuid, label: String::from_utf8_lossy(&label[..end]).into_owned() })
    }
}
