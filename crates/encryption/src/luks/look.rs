//! [`Look`]: what is on a device, and whose it is.

use polis_disks::{Content, Device, DeviceError};
use uuid::Uuid;

use super::header::{BinaryHeader, HEADER_BYTES, SECOND_COPY};
use super::marker::Marker;
use super::names::{LABEL, UNFINISHED_LABEL};
use super::xfs::{SUPERBLOCK_BYTES, Superblock};

/// What is on a device, as far as it can be read without starting a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing.
    Blank,
    /// A format that was begun, of this node.
    Begun { owner: String },
    /// A LUKS header with our label. Whether the format was finished is in its metadata.
    Luks { owner: String, uuid: Option<Uuid> },
    /// An XFS with our label whose format was not finished.
    UnfinishedXfs { uuid: Uuid },
    /// An XFS with our label.
    Xfs { uuid: Uuid },
    /// Something else.
    Foreign(Content),
}

impl Look {
    /// Looks, and changes nothing.
    pub(super) fn at(device: &Device) -> Result<Self, DeviceError> {
        if let Some(Marker { owner }) = Marker::read(device)? {
            return Ok(Self::Begun { owner });
        }
        for position in [0, SECOND_COPY] {
            let mut sector = [0; HEADER_BYTES];
            device.read_at(position, &mut sector)?;
            match BinaryHeader::parse(&sector) {
                Some(BinaryHeader { label, subsystem, uuid }) if label == LABEL => {
                    return Ok(Self::Luks { owner: subsystem, uuid });
                }
                Some(_) | None => {}
            }
        }
        let mut sector = [0; SUPERBLOCK_BYTES];
        device.read_at(0, &mut sector)?;
        match Superblock::parse(&sector) {
            Some(Superblock { uuid, label }) if label == LABEL => return Ok(Self::Xfs { uuid }),
            Some(Superblock { uuid, label }) if label == UNFINISHED_LABEL => return Ok(Self::UnfinishedXfs { uuid }),
            Some(_) | None => {}
        }
        Ok(match Content::of_whole(device)? {
            Content::Blank => Self::Blank,
            content @ (Content::Known { .. } | Content::Unknown { .. }) => Self::Foreign(content),
        })
    }
}
