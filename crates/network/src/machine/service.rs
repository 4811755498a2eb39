//! The loop: looks at what the kernel and the DHCP clients have, does what is missing, and waits for the next change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polis_network_configuration::NetworkConfiguration;
use polis_supervisor::{Context, RunnableResult};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::info;

use super::MachineNetwork;
use super::announce::Announcer;
use super::choice::{self, Choice};
use super::client::{self, Board, Interface};
use super::conditions::{self, Findings};
use super::execute::{Refusal, execute};
use super::kernel::{Kernel, Link};
use super::lease_keeper::{LeaseKeeper, LeaseRefusal};
use super::plan::{Plan, plan, take_up_all, take_up_loopback};
use crate::netlink::{Netlink, NetworkError};
use crate::network::{COALESCE, Values};

/// Pause before something that was refused is tried again: it may need what a module that is just being loaded brings.
const RETRY: Duration = Duration::from_secs(5);

/// What outlives the runnable: what the kernel was given, and by whom. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    board: Board,
    keeper: LeaseKeeper,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self { board: Board::new(), keeper: LeaseKeeper::default() }
    }
}

impl MachineNetwork {
    /// The body of the runnable. It is healthy once it has done what can be done without an answer from anybody.
    pub(crate) async fn run(&self, context: &Context, values: &Values) -> RunnableResult {
        let mut service = Service {
            configuration: self.configuration.as_ref(),
            netlink: Netlink::open(context)?,
            board: values.memory.board.clone(),
            keeper: values.memory.keeper.clone(),
            clients: BTreeMap::new(),
            announcer: Announcer::default(),
        };
        let mut board = service.board.watch();
        let mut is_healthy = false;
        loop {
            board.mark_unchanged();
            let all_done = context.unless_cancelled(service.look(context, values)).await??;
            if !is_healthy {
                context.healthy();
                is_healthy = true;
            }
            let wait = async {
                tokio::select! {
                    changed = service.netlink.changed() => {
                        changed?;
                        service.netlink.skip_changes(sleep(COALESCE)).await
                    }
                    // The board stands as long as this loop does.
                    _ = board.changed() => Ok(()),
                    () = sleep(RETRY), if !all_done => Ok(()),
                }
            };
            context.unless_cancelled(wait).await??;
        }
    }
}

struct Service<'a> {
    configuration: Option<&'a NetworkConfiguration>,
    netlink: Netlink,
    board: Board,
    keeper: LeaseKeeper,
    /// The clients that run, with whether their links have carriers. A client ends when its sender is dropped.
    clients: BTreeMap<u32, (Interface, watch::Sender<bool>)>,
    announcer: Announcer,
}

impl Service<'_> {
    /// Does what is missing, and tells what there is. Says whether all was done.
    async fn look(&mut self, context: &Context, values: &Values) -> Result<bool, NetworkError> {
        let kernel = Kernel::look(&self.netlink).await?;
        let Plan { mut operations, missing, conflicts } = match self.configuration {
            Some(configuration) => plan(configuration, &kernel),
            None => Plan { operations: take_up_all(&kernel), ..Plan::default() },
        };
        operations.extend(take_up_loopback(&kernel));
        let refusals = execute(self.netlink.handle(), &operations).await;
        let kernel = if operations.is_empty() { kernel } else { Kernel::look(&self.netlink).await? };
        self.run_clients(context, &kernel);
        let entries = self.board.entries();
        let lease_refusals = self.keeper.keep(self.netlink.handle(), &kernel, &entries, self.board.now()).await;
        let kernel = Kernel::look(&self.netlink).await?;
        self.announcer.announce(context, &kernel, &self.own(&kernel));
        let Choice { address, nameservers, time_servers } = choice::choose(self.configuration, &entries, &kernel);
        let refused: Vec<String> = (conflicts.into_iter())
            .chain(refusals.iter().map(Refusal::in_words))
            .chain(lease_refusals.iter().map(LeaseRefusal::in_words))
            .collect();
        let findings = Findings {
            kernel: &kernel,
            entries: &entries,
            missing: &missing,
            refused: &refused,
            is_configured: self.configuration.is_some(),
            has_address: address.is_some(),
        };
        conditions::report(context.conditions(), &findings);
        values.publish_address(address);
        publish("name", &values.nameservers, nameservers);
        publish("time", &values.time_servers, time_servers);
        Ok(refused.is_empty())
    }

    /// The interfaces that are this node's to configure.
    fn own(&self, kernel: &Kernel) -> BTreeSet<u32> {
        let is_own = |link: &&Link| match self.configuration {
            Some(configuration) => configuration.interfaces().iter().any(|interface| interface.name == link.name),
            None => link.is_free_device(),
        };
        kernel.links.iter().filter(is_own).map(|link| link.index).collect()
    }

    /// Starts and ends clients, so that those run that should, and tells them of their links.
    fn run_clients(&mut self, context: &Context, kernel: &Kernel) {
        let asks = |link: &&Link| match self.configuration {
            Some(configuration) => {
                let mut interfaces = configuration.interfaces().iter();
                interfaces.any(|interface| interface.name == link.name && interface.ipv4_autoconfig)
            }
            None => link.is_free_device(),
        };
        let wanted: BTreeMap<u32, (Interface, bool)> = (kernel.links.iter().filter(asks))
            .filter_map(|link| {
                let interface = Interface { index: link.index, name: link.name.clone(), hardware: link.hardware? };
                Some((link.index, (interface, link.has_carrier)))
            })
            .collect();
        let board = &self.board;
        self.clients.retain(|index, (interface, _)| {
            let is_wanted = wanted.get(index).is_some_and(|(wanted, _)| wanted == interface);
            if !is_wanted {
                // Its address goes, too, if the interface is still there.
                board.remove(*index);
            }
            is_wanted
        });
        // What an earlier life has left of interfaces that are gone.
        for index in board.entries().into_keys().filter(|index| !wanted.contains_key(index)) {
            board.remove(index);
        }
        for (index, (interface, has_carrier)) in wanted {
            match self.clients.get(&index) {
                Some((_, carrier)) => {
                    carrier.send_if_modified(|known| std::mem::replace(known, has_carrier) != has_carrier);
                }
                None => {
                    let (sender, carrier) = watch::channel(has_carrier);
                    let client = client::run(interface.clone(), carrier, board.clone());
                    context.spawn(async move {
                        client.await;
                        Ok(())
                    });
                    self.clients.insert(index, (interface, sender));
                }
            }
        }
    }
}

fn publish(what: &str, value: &watch::Sender<Vec<std::net::IpAddr>>, found: Vec<std::net::IpAddr>) {
    let is_new = value.send_if_modified(|known| {
        let is_new = *known != found;
        known.clone_from(&found);
        is_new
    });
    if is_new {
        let list: Vec<String> = found.iter().map(ToString::to_string).collect();
        info!(
            "the {what} servers of this machine: {}",
            if list.is_empty() { "none".to_owned() } else { list.join(", ") }
        );
    }
}
