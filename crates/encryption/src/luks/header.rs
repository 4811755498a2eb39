//! [`BinaryHeader`] and [`Metadata`]: what a LUKS2 header says.
//!
//! Label, subsystem and UUID are in the first sector of each copy of the header (LUKS2 On-Disk Format 1.1.3, section 2.1); they are
//! read directly, so that `cryptsetup`, which repairs a damaged copy from the other, is started for headers of ours only. All else is
//! read through it, since it knows which copy is whole.

use polis_disks::{Device, DeviceError};
use polis_storage::journal::StorageSecurity;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::names::TOKEN_TYPE;

/// Bytes of the binary part of a header.
pub(super) const HEADER_BYTES: usize = 4096;
/// Where the second copy is, with the size of the metadata area that `cryptsetup luksFormat` makes by default, 16 KiB.
pub(super) const SECOND_COPY: u64 = 16 * 1024;

const MAGIC: &[u8; 6] = b"LUKS\xba\xbe";
const SECOND_MAGIC: &[u8; 6] = b"SKUL\xba\xbe";
const VERSION: &[u8; 2] = &[0, 2];
const LABEL: std::ops::Range<usize> = 24..72;
const UUID: std::ops::Range<usize> = 168..208;
const SUBSYSTEM: std::ops::Range<usize> = 208..256;
/// Bytes of a copy, binary part and metadata, big-endian.
const COPY_BYTES: std::ops::Range<usize> = 8..16;
const CHECKSUM_KIND: std::ops::Range<usize> = 72..104;
/// The checksum over the whole copy, made while this field is zero.
const CHECKSUM: std::ops::Range<usize> = 448..512;
const SHA256_BYTES: usize = 32;

/// The binary part of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BinaryHeader {
    pub(super) label: String,
    pub(super) subsystem: String,
    pub(super) uuid: Option<Uuid>,
}

impl BinaryHeader {
    /// Reads either copy; none if this is not one.
    pub(super) fn parse(sector: &[u8; HEADER_BYTES]) -> Option<Self> {
        let rest = sector.strip_prefix(MAGIC).or_else(|| sector.strip_prefix(SECOND_MAGIC))?;
        rest.strip_prefix(VERSION)?;
        let text = |range: std::ops::Range<usize>| {
            let field = &sector[range];
            let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
            String::from_utf8_lossy(&field[..end]).into_owned()
        };
        Some(Self { label: text(LABEL), subsystem: text(SUBSYSTEM), uuid: Uuid::try_parse(&text(UUID)).ok() })
    }
}

/// Whether a copy of the header on `device` is whole by its own checksum. Formats of ours have copies of one length with SHA-256.
///
/// # Errors
///
/// When the device does not say what is there.
pub(super) fn has_whole_copy(device: &Device) -> Result<bool, DeviceError> {
    const COPY: usize = SECOND_COPY as usize;
    for position in [0, SECOND_COPY] {
        let mut copy = vec![0; COPY];
        device.read_at(position, &mut copy)?;
        if is_whole(&mut copy) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether this is a copy of a header of the length that formats of ours have, with the right checksum. The field of that is zero
/// afterwards.
fn is_whole(copy: &mut [u8]) -> bool {
    let is_header = copy.first_chunk().is_some_and(|sector| BinaryHeader::parse(sector).is_some());
    let length: [u8; 8] = copy[COPY_BYTES].try_into().unwrap_or_default();
    if !is_header || u64::from_be_bytes(length) != SECOND_COPY || !copy[CHECKSUM_KIND].starts_with(b"sha256\0") {
        return false;
    }
    let expected = copy[CHECKSUM][..SHA256_BYTES].to_vec();
    copy[CHECKSUM].fill(0);
    Sha256::digest(&*copy)[..] == expected[..]
}

/// What `cryptsetup luksDump --dump-json-metadata` says, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Metadata {
    /// The node in the token that says that the format is finished; none without such a token.
    pub(super) finished_for: Option<String>,
    /// What the data is protected from; none for a segment as no format of ours makes it.
    pub(super) security: Option<StorageSecurity>,
    /// Where the encrypted part of the device begins, in bytes.
    pub(super) offset: Option<u64>,
    /// Numbers of the key slots in use.
    pub(super) slots: Vec<u32>,
}

impl Metadata {
    /// Parses it.
    pub(super) fn parse(json: &str) -> Result<Self, serde_json::Error> {
        let value: Value = serde_json::from_str(json)?;
        let tokens = value["tokens"].as_object().into_iter().flatten().map(|(_, token)| token);
        let finished = tokens.filter(|token| token["type"] == TOKEN_TYPE).find_map(|token| token["node"].as_str());
        let segment = &value["segments"]["0"];
        let kind = (segment["encryption"].as_str(), segment["integrity"]["type"].as_str());
        let security = match kind {
            (Some("aes-xts-plain64"), None) => Some(StorageSecurity::Encrypted),
            (Some("aes-gcm-random"), Some("aead")) => Some(StorageSecurity::AuthenticatedEncrypted),
            _ => None,
        };
        let slots = value["keyslots"].as_object().into_iter().flatten().filter_map(|(number, _)| number.parse().ok());
        let offset = segment["offset"].as_str().and_then(|offset| offset.parse().ok());
        Ok(Self { finished_for: finished.map(str::to_owned), security, offset, slots: slots.collect() })
    }
}

/// The token that says that the format for this node is finished.
pub(super) fn token(owner: &str) -> String {
    serde_json::json!({ "type": TOKEN_TYPE, "keyslots": [], "node": owner }).to_string()
}

/// The number of the slot in what `cryptsetup --verbose open --test-passphrase` says.
pub(super) fn unlocked_slot(output: &str) -> Option<u32> {
    let number = output.lines().find_map(|line| line.strip_prefix("Key slot ")?.strip_suffix(" unlocked."))?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_copies_of_the_binary_part_are_read() {
        let mut sector = [0; HEADER_BYTES];
        assert_eq!(BinaryHeader::parse(&sector), None);
        sector[..8].copy_from_slice(b"LUKS\xba\xbe\0\x02");
        sector[24..34].copy_from_slice(b"polis-data");
        sector[208..212].copy_from_slice(b"node");
        sector[168..204].copy_from_slice(b"00000000-0000-8000-8000-00000000002a");
        let uuid = Some(Uuid::from_u128(0x8000_8000_0000_0000_002a));
        let expected = BinaryHeader { label: "polis-data".to_owned(), subsystem: "node".to_owned(), uuid };
        assert_eq!(BinaryHeader::parse(&sector), Some(expected.clone()));
        sector[..4].copy_from_slice(b"SKUL");
        assert_eq!(BinaryHeader::parse(&sector), Some(expected));
        sector[7] = 1;
        assert_eq!(BinaryHeader::parse(&sector), None, "LUKS1 is nothing of ours");
    }

    #[test]
    fn metadata_of_both_kinds_and_of_strangers() {
        let check = |json: &str, finished_for: Option<&str>, security, slots: &[u32]| {
            let found = Metadata::parse(json).unwrap();
            let expected = Metadata {
                finished_for: finished_for.map(str::to_owned),
                security,
                offset: json.contains("offset").then_some(16 << 20),
                slots: slots.to_vec(),
            };
            assert_eq!(found, expected, "{json}");
        };
        let encrypted = Some(StorageSecurity::Encrypted);
        let authenticated = Some(StorageSecurity::AuthenticatedEncrypted);
        check("{}", None, None, &[]);
        check(
            r#"{"keyslots":{"0":{},"3":{}},"tokens":{},"segments":{"0":{"encryption":"aes-xts-plain64"}}}"#,
            None,
            encrypted,
            &[0, 3],
        );
        let with_token = format!(
            r#"{{"keyslots":{{"1":{{}}}},"tokens":{{"0":{{"type":"other","node":"x"}},"1":{}}},
               "segments":{{"0":{{"offset":"16777216","encryption":"aes-gcm-random","integrity":{{"type":"aead"}}}}}}}}"#,
            token("metropolis-1")
        );
        check(&with_token, Some("metropolis-1"), authenticated, &[1]);
        check(r#"{"segments":{"0":{"encryption":"aes-gcm-random"}}}"#, None, None, &[]);
        check(
            r#"{"segments":{"0":{"encryption":"aes-xts-plain64","integrity":{"type":"hmac(sha256)"}}}}"#,
            None,
            None,
            &[],
        );
        assert!(Metadata::parse("no json").is_err());
    }

    #[test]
    fn the_slot_that_was_unlocked() {
        for (output, expected) in [
            ("", None),
            ("Key slot 0 unlocked.\nCommand successful.", Some(0)),
            ("No usable token is available.\nKey slot 12 unlocked.", Some(12)),
            ("No key available with this passphrase.", None),
        ] {
            assert_eq!(unlocked_slot(output), expected, "{output}");
        }
    }
}
