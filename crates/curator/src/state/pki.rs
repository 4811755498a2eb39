//! The cluster's certificates: its authority, what that issues and revokes, and further authorities below the same keys.
//!
//! The key of an authority is read when it is needed and not kept.

use polis_consensus::Transaction;
use polis_identity::{
    AuthorityCertificate, AuthorityKey, Certificate, CertificateAuthority, NodeId, PrivateKey, PublicKey,
    RevocationList, SerialNumber, verify_certificate_authority,
};

use super::{LeaderState, State, StateError, Versioned};
use crate::layout;

/// A revocation list that is to be: part of the transaction that revokes.
#[derive(Clone, Debug)]
pub struct RevocationChange {
    key: String,
    revision: i64,
    list: RevocationList,
}

impl RevocationChange {
    /// The list as it will be.
    #[must_use]
    pub const fn list(&self) -> &RevocationList {
        &self.list
    }

    /// Adds the change to a transaction, on the condition that the list is still the one that it was made from.
    #[must_use]
    pub fn add_to(&self, transaction: Transaction) -> Transaction {
        transaction.if_modified_at(self.key.as_str(), self.revision).put(self.key.as_str(), self.list.der())
    }
}

impl State {
    /// The certificate of the cluster's authority.
    ///
    /// # Errors
    ///
    /// When etcd does not answer, or the certificate is damaged or missing.
    pub async fn authority_certificate(&self) -> Result<AuthorityCertificate, StateError> {
        let key = layout::cluster_authority_certificate();
        authority_certificate(&key, self.get(&key).await?)
    }
}

impl LeaderState {
    /// The cluster's authority with its key.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when it is damaged or missing.
    pub async fn authority(&self) -> Result<CertificateAuthority, StateError> {
        self.read_authority(layout::cluster_authority_key(), layout::cluster_authority_certificate()).await
    }

    /// The authority `name`, for example `kubernetes-ca`; it is made at the first use, with this common name.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::transact`], and when it is damaged.
    pub async fn ensure_authority(
        &self,
        site: &'static str,
        name: &str,
        common_name: &str,
    ) -> Result<CertificateAuthority, StateError> {
        let (key, certificate) = (layout::private_key(name), layout::issued_certificate(name));
        if self.get(&key).await?.is_none() {
            let made = CertificateAuthority::generate(common_name);
            let transaction = Transaction::new()
                .if_absent(key.as_str())
                .if_absent(certificate.as_str())
                .put(key.as_str(), made.key().pkcs8_der().as_slice())
                .put(certificate.as_str(), made.certificate().der());
            if self.attempt(site, transaction).await?.is_some() {
                return Ok(made);
            }
            // Made by another request meanwhile, or damaged: what is there will tell.
        }
        self.read_authority(key, certificate).await
    }

    /// The certificate that is stored under `name`, if there is one.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when it is damaged.
    pub async fn issued_certificate(&self, name: &str) -> Result<Option<Versioned<Certificate>>, StateError> {
        self.certificate_at(&layout::issued_certificate(name)).await
    }

    /// The certificate of the node with `key`, whose record was read at `revision`. The one that was issued before is returned again;
    /// none is issued once the record is another, as the node may have been deleted with all that was issued to it.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::transact`], [`StateError::Conflict`] when the record has changed, and when authority or certificate
    /// are damaged.
    pub async fn issue_node_certificate(
        &self,
        site: &'static str,
        key: &PublicKey,
        revision: i64,
    ) -> Result<Certificate, StateError> {
        let id = NodeId::of(key);
        let path = layout::node_certificate(&id);
        let certificate = match self.certificate_at(&path).await? {
            Some(found) => found.value,
            None => {
                let issued = self.authority().await?.issue_node(key);
                let transaction = Transaction::new()
                    .if_modified_at(layout::node(&id), revision)
                    .if_absent(path.as_str())
                    .put(path.as_str(), issued.der());
                match self.attempt(site, transaction).await? {
                    Some(_) => issued,
                    // Another request of the same node was faster, or its record has changed.
                    None => self.certificate_at(&path).await?.ok_or(StateError::Conflict)?.value,
                }
            }
        };
        if certificate.public_key() == Some(*key) {
            Ok(certificate)
        } else {
            Err(StateError::damaged(path, "it is the certificate of another key"))
        }
    }

    /// The certificate of the node `id`, if it has one.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when it is damaged.
    pub async fn node_certificate(&self, id: &NodeId) -> Result<Option<Versioned<Certificate>>, StateError> {
        self.certificate_at(&layout::node_certificate(id)).await
    }

    /// What the cluster's authority has revoked.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when the list is damaged or missing.
    pub async fn revocations(&self) -> Result<Versioned<RevocationList>, StateError> {
        let (list, certificate) = (layout::cluster_revocation_list(), layout::cluster_authority_certificate());
        self.revocations_at(&list, &certificate).await
    }

    /// Prepares the revocation of these certificates of the cluster's authority, for a transaction of the caller's.
    ///
    /// # Errors
    ///
    /// As for [`LeaderState::read`], and when authority or list are damaged.
    pub async fn revoke(
        &self,
        serial_numbers: impl IntoIterator<Item = SerialNumber>,
    ) -> Result<RevocationChange, StateError> {
        let authority = self.authority().await?;
        revocation_change(layout::cluster_revocation_list(), self.revocations().await?, &authority, serial_numbers)
    }

    pub(super) async fn read_authority(
        &self,
        key: String,
        certificate: String,
    ) -> Result<CertificateAuthority, StateError> {
        let mut found =
            self.read(Transaction::new().get(key.as_str()).get(certificate.as_str())).await?.found.into_iter();
        let mut next = || found.next().and_then(|pairs| pairs.into_iter().next()).map(|pair| pair.value);
        let private = next().map(zeroize::Zeroizing::new).ok_or_else(|| missing(&key))?;
        let private: AuthorityKey =
            PrivateKey::from_pkcs8_der(&private).map_err(|source| StateError::damaged(&*key, source))?;
        let issued = next().ok_or_else(|| missing(&certificate))?;
        let issued = Certificate::from_der(issued).map_err(|source| StateError::damaged(&*certificate, source))?;
        CertificateAuthority::from_parts(private, issued).map_err(|source| StateError::damaged(certificate, source))
    }

    pub(super) async fn revocations_at(
        &self,
        list: &str,
        certificate: &str,
    ) -> Result<Versioned<RevocationList>, StateError> {
        let mut found = self.read(Transaction::new().get(certificate).get(list)).await?.found.into_iter();
        let mut next = || found.next().and_then(|pairs| pairs.into_iter().next());
        let authority = next().map(|pair| Versioned { value: pair.value, revision: pair.mod_revision });
        let authority = authority_certificate(certificate, authority)?;
        let found = next().ok_or_else(|| missing(list))?;
        let value =
            RevocationList::read(found.value, &authority).map_err(|source| StateError::damaged(list, source))?;
        Ok(Versioned { value, revision: found.mod_revision })
    }

    pub(super) async fn certificate_at(&self, path: &str) -> Result<Option<Versioned<Certificate>>, StateError> {
        let Some(found) = self.get(path).await? else { return Ok(None) };
        let value = Certificate::from_der(found.value).map_err(|source| StateError::damaged(path, source))?;
        Ok(Some(Versioned { value, revision: found.revision }))
    }
}

/// The list after `current` that revokes these, too.
pub(super) fn revocation_change(
    key: String,
    current: Versioned<RevocationList>,
    authority: &CertificateAuthority,
    serial_numbers: impl IntoIterator<Item = SerialNumber>,
) -> Result<RevocationChange, StateError> {
    let mut revoked = current.value.revoked().clone();
    revoked.extend(serial_numbers);
    let revoked: Vec<SerialNumber> = revoked.into_iter().collect();
    let number = current.value.number().checked_add(1);
    let number = number.ok_or_else(|| StateError::damaged(&*key, "there is no higher number than that of the list"))?;
    Ok(RevocationChange {
        key,
        revision: current.revision,
        list: authority.certificate_revocation_list(number, &revoked),
    })
}

pub(super) fn authority_certificate(
    key: &str,
    found: Option<Versioned<Vec<u8>>>,
) -> Result<AuthorityCertificate, StateError> {
    let found = found.ok_or_else(|| missing(key))?;
    let certificate = Certificate::from_der(found.value).map_err(|source| StateError::damaged(key, source))?;
    verify_certificate_authority(certificate).map_err(|source| StateError::damaged(key, source))
}

pub(super) fn missing(key: &str) -> StateError {
    StateError::damaged(key, "it is missing, although every cluster is born with it")
}
