//! Ed25519 private keys that the compiler keeps apart by what they are for.

use std::fmt;
use std::marker::PhantomData;

use ed25519_dalek::pkcs8::{EncodePrivateKey as _, KeypairBytes, PrivateKeyInfoRef, spki::der::pem::LineEnding};
use ed25519_dalek::{Signer as _, SigningKey};
use polis_secret::{Secret, Secret32};
use zeroize::Zeroizing;

use crate::public_key::{InvalidPublicKeyError, PublicKey};

/// What a [`PrivateKey`] is for.
pub trait Purpose: Send + Sync + 'static {
    /// Name of the kind of key, as `Debug` shows it.
    const NAME: &'static str;
}

/// The kinds of Ed25519 keys.
pub mod purpose {
    use super::Purpose;

    macro_rules! purposes {
        ($($(#[$documentation:meta])* $name:ident = $text:literal;)*) => {$(
            $(#[$documentation])*
            #[derive(Clone, Copy, Debug)]
            pub enum $name {}

            impl Purpose for $name {
                const NAME: &'static str = $text;
            }
        )*};
    }

    purposes! {
        /// Identity of a node; its id, certificate and peer address follow from it.
        Node = "NodeKey";
        /// What a known node shows to join again, to unlock and to announce itself, before its data are open.
        Join = "JoinKey";
        /// Key of a cluster's initial owner, kept by a person.
        Owner = "OwnerKey";
        /// Key of a certificate authority.
        Authority = "AuthorityKey";
    }
}

/// Identity of a node.
pub type NodeKey = PrivateKey<purpose::Node>;
/// What a known node shows before its data partition is open: to join again, to unlock and to announce itself.
pub type JoinKey = PrivateKey<purpose::Join>;
/// Key of a cluster's initial owner, kept by a person.
pub type OwnerKey = PrivateKey<purpose::Owner>;
/// Key of a certificate authority.
pub type AuthorityKey = PrivateKey<purpose::Authority>;

/// An Ed25519 private key for one purpose.
///
/// Only its 32 secret bytes are ever stored; the public half follows from them.
pub struct PrivateKey<P: Purpose> {
    secret: Secret32,
    public: PublicKey,
    purpose: PhantomData<fn() -> P>,
}

impl<P: Purpose> PrivateKey<P> {
    /// Makes a key from the kernel's random number generator.
    #[must_use]
    pub fn generate() -> Self {
        Self::from_secret(Secret32::random())
    }

    /// The key with these 32 secret bytes (the seed of RFC 8032). Every 32 bytes are a key.
    #[must_use]
    pub fn from_secret(secret: Secret32) -> Self {
        let public = PublicKey::of(&SigningKey::from_bytes(secret.expose()));
        Self { secret, public, purpose: PhantomData }
    }

    /// The key in the 64-byte form of Metropolis' files: 32 secret bytes, then the public key.
    ///
    /// # Errors
    ///
    /// When the second half is not the public key of the first, which means that the file was damaged or put together.
    pub fn from_pair(pair: &Secret<64>) -> Result<Self, KeyPairError> {
        let (secret, public) = pair.expose().split_at(32);
        let key = Self::from_secret(Secret32::try_from(secret).expect("half of 64 bytes is 32"));
        let stated = PublicKey::try_from(public).map_err(|source| KeyPairError::InvalidPublicKey { source })?;
        if stated == key.public { Ok(key) } else { Err(KeyPairError::Mismatch { stated, actual: key.public }) }
    }

    /// The 32 secret bytes, to be stored under a seal.
    #[must_use]
    pub const fn secret(&self) -> &Secret32 {
        &self.secret
    }

    /// The 64-byte form of Metropolis' files: 32 secret bytes, then the public key.
    #[must_use]
    pub fn to_pair(&self) -> Secret<64> {
        let mut pair = Zeroizing::new([0; 64]);
        pair[..32].copy_from_slice(self.secret.expose());
        pair[32..].copy_from_slice(self.public.as_bytes());
        Secret::new(*pair)
    }

    /// The public half.
    #[must_use]
    pub const fn public(&self) -> PublicKey {
        self.public
    }

    /// Signs `message`. The same key and message give the same signature.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        SigningKey::from_bytes(self.secret.expose()).sign(message).to_bytes()
    }

    /// PKCS#8 in DER.
    ///
    /// Version 1 of the format, without the public key: OpenSSL 3.0 cannot read version 2, and every reader derives the
    /// public key anyway.
    #[must_use]
    pub fn pkcs8_der(&self) -> Zeroizing<Vec<u8>> {
        let document = self.pkcs8().to_pkcs8_der().expect("an Ed25519 key has a PKCS#8 form");
        Zeroizing::new(document.as_bytes().to_vec())
    }

    /// PKCS#8 in PEM (`PRIVATE KEY`), as etcd and OpenSSL read it; version 1 like [`Self::pkcs8_der`].
    #[must_use]
    pub fn pkcs8_pem(&self) -> Zeroizing<String> {
        self.pkcs8().to_pkcs8_pem(LineEnding::LF).expect("an Ed25519 key has a PKCS#8 form")
    }

    /// Reads PKCS#8 in DER, of either version.
    ///
    /// # Errors
    ///
    /// When the bytes are not one Ed25519 private key in that form.
    pub fn from_pkcs8_der(der: &[u8]) -> Result<Self, ParsePkcs8Error> {
        let key = PrivateKeyInfoRef::try_from(der).and_then(KeypairBytes::try_from);
        let key = key.map_err(|source| ParsePkcs8Error { source })?;
        Ok(Self::from_secret(Secret32::new(key.secret_key)))
    }

    fn pkcs8(&self) -> KeypairBytes {
        KeypairBytes { secret_key: *self.secret.expose(), public_key: None }
    }
}

/// Bytes that are not an Ed25519 private key in PKCS#8.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the content is not an Ed25519 key in PKCS#8")]
pub struct ParsePkcs8Error {
    /// Where reading stopped.
    #[source]
    pub source: ed25519_dalek::pkcs8::Error,
}

impl<P: Purpose> Clone for PrivateKey<P> {
    fn clone(&self) -> Self {
        Self { secret: self.secret.clone(), public: self.public, purpose: PhantomData }
    }
}

impl<P: Purpose> PartialEq for PrivateKey<P> {
    fn eq(&self, other: &Self) -> bool {
        self.secret == other.secret
    }
}

impl<P: Purpose> Eq for PrivateKey<P> {}

impl<P: Purpose> fmt::Debug for PrivateKey<P> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}(public {})", P::NAME, self.public)
    }
}

/// A 64-byte key whose halves do not belong together.
#[derive(Debug, thiserror::Error)]
pub enum KeyPairError {
    /// The second half is no public key.
    #[error("the second half of the key is not a public key")]
    InvalidPublicKey {
        /// Why it is not.
        #[source]
        source: InvalidPublicKeyError,
    },
    /// The second half is another key's.
    #[error("the second half of the key says public key {stated}, but the first half has {actual}")]
    Mismatch {
        /// Public key that the file states.
        stated: PublicKey,
        /// Public key of the secret bytes in the file.
        actual: PublicKey,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First test vector of RFC 8032, section 7.1.
    const SECRET: &str = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
    const PUBLIC: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

    fn example() -> NodeKey {
        NodeKey::from_secret(Secret32::try_from(&hex::decode(SECRET).unwrap()[..]).unwrap())
    }

    #[test]
    fn the_public_half_and_signature_are_those_of_rfc_8032() {
        assert_eq!(example().public().to_string(), PUBLIC);
        let signature = hex::encode(example().sign(b""));
        assert!(
            signature.starts_with("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bac")
        );
    }

    #[test]
    fn stored_bytes_lead_back_to_the_key() {
        let key = NodeKey::generate();
        assert_eq!(NodeKey::from_secret(key.secret().clone()), key);
        assert_eq!(NodeKey::from_pair(&key.to_pair()).unwrap(), key);
        assert_ne!(NodeKey::generate(), key);
    }

    #[test]
    fn halves_that_do_not_belong_together_are_refused() {
        let key = NodeKey::generate();
        let mut pair = *key.to_pair().expose();
        pair[0] ^= 1;
        let error = NodeKey::from_pair(&Secret::new(pair)).unwrap_err();
        assert!(matches!(error, KeyPairError::Mismatch { stated, .. } if stated == key.public()), "{error:?}");
        let mut pair = *key.to_pair().expose();
        pair[32..].fill(0);
        assert!(matches!(NodeKey::from_pair(&Secret::new(pair)), Err(KeyPairError::InvalidPublicKey { .. })));
    }

    #[test]
    fn debug_shows_the_public_half_only() {
        let key = example();
        assert_eq!(format!("{key:?}"), format!("NodeKey(public {PUBLIC})"));
    }

    #[test]
    fn pkcs8_is_version_1_without_the_public_key() {
        let der = example().pkcs8_der();
        assert_eq!(hex::encode(&der[..]), format!("302e020100300506032b657004220420{SECRET}"));
        assert!(example().pkcs8_pem().starts_with("-----BEGIN PRIVATE KEY-----\n"));
    }
}
