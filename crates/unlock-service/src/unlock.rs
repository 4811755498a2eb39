//! The two things that a member asks the others for: the key of its data, and proof that it would get it.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use polis_identity::{AuthorityCertificate, NodeId};
use polis_rpc::KeyIdentity;
use polis_supervisor::BoxError;
use polis_unlock::{Alarm, ClusterUnlockKey, Collector, Drill, Epoch, Event, NoDrill, Proof, Settings, UnlockFile};
use tokio::sync::watch;

use crate::engine::Engine;
use crate::{Contacts, KnownAddresses, Members, StoreMembersError, UnlockStatus};

/// The member that asks.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The node.
    pub id: NodeId,
    /// The authority of its cluster.
    pub authority: AuthorityCertificate,
    /// Its unlock file; none when it has none that can be believed.
    pub file: Option<UnlockFile>,
}

/// What a member that asks has around it.
#[derive(Clone)]
pub struct Surroundings {
    /// Its join key.
    pub identity: KeyIdentity,
    /// Its address, if that is given: it calls from there, so that others learn where it is. None leaves it to the system.
    pub from: Option<IpAddr>,
    /// Who the others are.
    pub members: Members,
    /// Who of them has called this node.
    pub contacts: Contacts,
    /// Where they are said to be, beside what the member list says.
    pub addresses: watch::Receiver<Arc<KnownAddresses>>,
    /// The port on which they listen where only an IP address is known: [`polis_rpc::UNLOCK_PORT`].
    pub port: u16,
    /// How far it is.
    pub status: watch::Sender<Arc<UnlockStatus>>,
}

/// Opens the data.
#[async_trait]
pub trait Opener: Send {
    /// What there is once they are open.
    type Opened: Send;

    /// Opens the data with this key. A wrong one changes nothing.
    ///
    /// # Errors
    ///
    /// Whether it is the key that is wrong, or anything else.
    async fn open(&mut self, key: &ClusterUnlockKey, proof: Proof) -> Result<Self::Opened, OpenError>;
}

/// Why a key has not opened the data.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The key does not open them.
    #[error("the key does not open the data")]
    NotTheKey,
    /// It was not the key.
    #[error("the data could not be opened")]
    Trouble(#[source] BoxError),
}

/// Why an unlock ended without opening the data. It is begun anew, and loses nothing by that.
#[derive(Debug, thiserror::Error)]
pub enum UnlockError {
    /// A member list could not be stored.
    #[error(transparent)]
    Store(#[from] StoreMembersError),
    /// There is a key, and something else keeps it from opening the data.
    #[error("the key of the data is there, and they could not be opened with it")]
    Open(#[source] BoxError),
}

/// Why a drill was not passed.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    /// There is nothing to try.
    #[error("there is nothing to try")]
    Nothing(#[from] NoDrill),
    /// A member list could not be stored.
    #[error(transparent)]
    Store(#[from] StoreMembersError),
    /// The shares are worth nothing. The key is to be split anew.
    #[error("a cold start would fail")]
    Failed(#[source] Alarm),
}

/// Asks the others until the data are open, for ever if need be. It asks at once, and it asks again: whoever may have come back,
/// whoever calls, whoever is said to be elsewhere. Dropping it ends it.
///
/// # Errors
///
/// When this node itself cannot go on. Whatever the others do or do not do is no error.
pub async fn unlock<O: Opener>(
    surroundings: &Surroundings,
    owner: Owner,
    opener: &mut O,
) -> Result<O::Opened, UnlockError> {
    let id = owner.id;
    let mut engine = Engine::new(Collector::new(settings(surroundings, owner)), id, surroundings);
    loop {
        let (key, proof) = engine.run().await?;
        match opener.open(&key, proof).await {
            Ok(opened) => return Ok(opened),
            Err(OpenError::NotTheKey) => engine.handle(Event::DidNotOpen).await?,
            Err(OpenError::Trouble(source)) => return Err(UnlockError::Open(source)),
        }
    }
}

/// Asks the others for their shares as if this node were locked, and compares with its key. Returns the epoch of the split with which
/// that has succeeded. Goes on until enough of them have answered; how long that may take is for the caller to say, and
/// [`Surroundings::status`] says who is missing. Dropping it ends it.
///
/// # Errors
///
/// When a cold start would not open this node, and when there is nothing to try.
pub async fn drill(surroundings: &Surroundings, owner: Owner, key: ClusterUnlockKey) -> Result<Epoch, DrillError> {
    let id = owner.id;
    let drill = Drill::new(settings(surroundings, owner), key)?;
    Engine::new(drill, id, surroundings).run().await?.map_err(DrillError::Failed)
}

fn settings(surroundings: &Surroundings, owner: Owner) -> Settings {
    let Owner { id, authority, file } = owner;
    Settings { id, authority, members: surroundings.members.known().list.clone(), file }
}
