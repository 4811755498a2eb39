//! What of a consensus member is on this node's disk, and the durable steps by which one comes and goes.
//!
//! | a join | the role is lost | the member was removed, and the node keeps the role |
//! |---|---|---|
//! | `data/etcd/joining` is written | `data/etcd/credentials` is removed | `data/etcd/joining` is written |
//! | `data/etcd/credentials` is written | the data are set aside | `data/etcd/credentials` is removed |
//! | the member works; `data/etcd/joining` is removed | `data/etcd/joining` is removed | the data are set aside; then as a join |
//!
//! So credentials without `data/etcd/joining` are those of a member that has worked and must have its data; with it, an empty
//! data directory is what is to be expected. What a cut leaves of a member that is no more has no credentials, or is found out by
//! its own cluster to be no more.

use std::sync::Arc;

use polis_consensus::{PeerPki, PeerPkiError, set_aside};
use polis_identity::{NodeId, NodeKey};
use polis_storage::{Disk, DiskError, Layout, LoadError, MemberJoin, StoreError};

/// What of a consensus member is on this node's disk.
#[derive(Clone)]
pub enum StoredMember {
    /// Nothing: the node has no member.
    Absent,
    /// Remains of one that is no more. They are to be put away before there is another.
    Remains,
    /// Nothing but the note that there is to be one.
    Reserved,
    /// One that has a place in the consensus and has not worked yet: it is started as one that joins.
    Joining(Box<PeerPki>),
    /// One that has worked. Without its data it must not be started.
    Established(Box<PeerPki>),
}

/// The files of a consensus member could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum StoredMemberError {
    /// Its credentials.
    #[error(transparent)]
    Credentials(#[from] PeerPkiError),
    /// The note that it has not worked yet.
    #[error("cannot read whether the consensus member of this node has ever worked")]
    Joining(#[source] LoadError),
    /// The same.
    #[error("cannot record that the consensus member of this node is about to join")]
    Record(#[source] StoreError),
    /// Its data.
    #[error("cannot look at the data of the consensus member of this node")]
    Look(#[source] DiskError),
    /// The same.
    #[error("cannot put away what is left of the consensus member of this node")]
    Clear(#[source] DiskError),
}

impl StoredMember {
    /// Looks what is there for the node with `key`. Blocks.
    ///
    /// # Errors
    ///
    /// When something is there and cannot be read.
    pub fn load(layout: &Layout, key: &NodeKey) -> Result<Self, StoredMemberError> {
        let etcd = &layout.data.etcd;
        let joining = etcd.joining.load().map_err(StoredMemberError::Joining)?.is_some();
        match PeerPki::load(&etcd.credentials, key)? {
            Some(credentials) if joining => Ok(Self::Joining(Box::new(credentials))),
            Some(credentials) => Ok(Self::Established(Box::new(credentials))),
            None => {
                let look = StoredMemberError::Look;
                let has_data = etcd.data.exists().map_err(look)? && !etcd.data.list().map_err(look)?.is_empty();
                Ok(match (has_data, joining) {
                    (true, _) => Self::Remains,
                    (false, true) => Self::Reserved,
                    (false, false) => Self::Absent,
                })
            }
        }
    }
}

/// Notes that the node is to have a member, unless it has one. Before the role is recorded, so that a node with the role and
/// without a member always has either. Blocks.
pub(crate) fn reserve(layout: &Layout, key: &NodeKey) -> Result<(), StoredMemberError> {
    match StoredMember::load(layout, key)? {
        StoredMember::Absent | StoredMember::Remains => note_join(layout, key),
        StoredMember::Reserved | StoredMember::Joining(_) | StoredMember::Established(_) => Ok(()),
    }
}

fn note_join(layout: &Layout, key: &NodeKey) -> Result<(), StoredMemberError> {
    let join = MemberJoin { node_id: NodeId::of(&key.public()).to_string() };
    layout.data.etcd.joining.store(&join, "etcd/joining/begin").map_err(StoredMemberError::Record)
}

/// Stores the credentials of a member that is about to join. Its place must be reserved. Blocks.
pub(crate) fn begin_join(layout: &Layout, credentials: &PeerPki) -> Result<(), StoredMemberError> {
    Ok(credentials.store(&layout.data.etcd.credentials, "etcd/credentials/issued")?)
}

/// Records that the member has worked. Blocks.
pub(crate) fn finish_join(layout: &Layout) -> Result<(), StoredMemberError> {
    layout.data.etcd.joining.remove("etcd/joining/finish").map_err(StoredMemberError::Clear)
}

/// Puts away all that is there of a member, which must not run. Idempotent. Blocks.
pub(crate) fn clear(disk: &Arc<dyn Disk>, layout: &Layout) -> Result<(), StoredMemberError> {
    put_away(disk, layout)?;
    layout.data.etcd.joining.remove("etcd/joining/remove").map_err(StoredMemberError::Clear)
}

/// The same for a member that is to be followed by another. Blocks.
pub(crate) fn renew(disk: &Arc<dyn Disk>, layout: &Layout, key: &NodeKey) -> Result<(), StoredMemberError> {
    note_join(layout, key)?;
    put_away(disk, layout)
}

fn put_away(disk: &Arc<dyn Disk>, layout: &Layout) -> Result<(), StoredMemberError> {
    layout.data.etcd.credentials.remove("etcd/credentials/remove").map_err(StoredMemberError::Clear)?;
    if let Some(path) = set_aside(disk).map_err(StoredMemberError::Clear)? {
        tracing::info!("the data of the consensus member that was removed are in {}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use polis_storage::simulation::SimulatedDisk;

    use super::*;

    struct Scene {
        disk: Arc<dyn Disk>,
        layout: Layout,
        key: NodeKey,
        credentials: PeerPki,
    }

    fn scene() -> Scene {
        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::default());
        let layout = Layout::new(Arc::clone(&disk));
        layout.data.directory.create("test").unwrap();
        layout.data.etcd.directory.create("test").unwrap();
        layout.data.etcd.data.create("test").unwrap();
        let key = NodeKey::generate();
        let credentials = PeerPki::found(&key).without_authority_key();
        Scene { disk, layout, key, credentials }
    }

    impl Scene {
        fn put_data(&self) {
            let path = self.layout.data.etcd.data.path().child("member").unwrap();
            self.disk.create_directory(&path, 0o700).unwrap();
        }

        #[track_caller]
        fn check(&self, expected: &str) {
            let found = match StoredMember::load(&self.layout, &self.key).unwrap() {
                StoredMember::Absent => "absent",
                StoredMember::Remains => "remains",
                StoredMember::Reserved => "reserved",
                StoredMember::Joining(_) => "joining",
                StoredMember::Established(_) => "established",
            };
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_member_comes_and_goes() {
        let scene = scene();
        scene.check("absent");
        reserve(&scene.layout, &scene.key).unwrap();
        scene.check("reserved");
        begin_join(&scene.layout, &scene.credentials).unwrap();
        scene.check("joining");
        // One whose etcd has made its data and that died before it worked may still be started as one that joins.
        scene.put_data();
        scene.check("joining");
        finish_join(&scene.layout).unwrap();
        scene.check("established");
        // A member that is there needs no place.
        reserve(&scene.layout, &scene.key).unwrap();
        scene.check("established");
        renew(&scene.disk, &scene.layout, &scene.key).unwrap();
        scene.check("reserved");
        begin_join(&scene.layout, &scene.credentials).unwrap();
        scene.put_data();
        for _ in 0..2 {
            clear(&scene.disk, &scene.layout).unwrap();
            scene.check("absent");
        }
        assert_eq!(
            scene.layout.data.etcd.directory.list().unwrap(),
            ["data", "removed-1", "removed-2"],
            "both are set aside"
        );
    }

    #[test]
    fn remains_are_seen_and_put_away() {
        let scene = scene();
        scene.put_data();
        scene.check("remains");
        reserve(&scene.layout, &scene.key).unwrap();
        scene.check("remains");
        renew(&scene.disk, &scene.layout, &scene.key).unwrap();
        scene.check("reserved");
        clear(&scene.disk, &scene.layout).unwrap();
        scene.check("absent");
    }

    #[test]
    fn credentials_of_another_node_are_not_touched() {
        let scene = scene();
        PeerPki::found(&NodeKey::generate()).store(&scene.layout.data.etcd.credentials, "test").unwrap();
        let error = StoredMember::load(&scene.layout, &scene.key).err().unwrap();
        assert!(matches!(error, StoredMemberError::Credentials(PeerPkiError::OtherNode { .. })), "{error:?}");
    }
}
