//! [`SealedKey`]: a key in the keeping of a TPM.

/// A SHA-256 digest.
pub(crate) const DIGEST_LENGTH: usize = 32;

/// Longest of its parts in bytes. The public part of a sealed key has about 80, the private one about 200.
pub(crate) const PART_LIMIT: usize = 1024;

/// A key of 32 bytes that a TPM has sealed: it opens with the help of the same TPM in the same boot state, and is no secret.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub struct SealedKey {
    /// Name (TPM 2.0: algorithm and digest of the public area) of the storage key under which it was sealed. The storage key is
    /// made anew from the TPM's own seed each time, so another TPM, or this one after it was cleared, has another.
    pub storage_key_name: Vec<u8>,
    /// Public area of the sealed object (`TPMT_PUBLIC`, marshalled).
    pub public: Vec<u8>,
    /// Its private area, encrypted by the TPM (`TPM2B_PRIVATE` without its length).
    pub private: Vec<u8>,
    /// PCR 7 of the SHA-256 bank when it was sealed, for messages; what binds is the policy in the public area.
    pub boot_state: [u8; DIGEST_LENGTH],
}
