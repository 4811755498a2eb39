//! Statements that a key signs beside certificates, each kind under a prefix of its own.

use crate::{PrivateKey, PublicKey, Purpose, WrongSignatureError};

/// A kind of statement, by its name: what is signed is the name, a zero byte, and the statement.
///
/// A name begins with a letter and has no zero byte, so that no statement can be read as one of another kind, nor as a
/// certificate or a revocation list, which begin with `0x30`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatementKind(&'static str);

impl StatementKind {
    /// The kind with this name.
    ///
    /// # Panics
    ///
    /// When the name does not begin with a letter of ASCII or has a zero byte; in a constant that is an error of the
    /// compiler.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty() && bytes[0].is_ascii_alphabetic(), "the name of a kind begins with a letter");
        let mut index = 0;
        while index < bytes.len() {
            assert!(bytes[index] != 0, "the name of a kind ends at the first zero byte");
            index += 1;
        }
        Self(name)
    }

    fn message(self, statement: &[u8]) -> Vec<u8> {
        [self.0.as_bytes(), &[0], statement].concat()
    }
}

impl<P: Purpose> PrivateKey<P> {
    /// Signs a statement of this kind.
    #[must_use]
    pub fn sign_statement(&self, kind: StatementKind, statement: &[u8]) -> [u8; 64] {
        self.sign(&kind.message(statement))
    }
}

impl PublicKey {
    /// Checks that the private half of this key signed `statement` as one of this kind.
    ///
    /// # Errors
    ///
    /// When it did not, or `signature` has not the length of a signature.
    pub fn verify_statement(
        &self,
        kind: StatementKind,
        statement: &[u8],
        signature: &[u8],
    ) -> Result<(), WrongSignatureError> {
        let signature = signature.try_into().map_err(|_| WrongSignatureError)?;
        self.verify(&kind.message(statement), signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AuthorityKey;

    const LIST: StatementKind = StatementKind::new("polis list v1");
    const LONGER: StatementKind = StatementKind::new("polis list v1 and more");

    #[test]
    fn a_statement_is_good_for_its_kind_its_content_and_its_key_only() {
        let (key, other) = (AuthorityKey::generate(), AuthorityKey::generate());
        let signature = key.sign_statement(LIST, b"content");
        let check = |key: &AuthorityKey, kind, statement: &[u8], signature: &[u8]| {
            key.public().verify_statement(kind, statement, signature).is_ok()
        };
        assert!(check(&key, LIST, b"content", &signature));
        assert!(!check(&other, LIST, b"content", &signature), "another key");
        assert!(!check(&key, LONGER, b"content", &signature), "another kind");
        assert!(!check(&key, LIST, b"conten", &signature), "other content");
        assert!(!check(&key, LIST, b"content", &signature[..63]), "a cut signature");
        assert!(!check(&key, LIST, b"content", &key.sign(b"content")), "a bare signature");
        // The zero byte ends the name: the rest of a longer name is not content.
        assert!(!check(&key, LIST, b"x", &key.sign(b"polis list v1x")));
        assert!(check(&key, LIST, b"x", &key.sign(b"polis list v1\0x")));
    }
}
