//! How a share is encrypted to the one who holds it, and what binds it to its place.

use hpke::aead::ChaCha20Poly1305;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::{Deserializable as _, OpModeR, OpModeS, Serializable as _, single_shot_open, single_shot_seal_with_rng};
use polis_identity::{ClusterId, NodeId, ShareKey, SharePublicKey};
use polis_secret::Secret32;
use rand::CryptoRng;
use zeroize::Zeroizing;

use crate::Epoch;

/// What HPKE is told that this is for.
const INFO: &[u8] = b"polis share of a cluster unlock key v1";
/// Length of an encapsulated X25519 key, in bytes.
const ENCAPSULATED: usize = 32;
/// Length of a sealed share, in bytes: the encapsulated key, the share, and the tag.
pub const SEALED_SHARE_LENGTH: usize = ENCAPSULATED + 32 + 16;

/// What a sealed share is bound to: it opens in no other place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The cluster.
    pub cluster: ClusterId,
    /// Whose key it is a share of.
    pub owner: NodeId,
    /// Who is to open it.
    pub holder: NodeId,
    /// Which share it is.
    pub x: u8,
    /// Epoch of the member list for which the key was split.
    pub epoch: Epoch,
}

impl Binding {
    /// The bytes that are authenticated. Every part has one length, so that no two bindings have the same.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { cluster, owner, holder, x, epoch } = self;
        let mut bytes = cluster.as_bytes().to_vec();
        bytes.extend(owner.to_string().into_bytes());
        bytes.extend(holder.to_string().into_bytes());
        bytes.push(*x);
        bytes.extend(epoch.incarnation.to_be_bytes());
        bytes.extend(epoch.epoch.to_be_bytes());
        bytes
    }
}

/// How shares are encrypted. There is one way, [`Hpke`]; a test of ten thousand histories has a cheaper one.
pub trait Sealing {
    /// Encrypts the secret part of a share to its holder.
    ///
    /// # Errors
    ///
    /// When the key of the holder is none that anything can be encrypted to.
    fn seal(
        &self,
        to: &SharePublicKey,
        binding: &Binding,
        share: &Secret32,
        random: &mut dyn CryptoRng,
    ) -> Result<Vec<u8>, UnusableShareKey>;

    /// Decrypts it again; nothing when it was not encrypted to this key and with this binding.
    fn open(&self, key: &ShareKey, binding: &Binding, sealed: &[u8]) -> Option<Secret32>;
}

/// Nothing can be encrypted to this share key: it is a point of small order, which no honest node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing can be encrypted to the share key {0}")]
pub struct UnusableShareKey(pub SharePublicKey);

/// HPKE (RFC 9180) with X25519, HKDF-SHA-256 and ChaCha20-Poly1305, which is as fast on machines without instructions for AES.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hpke;

type Kem = X25519HkdfSha256;

impl Sealing for Hpke {
    fn seal(
        &self,
        to: &SharePublicKey,
        binding: &Binding,
        share: &Secret32,
        mut random: &mut dyn CryptoRng,
    ) -> Result<Vec<u8>, UnusableShareKey> {
        let unusable = |_| UnusableShareKey(*to);
        let to = <Kem as hpke::Kem>::PublicKey::from_bytes(to.as_bytes()).map_err(unusable)?;
        let (encapsulated, ciphertext) = single_shot_seal_with_rng::<ChaCha20Poly1305, HkdfSha256, Kem>(
            &OpModeS::Base,
            &to,
            INFO,
            share.expose(),
            &binding.to_bytes(),
            &mut random,
        )
        .map_err(unusable)?;
        Ok([&encapsulated.to_bytes()[..], &ciphertext].concat())
    }

    fn open(&self, key: &ShareKey, binding: &Binding, sealed: &[u8]) -> Option<Secret32> {
        let (encapsulated, ciphertext) = sealed.split_at_checked(ENCAPSULATED)?;
        let encapsulated = <Kem as hpke::Kem>::EncappedKey::from_bytes(encapsulated).ok()?;
        let key = <Kem as hpke::Kem>::PrivateKey::from_bytes(key.secret().expose()).ok()?;
        let share = single_shot_open::<ChaCha20Poly1305, HkdfSha256, Kem>(
            &OpModeR::Base,
            &key,
            &encapsulated,
            INFO,
            ciphertext,
            &binding.to_bytes(),
        );
        Secret32::try_from(&Zeroizing::new(share.ok()?)[..]).ok()
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;

    use super::*;

    fn node() -> NodeId {
        NodeId::of(&NodeKey::generate().public())
    }

    #[test]
    fn a_share_opens_for_its_holder_in_its_place_only() {
        let cluster = ClusterId::from_bytes([1; 16]);
        let binding = Binding { cluster, owner: node(), holder: node(), x: 3, epoch: Epoch::FIRST };
        let (key, share) = (ShareKey::generate(), Secret32::random());
        let sealed = Hpke.seal(&key.public(), &binding, &share, &mut rand::rng()).unwrap();
        assert_eq!(sealed.len(), SEALED_SHARE_LENGTH);
        assert_eq!(Hpke.open(&key, &binding, &sealed), Some(share));
        assert_eq!(Hpke.open(&ShareKey::generate(), &binding, &sealed), None, "another key");
        let later = Epoch { incarnation: 2, ..Epoch::FIRST };
        let elsewhere = [
            Binding { cluster: ClusterId::from_bytes([2; 16]), ..binding },
            Binding { owner: binding.holder, ..binding },
            Binding { holder: binding.owner, ..binding },
            Binding { owner: binding.holder, holder: binding.owner, ..binding },
            Binding { x: 4, ..binding },
            Binding { epoch: Epoch::FIRST.next(), ..binding },
            Binding { epoch: later, ..binding },
        ];
        for other in elsewhere {
            assert_eq!(Hpke.open(&key, &other, &sealed), None, "{other:?}");
        }
        for length in 0..sealed.len() {
            assert_eq!(Hpke.open(&key, &binding, &sealed[..length]), None);
        }
        for index in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[index] ^= 1;
            assert_eq!(Hpke.open(&key, &binding, &changed), None, "byte {index}");
        }
    }

    #[test]
    fn nothing_is_encrypted_to_a_point_of_small_order() {
        let binding = Binding {
            cluster: ClusterId::from_bytes([1; 16]),
            owner: node(),
            holder: node(),
            x: 1,
            epoch: Epoch::FIRST,
        };
        let zero = SharePublicKey::new([0; 32]);
        let outcome = Hpke.seal(&zero, &binding, &Secret32::random(), &mut rand::rng());
        assert_eq!(outcome, Err(UnusableShareKey(zero)));
    }
}
