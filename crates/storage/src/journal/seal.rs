//! Seals: what stands between the journal and whoever holds the disk.

use zeroize::Zeroizing;

/// Why a seal did not close or open. The text is for people.
pub type SealError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Encrypts the journal for this machine and nobody else.
pub trait Seal: Send + Sync {
    /// Number of this kind of seal in the envelope. A journal of one kind is never read as one of another.
    fn kind(&self) -> u32;

    /// Name of this kind of seal, for messages.
    fn name(&self) -> &'static str;

    /// What people must know before they trust it; none if there is nothing.
    fn warning(&self) -> Option<&'static str>;

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
}

/// Kind 1: no seal. Whoever can read the disk can read the journal.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainSeal;

impl Seal for PlainSeal {
    fn kind(&self) -> u32 {
        1
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
}
