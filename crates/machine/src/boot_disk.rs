//! Which partitions of the machine are ours: only those of the disk that it was booted from.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use polis_condition::Severity;
use polis_disks::{BootDisk, BootDiskError, Device, Growth, Places, Role};
use polis_logtree::Logger;
use polis_supervisor::{BoxError, with_causes};

use crate::machine::Trouble;
use crate::pause::pause;

/// Name of the condition that the data partition does not take all of the disk.
pub const DATA_DOES_NOT_GROW: &str = "data-partition-does-not-grow";

/// How long the boot disk may take to be found. Disks behind slow controllers, and those on USB, take ten seconds and more.
const DEADLINE: Duration = Duration::from_secs(60);

/// How often is looked for it until then.
const INTERVAL: Duration = Duration::from_millis(50);

/// The partitions of the boot disk, as device files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partitions {
    pub(crate) esp: PathBuf,
    pub(crate) data: PathBuf,
}

/// Finds the partitions of the boot disk, which may take a while to be there, and lets the data partition take what is free behind
/// it. That it cannot is a trouble, and nothing else: it works as it is.
pub(crate) fn find(logger: &Logger, troubles: &mut Vec<Trouble>) -> Result<Partitions, BootDiskError> {
    let places = Places::default();
    let (disk, partitions) = wait(|| look(&places))?;
    if let Err(error) = grow(&disk, logger) {
        troubles.push(Trouble {
            name: DATA_DOES_NOT_GROW,
            severity: Severity::Warning,
            message: format!(
                "the data partition does not take all of {}: {}",
                disk.path.display(),
                with_causes(&*error)
            ),
            hint: "the node works with the size that it has; the next start tries again",
        });
    }
    Ok(partitions)
}

fn look(places: &Places) -> Result<(BootDisk, Partitions), BootDiskError> {
    let disk = BootDisk::find(places)?;
    let esp = disk.find_role(places, Role::Esp)?;
    let data = disk.find_role(places, Role::Data)?;
    Ok((disk, Partitions { esp, data }))
}

/// Looks again for as long as the disk may still come.
fn wait<T>(mut look: impl FnMut() -> Result<T, BootDiskError>) -> Result<T, BootDiskError> {
    let start = Instant::now();
    loop {
        match look() {
            Err(error) if may_still_come(&error) && start.elapsed() < DEADLINE => pause(INTERVAL),
            looked => return looked,
        }
    }
}

/// Whether the kernel may just not have found the disk yet, or not all of it.
const fn may_still_come(error: &BootDiskError) -> bool {
    match error {
        BootDiskError::NotFound { .. } | BootDiskError::Unknown { .. } => true,
        BootDiskError::NotSaid { .. }
        | BootDiskError::Variable { .. }
        | BootDiskError::Nonsense { .. }
        | BootDiskError::Usage(_)
        | BootDiskError::Several { .. }
        | BootDiskError::NoPartition { .. }
        | BootDiskError::Table(_)
        | BootDiskError::Device(_) => false,
    }
}

fn grow(disk: &BootDisk, logger: &Logger) -> Result<(), BoxError> {
    match Growth::plan(&disk.table)? {
        Growth::Nothing => Ok(()),
        Growth::Plan(plan) => {
            logger.info(format!("{}: {plan}", disk.path.display()));
            plan.execute(&Device::open_writable(&disk.path)?)?;
            Ok(())
        }
    }
}
