//! Sockets for whole frames.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Binds a packet socket (AF_PACKET) to one interface, by its number, and to frames of one Ethernet type; with 0 it receives
/// none, and sends only.
///
/// # Errors
///
/// What the system says: no such interface, or the socket is not of this kind.
pub fn bind_packet_socket(socket: BorrowedFd<'_>, interface: u32, ether_type: u16) -> io::Result<()> {
    // SAFETY: all fields of this structure are numbers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::sa_family_t;
    address.sll_protocol = ether_type.to_be();
    address.sll_ifindex = i32::try_from(interface).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is initialized, lives until the call returns, and the length is its own.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
