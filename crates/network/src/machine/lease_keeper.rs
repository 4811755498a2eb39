//! Gives interfaces the addresses of their leases, and takes them away again.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use rtnetlink::packet_route::address::{AddressAttribute, CacheInfo};
use rtnetlink::packet_route::route::{RouteMessage, RouteProtocol, RouteScope};
use rtnetlink::{AddressMessageBuilder, Handle, LinkUnspec, RouteMessageBuilder};

use super::client::{Entry, Obtained};
use super::dhcp::LeaseRoute;
use super::execute::to_io;
use super::kernel::{Kernel, KernelRoute, Link};
use super::switches;

/// Metric of the routes of the first lease; those of the next ones are one higher each. The kernel's own routes, and static
/// ones without a metric, come before.
const FIRST_METRIC: u32 = 1024;
/// A lifetime of addresses that never ends, in seconds (linux/if_addr.h).
const FOREVER: u32 = u32::MAX;

/// What was given to interfaces. It outlives the runnable, so that its next life can take it away. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseKeeper {
    given: Arc<Mutex<BTreeMap<u32, Given>>>,
}

/// What was given to one interface.
#[derive(Clone, Debug, PartialEq)]
struct Given {
    address: Ipv4Net,
    routes: Vec<LeaseRoute>,
    metric: u32,
    /// When the lease was confirmed.
    at: Duration,
}

/// Something that the kernel has refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {name} the address {address} that a DHCP server has given")]
pub(crate) struct LeaseRefusal {
    what: &'static str,
    name: String,
    address: Ipv4Net,
    #[source]
    source: io::Error,
}

impl LeaseRefusal {
    /// The whole of it, for a condition.
    pub(crate) fn in_words(&self) -> String {
        format!("{self}: {}", self.source)
    }
}

impl LeaseKeeper {
    /// Makes the interfaces have what their leases say: new addresses first, then old ones go.
    pub(crate) async fn keep(
        &self,
        handle: &Handle,
        kernel: &Kernel,
        entries: &BTreeMap<u32, Entry>,
        now: Duration,
    ) -> Vec<LeaseRefusal> {
        let mut refusals = Vec::new();
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let leased = |index: u32| entries.get(&index).and_then(|entry| entry.lease.as_ref());
        for link in &kernel.links {
            let Some(obtained) = leased(link.index) else { continue };
            let before = given.get(&link.index);
            let wanted = Given::of(obtained);
            if before == Some(&wanted) && wanted.is_there(link, kernel) {
                continue;
            }
            if let Err(source) = wanted.give(handle, link, obtained, now).await {
                let (name, address) = (link.name.clone(), wanted.address);
                refusals.push(LeaseRefusal { what: "give", name, address, source });
                continue;
            }
            self.set(link.index, Some(wanted.clone()));
            if let Some(before) = before {
                let result = before.take_all_but(Some(&wanted), handle, link.index).await;
                refusals.extend(result.err().map(|source| before.refusal(&link.name, source)));
                // The kernel may have taken the new one with the old one, where nobody lets it live on.
                if let Err(source) = wanted.give(handle, link, obtained, now).await {
                    let (name, address) = (link.name.clone(), wanted.address);
                    refusals.push(LeaseRefusal { what: "give", name, address, source });
                }
            }
        }
        for (index, before) in given.iter().filter(|(index, _)| leased(**index).is_none()) {
            // With the interface everything that it had is gone.
            if let Some(link) = kernel.links.iter().find(|link| link.index == *index) {
                let result = before.take_all_but(None, handle, *index).await;
                refusals.extend(result.err().map(|source| before.refusal(&link.name, source)));
            }
            self.set(*index, None);
        }
        refusals
    }

    fn set(&self, index: u32, given: Option<Given>) {
        let mut all = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        match given {
            Some(given) => all.insert(index, given),
            None => all.remove(&index),
        };
    }
}

impl Given {
    fn of(obtained: &Obtained) -> Self {
        let Obtained { lease, at, rank } = obtained;
        let metric = FIRST_METRIC.saturating_add(*rank);
        Self { address: lease.address, routes: lease.routes.clone(), metric, at: *at }
    }

    fn refusal(&self, name: &str, source: io::Error) -> LeaseRefusal {
        LeaseRefusal { what: "take from", name: name.to_owned(), address: self.address, source }
    }

    /// Whether the kernel has all of it.
    fn is_there(&self, link: &Link, kernel: &Kernel) -> bool {
        let has_route = |route: &LeaseRoute| {
            kernel.routes.iter().any(|KernelRoute { destination, interface, metric, .. }| {
                *destination == IpNet::V4(route.destination) && *interface == Some(link.index) && *metric == self.metric
            })
        };
        kernel.has_address(link.index, IpNet::V4(self.address)) && self.routes.iter().all(has_route)
    }

    /// Gives it, whether or not it is there already.
    async fn give(&self, handle: &Handle, link: &Link, obtained: &Obtained, now: Duration) -> io::Result<()> {
        // An address in the same network as the one that it replaces must outlive it. Not there: then it is given again.
        if let Err(error) = switches::promote_secondaries(&link.name) {
            tracing::debug!("cannot set promote_secondaries of {}: {error}", link.name);
        }
        if let Some(mtu) = obtained.lease.mtu.filter(|mtu| *mtu != link.mtu) {
            let message = LinkUnspec::new_with_index(link.index).mtu(mtu).build();
            handle.link().set(message).execute().await.map_err(to_io)?;
        }
        let address = IpAddr::V4(self.address.addr());
        let mut request = handle.address().add(link.index, address, self.address.prefix_len()).replace();
        let ends = obtained.lease.duration.map(|duration| obtained.at + duration);
        // Rounded up: the client takes it away when its time has come, and the kernel only when nobody does.
        let left = ends.map_or(u64::from(FOREVER), |ends| ends.saturating_sub(now).as_secs() + 1);
        let mut lifetime = CacheInfo::default();
        lifetime.ifa_valid = u32::try_from(left).unwrap_or(FOREVER);
        lifetime.ifa_preferred = lifetime.ifa_valid;
        request.message_mut().attributes.push(AddressAttribute::CacheInfo(lifetime));
        request.execute().await.map_err(to_io)?;
        for route in &self.routes {
            handle.route().add(self.route(route, link.index)).replace().execute().await.map_err(to_io)?;
        }
        Ok(())
    }

    /// Takes away what `kept` does not have.
    async fn take_all_but(&self, kept: Option<&Self>, handle: &Handle, index: u32) -> io::Result<()> {
        let is_kept = |route: &LeaseRoute| {
            kept.is_some_and(|kept| {
                kept.metric == self.metric && kept.routes.iter().any(|other| other.destination == route.destination)
            })
        };
        for route in self.routes.iter().filter(|route| !is_kept(route)) {
            ignore_absent(handle.route().del(self.route(route, index)).execute().await)?;
        }
        if kept.is_none_or(|kept| kept.address != self.address) {
            let message = AddressMessageBuilder::<std::net::Ipv4Addr>::new()
                .index(index)
                .address(self.address.addr(), self.address.prefix_len())
                .build();
            ignore_absent(handle.address().del(message).execute().await)?;
        }
        Ok(())
    }

    fn route(&self, route: &LeaseRoute, index: u32) -> RouteMessage {
        let destination = route.destination;
        let mut message = RouteMessageBuilder::<std::net::Ipv4Addr>::new()
            .output_interface(index)
            .destination_prefix(destination.addr(), destination.prefix_len())
            .pref_source(self.address.addr())
            .priority(self.metric)
            .protocol(RouteProtocol::Dhcp);
        message = match route.gateway {
            Some(gateway) => message.gateway(gateway),
            None => message.scope(RouteScope::Link),
        };
        if route.is_gateway_elsewhere { message.onlink().build() } else { message.build() }
    }
}

/// What is to go may be gone: the kernel ends addresses by itself, and takes their routes with them.
fn ignore_absent(result: Result<(), rtnetlink::Error>) -> io::Result<()> {
    match result.map_err(to_io) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(()),
        // ESRCH, which the standard library has no name for: no such route.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(()),
        result => result,
    }
}
