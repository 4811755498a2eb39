//! What this machine is called, and how it finds others by name: `/etc/hostname` in the kernel, `/etc/hosts`, `/etc/resolv.conf`
//! and `/etc/machine-id`. All of them are in memory and written anew whenever something changes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;

use polis_logtree::Logger;
use polis_storage::{DiskPath, HostDisk, durable};
use polis_supervisor::{BoxError, Context, RunnableResult};
use rustix::system::sethostname;
use tokio::sync::watch;

use crate::inputs::Names;
use crate::mounts::make_directory;

/// Resolvers in `/etc/resolv.conf` that the C library looks at (resolv.conf(5)).
const MAX_NAMESERVERS: usize = 3;

/// Hexadecimal digits of a machine id (machine-id(5)).
const MACHINE_ID_DIGITS: usize = 32;

/// Readable for all, as such files are everywhere.
const MODE: u32 = 0o644;

/// What there is before anything is known.
pub(crate) fn first_files(logger: &Logger) {
    let made = make_directory(Path::new("/etc")).map_err(BoxError::from);
    if let Err(error) = made.and_then(|()| write_all(&Names::default(), &[])) {
        logger.warning(format!("cannot write the names of this machine: {error}"));
    }
}

/// Keeps the names up to date: a runnable.
pub(crate) async fn keep(
    context: Context,
    mut names: watch::Receiver<Arc<Names>>,
    mut nameservers: watch::Receiver<Vec<IpAddr>>,
) -> RunnableResult {
    context.healthy();
    loop {
        let (now, servers) = (Arc::clone(&names.borrow_and_update()), nameservers.borrow_and_update().clone());
        context.blocking(move || apply(&now, &servers)).await?;
        context
            .unless_cancelled(async {
                tokio::select! {
                    () = changed(&mut names) => {}
                    () = changed(&mut nameservers) => {}
                }
            })
            .await?;
    }
}

/// Waits for a change; for ever when there will be none.
pub(crate) async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn apply(names: &Names, nameservers: &[IpAddr]) -> Result<(), BoxError> {
    write_all(names, nameservers)?;
    if let Some(node_id) = &names.node_id {
        sethostname(node_id.as_bytes())?;
    }
    Ok(())
}

fn write_all(names: &Names, nameservers: &[IpAddr]) -> Result<(), BoxError> {
    let disk = HostDisk::open(Path::new("/etc"))?;
    let write = |name: &str, text: String| -> Result<(), BoxError> {
        Ok(durable::write(&disk, "machine/names", &DiskPath::parse(name)?, MODE, text.as_bytes())?)
    };
    write("hosts", hosts(names))?;
    write("resolv.conf", resolvers(nameservers))?;
    if let Some(id) = names.node_id.as_deref().and_then(machine_id) {
        write("machine-id", format!("{id}\n"))?;
    }
    Ok(())
}

/// The text of `/etc/hosts`: this machine first, then the others by name.
fn hosts(names: &Names) -> String {
    let mut text = format!("{} localhost\n{} localhost\n", Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    if let Some(own) = &names.node_id {
        let address = names.address.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let _ = writeln!(text, "{address} {own}");
    }
    let others: BTreeMap<_, _> = names.others.iter().map(|(id, address)| (id, address)).collect();
    for (id, address) in others {
        if Some(id) != names.node_id.as_ref() {
            let _ = writeln!(text, "{address} {id}");
        }
    }
    text
}

/// The text of `/etc/resolv.conf`.
fn resolvers(nameservers: &[IpAddr]) -> String {
    let mut text = String::new();
    for server in nameservers.iter().take(MAX_NAMESERVERS) {
        let _ = writeln!(text, "nameserver {server}");
    }
    // A server that is down must not hold up a start for the 5 s that are usual.
    text.push_str("options timeout:2 attempts:2\n");
    text
}

/// The machine id of a node: the digits of its id, which are as many.
fn machine_id(node_id: &str) -> Option<&str> {
    let digits = node_id.rsplit('-').next()?;
    let is_id =
        digits.len() == MACHINE_ID_DIGITS && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_id.then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "metropolis-00112233445566778899aabbccddeeff";

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn hosts_names_this_node_once_and_the_others_in_order() {
        let before = "127.0.0.1 localhost\n::1 localhost\n";
        let others = vec![
            ("metropolis-bb".to_owned(), address("10.0.0.3")),
            (OWN.to_owned(), address("10.9.9.9")),
            ("metropolis-aa".to_owned(), address("fd00::2")),
        ];
        let own = Some(OWN.to_owned());
        for (names, expected) in [
            (Names::default(), before.to_owned()),
            (Names { node_id: own.clone(), ..Names::default() }, format!("{before}127.0.0.1 {OWN}\n")),
            (
                Names { node_id: own, address: Some(address("10.0.0.1")), others },
                format!("{before}10.0.0.1 {OWN}\nfd00::2 metropolis-aa\n10.0.0.3 metropolis-bb\n"),
            ),
        ] {
            assert_eq!(hosts(&names), expected);
        }
    }

    #[test]
    fn only_so_many_resolvers_as_are_looked_at() {
        let end = "options timeout:2 attempts:2\n";
        let servers: Vec<_> = (1..=5).map(|last| address(&format!("10.0.0.{last}"))).collect();
        for (count, expected) in [
            (0, end.to_owned()),
            (1, format!("nameserver 10.0.0.1\n{end}")),
            (5, format!("nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n{end}")),
        ] {
            assert_eq!(resolvers(&servers[..count]), expected);
        }
    }

    #[test]
    fn the_machine_id_is_in_the_node_id() {
        for (node_id, expected) in [
            (OWN, Some("00112233445566778899aabbccddeeff")),
            ("metropolis-0011", None),
            ("metropolis-00112233445566778899AABBCCDDEEFF", None),
            ("", None),
        ] {
            assert_eq!(machine_id(node_id), expected, "{node_id}");
        }
    }
}
