//! What is not as it should be with the network of a machine, in words.

use std::collections::BTreeMap;

use polis_condition::{Conditions, Severity};

use super::client::Entry;
use super::dhcp::{LostLease, Unanswered};
use super::kernel::{Kernel, Link, LinkKind};
use super::plan::Missing;
use crate::network::NO_ADDRESS;

/// Name of the condition that is raised while no DHCP server answers in a usable way.
pub const DHCP_NO_ANSWER: &str = "dhcp-no-answer";
/// Name of the condition that is raised when the lease of an address is over, until there is another one.
pub const DHCP_LEASE_LOST: &str = "dhcp-lease-lost";
/// Name of the condition that is raised while the static configuration names a device that the machine does not have.
pub const DEVICE_MISSING: &str = "network-device-missing";
/// Name of the condition that is raised while the kernel refuses something that is needed for the network.
pub const CONFIGURATION_REFUSED: &str = "network-configuration-refused";

/// What the conditions follow from.
pub(crate) struct Findings<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) entries: &'a BTreeMap<u32, Entry>,
    pub(crate) missing: &'a [Missing],
    /// What was refused or is in the way, in words.
    pub(crate) refused: &'a [String],
    pub(crate) is_configured: bool,
    pub(crate) has_address: bool,
}

/// Raises and clears all conditions of the network of a machine.
pub(crate) fn report(conditions: &Conditions, findings: &Findings<'_>) {
    let set = |name, severity, found: Option<(String, String)>| match found {
        Some((message, hint)) => conditions.raise(name, severity, message, hint),
        None => conditions.clear(name),
    };
    // With an address the node works, if not as somebody has meant it to.
    let severity = if findings.has_address { Severity::Warning } else { Severity::Error };
    set(NO_ADDRESS, Severity::Error, no_address(findings));
    set(DHCP_NO_ANSWER, severity, no_answer(findings));
    set(DHCP_LEASE_LOST, severity, lease_lost(findings));
    set(DEVICE_MISSING, severity, device_missing(findings));
    set(CONFIGURATION_REFUSED, severity, refused(findings));
}

fn no_address(findings: &Findings<'_>) -> Option<(String, String)> {
    if findings.has_address {
        return None;
    }
    let devices: Vec<&Link> = devices(findings.kernel).collect();
    let reason = if devices.is_empty() {
        "it has no Ethernet device".to_owned()
    } else if devices.iter().all(|link| !link.has_carrier) {
        format!("no Ethernet device has a carrier ({})", names(&devices))
    } else if findings.is_configured {
        "its static configuration has given it none".to_owned()
    } else {
        "no DHCP server has given it one".to_owned()
    };
    let hint = "Connect the machine to a network with a DHCP server, or give it a static configuration with its parameters. It \
                notices by itself.";
    Some((format!("this machine has no address: {reason}"), hint.to_owned()))
}

fn no_answer(findings: &Findings<'_>) -> Option<(String, String)> {
    // Without a configuration every device asks, and where one is answered the others may well be connected elsewhere.
    if !findings.is_configured && findings.has_address {
        return None;
    }
    let silent = findings.entries.iter().filter_map(|(index, entry)| {
        Some(match entry.trouble.unanswered.as_ref()? {
            Unanswered::Silence => format!("nobody answers on {}", name(findings.kernel, *index)),
            Unanswered::Unusable { reason } => {
                format!("the answers on {} cannot be used ({reason})", name(findings.kernel, *index))
            }
        })
    });
    let silent: Vec<String> = silent.collect();
    let hint = "Look at the DHCP server of that network: whether it runs, has free addresses, and serves this machine. The node \
                asks on.";
    (!silent.is_empty())
        .then(|| (format!("no DHCP server gives this machine an address: {}", silent.join("; ")), hint.to_owned()))
}

fn lease_lost(findings: &Findings<'_>) -> Option<(String, String)> {
    let lost = findings.entries.iter().filter_map(|(index, entry)| {
        let LostLease { address, reason } = entry.trouble.lost.as_ref()?;
        Some(format!("{address} on {}, as {reason}", name(findings.kernel, *index)))
    });
    let lost: Vec<String> = lost.collect();
    let hint = "Look at the cable and at the DHCP server of that network. The node asks on, and takes whatever address it gets.";
    (!lost.is_empty()).then(|| (format!("the lease of an address is over: {}", lost.join("; ")), hint.to_owned()))
}

fn device_missing(findings: &Findings<'_>) -> Option<(String, String)> {
    if findings.missing.is_empty() {
        return None;
    }
    let missing = findings.missing.iter();
    let missing: Vec<String> = missing.map(|Missing { interface, device }| format!("{interface} ({device})")).collect();
    let there: Vec<&Link> = devices(findings.kernel).collect();
    let there = if there.is_empty() { "none".to_owned() } else { details(&there) };
    Some((
        format!("the static network configuration names devices that this machine does not have: {}. Its devices: {there}", missing.join(", ")),
        "Put the device in, or give the node parameters with a configuration that names one of those that are there. All else \
         is configured, and the rest as soon as the device appears."
            .to_owned(),
    ))
}

fn refused(findings: &Findings<'_>) -> Option<(String, String)> {
    let hint = "Look whether the kernel has what this needs (bonds and VLANs are modules), and whether the configuration makes \
                sense for this machine. The node tries again every few seconds.";
    let refused = findings.refused;
    (!refused.is_empty())
        .then(|| (format!("the network is not as it should be: {}", refused.join("; ")), hint.to_owned()))
}

fn devices(kernel: &Kernel) -> impl Iterator<Item = &Link> {
    kernel.links.iter().filter(|link| link.kind == LinkKind::Device)
}

fn names(links: &[&Link]) -> String {
    links.iter().map(|link| &*link.name).collect::<Vec<_>>().join(", ")
}

fn details(links: &[&Link]) -> String {
    let detail = |link: &&Link| {
        let hardware = link.made_with().map(|hardware| format!(" {hardware}")).unwrap_or_default();
        let driver = link.driver.as_ref().map(|driver| format!(", driver {driver}")).unwrap_or_default();
        format!("{}{hardware}{driver}", link.name)
    };
    links.iter().map(detail).collect::<Vec<_>>().join("; ")
}

fn name(kernel: &Kernel, index: u32) -> String {
    let link = kernel.links.iter().find(|link| link.index == index);
    link.map_or_else(|| format!("interface {index}"), |link| link.name.clone())
}
