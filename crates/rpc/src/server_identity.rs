//! What a server shows and what it measures its callers by.

use std::sync::Arc;

use polis_identity::{
    AuthorityCertificate, Certificate, NodeId, NodeIdentity, NodeKey, NotANodeError, PublicKey, verify_node_in_cluster,
};

use crate::ClientIdentity;
use crate::tls::Credential;

/// The credentials of a node: its key, its certificate, and the CA of its cluster. Clones share them.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    node: NodeIdentity,
    credential: Arc<Credential>,
    authority: Arc<AuthorityCertificate>,
}

impl ServerIdentity {
    /// Puts the credentials of a node together.
    ///
    /// # Errors
    ///
    /// When the certificate is not that of a node of this cluster, or is for another key.
    pub fn new(
        key: &NodeKey,
        certificate: Certificate,
        authority: AuthorityCertificate,
    ) -> Result<Self, ServerIdentityError> {
        let node = verify_node_in_cluster(&certificate, &authority)
            .map_err(|source| ServerIdentityError::NotANode { source })?;
        if node.public_key != key.public() {
            return Err(ServerIdentityError::OtherKey { certificate: node.public_key, key: key.public() });
        }
        let credential = Arc::new(Credential::new(key, &certificate));
        Ok(Self { node, credential, authority: Arc::new(authority) })
    }

    /// The node that this is.
    #[must_use]
    pub const fn node_id(&self) -> NodeId {
        self.node.id
    }

    /// The node's public key.
    #[must_use]
    pub const fn public_key(&self) -> PublicKey {
        self.node.public_key
    }

    /// The CA of the cluster.
    #[must_use]
    pub fn authority(&self) -> &AuthorityCertificate {
        &self.authority
    }

    /// The same credentials, for calling others.
    #[must_use]
    pub fn client_identity(&self) -> ClientIdentity {
        ClientIdentity::certified(Arc::clone(&self.credential))
    }

    pub(crate) const fn credential(&self) -> &Arc<Credential> {
        &self.credential
    }

    pub(crate) const fn shared_authority(&self) -> &Arc<AuthorityCertificate> {
        &self.authority
    }
}

/// Why parts do not make a [`ServerIdentity`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerIdentityError {
    /// The certificate is not one of a node of this cluster.
    #[error("the certificate of this node is not that of a node of its cluster")]
    NotANode {
        /// Why.
        #[source]
        source: NotANodeError,
    },
    /// The certificate is for another key.
    #[error("the certificate of this node is for the public key {certificate}, but its key has the public key {key}")]
    OtherKey {
        /// Public key in the certificate.
        certificate: PublicKey,
        /// Public half of the node's key.
        key: PublicKey,
    },
}
