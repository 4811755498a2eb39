//! [`Tpm`]: the TPM of this machine, behind its helper.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use polis_secret::Secret32;
use polis_storage::journal::{SealError, SealTrouble};
use polis_sys::{Bond, Command, Importance, Input, Output};

use crate::conversation::{ConversationError, Heard, converse};
use crate::helper::HelperPlace;
use crate::protocol::{Answer, Failure, Request, decode_answer, encode_request};
use crate::sealed_key::{DIGEST_LENGTH, SealedKey};

/// The device of a machine's TPM behind the kernel's resource manager, which keeps what different programs do apart.
pub const DEFAULT_TCTI: &str = "device:/dev/tpmrm0";

/// How long a conversation with the TPM may take before the helper is killed. The longest one makes a storage key and one object, two
/// elliptic curve operations each: a second or two on slow hardware, and as long in an emulated machine under load. Manufacturers
/// promise far less than their devices do, and a device that also serves others may be busy: hence the rest.
pub const CONVERSATION_LIMIT: Duration = Duration::from_secs(30);

/// The TPM of this machine. Its methods block for up to its limit and start a process each; clones are alike.
#[derive(Clone, Debug)]
pub struct Tpm {
    tcti: String,
    helper: HelperPlace,
    limit: Duration,
}

/// What a TPM says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TpmFacts {
    /// Four letters or fewer, for example `IFX` or `IBM`.
    pub manufacturer: String,
    /// Version of its firmware, as the manufacturer counts.
    pub firmware_version: u64,
    /// PCR 7 of the SHA-256 bank now.
    pub boot_state: [u8; DIGEST_LENGTH],
}

impl TpmFacts {
    /// Whether anything was measured into PCR 7 since the machine was started. A firmware that does not measure leaves zeros there,
    /// and then sealing binds to the machine, but to no boot state.
    #[must_use]
    pub fn boot_is_measured(&self) -> bool {
        is_measured(&self.boot_state)
    }
}

impl fmt::Display for TpmFacts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { manufacturer, firmware_version, boot_state } = self;
        let [a, b, c, d] = [firmware_version >> 48, firmware_version >> 32, firmware_version >> 16, *firmware_version];
        let parts = [a, b, c, d].map(|part| part & 0xffff);
        let [a, b, c, d] = parts;
        write!(formatter, "TPM 2.0 by {manufacturer}, firmware {a}.{b}.{c}.{d}, PCR 7 {}", hex::encode(boot_state))
    }
}

pub(crate) fn is_measured(boot_state: &[u8; DIGEST_LENGTH]) -> bool {
    *boot_state != [0; DIGEST_LENGTH]
}

impl Tpm {
    /// The TPM that is reached by `tcti` ([`DEFAULT_TCTI`], or `swtpm:host=...,port=...` for an emulated one), spoken to by the program in
    /// `helper`.
    #[must_use]
    pub fn new(tcti: impl Into<String>, helper: HelperPlace) -> Self {
        Self { tcti: tcti.into(), helper, limit: CONVERSATION_LIMIT }
    }

    /// The same with another limit for one conversation.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Whether the machine seems to have one: a look at the device file that starts nothing. Always true for what is no device file.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.device().is_none_or(Path::exists)
    }

    /// What the TPM says of itself, if it can seal now.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub fn probe(&self) -> Result<TpmFacts, SealError> {
        match self.ask(&Request::Probe)? {
            Answer::Facts(facts) => Ok(facts),
            Answer::Random(_) | Answer::Sealed { .. } | Answer::Unsealed(_) | Answer::Failed(_) => {
                Err(self.beside_the_point())
            }
        }
    }

    /// Random bytes of the TPM, mixed with the kernel's: as good as the better of the two (metropolis.md C.5).
    ///
    /// # Errors
    ///
    /// Why the TPM gave none.
    pub fn random(&self) -> Result<Secret32, SealError> {
        match self.ask(&Request::Random { contribution: Secret32::random() })? {
            Answer::Random(bytes) => Ok(bytes),
            Answer::Facts(_) | Answer::Sealed { .. } | Answer::Unsealed(_) | Answer::Failed(_) => {
                Err(self.beside_the_point())
            }
        }
    }

    /// Makes a new key from the kernel's and the TPM's random numbers and seals it to this TPM and its boot state.
    ///
    /// # Errors
    ///
    /// Why the TPM did not.
    pub fn seal_new_key(&self) -> Result<(SealedKey, Secret32), SealError> {
        match self.ask(&Request::Seal { contribution: Secret32::random() })? {
            Answer::Sealed { sealed, key } => Ok((sealed, key)),
            Answer::Facts(_) | Answer::Random(_) | Answer::Unsealed(_) | Answer::Failed(_) => {
                Err(self.beside_the_point())
            }
        }
    }

    /// The key that was sealed.
    ///
    /// # Errors
    ///
    /// Why the TPM does not give it.
    pub fn unseal_key(&self, sealed: &SealedKey) -> Result<Secret32, SealError> {
        match self.ask(&Request::Unseal { sealed: sealed.clone() })? {
            Answer::Unsealed(key) => Ok(key),
            Answer::Facts(_) | Answer::Random(_) | Answer::Sealed { .. } | Answer::Failed(_) => {
                Err(self.beside_the_point())
            }
        }
    }

    /// The device file, if that is how the TPM is reached.
    fn device(&self) -> Option<&Path> {
        self.tcti.strip_prefix("device:").map(Path::new)
    }

    /// One conversation. Never returns [`Answer::Failed`].
    fn ask(&self, request: &Request) -> Result<Answer, SealError> {
        // Said here, so that a machine without a TPM needs no helper to know it.
        if let Some(device) = self.device().filter(|device| !device.exists()) {
            return Err(no_device(device));
        }
        let command = Command {
            program: self.helper.find()?,
            arguments: vec!["--tcti".into(), (&self.tcti).into()],
            environment: Vec::new(),
            working_directory: None,
            standard_input: Input::Pipe,
            standard_output: Output::Pipe,
            standard_error: Output::Pipe,
            importance: Importance::default(),
            bond: Bond::default(),
        };
        let heard = converse(command, &encode_request(request), self.limit).map_err(|error| self.explain(error))?;
        let Heard { answer, complaints } = heard;
        match decode_answer(&answer) {
            Ok(Answer::Failed(Failure { trouble, message })) => {
                let error = SealError::new(trouble, message);
                Err(if complaints.is_empty() { error } else { error.caused_by(complaints) })
            }
            Ok(answer) => Ok(answer),
            Err(source) => Err(SealError::new(
                SealTrouble::NotAnswering,
                format!(
                    "what the helper for {} answers is not understood: is it of another version of Polis?",
                    self.tcti
                ),
            )
            .caused_by(source)),
        }
    }

    fn explain(&self, error: ConversationError) -> SealError {
        let Self { tcti, limit, .. } = self;
        let (trouble, message) = match &error {
            ConversationError::Start(_) => {
                (SealTrouble::HelperMissing, "the program that speaks to the TPM does not start".to_owned())
            }
            ConversationError::TooSlow => (
                SealTrouble::NotAnswering,
                format!(
                    "the TPM ({tcti}) has not answered within {limit:?}; it is asked again, and if it stays so, power the \
                     machine off and on: a restart alone may not reset a TPM"
                ),
            ),
            ConversationError::Ended { .. } | ConversationError::TooLong | ConversationError::Pipe(_) => (
                SealTrouble::NotAnswering,
                format!("the program that speaks to the TPM ({tcti}) broke off; it is tried again"),
            ),
        };
        SealError::new(trouble, message).caused_by(error)
    }

    fn beside_the_point(&self) -> SealError {
        SealError::new(
            SealTrouble::NotAnswering,
            format!("the helper for {} answers another question: is it of another version of Polis?", self.tcti),
        )
    }
}

/// There is no device file.
fn no_device(device: &Path) -> SealError {
    SealError::new(
        SealTrouble::NoDevice,
        format!(
            "this machine has no TPM 2.0: there is no {}. It may be switched off in the firmware's settings, or its driver is missing",
            device.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_is_known_without_a_helper() {
        let tpm = Tpm::new("device:/does/not/exist", HelperPlace::at(Path::new("/does/not/exist")));
        assert!(!tpm.is_present());
        assert_eq!(tpm.probe().unwrap_err().trouble, SealTrouble::NoDevice);
    }

    #[test]
    fn a_missing_helper_is_known_where_there_is_a_device() {
        let tpm = Tpm::new("device:/dev/null", HelperPlace::at(Path::new("/does/not/exist")));
        assert!(tpm.is_present());
        assert_eq!(tpm.probe().unwrap_err().trouble, SealTrouble::HelperMissing);
    }

    #[test]
    fn facts_are_readable() {
        let facts = TpmFacts {
            manufacturer: "IFX".into(),
            firmware_version: 0x0007_0055_0001_e100,
            boot_state: [0xab; DIGEST_LENGTH],
        };
        assert_eq!(facts.to_string(), format!("TPM 2.0 by IFX, firmware 7.85.1.57600, PCR 7 {}", "ab".repeat(32)));
        assert!(facts.boot_is_measured());
        assert!(!TpmFacts { boot_state: [0; DIGEST_LENGTH], ..facts }.boot_is_measured());
    }
}
