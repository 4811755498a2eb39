//! Durable writes: the only code of a node that makes files, directories and removals survive a power cut.
//!
//! Every call names its `site`; [`polis_fault::point`] is passed before and after each step under that name.
//!
//! | function | steps |
//! |---|---|
//! | [`write()`] | `begin`, `created`, `synced`, `renamed`, `named`, `done` |
//! | [`create_directory`], [`create_siblings`] | `begin`, `created`, `done` |
//! | [`remove`] | `begin`, `removed`, `done` |
//! | [`settle`], [`settle_file`] | `begin`, `done` |

use polis_fault::point;

use crate::disk::{Action, Disk, DiskError, Metadata, invalid};
use crate::path::DiskPath;

/// End of the name of each temporary.
const TEMPORARY_SUFFIX: &str = ".polis-tmp";
/// Hexadecimal digits in the name of each temporary: 128 random bits, so that no two are ever the same.
const TEMPORARY_DIGITS: usize = 32;

/// Writes a file so that after any interruption there is either the old file or the new one, whole. When this returns,
/// it is the new one, also after a power cut.
///
/// # Errors
///
/// When a step fails. The temporary is removed. If it was the last step, the new file is there but might not survive a
/// power cut.
pub fn write(disk: &dyn Disk, site: &'static str, path: &DiskPath, mode: u32, bytes: &[u8]) -> Result<(), DiskError> {
    let (directory, name) = split(disk, Action::CreateFile, path)?;
    let temporary = directory.child_unchecked(&temporary_name(name));
    point(site, "begin");
    let written = disk.create_exclusive(&temporary, mode, bytes).and_then(|()| {
        point(site, "created");
        disk.sync_file(site, &temporary)?;
        point(site, "synced");
        disk.rename(&temporary, path)
    });
    if let Err(error) = written {
        // Of the two errors the first is the one that matters; what cannot be removed now is swept at the next start.
        let _ = disk.remove_file(&temporary);
        // The name of the temporary tells nobody anything, and would make each repetition of a failure look like another.
        return Err(DiskError { path: disk.full_path(path), ..error });
    }
    point(site, "renamed");
    // FAT keeps length and place of a file in its directory entry, and a rename makes one that has neither, or those of the file that
    // was replaced, until the file is flushed under its new name: a power cut would leave it empty. Elsewhere this finds nothing to do
    // that the next step would not have to.
    disk.sync_file(site, path)?;
    point(site, "named");
    disk.sync_directory(site, &directory)?;
    point(site, "done");
    Ok(())
}

/// Makes a directory in an existing one and makes its name durable. One that is there already is made durable too: an
/// earlier process may have died between the two steps.
///
/// # Errors
///
/// When a step fails, or when something else has that name.
pub fn create_directory(disk: &dyn Disk, site: &'static str, path: &DiskPath, mode: u32) -> Result<(), DiskError> {
    let (parent, name) = split(disk, Action::CreateDirectory, path)?;
    create_siblings(disk, site, &parent, &[name], mode)
}

/// Makes several directories in an existing one and makes their names durable together, as [`create_directory`] does.
///
/// # Errors
///
/// When a step fails, or when something else has one of the names.
pub fn create_siblings(
    disk: &dyn Disk,
    site: &'static str,
    parent: &DiskPath,
    names: &[&str],
    mode: u32,
) -> Result<(), DiskError> {
    point(site, "begin");
    for name in names {
        let path = parent.child_unchecked(name);
        if let Err(error) = disk.create_directory(&path, mode) {
            let is_directory = matches!(disk.metadata(&path)?, Some(Metadata::Directory { .. }));
            if !(error.already_exists() && is_directory) {
                return Err(error);
            }
        }
    }
    point(site, "created");
    disk.sync_directory(site, parent)?;
    point(site, "done");
    Ok(())
}

/// Makes a directory and all above it, as [`create_directory`] does, from the root of the disk down.
///
/// # Errors
///
/// When a step fails, or when something else has one of the names.
pub fn create_directories(disk: &dyn Disk, site: &'static str, path: &DiskPath, mode: u32) -> Result<(), DiskError> {
    let mut directory = DiskPath::root();
    for name in path.names() {
        directory = directory.child_unchecked(name);
        create_directory(disk, site, &directory, mode)?;
    }
    Ok(())
}

/// Removes a file for good. One that is absent is fine, and its absence is made durable too.
///
/// # Errors
///
/// When a step fails.
pub fn remove(disk: &dyn Disk, site: &'static str, path: &DiskPath) -> Result<(), DiskError> {
    let (parent, _) = split(disk, Action::RemoveFile, path)?;
    point(site, "begin");
    match disk.remove_file(path) {
        Err(error) if !error.is_absent() => return Err(error),
        Ok(()) | Err(_) => {}
    }
    point(site, "removed");
    disk.sync_directory(site, &parent)?;
    point(site, "done");
    Ok(())
}

/// Makes durable what an earlier process left visible in a directory but perhaps not durable: it may have died between
/// a rename and the sync that belongs to it. Whoever reads a file in order to act on it settles its directory first,
/// or a later power cut could take back what the action was based on. A directory that is absent is settled.
///
/// # Errors
///
/// When the disk does not confirm it.
pub fn settle(disk: &dyn Disk, site: &'static str, directory: &DiskPath) -> Result<(), DiskError> {
    point(site, "begin");
    match disk.sync_directory(site, directory) {
        Err(error) if !error.is_absent() => return Err(error),
        Ok(()) | Err(_) => {}
    }
    point(site, "done");
    Ok(())
}

/// Makes a file durable that an earlier process left visible, with its name: what [`settle`] does, and on FAT also the length and
/// place of a file whose writer died between the rename and the sync after it.
///
/// # Errors
///
/// When the disk does not confirm it.
pub fn settle_file(disk: &dyn Disk, site: &'static str, path: &DiskPath) -> Result<(), DiskError> {
    let (directory, _) = split(disk, Action::SyncFile, path)?;
    point(site, "begin");
    disk.sync_file(site, path)?;
    disk.sync_directory(site, &directory)?;
    point(site, "done");
    Ok(())
}

/// Removes the temporaries that interrupted writes left in a directory (window W20), and nothing else; returns their
/// names. An absent directory has none.
///
/// # Errors
///
/// When the directory cannot be read or a temporary cannot be removed.
pub fn sweep(disk: &dyn Disk, directory: &DiskPath) -> Result<Vec<String>, DiskError> {
    let names = match disk.list(directory) {
        Err(error) if error.is_absent() => return Ok(Vec::new()),
        listed => listed?,
    };
    let mut swept = Vec::new();
    for name in names.into_iter().filter(|name| is_temporary(name)) {
        let path = directory.child_unchecked(&name);
        if matches!(disk.metadata(&path)?, Some(Metadata::File { .. })) {
            disk.remove_file(&path)?;
            swept.push(name);
        }
    }
    Ok(swept)
}

/// Whether this is the name of a temporary: `.NAME.DIGITS.polis-tmp`, exactly as [`write()`] makes them.
#[must_use]
pub fn is_temporary(name: &str) -> bool {
    let inner = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(TEMPORARY_SUFFIX));
    inner.and_then(|inner| inner.rsplit_once('.')).is_some_and(|(name, digits)| {
        !name.is_empty()
            && digits.len() == TEMPORARY_DIGITS
            && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn temporary_name(name: &str) -> String {
    format!(".{name}.{:0digits$x}{TEMPORARY_SUFFIX}", rand::random::<u128>(), digits = TEMPORARY_DIGITS)
}

fn split<'a>(disk: &dyn Disk, action: Action, path: &'a DiskPath) -> Result<(DiskPath, &'a str), DiskError> {
    path.split().ok_or_else(|| DiskError {
        action,
        path: disk.full_path(path),
        source: invalid("this is the root of the node, which is no file or directory in it"),
    })
}
