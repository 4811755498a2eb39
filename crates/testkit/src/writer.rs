//! A program that is a node and writes into its own consensus: the client whose acknowledged writes must survive.
//!
//! It is put together as the daemon is, from the same parts, because a module of a node reaches consensus through the Manager
//! and not over a socket. The address comes from standard input, so that a test can also change it while the node runs.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use polis_condition::Conditions;
use polis_consensus::{EtcdBinary, KvError, Namespaced};
use polis_encryption::DirectoryBackends;
use polis_manager::{EtcdProvider, Manager, Outcome, ParameterSource, RpcAccess, Settings};
use polis_roleserve::{ControlPlane, ControlPlaneSettings};
use polis_storage::journal::Seals;
use polis_storage::{Disk, Layout, RootDirectory};
use polis_supervisor::{Supervisor, runnable};
use tokio::sync::watch;

use crate::etcd;

/// Module and space of the keys, as in `consensus_kv(module, space)`.
const NAMESPACE: (&str, &str) = ("test", "writes");

/// Where those keys begin in etcd.
pub const KEY_PREFIX: &str = "namespaced:test:writes/";

/// Name of the fault points around a write of this program.
const SITE: &str = "test/write";

/// Pause before a write is repeated while etcd is away.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// What is written under a number.
#[must_use]
pub fn value(number: u64) -> String {
    format!("the value of {number}")
}

/// Key of a number, relative to the namespace. All keys have the same length, so that their order is that of the numbers.
#[must_use]
pub fn key(number: u64) -> String {
    format!("/{number:012}")
}

/// Runs a node at `root` and writes one number after the other, beginning after the last that is there. Each is printed on a
/// line of standard output once its write is acknowledged. Standard input gives the node's address, a line for each, at least
/// one. Does not return: it writes until it is killed.
///
/// # Panics
///
/// When the node does not come to run, or a write is refused for another reason than that etcd is away.
pub fn run(root: &Path, parameters: PathBuf) -> ! {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let address = read_addresses();
    runtime.block_on(write(root, parameters, address))
}

/// Publishes the addresses that come in on standard input; the first one is there when this returns.
fn read_addresses() -> watch::Receiver<Option<IpAddr>> {
    let addresses = watch::Sender::new(Some(read_address().expect("standard input begins with an address")));
    let address = addresses.subscribe();
    std::thread::spawn(move || {
        while let Some(address) = read_address() {
            addresses.send_replace(Some(address));
        }
        // The last address stays; without its sender the node would take it for gone.
        std::mem::forget(addresses);
    });
    address
}

/// The next address, or nothing when standard input has ended.
fn read_address() -> Option<IpAddr> {
    let line = std::io::stdin().lines().next()?.expect("standard input can be read");
    Some(line.parse().expect("each line is an address"))
}

async fn write(root: &Path, parameters: PathBuf, address: watch::Receiver<Option<IpAddr>>) -> ! {
    let root = RootDirectory::open_or_create(root).expect("the root is free");
    Layout::new(root.disk()).prepare_start().expect("the root can be prepared");
    let backends = DirectoryBackends::new(root.disk());
    let disk: Arc<dyn Disk> = backends.disk();
    let nowhere = root.path().join("no-parameters-here");
    let etcd = EtcdBinary::find(Some(&etcd::binary()), None).expect("there is an etcd");
    let settings = Settings {
        disk: Arc::clone(&disk),
        backends: Arc::new(backends),
        seals: Seals::plain_only(),
        address: address.clone(),
        peers: watch::Sender::new(Vec::new()).subscribe(),
        parameters: ParameterSource { file: Some(parameters), firmware: nowhere.clone(), esp: nowhere },
        // It makes a cluster of its own.
        access: Arc::new(RpcAccess::new()),
    };
    let control_plane = ControlPlane::new(ControlPlaneSettings { etcd, disk, address });
    let manager = Manager::new(settings, EtcdProvider::new(control_plane.clone()));
    let worker = manager.clone();
    let _supervisor = Supervisor::builder().conditions(Conditions::default()).start(runnable(move |context| {
        let (worker, control_plane) = (worker.clone(), control_plane.clone());
        async move {
            context.run("control-plane", control_plane.runnable())?;
            context.run("manager", worker.runnable())?;
            context.healthy();
            Err(context.cancelled().await.into())
        }
    }));
    match manager.wait_finished().await {
        Outcome::Running(_) => {}
        Outcome::Failed(failure) => panic!("the node has failed: {}", polis_supervisor::with_causes(&*failure)),
    }
    let (module, space) = NAMESPACE;
    let writes = manager.consensus_kv(module, space).expect("the names are valid").expect("the node is a member");
    let mut number = last(&writes).await;
    loop {
        number += 1;
        loop {
            match writes.put(SITE, key(number), value(number)).await {
                Ok(_) => break,
                // etcd is started anew when the address changes, and a put can be repeated.
                Err(KvError::Unavailable { .. } | KvError::NoLeader { .. } | KvError::OutcomeUnknown { .. }) => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(error) => panic!("writing {number}: {}", polis_supervisor::with_causes(&error)),
            }
        }
        let mut output = std::io::stdout();
        writeln!(output, "{number}").and_then(|()| output.flush()).expect("somebody reads what was acknowledged");
    }
}

/// The last number that is there.
async fn last(writes: &Namespaced) -> u64 {
    let listing = writes.list("/").await.expect("a running node can read");
    let last = listing.entries.last().map(|entry| String::from_utf8_lossy(&entry.key).into_owned());
    last.map_or(0, |key| key.trim_start_matches('/').parse().expect("only this program writes here"))
}
