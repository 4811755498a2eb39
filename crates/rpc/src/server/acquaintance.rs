//! By what a server knows those who call.

use std::sync::Arc;

use polis_identity::AuthorityCertificate;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tonic::Status;

use super::room::Holder;
use crate::authorize::stands;
use crate::tls::{Judgement, judge, judge_key};
use crate::{KnownKeys, Peer, Trust};

/// By what a server knows those who call, and what has become of them since.
#[derive(Clone)]
pub(super) enum Acquaintance {
    /// By certificates of its cluster.
    Cluster { authority: Arc<AuthorityCertificate>, trust: watch::Receiver<Arc<Trust>> },
    /// By their keys.
    Keys { known: watch::Receiver<Arc<KnownKeys>> },
}

impl Acquaintance {
    /// Who is at the other end, once the handshake is over.
    pub(super) fn judge(&self, shown: Option<&[CertificateDer<'_>]>) -> Judgement {
        match self {
            Self::Cluster { authority, .. } => judge(shown, authority),
            Self::Keys { .. } => judge_key(shown),
        }
    }

    /// Whom the cluster has let go, as far as this server asks for that. Keys are asked for by the handlers.
    pub(super) fn trust(&self) -> Arc<Trust> {
        match self {
            Self::Cluster { trust, .. } => Arc::clone(&trust.borrow()),
            Self::Keys { .. } => Arc::default(),
        }
    }

    /// Whether this is one of those for whom the seats of members are, now.
    ///
    /// # Errors
    ///
    /// Why not.
    pub(super) fn is_member(&self, judgement: &Judgement) -> Result<(), Status> {
        let trust = self.trust();
        let peer = stands(judgement, &trust)?;
        let is_member = match (self, peer) {
            (Self::Cluster { .. }, peer) => peer.is_authenticated(),
            (Self::Keys { known }, Peer::Ephemeral(key)) => known.borrow().keys.contains(key),
            (Self::Keys { .. }, Peer::Anonymous | Peer::Node(_) | Peer::User(_)) => false,
        };
        if is_member { Ok(()) } else { Err(Status::unauthenticated(format!("the {peer} is not one of the members"))) }
    }

    /// Whether a member was last heard of at this place.
    pub(super) fn is_told_of(&self, place: Holder) -> bool {
        match self {
            Self::Cluster { .. } => false,
            Self::Keys { known } => known.borrow().addresses.iter().any(|address| Holder::at(*address) == place),
        }
    }

    /// Waits until something of this changes. False if nothing will any more.
    pub(super) async fn changed(&mut self) -> bool {
        match self {
            Self::Cluster { trust, .. } => trust.changed().await.is_ok(),
            Self::Keys { known } => known.changed().await.is_ok(),
        }
    }
}
