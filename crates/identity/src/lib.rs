//! Who is who in a cluster: keys, node ids, certificates, and the rules by which a certificate is believed.
//!
//! Everything here is a value. The crate reads no file, opens no connection and asks no clock, so a certificate
//! that was good once is good for ever: nodes may start with a clock of 1970, and what ends a certificate is the
//! removal of its node or user, not a date (metropolis.md E.3 and H.1).
//!
//! * [`PrivateKey`] and its kinds [`NodeKey`], [`JoinKey`], [`OwnerKey`] and [`AuthorityKey`] are Ed25519 keys that the
//!   compiler keeps apart; [`ShareKey`] is the X25519 key to which shares of unlock keys are encrypted.
//! * [`PublicKey`], [`NodeId`], [`ClusterId`] and [`PeerAddress`] are the names that follow from a key. None of them is
//!   ever assigned by anybody, so none can be assigned twice.
//! * [`Certificate`] is an X.509 certificate that has been read as a whole, with the few facts that the rules need.
//! * [`CertificateAuthority`] issues; [`verify_certificate_authority`], [`verify_in_cluster`],
//!   [`verify_node_in_cluster`], [`verify_user_in_cluster`] and [`verify_ephemeral`] judge. The judges take bytes from
//!   the network and never panic.
//!
//! Certificates are written by `rcgen` and read by `x509-parser`; signatures are made and checked by
//! `ed25519-dalek`, in the strict form that has exactly one valid signature per message and key.

#![forbid(unsafe_code)]

mod authority;
mod certificate;
mod cluster_id;
mod ephemeral;
mod issue;
mod node_id;
mod owner_key;
mod peer_address;
mod private_key;
mod public_key;
mod revocation_list;
mod serial_number;
mod share_key;
mod signed_document;
mod signed_statement;
mod verify;

pub use authority::{AuthorityFromPartsError, CertificateAuthority, IssueUserError};
pub use certificate::{Certificate, ParseCertificateError, ParseCertificatePemError};
pub use cluster_id::{ClusterId, ParseClusterIdError};
pub use ephemeral::{NotEphemeralError, issue_ephemeral, verify_ephemeral};
pub use issue::{CLUSTER_AUTHORITY_NAME, MAX_USER_NAME_CHARACTERS, PEER_AUTHORITY_NAME};
pub use node_id::{NodeId, ParseNodeIdError};
pub use owner_key::{OWNER_KEY_PEM_LABEL, ParseOwnerKeyError};
pub use peer_address::PeerAddress;
pub use private_key::{
    AuthorityKey, JoinKey, KeyPairError, NodeKey, OwnerKey, ParsePkcs8Error, PrivateKey, Purpose, purpose,
};
pub use public_key::{InvalidPublicKeyError, PublicKey, WrongSignatureError};
pub use revocation_list::{FIRST_REVOCATION_LIST, ReadRevocationListError, RevocationList};
pub use serial_number::SerialNumber;
pub use share_key::{ShareKey, SharePublicKey};
pub use signed_statement::StatementKind;
pub use verify::{
    AuthorityCertificate, NodeIdentity, NotANodeError, NotAUserError, NotAnAuthorityError, NotInClusterError,
    UserIdentity, verify_certificate_authority, verify_in_cluster, verify_node_in_cluster, verify_user_in_cluster,
};
