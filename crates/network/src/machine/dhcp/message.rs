//! Puts requests into bytes and takes answers apart, with the codec of smoltcp.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use polis_network_configuration::HardwareAddress;
use smoltcp::wire::{DhcpMessageType, DhcpOpCode, DhcpOption, DhcpPacket, DhcpRepr, EthernetAddress};

use super::lease::option;
use crate::machine::VENDOR_CLASS;

/// First four bytes of the options, which tell DHCP from BOOTP (RFC 2131, 3).
const MAGIC: u32 = 0x6382_5363;
/// The option that says what kind of a message it is.
const MESSAGE_TYPE: u8 = 53;
/// Largest message that the servers are told to send, in bytes: what fits into a packet on Ethernet.
const LARGEST_MESSAGE: u16 = 1472;
/// Shortest message that old servers take, in bytes (RFC 1542, 2.1).
const SHORTEST_MESSAGE: usize = 300;
/// Longest name of a host that is sent, in bytes: that of one label (RFC 1035).
const HOST_NAME_LIMIT: usize = 63;
/// What the servers are asked for.
const WANTED: [u8; 7] = [
    option::SUBNET_MASK,
    // Before the router, as some servers put in what is asked for until the message is full (RFC 3442).
    option::CLASSLESS_ROUTES,
    option::ROUTER,
    option::STATIC_ROUTES,
    option::NAMESERVERS,
    option::TIME_SERVERS,
    option::MTU,
];

/// A request, with what only this kind of it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Who has an address for me? This one, if it can be.
    Discover { wish: Option<Ipv4Addr> },
    /// I take what you offer.
    Select { address: Ipv4Addr, server: Ipv4Addr },
    /// I need the address that I have for longer.
    Extend { address: Ipv4Addr },
}

/// What all requests of one exchange have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope<'a> {
    pub(crate) transaction: u32,
    /// Since the beginning of the exchange, in seconds.
    pub(crate) seconds: u16,
    pub(crate) hardware: HardwareAddress,
    /// Name of this machine, if it has one.
    pub(crate) host_name: Option<&'a str>,
}

impl Request {
    /// The message, without headers of IP and UDP.
    pub(crate) fn encode(self, envelope: Envelope<'_>) -> Vec<u8> {
        let Envelope { transaction, seconds, hardware, host_name } = envelope;
        let (kind, client, requested, server) = match self {
            Self::Discover { wish } => (DhcpMessageType::Discover, None, wish, None),
            Self::Select { address, server } => (DhcpMessageType::Request, None, Some(address), Some(server)),
            Self::Extend { address } => (DhcpMessageType::Request, Some(address), None, None),
        };
        let mut options = vec![DhcpOption { kind: option::VENDOR_CLASS, data: VENDOR_CLASS.as_bytes() }];
        if let Some(name) = host_name.filter(|name| is_host_name(name)) {
            options.push(DhcpOption { kind: option::HOST_NAME, data: name.as_bytes() });
        }
        if let Self::Discover { .. } = self {
            options.push(DhcpOption { kind: option::RAPID_COMMIT, data: &[] });
        }
        let hardware = EthernetAddress(hardware.0);
        let message = DhcpRepr {
            message_type: kind,
            transaction_id: transaction,
            secs: seconds,
            client_hardware_address: hardware,
            client_ip: client.unwrap_or(Ipv4Addr::UNSPECIFIED),
            your_ip: Ipv4Addr::UNSPECIFIED,
            server_ip: Ipv4Addr::UNSPECIFIED,
            router: None,
            subnet_mask: None,
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            // Answers to a machine without an address may come by broadcast or not: the socket sees both.
            broadcast: false,
            requested_ip: requested,
            client_identifier: Some(hardware),
            server_identifier: server,
            parameter_request_list: Some(&WANTED),
            dns_servers: None,
            max_size: Some(LARGEST_MESSAGE),
            lease_duration: None,
            renew_duration: None,
            rebind_duration: None,
            additional_options: &options,
        };
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut DhcpPacket::new_unchecked(&mut bytes)).expect("the buffer is as long as the message");
        // Behind the end of the options zeros are padding.
        bytes.resize(bytes.len().max(SHORTEST_MESSAGE), 0);
        bytes
    }
}

/// Whether servers can make use of it: letters, digits and hyphens.
fn is_host_name(name: &str) -> bool {
    (1..=HOST_NAME_LIMIT).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// What a server said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    Offer,
    Acknowledge,
    Refuse,
}

/// A message of a server.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) kind: ReplyKind,
    pub(crate) transaction: u32,
    pub(crate) hardware: HardwareAddress,
    pub(crate) your_address: Ipv4Addr,
    /// Those that come in several parts are put together (RFC 3396).
    pub(super) options: BTreeMap<u8, Vec<u8>>,
}

impl Reply {
    /// Takes a message apart, without headers of IP and UDP; none if it is not one of a server to a client.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let packet = DhcpPacket::new_checked(bytes).ok()?;
        if packet.opcode() != DhcpOpCode::Reply || packet.magic_number() != MAGIC {
            return None;
        }
        let mut options: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        for DhcpOption { kind, data } in packet.options() {
            options.entry(kind).or_default().extend_from_slice(data);
        }
        let [kind] = options.get(&MESSAGE_TYPE)?[..] else { return None };
        let kind = match DhcpMessageType::from(kind) {
            DhcpMessageType::Offer => ReplyKind::Offer,
            DhcpMessageType::Ack => ReplyKind::Acknowledge,
            DhcpMessageType::Nak => ReplyKind::Refuse,
            // What clients say, and what nobody asked for.
            DhcpMessageType::Discover
            | DhcpMessageType::Request
            | DhcpMessageType::Decline
            | DhcpMessageType::Release
            | DhcpMessageType::Inform
            | DhcpMessageType::Unknown(_) => return None,
        };
        Some(Self {
            kind,
            transaction: packet.transaction_id(),
            hardware: HardwareAddress(packet.client_hardware_address().0),
            your_address: packet.your_ip(),
            options,
        })
    }

    /// The content of an option; absent when it is.
    pub(crate) fn option(&self, number: u8) -> Option<&[u8]> {
        self.options.get(&number).map(Vec::as_slice)
    }

    /// The addresses in an option; none when it is absent.
    pub(crate) fn addresses(&self, number: u8) -> impl Iterator<Item = Ipv4Addr> {
        let (addresses, _) = self.option(number).unwrap_or_default().as_chunks::<4>();
        addresses.iter().map(|bytes| Ipv4Addr::from(*bytes))
    }

    /// The number of four bytes in an option.
    pub(crate) fn number(&self, number: u8) -> Option<u32> {
        Some(u32::from_be_bytes(self.option(number)?.try_into().ok()?))
    }

    /// The number of two bytes in an option.
    pub(crate) fn short(&self, number: u8) -> Option<u16> {
        Some(u16::from_be_bytes(self.option(number)?.try_into().ok()?))
    }
}

#[cfg(test)]
impl Reply {
    pub(crate) fn for_test(your_address: Ipv4Addr) -> Self {
        Self {
            kind: ReplyKind::Offer,
            transaction: 0,
            hardware: HardwareAddress([2, 0, 0, 0, 0, 1]),
            your_address,
            options: BTreeMap::new(),
        }
    }

    pub(crate) fn set(&mut self, number: u8, bytes: &[u8]) {
        self.options.insert(number, bytes.to_vec());
    }

    /// The message in bytes, as a server would send it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 240];
        bytes[..4].copy_from_slice(&[2, 1, 6, 0]);
        bytes[4..8].copy_from_slice(&self.transaction.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.your_address.octets());
        bytes[28..34].copy_from_slice(&self.hardware.0);
        bytes[236..].copy_from_slice(&MAGIC.to_be_bytes());
        let kind = match self.kind {
            ReplyKind::Offer => 2,
            ReplyKind::Acknowledge => 5,
            ReplyKind::Refuse => 6,
        };
        bytes.extend([MESSAGE_TYPE, 1, kind]);
        for (number, content) in &self.options {
            bytes.extend([*number, u8::try_from(content.len()).unwrap()]);
            bytes.extend(content);
        }
        bytes.push(255);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARDWARE: HardwareAddress = HardwareAddress([2, 0, 0, 0, 0, 1]);

    fn envelope(host_name: Option<&str>) -> Envelope<'_> {
        Envelope { transaction: 0x0102_0304, seconds: 7, hardware: HARDWARE, host_name }
    }

    /// The options of a message by number.
    fn options(bytes: &[u8]) -> BTreeMap<u8, Vec<u8>> {
        let packet = DhcpPacket::new_checked(bytes).unwrap();
        packet.options().map(|found| (found.kind, found.data.to_vec())).collect()
    }

    #[test]
    fn requests_say_who_asks_for_what() {
        let address = Ipv4Addr::new(10, 1, 0, 5);
        let server = Ipv4Addr::new(10, 1, 0, 1);
        // Request, kind, client address, requested address, server, rapid commit.
        let table = [
            (Request::Discover { wish: None }, 1, [0; 4], None, None, true),
            (Request::Discover { wish: Some(address) }, 1, [0; 4], Some([10, 1, 0, 5]), None, true),
            (Request::Select { address, server }, 3, [0; 4], Some([10, 1, 0, 5]), Some([10, 1, 0, 1]), false),
            (Request::Extend { address }, 3, [10, 1, 0, 5], None, None, false),
        ];
        for (request, kind, client, requested, server, rapid) in table {
            let bytes = request.encode(envelope(Some("node-7")));
            assert!((SHORTEST_MESSAGE..=LARGEST_MESSAGE.into()).contains(&bytes.len()), "{}", bytes.len());
            assert_eq!(bytes[..4], [1, 1, 6, 0]);
            assert_eq!((&bytes[4..8], &bytes[8..10]), (&[1, 2, 3, 4][..], &[0, 7][..]));
            assert_eq!((&bytes[12..16], &bytes[28..34]), (&client[..], &HARDWARE.0[..]));
            let options = options(&bytes);
            let get = |number: u8| options.get(&number).map(Vec::as_slice);
            assert_eq!(get(MESSAGE_TYPE), Some(&[kind][..]));
            assert_eq!(get(61), Some(&[1, 2, 0, 0, 0, 0, 1][..]), "the client identifier");
            assert_eq!(get(50), requested.as_ref().map(<[u8; 4]>::as_slice));
            assert_eq!(get(option::SERVER), server.as_ref().map(<[u8; 4]>::as_slice));
            assert_eq!(get(option::RAPID_COMMIT).is_some(), rapid);
            assert_eq!(get(option::VENDOR_CLASS), Some(VENDOR_CLASS.as_bytes()));
            assert_eq!(get(option::HOST_NAME), Some(&b"node-7"[..]));
            assert_eq!(get(55), Some(&WANTED[..]));
        }
    }

    #[test]
    fn a_name_is_sent_only_if_it_is_one() {
        let long = "x".repeat(64);
        for (name, is_sent) in [("a", true), ("(none)", false), ("", false), (&long, false), ("a.b", false)] {
            let bytes = Request::Discover { wish: None }.encode(envelope(Some(name)));
            assert_eq!(options(&bytes).contains_key(&option::HOST_NAME), is_sent, "{name:?}");
        }
    }

    #[test]
    fn a_reply_is_taken_apart() {
        let mut sent = Reply::for_test(Ipv4Addr::new(10, 1, 0, 5));
        sent.set(option::ROUTER, &[10, 1, 0, 1]);
        sent.set(option::LEASE_TIME, &[0, 0, 1, 0]);
        let mut bytes = sent.encode();
        // A second part of the same option, before the end.
        bytes.pop();
        bytes.extend([option::ROUTER, 4, 10, 1, 0, 2, 255]);
        let reply = Reply::decode(&bytes).unwrap();
        assert_eq!((reply.kind, reply.transaction, reply.hardware), (ReplyKind::Offer, 0, HARDWARE));
        assert_eq!(reply.your_address, Ipv4Addr::new(10, 1, 0, 5));
        let routers: Vec<_> = reply.addresses(option::ROUTER).map(|address| address.to_string()).collect();
        assert_eq!(routers, ["10.1.0.1", "10.1.0.2"]);
        assert_eq!((reply.number(option::LEASE_TIME), reply.number(option::ROUTER)), (Some(256), None));
    }

    #[test]
    fn what_is_no_reply_is_none() {
        let whole = Reply::for_test(Ipv4Addr::new(10, 1, 0, 5)).encode();
        assert!(Reply::decode(&whole).is_some());
        for length in 0..243 {
            assert!(Reply::decode(&whole[..length]).is_none(), "{length} bytes");
        }
        // A request, no magic, a kind that only clients send, an unknown kind.
        for (place, byte) in [(0, 1), (236, 0), (242, 3), (242, 99)] {
            let mut bytes = whole.clone();
            bytes[place] = byte;
            assert!(Reply::decode(&bytes).is_none(), "{byte} at {place}");
        }
    }
}
