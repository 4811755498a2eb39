//! Asks the kernel for routes and addresses, and waits for changes of them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::channel::mpsc::UnboundedReceiver;
use futures::{StreamExt as _, TryStreamExt as _};
use polis_supervisor::Context;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteNextHopFlags, RouteType,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::SocketAddr;
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder, new_connection, new_multicast_connection};

use crate::choose::{DefaultRoute, OwnAddress};

/// The kernel's news that can change the address.
///
/// Links are among them because the kernel takes the IPv4 routes of a link that goes down away without a word.
const GROUPS: [MulticastGroup; 5] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];

/// Why the address cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// No netlink socket.
    #[error("cannot open a netlink socket to the kernel's routing tables")]
    Open {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel did not answer as it should.
    #[error("cannot read the {what} of this machine from the kernel")]
    Query {
        /// Routes or addresses.
        what: &'static str,
        /// Why.
        #[source]
        source: rtnetlink::Error,
    },
    /// The kernel tells nothing more.
    #[error("the kernel has closed the netlink socket that tells of changes of routes and addresses")]
    MonitorClosed,
}

/// The two sockets.
pub(crate) struct Netlink {
    query: Handle,
    /// Held, as the monitor closes when nobody could ask it anything any more.
    _monitor: Handle,
    /// rtnetlink hands news over without a bound. It stays small because [`Netlink::changed`] and
    /// [`Netlink::skip_changes`] take everything out at once, and the time between them is that of one query.
    news: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
}

impl Netlink {
    /// Opens the sockets. News are collected from now on, so that no change is missed between a query and waiting.
    pub(crate) fn open(context: &Context) -> Result<Self, NetworkError> {
        let open = |source| NetworkError::Open { source };
        let (connection, monitor, news) = new_multicast_connection(&GROUPS).map_err(open)?;
        // The end of a connection is noticed by whoever waits for its answers or news.
        context.spawn(async move {
            connection.await;
            Ok(())
        });
        let (connection, query, _) = new_connection().map_err(open)?;
        context.spawn(async move {
            connection.await;
            Ok(())
        });
        Ok(Self { query, _monitor: monitor, news })
    }

    /// The socket for questions and changes.
    pub(crate) const fn handle(&self) -> &Handle {
        &self.query
    }

    /// The default routes of the main table, as the kernel lists them.
    pub(crate) async fn routes(&self) -> Result<Vec<DefaultRoute>, NetworkError> {
        let mut routes = Vec::new();
        let families = [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
        for family in families {
            let mut answers = std::pin::pin!(self.query.route().get(family).execute());
            while let Some(route) =
                answers.try_next().await.map_err(|source| NetworkError::Query { what: "routes", source })?
            {
                routes.extend(read_route(&route));
            }
        }
        Ok(routes)
    }

    /// The addresses of all interfaces, as the kernel lists them.
    pub(crate) async fn addresses(&self) -> Result<Vec<OwnAddress>, NetworkError> {
        let mut addresses = Vec::new();
        let mut answers = std::pin::pin!(self.query.address().get().execute());
        while let Some(address) =
            answers.try_next().await.map_err(|source| NetworkError::Query { what: "addresses", source })?
        {
            addresses.extend(read_address(&address));
        }
        Ok(addresses)
    }

    /// Waits until something has changed that can change the address.
    pub(crate) async fn changed(&mut self) -> Result<(), NetworkError> {
        loop {
            let (message, _) = self.news.next().await.ok_or(NetworkError::MonitorClosed)?;
            if is_relevant(&message.payload) {
                return Ok(());
            }
        }
    }

    /// Takes out all news for as long as `time` does.
    pub(crate) async fn skip_changes(&mut self, time: impl Future<Output = ()>) -> Result<(), NetworkError> {
        let mut time = std::pin::pin!(time);
        loop {
            tokio::select! {
                biased;
                () = &mut time => return Ok(()),
                news = self.news.next() => news.map(drop).ok_or(NetworkError::MonitorClosed)?,
            }
        }
    }
}

/// Whether news can change the address: not so those of routes to single networks, of which a machine can have many
/// that change all the time.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "of the kernel's many kinds of messages only those matter that are named"
)]
fn is_relevant(payload: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
    match payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route)) => {
            route.header.destination_prefix_length == 0
        }
        // Links and addresses; or the kernel had more to tell than the socket could hold, and anything may have
        // changed.
        _ => true,
    }
}

/// The next hops of a route, if it is a default route of the main table.
#[expect(clippy::wildcard_enum_match_arm, reason = "of a route's many attributes only those matter that are named")]
fn read_route(message: &RouteMessage) -> Vec<DefaultRoute> {
    let header = &message.header;
    let mut table = u32::from(header.table);
    let mut metric = 0;
    let mut interface = None;
    let mut gateway = None;
    let mut preferred_source = None;
    let mut next_hops = &[][..];
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(number) => metric = *number,
            RouteAttribute::Oif(number) => interface = Some(*number),
            RouteAttribute::Gateway(address) => gateway = read_route_address(address),
            RouteAttribute::PrefSource(address) => preferred_source = read_route_address(address),
            RouteAttribute::MultiPath(several) => next_hops = several,
            _ => {}
        }
    }
    if header.destination_prefix_length != 0
        || header.kind != RouteType::Unicast
        || table != u32::from(RouteHeader::RT_TABLE_MAIN)
    {
        return Vec::new();
    }
    let is_ipv6 = header.address_family == AddressFamily::Inet6;
    let default_route = |interface, gateway| DefaultRoute { is_ipv6, metric, interface, gateway, preferred_source };
    let single = interface
        .filter(|_| !header.flags.contains(RouteFlags::Dead))
        .map(|interface| default_route(interface, gateway));
    let several = next_hops.iter().filter(|next_hop| !next_hop.flags.contains(RouteNextHopFlags::Dead));
    let several = several.map(|next_hop| {
        let gateway = next_hop.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Gateway(address) => read_route_address(address),
            _ => None,
        });
        default_route(next_hop.interface_index, gateway)
    });
    single.into_iter().chain(several).collect()
}

fn read_route_address(address: &RouteAddress) -> Option<IpAddr> {
    if let RouteAddress::Inet(address) = address {
        Some(IpAddr::V4(*address))
    } else if let RouteAddress::Inet6(address) = address {
        Some(IpAddr::V6(*address))
    } else {
        None
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "of an address's many attributes only those matter that are named")]
fn read_address(message: &AddressMessage) -> Option<OwnAddress> {
    let header = &message.header;
    // The header has room for the first eight flags only; newer kernels send all of them.
    let mut flags = AddressFlags::from_bits_retain(header.flags.bits().into());
    let mut address = None;
    let mut local = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Flags(all) => flags = *all,
            AddressAttribute::Address(found) => address = Some(*found),
            AddressAttribute::Local(found) => local = Some(*found),
            _ => {}
        }
    }
    Some(OwnAddress {
        interface: header.index,
        // On a link between two machines `Address` is that of the other one, and `Local` is there.
        address: local.or(address)?,
        prefix_length: header.prefix_len,
        is_global: matches!(header.scope, AddressScope::Universe | AddressScope::Site),
        is_tentative: flags.intersects(AddressFlags::Tentative | AddressFlags::Optimistic | AddressFlags::Dadfailed),
        is_deprecated: flags.contains(AddressFlags::Deprecated),
        is_secondary: flags.contains(AddressFlags::Secondary),
    })
}
