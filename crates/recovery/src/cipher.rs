//! HPKE as the recovery key uses it, and the one place that knows which suite it is.

use hpke::aead::{AeadCtxR, AeadCtxS, ChaCha20Poly1305};
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::{Deserializable as _, OpModeR, OpModeS, Serializable as _, setup_receiver, setup_sender};
use sha2::{Digest as _, Sha256};

use crate::{RecoveryKey, RecoveryPublicKey};

pub(crate) type Kem = X25519HkdfSha256;
pub(crate) type Sender = AeadCtxS<ChaCha20Poly1305, HkdfSha256, Kem>;
pub(crate) type Receiver = AeadCtxR<ChaCha20Poly1305, HkdfSha256, Kem>;

/// Length of an encapsulated key, in bytes.
pub(crate) const ENCAPSULATED_LENGTH: usize = 32;
/// By how much a ciphertext is longer than what is in it, in bytes.
pub(crate) const TAG_LENGTH: usize = 16;

/// A context of encryption to `recipient`, bound to what it is for and to a header, and the encapsulated key that
/// [`receiver`] needs.
pub(crate) fn sender(
    recipient: &RecoveryPublicKey,
    purpose: &[u8],
    header: &[u8],
) -> ([u8; ENCAPSULATED_LENGTH], Sender) {
    let recipient = <Kem as hpke::Kem>::PublicKey::from_bytes(recipient.as_bytes()).expect("32 bytes are a key");
    let (encapsulated, context) = setup_sender::<_, _, Kem>(&OpModeS::Base, &recipient, &info(purpose, header))
        .expect("a recovery key is no point of small order");
    (encapsulated.to_bytes().into(), context)
}

/// The other end of [`sender`]; nothing when the encapsulated key is none. A wrong key or header is only noticed when something
/// is opened.
pub(crate) fn receiver(
    key: &RecoveryKey,
    encapsulated: &[u8; ENCAPSULATED_LENGTH],
    purpose: &[u8],
    header: &[u8],
) -> Option<Receiver> {
    let encapsulated = <Kem as hpke::Kem>::EncappedKey::from_bytes(encapsulated).ok()?;
    setup_receiver(&OpModeR::Base, &key.for_cipher(), &encapsulated, &info(purpose, header)).ok()
}

/// What both ends must agree on. A header may be long, and HPKE's limit is 64 KiB: its digest stands for it.
fn info(purpose: &[u8], header: &[u8]) -> Vec<u8> {
    [purpose, &Sha256::digest(header)].concat()
}
