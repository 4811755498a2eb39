//! Variables of the firmware, through efivarfs.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Where efivarfs is mounted.
const VARIABLES: &str = "/sys/firmware/efi/efivars";

/// What the firmware can be asked to do at its next start, and what it is asked (UEFI specification, 8.5.4).
const WISHES_SUPPORTED: &str = "OsIndicationsSupported-8be4df61-93ca-11d2-aa0d-00e098032b8c";
const WISHES: &str = "OsIndications-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// The wish to stop in the firmware's own menu.
const WISH_MENU: u64 = 1;

/// Kept over a restart, readable by the firmware and by us.
const ATTRIBUTES: u32 = 7;

/// Bytes of the attributes before the value of each variable.
const ATTRIBUTE_BYTES: usize = 4;

/// Why the firmware could not be asked for its menu.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MenuError {
    #[error("this machine's firmware has no variables that can be reached, so it cannot be asked for its menu")]
    NoVariables(#[source] io::Error),
    #[error("this machine's firmware does not offer to stop in its menu")]
    NotSupported,
    #[error("the firmware's variable for wishes cannot be written")]
    Write(#[source] io::Error),
}

/// Whether the firmware of this machine can be asked to stop in its menu at the next start.
#[must_use]
pub fn has_firmware_menu() -> bool {
    look_for_menu().is_ok()
}

fn look_for_menu() -> Result<(), MenuError> {
    let supported = fs::read(variable(WISHES_SUPPORTED)).map_err(MenuError::NoVariables)?;
    if parse_number(&supported).unwrap_or(0) & WISH_MENU == 0 { Err(MenuError::NotSupported) } else { Ok(()) }
}

/// Asks the firmware to stop in its menu at the next start.
pub(crate) fn ask_for_menu() -> Result<(), MenuError> {
    look_for_menu()?;
    let wishes = fs::read(variable(WISHES)).ok().and_then(|bytes| parse_number(&bytes)).unwrap_or(0) | WISH_MENU;
    let bytes = [ATTRIBUTES.to_le_bytes().as_slice(), &wishes.to_le_bytes()].concat();
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(false).open(variable(WISHES)).map_err(MenuError::Write)?;
    // A variable is written by one call.
    match file.write(&bytes) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(MenuError::Write(io::ErrorKind::WriteZero.into())),
        Err(error) => Err(MenuError::Write(error)),
    }
}

fn variable(name: &str) -> PathBuf {
    Path::new(VARIABLES).join(name)
}

fn parse_number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(ATTRIBUTE_BYTES..)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_eight_bytes() {
        assert_eq!(parse_number(&[7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]), Some(1));
        assert_eq!(parse_number(&[7, 0, 0, 0, 1]), None);
        assert_eq!(parse_number(&[7]), None);
    }
}
