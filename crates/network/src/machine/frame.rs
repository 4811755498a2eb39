//! Frames of Ethernet: those that carry DHCP messages, and announcements of ARP; and the sockets that they pass through.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, OwnedFd};

use polis_network_configuration::HardwareAddress;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress,
    IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};
use socket2::{Domain, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Port of DHCP servers.
pub(crate) const SERVER_PORT: u16 = 67;
/// Port of DHCP clients.
pub(crate) const CLIENT_PORT: u16 = 68;

/// Type of frames that carry IPv4.
const ETHER_TYPE_IPV4: u16 = 0x0800;
/// Length of the header of Ethernet, in bytes.
const ETHERNET_HEADER: usize = 14;
/// Length of the header of IPv4 without options, in bytes.
const IPV4_HEADER: usize = 20;
/// Length of the header of UDP, in bytes.
const UDP_HEADER: usize = 8;
/// Longest frame that is read, in bytes: longer than any that carries a message of the length that servers are told.
const FRAME_LIMIT: usize = 2048;
/// Hops that a message may make: one, and more than one for relays that forward instead of relaying.
const HOP_LIMIT: u8 = 64;

/// A socket for DHCP messages in whole frames, on one interface. It works while the interface has no address, and past all
/// filters of the kernel.
#[derive(Debug)]
pub(crate) struct DhcpSocket {
    socket: AsyncFd<File>,
    hardware: HardwareAddress,
}

impl DhcpSocket {
    /// Opens one. Call it within a tokio runtime.
    pub(crate) fn open(interface: u32, hardware: HardwareAddress) -> io::Result<Self> {
        let socket = packet_socket()?;
        // Before it is bound, so that nothing else ever arrives.
        socket.attach_filter(&to_clients())?;
        polis_sys::bind_packet_socket(socket.as_fd(), interface, ETHER_TYPE_IPV4)?;
        Ok(Self { socket: polis_sys::watch_readable(File::from(OwnedFd::from(socket)))?, hardware })
    }

    /// Sends a message to everybody on the link. A link that takes nothing at the moment is an error.
    pub(crate) fn broadcast(&self, source: Ipv4Addr, message: &[u8]) -> io::Result<()> {
        self.socket.get_ref().write_all(&dhcp_frame(self.hardware, source, message))
    }

    /// Receives a message of a server. Safe to drop before it is done.
    pub(crate) async fn receive(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; FRAME_LIMIT];
        loop {
            let length = self.socket.async_io(Interest::READABLE, |mut socket| socket.read(&mut buffer)).await?;
            if let Some(message) = dhcp_message(&buffer[..length]) {
                return Ok(message.to_vec());
            }
        }
    }
}

fn packet_socket() -> io::Result<Socket> {
    // Bound to no protocol, it receives nothing.
    Socket::new(Domain::PACKET, Type::RAW.nonblocking().cloexec(), None)
}

/// The program of the kernel's packet filter that lets pass what is for DHCP clients: IPv4, UDP, not a later fragment, to their
/// port.
fn to_clients() -> [SockFilter; 11] {
    // Opcodes of linux/bpf_common.h.
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF_BEHIND: u16 = 0x48;
    const LOAD_HEADER_LENGTH: u16 = 0xb1;
    const IF_EQUAL: u16 = 0x15;
    const IF_ANY_BIT: u16 = 0x45;
    const RETURN: u16 = 0x06;
    const UDP: u32 = 17;
    const FRAGMENT_OFFSET: u32 = 0x1fff;
    [
        SockFilter::new(LOAD_HALF, 0, 0, 12),
        SockFilter::new(IF_EQUAL, 0, 8, ETHER_TYPE_IPV4.into()),
        SockFilter::new(LOAD_BYTE, 0, 0, 23),
        SockFilter::new(IF_EQUAL, 0, 6, UDP),
        SockFilter::new(LOAD_HALF, 0, 0, 20),
        SockFilter::new(IF_ANY_BIT, 4, 0, FRAGMENT_OFFSET),
        SockFilter::new(LOAD_HEADER_LENGTH, 0, 0, 14),
        SockFilter::new(LOAD_HALF_BEHIND, 0, 0, 16),
        SockFilter::new(IF_EQUAL, 0, 1, CLIENT_PORT.into()),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

/// A message to every server, as a frame.
fn dhcp_frame(hardware: HardwareAddress, source: Ipv4Addr, message: &[u8]) -> Vec<u8> {
    let checksums = ChecksumCapabilities::default();
    let udp = UdpRepr { src_port: CLIENT_PORT, dst_port: SERVER_PORT };
    let ip = Ipv4Repr {
        src_addr: source,
        dst_addr: Ipv4Addr::BROADCAST,
        next_header: IpProtocol::Udp,
        payload_len: UDP_HEADER + message.len(),
        hop_limit: HOP_LIMIT,
    };
    let mut bytes = vec![0; ETHERNET_HEADER + IPV4_HEADER + UDP_HEADER + message.len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    ethernet(hardware, EthernetProtocol::Ipv4).emit(&mut frame);
    let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet, &checksums);
    udp.emit(
        &mut UdpPacket::new_unchecked(packet.payload_mut()),
        &IpAddress::Ipv4(source),
        &IpAddress::Ipv4(Ipv4Addr::BROADCAST),
        message.len(),
        |payload| payload.copy_from_slice(message),
        &checksums,
    );
    bytes
}

/// The message for a DHCP client in a frame. Checksums of UDP are not looked at: on a virtual cable the kernel never makes
/// them.
fn dhcp_message(frame: &[u8]) -> Option<&[u8]> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    if frame.ethertype() != EthernetProtocol::Ipv4 {
        return None;
    }
    let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
    if packet.next_header() != IpProtocol::Udp || packet.more_frags() || packet.frag_offset() != 0 {
        return None;
    }
    let datagram = UdpPacket::new_checked(packet.payload()).ok()?;
    (datagram.src_port() == SERVER_PORT && datagram.dst_port() == CLIENT_PORT).then_some(datagram.payload())
}

fn ethernet(source: HardwareAddress, ethertype: EthernetProtocol) -> EthernetRepr {
    EthernetRepr { src_addr: EthernetAddress(source.0), dst_addr: EthernetAddress::BROADCAST, ethertype }
}

/// Tells everybody on the link who has an address (RFC 5227, 2.3).
pub(crate) fn announce(interface: u32, hardware: HardwareAddress, address: Ipv4Addr) -> io::Result<()> {
    let socket = packet_socket()?;
    // With no protocol, so that nothing is received.
    polis_sys::bind_packet_socket(socket.as_fd(), interface, 0)?;
    (&socket).write_all(&announcement(hardware, address))
}

fn announcement(hardware: HardwareAddress, address: Ipv4Addr) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: EthernetAddress(hardware.0),
        source_protocol_addr: address,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: address,
    };
    let mut bytes = vec![0; ETHERNET_HEADER + arp.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    ethernet(hardware, EthernetProtocol::Arp).emit(&mut frame);
    arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARDWARE: HardwareAddress = HardwareAddress([2, 0, 0, 0, 0, 7]);

    /// The frame of a server with this message.
    fn answer(message: &[u8]) -> Vec<u8> {
        let mut frame = dhcp_frame(HARDWARE, Ipv4Addr::new(10, 1, 0, 1), message);
        frame[34..38].copy_from_slice(&[0, 67, 0, 68]);
        frame
    }

    #[test]
    fn a_message_travels_in_a_frame() {
        let frame = dhcp_frame(HARDWARE, Ipv4Addr::UNSPECIFIED, b"message");
        assert_eq!(frame[..14], [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7, 8, 0]);
        assert!(Ipv4Packet::new_checked(&frame[14..]).unwrap().verify_checksum());
        // A request is not for us, an answer is.
        assert_eq!(dhcp_message(&frame), None);
        assert_eq!(dhcp_message(&answer(b"message")), Some(&b"message"[..]));
    }

    #[test]
    fn a_damaged_frame_carries_nothing() {
        let whole = answer(b"message");
        for length in 0..whole.len() {
            assert_eq!(dhcp_message(&whole[..length]), None, "{length} bytes");
        }
        // Another protocol, another one of IP, a fragment, another port.
        for (place, byte) in [(13, 6), (23, 6), (21, 1), (20, 0x20), (37, 69)] {
            let mut frame = whole.clone();
            frame[place] = byte;
            assert_eq!(dhcp_message(&frame), None, "{byte} at {place}");
        }
        // Lengths that lie.
        for place in [16, 17, 38, 39] {
            let mut frame = whole.clone();
            frame[place] = 255;
            assert_eq!(dhcp_message(&frame), None, "at {place}");
        }
    }

    #[test]
    fn an_announcement_asks_for_the_address_that_it_has() {
        let frame = announcement(HARDWARE, Ipv4Addr::new(10, 1, 0, 5));
        let expected = [
            &[255; 6][..],
            &[2, 0, 0, 0, 0, 7, 8, 6],
            &[0, 1, 8, 0, 6, 4, 0, 1],
            &[2, 0, 0, 0, 0, 7, 10, 1, 0, 5],
            &[0, 0, 0, 0, 0, 0, 10, 1, 0, 5],
        ];
        assert_eq!(frame, expected.concat());
    }
}
