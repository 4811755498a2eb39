//! [`Marker`]: that a node has begun to format a device.

use polis_disks::{Device, DeviceError, MIB};
use sha2::{Digest as _, Sha256};

const MAGIC: &[u8; 8] = b"POLISFMT";
const VERSION: u8 = 1;
/// Size on the device: one sector of any device.
const SIZE: usize = 4096;
/// Bytes of the hash at the end.
const HASH: usize = 32;
/// Bytes before the owner: magic, version, length of the owner.
const HEAD: usize = MAGIC.len() + 2;

/// A format of this node was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    /// Id of the node.
    pub(super) owner: String,
}

impl Marker {
    /// Where it is on a device: a mebibyte before its end. `mkfs.xfs` clears the last 128 KiB, and the marker has to last longer.
    fn position(device: &Device) -> u64 {
        let sector = SIZE as u64;
        (device.size() / sector * sector).saturating_sub(MIB)
    }

    /// Reads it; none if there is none.
    pub(super) fn read(device: &Device) -> Result<Option<Self>, DeviceError> {
        let mut sector = [0; SIZE];
        device.read_at(Self::position(device), &mut sector)?;
        Ok(Self::decode(&sector))
    }

    /// Writes it durably.
    pub(super) fn write(&self, device: &Device) -> Result<(), DeviceError> {
        device.write_at(Self::position(device), &self.encode())?;
        device.sync()
    }

    /// Erases it durably.
    pub(super) fn erase(device: &Device) -> Result<(), DeviceError> {
        device.write_at(Self::position(device), &[0; SIZE])?;
        device.sync()
    }

    fn encode(&self) -> [u8; SIZE] {
        let mut sector = [0; SIZE];
        let owner = self.owner.as_bytes();
        let length = u8::try_from(owner.len()).unwrap_or(u8::MAX);
        let owner = &owner[..usize::from(length)];
        sector[..MAGIC.len()].copy_from_slice(MAGIC);
        sector[MAGIC.len()] = VERSION;
        sector[MAGIC.len() + 1] = length;
        sector[HEAD..HEAD + owner.len()].copy_from_slice(owner);
        let hash = Sha256::digest(&sector[..SIZE - HASH]);
        sector[SIZE - HASH..].copy_from_slice(&hash);
        sector
    }

    fn decode(sector: &[u8; SIZE]) -> Option<Self> {
        let rest = sector.strip_prefix(MAGIC)?.strip_prefix(&[VERSION])?;
        if Sha256::digest(&sector[..SIZE - HASH])[..] != sector[SIZE - HASH..] {
            return None;
        }
        let (&length, rest) = rest.split_first()?;
        let owner = std::str::from_utf8(rest.get(..usize::from(length))?).ok()?;
        Some(Self { owner: owner.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // A size that is no multiple of a sector.
        file.as_file().set_len(8 * MIB + 700).unwrap();
        let device = Device::open_writable(file.path()).unwrap();
        assert_eq!(Marker::read(&device).unwrap(), None);
        let marker = Marker { owner: "metropolis-000102030405060708090a0b0c0d0e0f".to_owned() };
        marker.write(&device).unwrap();
        assert_eq!(Marker::read(&device).unwrap(), Some(marker.clone()));
        for position in [0, 8, 9, 10, SIZE - 1] {
            let mut sector = marker.encode();
            sector[position] ^= 1;
            assert_eq!(Marker::decode(&sector), None, "{position}");
        }
        Marker::erase(&device).unwrap();
        let mut bytes = vec![0; 8 << 20];
        device.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
}
