//! The certificates with which consensus members speak to each other, which have an authority of their own.

use polis_consensus::Transaction;
use polis_identity::{AuthorityCertificate, Certificate, CertificateAuthority, NodeId, PublicKey, RevocationList};

use super::pki::{RevocationChange, revocation_change};
use super::{LeaderState, StateError, Versioned};
use crate::layout;

impl LeaderState {
    /// The peers' authority with its key.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when it is damaged or missing.
    pub async fn peer_authority(&self) -> Result<CertificateAuthority, StateError> {
        self.read_authority(layout::peer_authority_key(), layout::peer_authority_certificate()).await
    }

    /// The certificate of the peers' authority.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when it is damaged or missing.
    pub async fn peer_authority_certificate(&self) -> Result<AuthorityCertificate, StateError> {
        let key = layout::peer_authority_certificate();
        super::pki::authority_certificate(&key, self.get(&key).await?)
    }

    /// What the peers' authority has revoked.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when the list is damaged or missing.
    pub async fn peer_revocations(&self) -> Result<Versioned<RevocationList>, StateError> {
        self.revocations_at(&layout::peer_revocation_list(), &layout::peer_authority_certificate()).await
    }

    /// The certificate with which the node with `key` speaks to other members. The one that was issued before is returned
    /// again, unless it is revoked: then there is a new one.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::transact`], and when authority or certificate are damaged.
    pub async fn issue_peer_certificate(&self, site: &'static str, key: &PublicKey) -> Result<Certificate, StateError> {
        let path = layout::peer_certificate(&NodeId::of(key));
        let found = self.certificate_at(&path).await?;
        if let Some(found) = &found
            && found.value.public_key() == Some(*key)
            && !self.peer_revocations().await?.value.revoked().contains(found.value.serial_number())
        {
            return Ok(found.value.clone());
        }
        let issued = self.peer_authority().await?.issue_peer(key);
        let transaction = match &found {
            Some(found) => Transaction::new().if_modified_at(path.as_str(), found.revision),
            None => Transaction::new().if_absent(path.as_str()),
        };
        self.transact(site, transaction.put(path.as_str(), issued.der())).await?;
        Ok(issued)
    }

    /// Prepares the revocation of the peer certificate of the node `id`, for a transaction of the caller's. `None` when it
    /// has none, or it is revoked already.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when authority, list or certificate are damaged.
    pub async fn revoke_peer(&self, id: &NodeId) -> Result<Option<RevocationChange>, StateError> {
        let Some(certificate) = self.certificate_at(&layout::peer_certificate(id)).await? else { return Ok(None) };
        let serial_number = certificate.value.serial_number().clone();
        let current = self.peer_revocations().await?;
        if current.value.revoked().contains(&serial_number) {
            return Ok(None);
        }
        let authority = self.peer_authority().await?;
        revocation_change(layout::peer_revocation_list(), current, &authority, [serial_number]).map(Some)
    }
}
