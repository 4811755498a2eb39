//! The runnable that knows the address of this node.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use polis_condition::{Conditions, Severity};
use polis_supervisor::{Context, Runnable, RunnableResult, runnable};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::info;

use crate::choose::{NoAddress, choose};
use crate::machine::{MachineNetwork, Memory};
use crate::netlink::{Netlink, NetworkError};

/// Name of the condition that is raised while this node has no address.
pub const NO_ADDRESS: &str = "network-no-address";

/// How long changes are collected before the kernel is asked. A lease that is renewed or a link that comes up makes
/// a dozen messages within a few milliseconds; nobody notices this delay, and every change that is published closes
/// connections.
pub(crate) const COALESCE: Duration = Duration::from_millis(50);

/// Where the address of this node comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum AddressSource {
    /// The operator has named it (`--address`). Whether this machine has it shows when somebody listens on it.
    Fixed(IpAddr),
    /// The source address of the default route, IPv4 before IPv6, at any time.
    DefaultRoute,
    /// The node itself configures the network of this machine. Only for a node that is the machine's PID 1, or has a network
    /// namespace to itself: it takes every Ethernet device up.
    Machine(MachineNetwork),
}

/// The address of this node, and what else it knows of its network. Clones are the same.
#[derive(Clone, Debug)]
pub struct Network {
    source: AddressSource,
    values: Values,
}

/// What is published.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    address: Arc<watch::Sender<Option<IpAddr>>>,
    pub(crate) nameservers: Arc<watch::Sender<Vec<IpAddr>>>,
    pub(crate) time_servers: Arc<watch::Sender<Vec<IpAddr>>>,
    pub(crate) memory: Memory,
}

impl Network {
    /// Makes the value. A fixed address is there at once, that of the default route when [`Network::runnable`] has
    /// found it.
    #[must_use]
    pub fn new(source: AddressSource) -> Self {
        let address = match source {
            AddressSource::Fixed(address) => Some(address),
            AddressSource::DefaultRoute | AddressSource::Machine(_) => None,
        };
        let values = Values {
            address: Arc::new(watch::Sender::new(address)),
            nameservers: Arc::default(),
            time_servers: Arc::default(),
            memory: Memory::new(),
        };
        Self { source, values }
    }

    /// The address at any time; `None` while there is none, or none is known yet. Receivers wake only when it changes.
    #[must_use]
    pub fn address(&self) -> watch::Receiver<Option<IpAddr>> {
        self.values.address.subscribe()
    }

    /// The name servers that this machine is to ask, in this order, at any time: those of its static configuration, else those
    /// that DHCP servers tell of. Always empty unless the node configures the network ([`AddressSource::Machine`]): a host has
    /// its own.
    #[must_use]
    pub fn nameservers(&self) -> watch::Receiver<Vec<IpAddr>> {
        self.values.nameservers.subscribe()
    }

    /// The NTP servers that DHCP servers tell of, at any time. Always empty unless the node configures the network.
    #[must_use]
    pub fn time_servers(&self) -> watch::Receiver<Vec<IpAddr>> {
        self.values.time_servers.subscribe()
    }

    /// The runnable that follows the address. It is healthy once it has looked, also when it found none: then the
    /// condition [`NO_ADDRESS`] says so. When it dies the last address stays, as nothing says that it is gone.
    #[must_use]
    pub fn runnable(&self) -> impl Runnable {
        let network = self.clone();
        runnable(move |context| network.clone().run(context))
    }

    async fn run(self, context: Context) -> RunnableResult {
        match &self.source {
            AddressSource::Machine(machine) => machine.run(&context, &self.values).await,
            AddressSource::Fixed(_) => {
                context.healthy();
                context.done();
                Ok(())
            }
            AddressSource::DefaultRoute => {
                let mut netlink = Netlink::open(&context)?;
                context.unless_cancelled(self.look(&netlink, context.conditions())).await??;
                context.healthy();
                let Err(error) = context.unless_cancelled(self.follow(&mut netlink, context.conditions())).await?;
                Err(error.into())
            }
        }
    }

    async fn follow(&self, netlink: &mut Netlink, conditions: &Conditions) -> Result<Infallible, NetworkError> {
        loop {
            netlink.changed().await?;
            netlink.skip_changes(sleep(COALESCE)).await?;
            self.look(netlink, conditions).await?;
        }
    }

    /// Asks the kernel, and publishes what it says.
    async fn look(&self, netlink: &Netlink, conditions: &Conditions) -> Result<(), NetworkError> {
        let (routes, addresses) = (netlink.routes().await?, netlink.addresses().await?);
        let current = *self.values.address.borrow();
        let found = choose(&routes, &addresses, current);
        match &found {
            Ok(_) => conditions.clear(NO_ADDRESS),
            Err(reason) => raise(conditions, reason),
        }
        self.values.publish_address(found.ok());
        Ok(())
    }
}

impl Values {
    pub(crate) fn publish_address(&self, found: Option<IpAddr>) {
        let is_new = self.address.send_if_modified(|current| {
            let is_new = *current != found;
            *current = found;
            is_new
        });
        match found {
            Some(address) if is_new => info!("the address of this node is {address}"),
            None if is_new => info!("this node has no address any more"),
            Some(_) | None => {}
        }
    }
}

fn raise(conditions: &Conditions, reason: &NoAddress) {
    conditions.raise(
        NO_ADDRESS,
        Severity::Error,
        format!("this node does not know its own address: {reason}"),
        "Give this machine an address and a default route (`ip route show default` lists them); the node notices by \
         itself. Or name the address under which other nodes reach it: --address.",
    );
}
