//! The address of this node, as a value that changes over time.
//!
//! The rest of the node needs one address: the one under which other nodes reach this one. The operator names it
//! ([`AddressSource::Fixed`]), or it is the source address of the default route ([`AddressSource::DefaultRoute`]),
//! which the kernel is asked for and which is followed as links, addresses and routes change. Whoever needs it
//! watches [`Network::address`].
//!
//! On a machine of its own ([`AddressSource::Machine`]) the node also makes its network: from a static configuration, or by
//! DHCP on every Ethernet device; see [`machine`].
//!
//! An address is a hint where to find a node, never proof of who it is: members know each other by their keys. So
//! it may change or be absent at any time, and nothing breaks but the connections.
//!
//! * `choose` is the decision: routes and addresses in, one address out.
//! * `netlink` asks the kernel for routes and addresses, and waits for changes. Two sockets do that, as answers and
//!   news get in each other's way on one.
//! * [`Announcements`] carries datagrams to everybody on the link. Who sends what, and whom to believe, is not decided here.
//! * [`Network`] is the runnable that puts the two together. While nothing changes it sleeps.

#![forbid(unsafe_code)]

mod announcements;
mod choose;
pub mod machine;
mod netlink;
mod network;

pub use announcements::{
    ANNOUNCEMENT_GROUP_V4, ANNOUNCEMENT_GROUP_V6, ANNOUNCEMENT_LIMIT, ANNOUNCEMENT_PORT, Announcements,
    AnnouncementsError,
};
pub use netlink::NetworkError;
pub use network::{AddressSource, NO_ADDRESS, Network};
