//! Switches of the kernel that netlink does not have: files below `/proc/sys/net`.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};

use polis_network_configuration::Ipv6Privacy;

/// How an interface treats what routers announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv6Switches {
    /// 0: it does not listen. 2: it makes itself addresses and routes, also where packets are forwarded.
    pub(crate) accept_announcements: u8,
    /// 0: no temporary addresses. 1: it prefers the lasting ones, 2: the temporary ones.
    pub(crate) temporary_addresses: u8,
}

impl Ipv6Switches {
    /// What a configuration means; absent: nothing that is announced counts.
    pub(crate) fn of(autoconfig: Option<Ipv6Privacy>) -> Self {
        let switches = |accept_announcements, temporary_addresses| Self { accept_announcements, temporary_addresses };
        match autoconfig {
            None => switches(0, 0),
            Some(Ipv6Privacy::Disable) => switches(2, 0),
            Some(Ipv6Privacy::Avoid) => switches(2, 1),
            Some(Ipv6Privacy::Prefer) => switches(2, 2),
        }
    }
}

fn path(family: &str, interface: &str, switch: &str) -> String {
    format!("/proc/sys/net/{family}/conf/{interface}/{switch}")
}

/// The switches of an interface; absent when the kernel has no IPv6.
pub(crate) fn read(interface: &str) -> Option<Ipv6Switches> {
    // The kernel takes negative numbers for the second one, and means 0.
    let read = |switch| {
        let text = fs::read_to_string(path("ipv6", interface, switch)).ok()?;
        Some(u8::try_from(text.trim().parse::<i32>().ok()?).unwrap_or(0))
    };
    Some(Ipv6Switches { accept_announcements: read("accept_ra")?, temporary_addresses: read("use_tempaddr")? })
}

/// Sets the switches of an interface, if the kernel has IPv6.
pub(crate) fn write(interface: &str, switches: Ipv6Switches) -> io::Result<()> {
    let Ipv6Switches { accept_announcements, temporary_addresses } = switches;
    for (switch, value) in [("accept_ra", accept_announcements), ("use_tempaddr", temporary_addresses)] {
        match set(&path("ipv6", interface, switch), value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(())
}

/// Lets the second address of a network live on when the first one is removed, which by default takes all others with it.
pub(crate) fn promote_secondaries(interface: &str) -> io::Result<()> {
    set(&path("ipv4", interface, "promote_secondaries"), 1)
}

fn set(path: &str, value: u8) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.to_string().as_bytes())
}
