//! What a server shows that is known by its key alone.

use std::sync::Arc;

use polis_identity::{PrivateKey, PublicKey, Purpose, issue_ephemeral};

use crate::ClientIdentity;
use crate::tls::Credential;

/// What one shows who is known by a key and by nothing else: a certificate that the key has signed for itself, without a name
/// and without dates that anybody looks at. Clones share the key.
#[derive(Clone, Debug)]
pub struct KeyIdentity {
    public_key: PublicKey,
    credential: Arc<Credential>,
}

impl KeyIdentity {
    /// Shows that it holds this key.
    #[must_use]
    pub fn new<P: Purpose>(key: &PrivateKey<P>) -> Self {
        let credential = Arc::new(Credential::new(key, &issue_ephemeral(key)));
        Self { public_key: key.public(), credential }
    }

    /// The key by which it is known.
    #[must_use]
    pub const fn public_key(&self) -> PublicKey {
        self.public_key
    }

    /// The same, for calling others.
    #[must_use]
    pub fn client_identity(&self) -> ClientIdentity {
        ClientIdentity::certified(Arc::clone(&self.credential))
    }

    pub(crate) const fn credential(&self) -> &Arc<Credential> {
        &self.credential
    }
}
