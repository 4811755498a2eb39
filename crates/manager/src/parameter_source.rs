//! Where parameters are looked for, and how they are read.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use polis_parameters::{OwnParameters, beside, read_file};

use crate::failure::Failure;

/// Where the firmware of a virtual machine hands over what goes with them (cold-start.md, Recovery key): beside them are only those of
/// Metropolis.
const FIRMWARE_OWN_PARAMETERS: &str = "/sys/firmware/qemu_fw_cfg/by_name/dev.polis/parameters.pb/raw";

/// Where the firmware of a virtual machine hands parameters over (metropolis.md, F.3).
pub const FIRMWARE_PARAMETERS: &str = "/sys/firmware/qemu_fw_cfg/by_name/dev.monogon.metropolis/parameters.pb/raw";

/// The places at which parameters are looked for, in this order; the first that exists is taken. What [`polis_parameters::OWN_FILE_NAME`] beside it
/// holds is appended.
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

/// Where parameters came from, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParametersOrigin {
    /// This file.
    File(PathBuf),
    /// The enrolment journal, which an earlier start wrote them to.
    Journal,
}

/// Parameters as they were found.
#[derive(Clone)]
pub struct GivenParameters {
    /// Where.
    pub origin: ParametersOrigin,
    /// The serialized message, unparsed, and after it what was beside it. It may hold a secret, so there is no `Debug`.
    pub bytes: Vec<u8>,
}

impl fmt::Display for ParametersOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(formatter),
            Self::Journal => formatter.write_str("in the enrolment journal"),
        }
    }
}

impl ParameterSource {
    /// Reads the parameters from the first place that has any.
    ///
    /// # Errors
    ///
    /// When no place has any, or the first that exists cannot be read, or what is beside it is not usable.
    pub fn read(&self) -> Result<GivenParameters, Failure> {
        let given = |path: &PathBuf, mut bytes: Vec<u8>| {
            bytes.extend(read_own(path)?);
            Ok(GivenParameters { origin: ParametersOrigin::File(path.clone()), bytes })
        };
        if let Some(file) = &self.file {
            let bytes =
                read_file(file).map_err(|source| Failure::ParametersUnreadable { path: file.clone(), source })?;
            return given(file, bytes);
        }
        for path in [&self.firmware, &self.esp] {
            match read_file(path) {
                Ok(bytes) => return given(path, bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(Failure::ParametersUnreadable { path: path.clone(), source }),
            }
        }
        Err(Failure::NoParameters { firmware: self.firmware.clone(), esp: self.esp.clone() })
    }

    /// The first place that has parameters, whatever they are.
    #[must_use]
    pub fn present(&self) -> Option<&Path> {
        [self.file.as_ref(), Some(&self.firmware), Some(&self.esp)]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
            .find(|path| path.exists())
    }
}

/// What goes with the parameters at `path`: nothing, if nothing is beside them.
fn read_own(path: &Path) -> Result<Vec<u8>, Failure> {
    let own = if path == Path::new(FIRMWARE_PARAMETERS) { FIRMWARE_OWN_PARAMETERS.into() } else { beside(path) };
    match read_file(&own) {
        // Looked at here, so that the file is named which is not usable.
        Ok(bytes) => match OwnParameters::parse(&bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => {
                let origin = ParametersOrigin::File(own);
                Err(Failure::Parameters { origin, source: error.into() })
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(Failure::ParametersUnreadable { path: own, source }),
    }
}
