//! Seals: what stands between the journal and whoever holds the disk.
//!
//! A [`Seal`] closes and opens one kind of sealed file, [`Seals`] are all that this machine has. The file says which kind
//! it is; a file of one kind is never read as one of another (window W16), and a seal that does not open is a named
//! [`SealTrouble`] that somebody can cure, never a reason to begin anew.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

/// Encrypts the journal for this machine and nobody else. Its methods block: a machine may take seconds to answer.
pub trait Seal: Send + Sync {
    /// The kind of sealed files that it makes and opens.
    fn kind(&self) -> SealKind;

    /// Name of this kind of seal, for messages.
    fn name(&self) -> &'static str;

    /// What people must know before they trust it; none if there is nothing.
    fn warning(&self) -> Option<&'static str>;

    /// Whether the machine could seal now: what a first start asks before it chooses a kind.
    ///
    /// # Errors
    ///
    /// Why it could not.
    fn available(&self) -> Result<(), SealError> {
        Ok(())
    }

    /// Closes the seal.
    ///
    /// # Errors
    ///
    /// When the machine cannot do it now.
    fn seal(&self, plain: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError>;

    /// Opens the seal.
    ///
    /// # Errors
    ///
    /// When it was closed by another machine or in another state, or when the machine cannot do it now.
    fn unseal(&self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError>;

    /// Whether `sealed` would open at the next start of the machine: asks the hardware anew, whatever is remembered.
    ///
    /// # Errors
    ///
    /// Why it would not.
    fn check(&self, sealed: &[u8]) -> Result<(), SealError>;

    /// Has the next [`Seal::seal`] bind to the present state of the machine, and not to that of an earlier one.
    ///
    /// # Errors
    ///
    /// When the machine cannot do it now.
    fn renew(&self) -> Result<(), SealError>;
}

/// The kinds of seal. The number is in the envelope of each sealed file and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SealKind {
    /// No seal: whoever can read the disk can read the file.
    Plain = 1,
    /// Sealed by the TPM of this machine.
    Tpm = 2,
}

impl SealKind {
    /// The number in the envelope.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Plain => 1,
            Self::Tpm => 2,
        }
    }

    /// The kind of this number, if this build knows it.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Plain),
            2 => Some(Self::Tpm),
            3.. | 0 => None,
        }
    }
}

impl fmt::Display for SealKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Plain => "plain",
            Self::Tpm => "tpm",
        })
    }
}

/// What keeps a seal from opening or closing. All but [`SealTrouble::Damaged`] can be cured by somebody, and the node
/// waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SealTrouble {
    /// The machine has no such device.
    NoDevice,
    /// The device does not answer, or not now.
    NotAnswering,
    /// It was sealed by another device, or the device was cleared since.
    OtherDevice,
    /// It was sealed in another boot state of this machine: other firmware settings, keys or loader (PCR 7).
    OtherBootState,
    /// The sealed file is not whole, though its checksum is right, or it is none of this kind.
    Damaged,
    /// The program that speaks to the device is not installed.
    HelperMissing,
    /// The device is there, and the user of the node may not use it.
    NotPermitted,
}

/// Why a seal did not close or open. The text is for people: what failed, what it means, and what would help.
#[derive(Debug)]
pub struct SealError {
    /// What kind of trouble it is.
    pub trouble: SealTrouble,
    message: String,
    source: Option<Box<dyn Error + Send + Sync + 'static>>,
}

impl SealError {
    /// An error of this kind with a text for people.
    #[must_use]
    pub fn new(trouble: SealTrouble, message: impl Into<String>) -> Self {
        Self { trouble, message: message.into(), source: None }
    }

    /// The same with its cause.
    #[must_use]
    pub fn caused_by(self, source: impl Into<Box<dyn Error + Send + Sync + 'static>>) -> Self {
        Self { source: Some(source.into()), ..self }
    }
}

impl fmt::Display for SealError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl Error for SealError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}

/// The seals of this machine.
#[derive(Clone)]
pub struct Seals {
    tpm: Option<Arc<dyn Seal>>,
}

impl Seals {
    /// A machine without a TPM, or one whose TPM is not to be used: plain files are read and written, and a file that a
    /// TPM has sealed is [`SealTrouble::NoDevice`].
    #[must_use]
    pub const fn plain_only() -> Self {
        Self { tpm: None }
    }

    /// A machine that may have a TPM: `tpm` is asked each time whether it does.
    ///
    /// # Panics
    ///
    /// When `tpm` is a seal of another kind: that is a mistake in the program.
    #[must_use]
    pub fn with_tpm(tpm: Arc<dyn Seal>) -> Self {
        assert!(tpm.kind() == SealKind::Tpm, "the seal of a TPM has its kind");
        Self { tpm: Some(tpm) }
    }

    /// Whether a TPM could seal now.
    ///
    /// # Errors
    ///
    /// Why it could not.
    pub fn tpm_available(&self) -> Result<(), SealError> {
        self.get(SealKind::Tpm)?.available()
    }

    /// The seal of this kind.
    ///
    /// # Errors
    ///
    /// When this machine has none.
    pub fn get(&self, kind: SealKind) -> Result<Arc<dyn Seal>, SealError> {
        match (kind, &self.tpm) {
            (SealKind::Plain, _) => Ok(Arc::new(PlainSeal)),
            (SealKind::Tpm, Some(tpm)) => Ok(Arc::clone(tpm)),
            (SealKind::Tpm, None) => Err(SealError::new(SealTrouble::NoDevice, "this node has no TPM to use")),
        }
    }
}

/// No seal at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainSeal;

impl Seal for PlainSeal {
    fn kind(&self) -> SealKind {
        SealKind::Plain
    }

    fn name(&self) -> &'static str {
        "plain"
    }

    fn warning(&self) -> Option<&'static str> {
        Some("the enrolment journal is not sealed: whoever can read this disk can take over the identity of the node")
    }

    fn seal(&self, plain: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        Ok(Zeroizing::new(plain.to_vec()))
    }

    fn unseal(&self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        Ok(Zeroizing::new(sealed.to_vec()))
    }

    fn check(&self, _sealed: &[u8]) -> Result<(), SealError> {
        Ok(())
    }

    fn renew(&self) -> Result<(), SealError> {
        Ok(())
    }
}
