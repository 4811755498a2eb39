//! What dm-integrity says of itself at the beginning of an authenticated volume, as far as it matters here: how large that may be.
//!
//! The kernel makes the volume as large as the device allows whenever it is opened, and writes that down. `cryptsetup` opens it with
//! the size that it finds written. So after the device has grown, the volume is as it was, and when it is opened once more it is larger.

use polis_disks::{Device, DeviceError};

/// Bytes that are read: a block, which is what a read past the kernel's cache takes at least.
const BLOCK: usize = 4096;
/// What the block begins with (linux/drivers/md/dm-integrity.c, `struct superblock`).
const MAGIC: &[u8; 8] = b"integrt\0";
/// Where the number of sectors for data is: 64 bits, little-endian.
const PROVIDED_SECTORS: usize = 16;
/// Unit of that number, in bytes.
const SECTOR: u64 = 512;

/// Bytes for data of the volume that begins at `offset` of this device, which is opened past the kernel's cache: what it will have when
/// it is opened the next time. None if there is no such volume.
pub(super) fn provided(device: &Device, offset: u64) -> Result<Option<u64>, DeviceError> {
    let mut buffer = [0; 2 * BLOCK];
    // What goes past the kernel's cache must be aligned.
    let aligned = buffer.as_ptr().align_offset(BLOCK);
    let block = &mut buffer[aligned..aligned + BLOCK];
    device.read_at(offset, block)?;
    Ok(parse(block))
}

fn parse(block: &[u8]) -> Option<u64> {
    block.strip_prefix(MAGIC)?;
    let sectors = block.get(PROVIDED_SECTORS..)?.first_chunk()?;
    u64::from_le_bytes(*sectors).checked_mul(SECTOR)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// The beginning of what `cryptsetup luksFormat --integrity aead` had made on 100 MiB, after that had grown to 200.
    const REAL: &[u8; 24] = b"integrt\0\x04\x0f\x1c\0\x06\0\0\0\x48\xaf\x05\0\0\0\0\0";

    #[test]
    fn the_size_is_read_where_the_volume_begins() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 10).unwrap();
        let device = Device::open_writable(file.path()).unwrap();
        assert_eq!(provided(&device, 16 << 10).unwrap(), None);
        file.as_file().write_all_at(REAL, 16 << 10).unwrap();
        assert_eq!(provided(&device, 16 << 10).unwrap(), Some(372_552 * SECTOR));
        assert_eq!(provided(&device, 0).unwrap(), None);
        assert!(provided(&device, 64 << 10).is_err(), "the device ends there");
    }

    #[test]
    fn a_number_that_no_device_has_is_none() {
        let mut block = REAL.to_vec();
        block[16..24].fill(0xff);
        assert_eq!(parse(&block), None);
        assert_eq!(parse(&REAL[..20]), None);
    }
}
