//! Announcements of a node whose data are locked.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use polis_identity::{AuthorityCertificate, JoinKey, NodeId, PublicKey};
use polis_storage::{Disk, Layout};
use polis_supervisor::{Context, RunnableResult};
use polis_unlock::SignedMemberList;
use tokio::sync::watch;

use super::{Announce, Host, Numbers, Speaker, Worker};
use crate::role_serve::members_on_disk;

/// A node that cannot read its data yet: what its journal and its EFI system partition tell.
pub struct LockedNode {
    /// Key of the node.
    pub node: PublicKey,
    /// Key with which the node signs its announcements.
    pub join_key: JoinKey,
    /// Certificate of the cluster's CA.
    pub authority: AuthorityCertificate,
    /// The disk of the node.
    pub disk: Arc<dyn Disk>,
    /// Address of this node; `None` while it has none.
    pub address: watch::Receiver<Option<IpAddr>>,
    /// Whether the node announces itself on its link.
    pub announce: Announce,
    /// Told where members say that they are.
    pub heard: watch::Sender<BTreeMap<NodeId, IpAddr>>,
}

/// Says on the link that this node looks for the others, if it is a member, and hears where they are, until this is dropped: once it
/// is known who the node is, [`RoleServe`](crate::RoleServe) does so.
///
/// # Errors
///
/// When the disk fails.
pub async fn announce_while_locked(context: &Context, locked: LockedNode) -> RunnableResult {
    let LockedNode { node, join_key, authority, disk, address, announce, heard } = locked;
    let members = context
        .blocking({
            let (disk, authority) = (Arc::clone(&disk), authority.clone());
            move || members_on_disk(&disk, &authority)
        })
        .await;
    let host = Locked { members: watch::Sender::new(members.map(Arc::new)), heard };
    let speaker = Speaker { cluster_id: authority.cluster_id(), public_key: node, join_key };
    let mut worker = Worker::new(&host, context, &speaker, Numbers::of(&Layout::new(disk)));
    worker.serve(address, announce).await
}

/// Has lost the others for as long as it is locked.
struct Locked {
    members: watch::Sender<Option<Arc<SignedMemberList>>>,
    heard: watch::Sender<BTreeMap<NodeId, IpAddr>>,
}

impl Host for Locked {
    fn members(&self) -> watch::Receiver<Option<Arc<SignedMemberList>>> {
        self.members.subscribe()
    }

    fn is_lost(&self) -> bool {
        true
    }

    async fn until_lost(&self, wanted: bool) {
        if !wanted {
            std::future::pending().await
        }
    }

    fn heard(&self, node: NodeId, address: IpAddr) {
        self.heard.send_if_modified(|heard| heard.insert(node, address) != Some(address));
    }
}
