//! The peers' own public key infrastructure: a certificate authority for etcd members only.
//!
//! A member proves itself with its node key, certified by an authority that certifies nothing else; so what speaks to
//! port 7834 is a member of this cluster, whatever address it comes from. Everything is in one durable file; the PEM
//! files that etcd reads are written from it at each start.

use std::path::PathBuf;

use polis_identity::{
    AuthorityCertificate, AuthorityFromPartsError, AuthorityKey, Certificate, CertificateAuthority,
    FIRST_REVOCATION_LIST, NodeKey, NotAnAuthorityError, PEER_AUTHORITY_NAME, ParseCertificateError, ParsePkcs8Error,
    PrivateKey, Purpose, ReadRevocationListError, RevocationList, verify_certificate_authority,
};
use polis_storage::{DiskError, EphemeralConsensus, LoadError, PeerCredentials, StoreError, Stored};

/// A member's credentials, read and checked. Has no `Debug`: it holds keys.
#[derive(Clone)]
pub struct PeerPki {
    authority: AuthorityCertificate,
    /// Present on the founder until the cluster holds it.
    authority_key: Option<AuthorityKey>,
    revocations: RevocationList,
    certificate: Certificate,
    key: NodeKey,
}

/// A member's credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PeerPkiError {
    /// The file cannot be read.
    #[error("the credentials of the etcd member cannot be read")]
    Load {
        /// Why.
        #[source]
        source: LoadError,
    },
    /// The file cannot be written.
    #[error("the credentials of the etcd member cannot be written")]
    Store {
        /// Why.
        #[source]
        source: StoreError,
    },
    /// The file is whole, but what is in it does not fit together.
    #[error("the credentials of the etcd member in {} cannot be used; nothing was changed", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: InvalidPeerPki,
    },
    /// The file belongs to another node.
    #[error(
        "{} holds the credentials of another node: this data directory does not belong to this node; nothing was changed",
        path.display()
    )]
    OtherNode {
        /// The file.
        path: PathBuf,
    },
}

/// What is wrong with a member's credentials.
#[derive(Debug, thiserror::Error)]
pub enum InvalidPeerPki {
    /// A certificate is none.
    #[error("the {name} is not a certificate")]
    Certificate {
        /// Which one.
        name: &'static str,
        /// Why.
        #[source]
        source: ParseCertificateError,
    },
    /// The authority's certificate is not one of an authority.
    #[error("the authority's certificate is not one of an authority")]
    Authority(#[source] NotAnAuthorityError),
    /// The authority's key is not that of its certificate.
    #[error("the authority's key does not belong to its certificate")]
    AuthorityKey(#[source] AuthorityFromPartsError),
    /// The revocation list is none of this authority.
    #[error("the revocation list is not one of the authority")]
    Revocations(#[source] ReadRevocationListError),
    /// A private key is none.
    #[error("the private key of the {name} cannot be read")]
    PrivateKey {
        /// Whose.
        name: &'static str,
        /// Why.
        #[source]
        source: ParsePkcs8Error,
    },
}

impl PeerPki {
    /// Makes the credentials of a new cluster's first member.
    #[must_use]
    pub fn found(key: &NodeKey) -> Self {
        let authority = CertificateAuthority::generate(PEER_AUTHORITY_NAME);
        Self {
            authority: authority.certificate().clone(),
            authority_key: Some(authority.key().clone()),
            revocations: authority.certificate_revocation_list(FIRST_REVOCATION_LIST, &[]),
            certificate: authority.issue_peer(&key.public()),
            key: key.clone(),
        }
    }

    /// The credentials that a cluster has issued for the node with `key`.
    #[must_use]
    pub fn issued(
        authority: AuthorityCertificate,
        revocations: RevocationList,
        certificate: Certificate,
        key: &NodeKey,
    ) -> Self {
        Self { authority, authority_key: None, revocations, certificate, key: key.clone() }
    }

    /// Reads the credentials of the node with `key`, or makes and stores those of a founder if there are none. Idempotent:
    /// after an interruption at any point the next call returns the same, or starts over with nothing lost. Blocks.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or written, or is of another node. Nothing is ever overwritten.
    pub fn load_or_found(stored: &Stored<PeerCredentials>, key: &NodeKey) -> Result<Self, PeerPkiError> {
        if let Some(known) = Self::load(stored, key)? {
            return Ok(known);
        }
        let founded = Self::found(key);
        founded.store(stored, "etcd/credentials/found")?;
        Ok(founded)
    }

    /// Reads the credentials of the node with `key`; `None` if there are none. Blocks.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or is of another node.
    pub fn load(stored: &Stored<PeerCredentials>, key: &NodeKey) -> Result<Option<Self>, PeerPkiError> {
        let Some(credentials) = stored.load().map_err(|source| PeerPkiError::Load { source })? else {
            return Ok(None);
        };
        let path = stored.full_path();
        match Self::from_credentials(&credentials) {
            Ok(pki) if pki.key == *key && pki.certificate.public_key() == Some(key.public()) => Ok(Some(pki)),
            Ok(_) => Err(PeerPkiError::OtherNode { path }),
            Err(source) => Err(PeerPkiError::Invalid { path, source }),
        }
    }

    /// Writes the credentials durably. `site` names the caller for fault points. Blocks.
    ///
    /// # Errors
    ///
    /// When the disk fails; the earlier file is then still there.
    pub fn store(&self, stored: &Stored<PeerCredentials>, site: &'static str) -> Result<(), PeerPkiError> {
        stored.store(&self.to_credentials(), site).map_err(|source| PeerPkiError::Store { source })
    }

    /// The same without the authority's key: for the time after the cluster holds it.
    #[must_use]
    pub fn without_authority_key(self) -> Self {
        Self { authority_key: None, ..self }
    }

    /// The authority itself, as long as its key is here.
    #[must_use]
    pub fn authority(&self) -> Option<CertificateAuthority> {
        let key = self.authority_key.clone()?;
        CertificateAuthority::from_parts(key, self.authority.certificate().clone()).ok()
    }

    /// The authority's certificate.
    #[must_use]
    pub const fn authority_certificate(&self) -> &AuthorityCertificate {
        &self.authority
    }

    /// What the authority has revoked.
    #[must_use]
    pub const fn revocations(&self) -> &RevocationList {
        &self.revocations
    }

    /// The member's certificate.
    #[must_use]
    pub const fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The same with another list of revocations: what a member keeps after it was told of a newer one.
    #[must_use]
    pub fn with_revocations(self, revocations: RevocationList) -> Self {
        Self { revocations, ..self }
    }

    /// The member's private key, PKCS#8 DER.
    pub(crate) fn key_der(&self) -> impl std::ops::Deref<Target = Vec<u8>> {
        self.key.pkcs8_der()
    }

    /// Writes the PEM files that etcd reads, over any that are there. They need not be durable: they are written again
    /// at each start.
    pub(crate) fn write_pem_files(&self, files: &EphemeralConsensus) -> Result<(), DiskError> {
        files.peer_ca.write(self.authority.pem().as_bytes())?;
        files.peer_crl.write(self.revocations.pem().as_bytes())?;
        files.peer_certificate.write(self.certificate.pem().as_bytes())?;
        files.peer_key.write(self.key.pkcs8_pem().as_bytes())
    }

    fn from_credentials(credentials: &PeerCredentials) -> Result<Self, InvalidPeerPki> {
        let certificate = |name, der: &[u8]| {
            Certificate::from_der(der).map_err(|source| InvalidPeerPki::Certificate { name, source })
        };
        let authority = certificate("authority's certificate", &credentials.ca_certificate)?;
        let authority = verify_certificate_authority(authority).map_err(InvalidPeerPki::Authority)?;
        let authority_key = credentials.ca_key.as_ref().map(|key| private_key(key, "authority")).transpose()?;
        if let Some(key) = &authority_key {
            CertificateAuthority::from_parts(key.clone(), authority.certificate().clone())
                .map_err(InvalidPeerPki::AuthorityKey)?;
        }
        let revocations = RevocationList::read(&*credentials.crl, &authority).map_err(InvalidPeerPki::Revocations)?;
        let certificate = certificate("member's certificate", &credentials.member_certificate)?;
        let key = private_key(&credentials.member_key, "member")?;
        Ok(Self { authority, authority_key, revocations, certificate, key })
    }

    fn to_credentials(&self) -> PeerCredentials {
        PeerCredentials {
            ca_certificate: self.authority.der().to_vec(),
            ca_key: self.authority_key.as_ref().map(|key| key.pkcs8_der()),
            crl: self.revocations.der().to_vec(),
            member_certificate: self.certificate.der().to_vec(),
            member_key: self.key.pkcs8_der(),
        }
    }
}

fn private_key<P: Purpose>(der: &[u8], name: &'static str) -> Result<PrivateKey<P>, InvalidPeerPki> {
    PrivateKey::from_pkcs8_der(der).map_err(|source| InvalidPeerPki::PrivateKey { name, source })
}
