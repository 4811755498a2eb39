//! A certificate and the key that goes with it, in the form in which rustls wants them.

use std::fmt;
use std::sync::Arc;

use polis_identity::{Certificate, PrivateKey, Purpose};
use rustls::sign::{CertifiedKey, Signer, SigningKey, SingleCertAndKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

/// A certificate and its key. The key stays in its own type, which wipes it; rustls gets signatures only.
#[derive(Debug)]
pub(crate) struct Credential {
    resolver: Arc<SingleCertAndKey>,
}

impl Credential {
    /// The caller has checked that they belong together.
    pub(crate) fn new<P: Purpose>(key: &PrivateKey<P>, certificate: &Certificate) -> Self {
        let key = Key(Arc::new(key.clone()));
        let certified = CertifiedKey::new(vec![certificate.der().to_vec().into()], Arc::new(key));
        Self { resolver: Arc::new(certified.into()) }
    }

    pub(crate) fn resolver(&self) -> Arc<SingleCertAndKey> {
        Arc::clone(&self.resolver)
    }
}

trait Signs: Send + Sync {
    fn sign(&self, message: &[u8]) -> [u8; 64];
}

impl<P: Purpose> Signs for PrivateKey<P> {
    fn sign(&self, message: &[u8]) -> [u8; 64] {
        Self::sign(self, message)
    }
}

#[derive(Clone)]
struct Key(Arc<dyn Signs>);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key")
    }
}

impl SigningKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&SignatureScheme::ED25519).then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl Signer for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.0.sign(message).to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}
