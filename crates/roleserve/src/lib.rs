//! What a node does because of its roles, once it has an identity in its cluster.
//!
//! - [`ControlPlane`] runs the consensus member and the curator, for as long as they are wanted.
//! - [`RoleServe`] is a set of workers. They keep contact with the leader, tell it how the node is, learn from it which roles the
//!   node has and whom the cluster has let go, and do what the roles ask for.
//!
//! Each worker is a runnable of its own with inputs of its own, all of them watched values, and knows none of the others; one that
//! dies is started again, and the others go on. All wait for the [`Identity`], and none has to wait for the cluster: what was
//! known at the end of the last start is on the disk.
//!
//! | worker | does |
//! |---|---|
//! | `addresses` | knows where other nodes are, tells the dialer and the client, keeps the directory on the ESP |
//! | `announcements` | says on the link who and where this member is, while the members have lost each other, and listens |
//! | `client` | finds the leader, for all others |
//! | `contact` | raises a condition while there is no contact with the leader |
//! | `heartbeat` | shows the leader that this node is alive ([`Contact`]) |
//! | `locate` | while there is no leader, and where an operator names addresses: tries them, and sees by the key who is there |
//! | `member` | starts and puts away the consensus member, as the roles ask for |
//! | `nodes` | follows all nodes |
//! | `orders` | follows revocations, the signed member list, who has split its key anew, and what is to become of this node |
//! | `other-side` | on the leader: says so when a silent node follows another leader, as after a node that was only cut off was recovered |
//! | `peer-revocations` | keeps the consensus member from speaking to members that were removed |
//! | `record` | follows what the cluster has recorded about this node |
//! | `replacement` | asks the cluster to replace the consensus member of this node when etcd cannot read its data |
//! | `report` | tells the cluster the share key, which member list is durable here, and how the node has split its key |
//! | `status` | tells the cluster address, version and curator of this node |
//! | `trust` | puts together whom the cluster has let go, for the servers of this node |
//!
//! # What it promises
//!
//! - A node never loses the last good copy of what it needs to find the others, and that always has the node itself (window W11).
//! - Roles are durable before anything is done because of them; a kill at any point is made good at the next start. Data of a
//!   member that was removed are put away, never used again and never deleted at once (windows W14, W23, W25).
//! - What proves that this node was deleted is checked against the cluster's CA before anybody hears of it (window W22).
//! - While nothing happens, nothing wakes but the heartbeat.
//!
//! This crate knows nothing of enrolment: how a node comes to an identity is the Manager's business.

#![forbid(unsafe_code)]

mod addresses;
mod allegiance;
mod announcements;
mod before_vote;
mod cluster_keys;
mod contact;
mod control_plane;
mod identity;
mod kept;
mod members;
mod pause;
mod removal;
mod role_serve;
mod roles;
mod shared;
mod split_state;
mod workers;

pub use announcements::{Announce, LockedNode, announce_while_locked};
pub use before_vote::BeforeVote;
pub use cluster_keys::ClusterKeys;
pub use contact::Contact;
pub use control_plane::{ControlPlane, ControlPlaneSettings, MemberSettings, StoredMember, StoredMemberError};
pub use identity::Identity;
pub use removal::{NoProof, Removal};
pub use role_serve::{RoleServe, addresses_on_disk, load_operator_peers, store_first_directory, store_operator_peers};
pub use shared::{Settings, UNKNOWN_TO_CLUSTER};
pub use split_state::SplitState;
pub use workers::heartbeat::RUNS_TWICE;
pub use workers::member::{MEMBER_CREDENTIALS_UNUSABLE, MEMBER_NOT_CHANGED};
pub use workers::no_contact::NO_CONTACT;
pub use workers::other_side::CLUSTER_DIVIDED;
