//! Where parameters are looked for, and how they are read.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use polis_parameters::MAX_PARAMETERS_SIZE;

use crate::failure::Failure;

/// Where the firmware of a virtual machine hands parameters over (metropolis.md, F.3).
pub const FIRMWARE_PARAMETERS: &str =
    "/sys/firmware/qemu_fw_cfg/by_name/dev.monogon.metropolis/parameters.pb/raw";

/// The places at which parameters are looked for, in this order; the first that exists is taken.
#[derive(Clone, Debug)]
pub struct ParameterSource {
    /// A file that the user has named. If it is named it must be there: falling through to another place would start
    /// something that nobody asked for.
    pub file: Option<PathBuf>,
    /// The firmware, [`FIRMWARE_PARAMETERS`] outside of tests.
    pub firmware: PathBuf,
    /// The ESP.
    pub esp: PathBuf,
}

impl ParameterSource {
    /// Reads the parameters from the first place that has any.
    ///
    /// # Errors
    ///
    /// When no place has any, or the first that exists cannot be read.
    pub fn read(&self) -> Result<Vec<u8>, Failure> {
        if let Some(file) = &self.file {
            return read(file).map_err(|source| Failure::ParametersUnreadable { path: file.clone(), source });
        }
        for path in [&self.firmware, &self.esp] {
            match read(path) {
                Ok(bytes) => return Ok(bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(Failure::ParametersUnreadable { path: path.clone(), source }),
            }
        }
        Err(Failure::NoParameters { firmware: self.firmware.clone(), esp: self.esp.clone() })
    }

    /// The first place that has parameters, whatever they are.
    #[must_use]
    pub fn present(&self) -> Option<&Path> {
        [self.file.as_ref(), Some(&self.firmware), Some(&self.esp)].into_iter().flatten().map(PathBuf::as_path).find(|path| path.exists())
    }
}

/// Reads a file, but not more of it than is needed to see that it is too large.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let limit = u64::try_from(MAX_PARAMETERS_SIZE).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}
