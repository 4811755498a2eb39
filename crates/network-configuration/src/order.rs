//! Puts interfaces in an order in which each stands behind those that it is built on.

use crate::{Interface, InterfaceKind};

/// Names of the interfaces that this one is built on.
pub(crate) fn below(interface: &Interface) -> Vec<&str> {
    match &interface.kind {
        InterfaceKind::Device(_) => Vec::new(),
        InterfaceKind::Bond(bond) => bond.members.iter().map(String::as_str).collect(),
        InterfaceKind::Vlan(vlan) => vec![&vlan.parent],
    }
}

/// The interfaces in such an order, which else is the given one; or the names of those that are built on each other in a
/// circle or stand on such a circle. Every name that one of them stands on has to exist.
pub(crate) fn order(mut waiting: Vec<Interface>) -> Result<Vec<Interface>, Vec<String>> {
    let mut ordered: Vec<Interface> = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let is_ready = |interface: &Interface| {
            below(interface).iter().all(|name| ordered.iter().any(|placed| placed.name == *name))
        };
        let Some(next) = waiting.iter().position(is_ready) else {
            return Err(waiting.into_iter().map(|interface| interface.name).collect());
        };
        ordered.push(waiting.remove(next));
    }
    Ok(ordered)
}
