//! Says who has an address, so that nobody on the link keeps an old hardware address for it (metropolis.md D.2).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use polis_network_configuration::HardwareAddress;
use polis_supervisor::Context;
use tokio::time::sleep;

use super::frame;
use super::kernel::Kernel;

/// Pauses before an address is announced again: the first as RFC 5227 (2.3) has it, the second for switches that let nothing
/// through when a link has just come up (metropolis.md D.2).
const AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(8)];

/// What was announced.
#[derive(Debug, Default)]
pub(crate) struct Announcer {
    announced: BTreeSet<Announcement>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Announcement {
    interface: u32,
    name: String,
    hardware: HardwareAddress,
    address: Ipv4Addr,
}

impl Announcer {
    /// Announces the addresses of these interfaces that are new, or whose link has come up again.
    pub(crate) fn announce(&mut self, context: &Context, kernel: &Kernel, interfaces: &BTreeSet<u32>) {
        let now = present(kernel, interfaces);
        for announcement in now.difference(&self.announced) {
            let announcement = announcement.clone();
            context.spawn(async move {
                announcement.send();
                for pause in AGAIN_AFTER {
                    sleep(pause).await;
                    announcement.send();
                }
                Ok(())
            });
        }
        self.announced = now;
    }
}

/// All that there is to announce.
fn present(kernel: &Kernel, interfaces: &BTreeSet<u32>) -> BTreeSet<Announcement> {
    let links = kernel.links.iter().filter(|link| link.has_carrier && interfaces.contains(&link.index));
    let of_link = |link| {
        let addresses = kernel.addresses.iter();
        addresses.filter_map(move |own| announcement(link, own.interface, own.address))
    };
    links.flat_map(of_link).collect()
}

fn announcement(link: &super::kernel::Link, interface: u32, address: IpAddr) -> Option<Announcement> {
    let IpAddr::V4(address) = address else { return None };
    let (name, hardware) = (link.name.clone(), link.hardware?);
    (interface == link.index).then_some(Announcement { interface, name, hardware, address })
}

impl Announcement {
    fn send(&self) {
        if let Err(error) = frame::announce(self.interface, self.hardware, self.address) {
            // The address may be gone with its link. Whoever has an old entry finds out some minutes later.
            tracing::debug!("cannot announce {} on {}: {error}", self.address, self.name);
        }
    }
}
