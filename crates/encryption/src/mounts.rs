//! What is mounted where, as the kernel says it in `mountinfo`: the one source that is right about dead mounts too.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::child::ToolError;

/// The kernel's list of mounts of this process' namespace. It becomes exceptionally ready when the list changes.
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Where.
    pub(crate) mount_point: PathBuf,
    /// Type of the file system.
    pub(crate) kind: String,
    /// What is mounted.
    pub(crate) source: OsString,
    /// Minor number of its device, by which the kernel names the connection of a FUSE mount.
    pub(crate) minor: u32,
}

/// The open list of mounts.
pub(crate) struct Mounts(File);

impl Mounts {
    pub(crate) fn open() -> Result<Self, ToolError> {
        Ok(Self(File::open(MOUNTINFO).map_err(failed)?))
    }

    /// The mounts at exactly this place, the one that is seen there last.
    pub(crate) fn at(&mut self, place: &Path) -> Result<Vec<Mount>, ToolError> {
        let mut bytes = Vec::new();
        self.0.rewind().and_then(|()| self.0.read_to_end(&mut bytes)).map_err(failed)?;
        let mut mounts = parse(&bytes);
        mounts.retain(|mount| mount.mount_point == place);
        Ok(mounts)
    }
}

impl AsFd for Mounts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn failed(source: io::Error) -> ToolError {
    ToolError::Mounts { path: MOUNTINFO.into(), source }
}

/// Reads the list (proc_pid_mountinfo(5)). A line of another form is none of a mount that we could have made.
fn parse(bytes: &[u8]) -> Vec<Mount> {
    bytes.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    // Any number of optional fields stands before the separator.
    let separator = fields.iter().position(|field| *field == b"-")?;
    Some(Mount {
        mount_point: unescape(fields.get(4)?).into(),
        kind: String::from_utf8_lossy(fields.get(separator + 1)?).into_owned(),
        source: unescape(fields.get(separator + 2)?),
        minor: std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?.1.parse().ok()?,
    })
}

/// The kernel writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(escaped) = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(escaped);
            rest = &after[3..];
        } else {
            bytes.push(*byte);
            rest = after;
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read_with_its_escapes_and_optional_fields() {
        let text = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            90 22 0:45 / /srv/a\\040b\\134c rw,nosuid,nodev master:2 shared:7 - fuse.gocryptfs /srv/enc\\040x rw,user_id=0\n\
            91 22 0:46 / /run rw - tmpfs tmpfs rw\n\
            a line of some other form\n";
        let mount = |mount_point: &str, kind: &str, source: &str, minor| Mount {
            mount_point: mount_point.into(),
            kind: kind.to_owned(),
            source: source.into(),
            minor,
        };
        let expected = [
            mount("/", "ext4", "/dev/vda", 0),
            mount("/srv/a b\\c", "fuse.gocryptfs", "/srv/enc x", 45),
            mount("/run", "tmpfs", "tmpfs", 46),
        ];
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn this_process_sees_its_own_root() {
        let mut mounts = Mounts::open().unwrap();
        assert!(!mounts.at(Path::new("/")).unwrap().is_empty());
        assert_eq!(mounts.at(Path::new("/there/is/no/such/place")).unwrap(), []);
    }
}
