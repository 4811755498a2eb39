//! [`Usage`]: who uses a device.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::boot::Places;
use crate::device::{Device, DeviceKind};

/// Major and minor number of a device.
pub type DeviceNumbers = (u32, u32);

/// One use of a device, or of a partition of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    /// It is mounted.
    Mounted {
        /// Name of the device or partition.
        device: String,
        /// Where.
        at: PathBuf,
    },
    /// It is swap space.
    Swap {
        /// Name of the device or partition.
        device: String,
    },
    /// Another device stands on it.
    Held {
        /// Name of the device or partition.
        device: String,
        /// Name of the other device.
        by: String,
    },
}

impl fmt::Display for Usage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted { device, at } => write!(formatter, "{device} is mounted at {}", at.display()),
            Self::Swap { device } => write!(formatter, "{device} is used as swap space"),
            Self::Held { device, by } => write!(formatter, "{device} is part of {by}"),
        }
    }
}

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of the file system.
    pub device: DeviceNumbers,
    /// Where it is mounted.
    pub at: PathBuf,
    /// Type of the file system.
    pub kind: String,
    /// What was mounted.
    pub source: PathBuf,
}

/// Everything that is mounted in this process's mount namespace, in the order in which it was.
///
/// # Errors
///
/// When the kernel does not say.
pub fn mounts(places: &Places) -> Result<Vec<Mount>, UsageError> {
    let path = places.proc.join("self/mountinfo");
    let bytes = std::fs::read(&path).map_err(|source| UsageError { path, source })?;
    Ok(bytes.split(|&byte| byte == b'\n').filter_map(parse_mount).collect())
}

/// Parses one line (proc(5)): id, parent, major:minor, root, mount point, options, any number of tags, a dash, type, source.
fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let at = unescape(fields.nth(1)?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = unescape(rest.next()?);
    Some(Mount { device: (device.0.parse().ok()?, device.1.parse().ok()?), at, kind, source })
}

/// Spaces, tabs, newlines and backslashes are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|digit| matches!(digit, b'0'..=b'7')));
        match digits {
            Some(digits) => {
                let value = digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                bytes.push(u8::try_from(value).unwrap_or(b'?'));
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

impl Usage {
    /// All uses of a device and of its partitions, or of an image file.
    ///
    /// # Errors
    ///
    /// When the kernel does not say.
    pub fn of(places: &Places, device: &Device) -> Result<Vec<Self>, UsageError> {
        match device.kind() {
            DeviceKind::Block { major, minor } => {
                let directory = places.sysfs.join(format!("dev/block/{major}:{minor}"));
                let mut found = Self::of_block(places, &directory, (major, minor))?;
                for (partition, numbers) in partitions(&directory)? {
                    found.extend(Self::of_block(places, &partition, numbers)?);
                }
                Ok(found)
            }
            DeviceKind::Image => Self::of_image(places, device.path()),
        }
    }

    fn of_block(places: &Places, directory: &Path, numbers: DeviceNumbers) -> Result<Vec<Self>, UsageError> {
        let device = canonical_name(directory)?;
        let mounted = mounts(places)?.into_iter().filter(|mount| mount.device == numbers);
        let mut found: Vec<Self> =
            mounted.map(|mount| Self::Mounted { device: device.clone(), at: mount.at }).collect();
        if swaps(places)?.contains(&numbers) {
            found.push(Self::Swap { device: device.clone() });
        }
        let holders = names(&directory.join("holders"))?;
        found.extend(holders.into_iter().map(|by| Self::Held { device: device.clone(), by }));
        Ok(found)
    }

    fn of_image(places: &Places, image: &Path) -> Result<Vec<Self>, UsageError> {
        let image = std::fs::canonicalize(image).unwrap_or_else(|_| image.to_owned());
        let mut found = Vec::new();
        let block = places.sysfs.join("block");
        for name in names(&block)? {
            // Only a loop device that is attached has this file.
            let Ok(file) = std::fs::read_to_string(block.join(&name).join("loop/backing_file")) else { continue };
            if Path::new(file.trim_end_matches('\n')) == image {
                found.push(Self::Held { device: image.display().to_string(), by: name });
            }
        }
        Ok(found)
    }
}

/// Whether the block device with these numbers is `device`, or stands on it, through whatever is between them.
///
/// # Errors
///
/// When the kernel does not say.
pub fn stands_on(places: &Places, numbers_of_upper: DeviceNumbers, device: &Device) -> Result<bool, UsageError> {
    let (major, minor) = numbers_of_upper;
    let directory = places.sysfs.join(format!("dev/block/{major}:{minor}"));
    match device.kind() {
        DeviceKind::Block { major, minor } if (major, minor) == numbers_of_upper => return Ok(true),
        DeviceKind::Block { .. } => {}
        DeviceKind::Image => {
            let image = std::fs::canonicalize(device.path()).unwrap_or_else(|_| device.path().to_owned());
            // Only a loop device that is attached has this file.
            if let Ok(file) = std::fs::read_to_string(directory.join("loop/backing_file"))
                && Path::new(file.trim_end_matches('\n')) == image
            {
                return Ok(true);
            }
        }
    }
    let slaves = directory.join("slaves");
    for name in names(&slaves)? {
        // Device mapper does not stand on itself, so this ends.
        if let Some(lower) = numbers(&slaves.join(name))?
            && stands_on(places, lower, device)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A device that device mapper makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its name, in `/dev/mapper`.
    pub name: String,
    /// Major and minor number.
    pub numbers: DeviceNumbers,
}

/// All that device mapper has made of a device, in no order.
///
/// # Errors
///
/// When the kernel does not say.
pub fn mappings_on(places: &Places, device: &Device) -> Result<Vec<Mapping>, UsageError> {
    let block = places.sysfs.join("block");
    let mut found = Vec::new();
    for name in names(&block)? {
        let directory = block.join(name);
        let Ok(name) = std::fs::read_to_string(directory.join("dm/name")) else { continue };
        if let Some(numbers) = numbers(&directory)?
            && stands_on(places, numbers, device)?
        {
            found.push(Mapping { name: name.trim_end().to_owned(), numbers });
        }
    }
    Ok(found)
}

/// The partitions of a whole disk that the kernel knows: their directories and device numbers.
pub(crate) fn partitions(disk: &Path) -> Result<Vec<(PathBuf, DeviceNumbers)>, UsageError> {
    let mut found = Vec::new();
    for name in names(disk)? {
        let directory = disk.join(&name);
        if directory.join("partition").exists()
            && let Some(numbers) = numbers(&directory)?
        {
            found.push((directory, numbers));
        }
    }
    Ok(found)
}

/// Device numbers of a directory of sysfs.
pub(crate) fn numbers(directory: &Path) -> Result<Option<DeviceNumbers>, UsageError> {
    let path = directory.join("dev");
    let text = std::fs::read_to_string(&path).map_err(|source| UsageError { path, source })?;
    let numbers = text.trim_end().split_once(':');
    Ok(numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?))))
}

/// Names in a directory of sysfs, sorted; none if there is no such directory.
pub(crate) fn names(directory: &Path) -> Result<Vec<String>, UsageError> {
    let failed = |source| UsageError { path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let names: Result<Vec<String>, io::Error> =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect();
    let mut names = names.map_err(failed)?;
    names.sort();
    Ok(names)
}

/// The kernel's name of the device behind a link of sysfs.
fn canonical_name(directory: &Path) -> Result<String, UsageError> {
    let path = std::fs::canonicalize(directory).map_err(|source| UsageError { path: directory.to_owned(), source })?;
    Ok(path.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// Device numbers of everything that is used as swap space.
fn swaps(places: &Places) -> Result<Vec<DeviceNumbers>, UsageError> {
    let path = places.proc.join("swaps");
    let text = match std::fs::read_to_string(&path) {
        // A kernel without swap has no such file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|source| UsageError { path, source })?,
    };
    let paths = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let device = |path: &str| {
        let metadata = std::fs::metadata(unescape(path.as_bytes())).ok()?;
        let numbers = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        metadata.file_type().is_block_device().then_some(numbers)
    };
    Ok(paths.filter_map(device).collect())
}

/// The kernel did not say who uses a device.
#[derive(Debug, thiserror::Error)]
#[error("cannot find out who uses a disk: cannot read {}", path.display())]
pub struct UsageError {
    /// What could not be read.
    pub path: PathBuf,
    /// What the system says.
    #[source]
    pub source: io::Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        for (line, expected) in [
            ("", None),
            (
                "36 35 98:0 / /data rw,noatime master:1 shared:2 - xfs /dev/vda2 rw",
                Some(((98, 0), "/data", "xfs", "/dev/vda2")),
            ),
            ("36 35 0:42 /a /with\\040space rw - tmpfs none rw", Some(((0, 42), "/with space", "tmpfs", "none"))),
            ("36 35 0:42 / /back\\134slash\\x rw - tmpfs none rw", Some(((0, 42), "/back\\slash\\x", "tmpfs", "none"))),
            ("36 35 0:42 / /cut rw", None),
            ("36 35 nonsense / /cut rw - a b c", None),
        ] {
            let expected = expected.map(|(device, at, kind, source)| Mount {
                device,
                at: at.into(),
                kind: kind.to_owned(),
                source: source.into(),
            });
            assert_eq!(parse_mount(line.as_bytes()), expected, "{line}");
        }
    }
}
