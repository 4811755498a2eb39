//! Announcements on the link: datagrams to everybody who is on the same network segment and listens.
//!
//! What is in them is the business of others, who must not believe a datagram for where it came from. This module only sees to it
//! that they leave through the interface that has the node's address, go no further than the link, and arrive.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::UdpSocket;

/// Port of the announcements.
pub const ANNOUNCEMENT_PORT: u16 = 7836;

/// Group of the announcements of nodes with an IPv4 address: of the local scope (RFC 2365), which no router forwards, and sent
/// with a time to live of 1.
pub const ANNOUNCEMENT_GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 120, 36);

/// Group of the announcements of nodes with an IPv6 address: of the scope of the link, and assigned by nobody (RFC 4291).
pub const ANNOUNCEMENT_GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0x706f, 0x6c69, 0x7836);

/// Longest datagram: it fits into one packet on every link (RFC 8200: 1,280 bytes with all headers).
pub const ANNOUNCEMENT_LIMIT: usize = 1200;

/// Addresses of the interfaces, with the number of each, as the kernel lists those of IPv6.
const INTERFACES_V6: &str = "/proc/self/net/if_inet6";

/// The sockets with which a node announces itself and hears the others.
#[derive(Debug)]
pub struct Announcements {
    group: SocketAddr,
    sender: UdpSocket,
    receiver: UdpSocket,
}

/// The node cannot announce itself.
#[derive(Debug, thiserror::Error)]
pub enum AnnouncementsError {
    /// A socket cannot be had.
    #[error("cannot open a socket for announcements on the interface that has {address}")]
    Open {
        /// Address of the node.
        address: IpAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A datagram cannot be sent.
    #[error("cannot send an announcement to {group}")]
    Send {
        /// Where to.
        group: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Nothing can be received.
    #[error("cannot receive announcements to {group}")]
    Receive {
        /// Where to.
        group: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Announcements {
    /// Opens the sockets on the interface that has `address`. Call it within a tokio runtime.
    ///
    /// # Errors
    ///
    /// When no interface has the address, or the system gives no sockets.
    pub fn open(address: IpAddr) -> Result<Self, AnnouncementsError> {
        Self::sockets(address).map_err(|source| AnnouncementsError::Open { address, source })
    }

    fn sockets(address: IpAddr) -> io::Result<Self> {
        let (domain, group) = match address {
            IpAddr::V4(_) => (Domain::IPV4, SocketAddr::new(ANNOUNCEMENT_GROUP_V4.into(), ANNOUNCEMENT_PORT)),
            IpAddr::V6(_) => (Domain::IPV6, SocketAddr::new(ANNOUNCEMENT_GROUP_V6.into(), ANNOUNCEMENT_PORT)),
        };
        let socket = || Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP));
        let (sender, receiver) = (socket()?, socket()?);
        // Several nodes on one machine listen to the same group.
        receiver.set_reuse_address(true)?;
        let group = match address {
            IpAddr::V4(own) => {
                sender.set_multicast_if_v4(&own)?;
                sender.set_multicast_ttl_v4(1)?;
                sender.set_multicast_loop_v4(true)?;
                receiver.join_multicast_v4(&ANNOUNCEMENT_GROUP_V4, &own)?;
                group
            }
            IpAddr::V6(own) => {
                let interface = interface_of(own)?;
                receiver.set_only_v6(true)?;
                sender.set_multicast_if_v6(interface)?;
                sender.set_multicast_hops_v6(1)?;
                sender.set_multicast_loop_v6(true)?;
                receiver.join_multicast_v6(&ANNOUNCEMENT_GROUP_V6, interface)?;
                SocketAddr::V6(std::net::SocketAddrV6::new(ANNOUNCEMENT_GROUP_V6, ANNOUNCEMENT_PORT, 0, interface))
            }
        };
        sender.bind(&SockAddr::from(SocketAddr::new(address, 0)))?;
        // Bound to the group, it receives nothing else that is sent to this port.
        receiver.bind(&SockAddr::from(group))?;
        Ok(Self { group, sender: UdpSocket::from_std(sender.into())?, receiver: UdpSocket::from_std(receiver.into())? })
    }

    /// Sends a datagram to everybody on the link, this machine included.
    ///
    /// # Errors
    ///
    /// When the system does not take it.
    pub async fn send(&self, datagram: &[u8]) -> Result<(), AnnouncementsError> {
        let sent = self.sender.send_to(datagram, self.group).await;
        sent.map(|_| ()).map_err(|source| AnnouncementsError::Send { group: self.group, source })
    }

    /// Receives one datagram, cut after [`ANNOUNCEMENT_LIMIT`] bytes. Safe to drop before it is done.
    ///
    /// # Errors
    ///
    /// When the system has no more to give.
    pub async fn receive(&self) -> Result<Vec<u8>, AnnouncementsError> {
        let mut buffer = vec![0; ANNOUNCEMENT_LIMIT];
        let received = self.receiver.recv_from(&mut buffer).await;
        let (length, _) = received.map_err(|source| AnnouncementsError::Receive { group: self.group, source })?;
        buffer.truncate(length);
        Ok(buffer)
    }
}

/// Number of the interface that has `address`.
fn interface_of(address: Ipv6Addr) -> io::Result<u32> {
    let listed = std::fs::read_to_string(INTERFACES_V6)?;
    find_interface(&listed, address)
        .ok_or_else(|| io::Error::new(io::ErrorKind::AddrNotAvailable, "no interface has this address"))
}

/// Finds the number of the interface in the kernel's list: address and number in hexadecimal digits, and more.
fn find_interface(listed: &str, address: Ipv6Addr) -> Option<u32> {
    let wanted = format!("{:032x}", address.to_bits());
    let line = listed.lines().find(|line| line.starts_with(&wanted))?;
    u32::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// Patience with a datagram within this machine.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn an_interface_is_found_by_its_address() {
        let listed = "00000000000000000000000000000001 01 80 10 80       lo\n\
                      fd000000000000000000000000000005 1c 40 00 80     eth0\n";
        let find = |address: &str| find_interface(listed, address.parse().unwrap());
        assert_eq!((find("::1"), find("fd00::5"), find("fd00::6")), (Some(1), Some(28), None));
        assert_eq!(find_interface("", Ipv6Addr::LOCALHOST), None);
        assert_eq!(find_interface("00000000000000000000000000000001", Ipv6Addr::LOCALHOST), None);
    }

    #[tokio::test]
    async fn all_on_the_link_hear_what_one_says() {
        let address = |last| IpAddr::from([127, 213, 17, last]);
        let nodes = [1, 2, 3].map(|last| Announcements::open(address(last)).unwrap());
        // Another test may announce at the same time.
        let text = format!("announcement {:?}", std::process::id());
        nodes[0].send(text.as_bytes()).await.unwrap();
        for node in &nodes {
            let heard = async { while node.receive().await.unwrap() != text.as_bytes() {} };
            timeout(PATIENCE, heard).await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_refused() {
        for address in ["192.0.2.1", "2001:db8::1"] {
            let error = Announcements::open(address.parse().unwrap()).unwrap_err();
            assert!(matches!(error, AnnouncementsError::Open { .. }), "{error:?}");
        }
    }
}
