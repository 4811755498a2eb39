//! Secrets as types: bytes that cannot be printed, are wiped when dropped, and are compared in constant time.
//!
//! Every key, ticket and token of Polis is one of these. There is deliberately no `Display`, no `serde`, and a `Debug`
//! that shows nothing, so that a log line or an error message cannot carry a secret by accident; whoever needs the
//! bytes writes [`Secret::expose`] and can be found by searching for it.

#![forbid(unsafe_code)]

use std::fmt;

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// `N` secret bytes.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret<const N: usize>([u8; N]);

/// Thirty-two random bytes: the size of every symmetric key and every Ed25519 or X25519 private key in Polis.
pub type Secret32 = Secret<32>;

impl<const N: usize> Secret<N> {
    /// Takes over `bytes`.
    #[must_use]
    pub const fn new(bytes: [u8; N]) -> Self {
        Self(bytes)
    }

    /// Makes a secret from the kernel's random number generator.
    ///
    /// # Panics
    ///
    /// When the kernel has no random number generator: nothing that Polis does would be safe without one.
    #[must_use]
    pub fn random() -> Self {
        // Filled in its place, so that no copy of it is left behind.
        let mut secret = Self([0; N]);
        getrandom::fill(&mut secret.0).expect("the kernel gives random bytes");
        secret
    }

    /// The bytes themselves. Hand them to the one function that needs them and to nothing that prints or stores.
    #[must_use]
    pub const fn expose(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> TryFrom<&[u8]> for Secret<N> {
    type Error = WrongLength;

    fn try_from(bytes: &[u8]) -> Result<Self, WrongLength> {
        if bytes.len() != N {
            return Err(WrongLength { expected: N, found: bytes.len() });
        }
        let mut secret = Self([0; N]);
        secret.0.copy_from_slice(bytes);
        Ok(secret)
    }
}

impl<const N: usize> fmt::Debug for Secret<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

impl<const N: usize> PartialEq for Secret<N> {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl<const N: usize> Eq for Secret<N> {}

/// A secret of another length than its type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongLength {
    /// Length that the type has, in bytes.
    pub expected: usize,
    /// Length that was given, in bytes.
    pub found: usize,
}

impl fmt::Display for WrongLength {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "expected {} bytes, found {}", self.expected, self.found)
    }
}

impl std::error::Error for WrongLength {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_of_the_bytes() {
        let secret = Secret::new([0x5a; 32]);
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "Secret(..) Some(Secret(..))");
    }

    #[test]
    fn equal_bytes_are_equal_and_random_ones_are_not() {
        assert_eq!(Secret::new([7; 32]), Secret::new([7; 32]));
        assert_ne!(Secret32::random(), Secret32::random());
    }

    #[test]
    fn only_the_right_length_is_taken() {
        assert_eq!(Secret32::try_from(&[1; 32][..]).unwrap(), Secret::new([1; 32]));
        assert_eq!(Secret32::try_from(&[1; 31][..]).unwrap_err(), WrongLength { expected: 32, found: 31 });
    }
}
