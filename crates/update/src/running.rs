//! [`SelectedEntry`]: by which entry of the boot loader this machine was started.

use std::io;
use std::path::{Path, PathBuf};

/// Option of the kernel command line that names the entry when a kernel was started by another one. The boot loader's variable is then
/// that of the start before.
pub const BOOT_ENTRY_OPTION: &str = "polis.boot-entry";
/// The boot loader's variable (systemd's boot loader interface).
const VARIABLE: &str = "LoaderEntrySelected-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
/// Bytes of the attributes before the value of each variable.
const ATTRIBUTES: usize = 4;

/// Name of the entry by which this machine was started, as it was before the boot loader counted in it. Nothing where no boot loader
/// says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectedEntry(pub Option<String>);

impl SelectedEntry {
    /// Asks the firmware and the kernel of this machine.
    ///
    /// # Errors
    ///
    /// When one of them is there and cannot be read. That there is no such variable is no error.
    pub fn of_this_machine() -> io::Result<Self> {
        Self::read(Path::new("/proc/cmdline"), &PathBuf::from("/sys/firmware/efi/efivars"))
    }

    /// As [`SelectedEntry::of_this_machine`], with other places.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn read(command_line: &Path, variables: &Path) -> io::Result<Self> {
        let line = std::fs::read_to_string(command_line)?;
        let mut named =
            line.split_whitespace().filter_map(|word| word.strip_prefix(BOOT_ENTRY_OPTION)?.strip_prefix('='));
        if let Some(name) = named.next_back() {
            return Ok(Self(Some(name.to_owned())));
        }
        match std::fs::read(variables.join(VARIABLE)) {
            Ok(bytes) => Ok(Self(parse(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self(None)),
            Err(error) => Err(error),
        }
    }
}

/// UTF-16 with a zero at its end, after the attributes.
fn parse(bytes: &[u8]) -> Option<String> {
    let units: Vec<u16> =
        bytes.get(ATTRIBUTES..)?.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    let text = String::from_utf16(&units).ok()?;
    let text = text.trim_end_matches('\0');
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_command_line_goes_before_the_variable() {
        let place = tempfile::tempdir().unwrap();
        let line = place.path().join("cmdline");
        let read = || SelectedEntry::read(&line, place.path()).unwrap().0;
        fs::write(&line, "quiet console=ttyS0\n").unwrap();
        assert_eq!(read(), None);
        let name = "polis-00000001-a.conf";
        let value: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
        fs::write(place.path().join(VARIABLE), [&[6, 0, 0, 0][..], &value].concat()).unwrap();
        assert_eq!(read().as_deref(), Some(name));
        fs::write(&line, "quiet polis.boot-entry=polis-00000002-b+1-0.conf\n").unwrap();
        assert_eq!(read().as_deref(), Some("polis-00000002-b+1-0.conf"));
        fs::write(&line, "").unwrap();
        for value in [&[][..], &[6, 0, 0], &[6, 0, 0, 0], &[6, 0, 0, 0, 0, 0], &[6, 0, 0, 0, 0x00, 0xd8, 0, 0]] {
            fs::write(place.path().join(VARIABLE), value).unwrap();
            assert_eq!(read(), None, "{value:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_absent() {
        let place = tempfile::tempdir().unwrap();
        let line = place.path().join("cmdline");
        assert!(SelectedEntry::read(&line, place.path()).is_err());
        fs::write(&line, "").unwrap();
        fs::create_dir(place.path().join(VARIABLE)).unwrap();
        assert!(SelectedEntry::read(&line, place.path()).is_err());
    }
}
