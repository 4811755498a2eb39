//! [`Keeping`]: what this machine keeps the data and the keys of the node with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use polis_encryption::DirectoryBackends;
use polis_encryption::luks::DeviceBackends;
use polis_storage::journal::Seals;
use polis_storage::{DataBackends, Disk, DiskError, HostDisk};
use polis_tpm::TpmSeal;

use crate::options::Options;

/// Names the TPM of this machine for the program that speaks to it, in the words of the TSS (`device:/dev/tpmrm0`,
/// `swtpm:path=...`): for a TPM in an unusual place, and for a simulated one.
const TCTI_VARIABLE: &str = "POLIS_TPM_TCTI";

/// What a node keeps its data and its keys with. Clones are the same.
#[derive(Clone)]
pub(crate) struct Keeping {
    /// The disk, for everybody but the backends: nothing of the data is there while the partition is not open.
    pub(crate) disk: Arc<dyn Disk>,
    /// The backends for the data partition.
    pub(crate) backends: Arc<dyn DataBackends>,
    /// The seals for the journal.
    pub(crate) seals: Seals,
}

impl Keeping {
    /// That of a node whose root is this disk. Changes nothing.
    pub(crate) fn new(disk: Arc<dyn Disk>, options: &Options) -> Self {
        Self::with(disk, options.data_device.as_deref(), options.tpm_helper.as_deref())
    }

    /// The same with its data on this device, if it has one for them, and with this program for its TPM, if that is not to be looked for.
    pub(crate) fn with(disk: Arc<dyn Disk>, data_device: Option<&Path>, tpm_helper: Option<&Path>) -> Self {
        let seals = seals(tpm_helper);
        match data_device {
            None => {
                let backends = DirectoryBackends::new(disk);
                Self { disk: backends.disk(), backends: Arc::new(backends), seals }
            }
            Some(device) => {
                let backends = DeviceBackends::new(disk, device);
                Self { disk: backends.disk(), backends: Arc::new(backends), seals }
            }
        }
    }

    /// That of a node whose root is not there yet, to be asked what it could do.
    ///
    /// # Errors
    ///
    /// When no directory above it can be opened.
    pub(crate) fn without_root(options: &Options) -> Result<Self, DiskError> {
        let mut directory: PathBuf = std::path::absolute(&options.root).unwrap_or_else(|_| options.root.clone());
        while !directory.is_dir() && directory.pop() {}
        Ok(Self::new(Arc::new(HostDisk::open(&directory)?), options))
    }
}

/// The seals of this machine. Whether there is a TPM is asked whenever it is needed.
pub(crate) fn seals(helper: Option<&Path>) -> Seals {
    let tcti = std::env::var(TCTI_VARIABLE).ok().filter(|tcti| !tcti.is_empty());
    Seals::with_tpm(Arc::new(TpmSeal::find(helper, std::env::var_os("PATH"), tcti)))
}
