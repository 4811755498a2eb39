//! The file that holds the key of a cluster's initial owner.

use pem_rfc7468::LineEnding;
use polis_secret::{Secret, WrongLength};
use zeroize::Zeroizing;

use crate::{KeyPairError, OwnerKey};

/// Kind of the PEM block in `owner-key.pem` (metropolis.md J.7).
pub const OWNER_KEY_PEM_LABEL: &str = "METROPOLIS INITIAL OWNER PRIVATE KEY";

/// Kind of the PEM block in which other tools (`openssl genpkey -algorithm ed25519`) keep an Ed25519 key.
const PKCS8_LABEL: &str = "PRIVATE KEY";

impl OwnerKey {
    /// The key as `owner-key.pem` holds it: 32 secret bytes and the public key in one PEM block of Metropolis' kind.
    #[must_use]
    pub fn to_owner_pem(&self) -> Zeroizing<String> {
        let pem = pem_rfc7468::encode_string(OWNER_KEY_PEM_LABEL, LineEnding::LF, self.to_pair().expose());
        Zeroizing::new(pem.expect("64 bytes fit in memory as PEM"))
    }

    /// Reads an owner key in Metropolis' form, or in PKCS#8 as other tools write it; text before the block is
    /// passed over.
    ///
    /// # Errors
    ///
    /// When the text is not PEM, is of another kind, or does not hold a whole key.
    pub fn from_pem(pem: &str) -> Result<Self, ParseOwnerKeyError> {
        let (label, content) =
            pem_rfc7468::decode_vec(pem.as_bytes()).map_err(|source| ParseOwnerKeyError::NotPem { source })?;
        let content = Zeroizing::new(content);
        match label {
            OWNER_KEY_PEM_LABEL => {
                let pair =
                    Secret::<64>::try_from(&content[..]).map_err(|source| ParseOwnerKeyError::Length { source })?;
                Self::from_pair(&pair).map_err(|source| ParseOwnerKeyError::Pair { source })
            }
            PKCS8_LABEL => {
                Self::from_pkcs8_der(&content).map_err(|error| ParseOwnerKeyError::Pkcs8 { source: error.source })
            }
            _ => Err(ParseOwnerKeyError::Label { found: label.to_owned() }),
        }
    }
}

/// Text that is not an owner key.
#[derive(Debug, thiserror::Error)]
pub enum ParseOwnerKeyError {
    /// Not PEM.
    #[error("the text is not PEM")]
    NotPem {
        /// Where reading stopped.
        #[source]
        source: pem_rfc7468::Error,
    },
    /// PEM of another kind.
    #[error("the PEM block is a {found:?} and not a {OWNER_KEY_PEM_LABEL:?} (or \"PRIVATE KEY\")")]
    Label {
        /// Its kind.
        found: String,
    },
    /// Not 64 bytes in the block of Metropolis' kind.
    #[error("the {OWNER_KEY_PEM_LABEL:?} has the wrong length")]
    Length {
        /// How many bytes there are.
        #[source]
        source: WrongLength,
    },
    /// The two halves do not belong together.
    #[error("the {OWNER_KEY_PEM_LABEL:?} is damaged")]
    Pair {
        /// How.
        #[source]
        source: KeyPairError,
    },
    /// Not an Ed25519 key in PKCS#8.
    #[error("the \"PRIVATE KEY\" is not an Ed25519 key in PKCS#8")]
    Pkcs8 {
        /// Where reading stopped.
        #[source]
        source: ed25519_dalek::pkcs8::Error,
    },
}
