//! What the kernel has left of its last crash in memory that survives (pstore): told in the log, kept on the disk, and only then
//! removed from that memory, which is small.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use polis_logtree::Severity;
use polis_storage::{Disk as _, DiskPath, FILE_MODE, HostDisk, Metadata, durable};
use polis_supervisor::{BoxError, Context, RunnableResult};
use tokio::sync::watch;

use crate::kept_log::{LOG_DIRECTORY, is_open, make_log_directory};
use crate::names::changed;

/// Where the records are.
const RECORDS: &str = "/sys/fs/pstore";

/// Most records that are looked at. A crash leaves some ten parts, and firmware has room for some hundred KiB.
const MAX_RECORDS: usize = 256;

/// Longest record that is kept.
const RECORD_BYTES: u64 = 64 << 10;

/// Names of kept records begin so.
const PREFIX: &str = "crash-";

/// Most records that are kept on the disk. Past it the oldest names go first.
const MAX_KEPT: usize = 256;

/// Tells and keeps the records, once: a runnable.
pub(crate) async fn keep(context: Context, mut data: watch::Receiver<Option<PathBuf>>) -> RunnableResult {
    context.healthy();
    let records = context.blocking(|| read_all(Path::new(RECORDS))).await?;
    if !records.is_empty() {
        let logger = context.logger();
        for record in &records {
            let text = String::from_utf8_lossy(&record.bytes);
            let location = std::panic::Location::caller();
            logger.log(Severity::Warning, location, format!("left by the last crash, {}:\n{text}", record.name));
        }
        let directory = loop {
            // Looked at before it is waited for.
            let open = data.borrow_and_update().clone();
            match open {
                Some(directory) if is_open(&directory) => break directory,
                Some(_) | None => context.unless_cancelled(changed(&mut data)).await?,
            }
        };
        context.blocking(move || store_and_remove(&directory, Path::new(RECORDS), &records)).await?;
    }
    context.done();
    Ok(())
}

struct Record {
    name: String,
    bytes: Vec<u8>,
}

fn read_all(directory: &Path) -> io::Result<Vec<Record>> {
    let mut names: Vec<String> = match fs::read_dir(directory) {
        Ok(entries) => {
            entries.take(MAX_RECORDS).filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    names.sort_unstable();
    let mut records = Vec::with_capacity(names.len());
    for name in names {
        let mut bytes = Vec::new();
        let path = directory.join(&name);
        // What cannot be read is left where it is.
        match fs::File::open(&path).and_then(|file| file.take(RECORD_BYTES).read_to_end(&mut bytes)) {
            Ok(_) => records.push(Record { name, bytes }),
            Err(error) => tracing::warn!("cannot read {}: {error}", path.display()),
        }
    }
    Ok(records)
}

/// Writes the records below the data directory, and removes each where it was once it is there.
fn store_and_remove(data: &Path, from: &Path, records: &[Record]) -> Result<(), BoxError> {
    make_log_directory(data)?;
    let disk = HostDisk::open(&data.join(LOG_DIRECTORY))?;
    for record in records {
        let name = DiskPath::parse(&format!("{PREFIX}{}", record.name))?;
        // A record that a start before this one has kept and could not remove has the same name, and is the same.
        durable::write(&disk, "machine/crash-record", &name, FILE_MODE, &record.bytes)?;
        fs::remove_file(from.join(&record.name))?;
    }
    let mut kept: Vec<String> = disk.list(&DiskPath::root())?;
    kept.retain(|name| name.starts_with(PREFIX));
    for name in kept.iter().take(kept.len().saturating_sub(MAX_KEPT)) {
        let path = DiskPath::parse(name)?;
        if matches!(disk.metadata(&path)?, Some(Metadata::File { .. })) {
            disk.remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_removed_only_once_it_is_kept() {
        let scratch = tempfile::tempdir().unwrap();
        let (data, from) = (scratch.path().join("data"), scratch.path().join("pstore"));
        fs::create_dir(&from).unwrap();
        fs::write(from.join("dmesg-efi-1"), "Oops: 1").unwrap();
        fs::write(from.join("dmesg-efi-2"), vec![b'x'; 100_000]).unwrap();
        let records = read_all(&from).unwrap();
        // Without a data directory nothing is lost.
        assert!(store_and_remove(&data, &from, &records).is_err());
        assert!(from.join("dmesg-efi-1").exists());

        fs::create_dir(&data).unwrap();
        store_and_remove(&data, &from, &records).unwrap();
        assert_eq!(fs::read_dir(&from).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(data.join("log/crash-dmesg-efi-1")).unwrap(), "Oops: 1");
        assert_eq!(fs::read(data.join("log/crash-dmesg-efi-2")).unwrap().len(), 64 << 10);
    }

    #[test]
    fn a_machine_without_such_memory_has_no_records() {
        assert!(read_all(Path::new("/nowhere/at/all")).unwrap().is_empty());
    }
}
