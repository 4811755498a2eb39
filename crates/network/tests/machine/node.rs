//! A node that makes its network.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use polis_condition::{Condition, Conditions};
use polis_network::machine::MachineNetwork;
use polis_network::{AddressSource, Network};
use polis_supervisor::{SharedRunnable, Supervisor, runnable};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// How long something may take that takes a second or two, and that a busy machine makes slower.
pub(crate) const DEADLINE: Duration = Duration::from_secs(40);

pub(crate) struct Node {
    supervisor: Supervisor,
    pub(crate) address: watch::Receiver<Option<IpAddr>>,
    pub(crate) nameservers: watch::Receiver<Vec<IpAddr>>,
    pub(crate) time_servers: watch::Receiver<Vec<IpAddr>>,
    conditions: watch::Receiver<BTreeMap<String, Condition>>,
}

impl Node {
    pub(crate) fn start(network: MachineNetwork) -> Self {
        Self::start_beside(network, Arc::default())
    }

    /// Starts one whose network dies whenever this is notified.
    pub(crate) fn start_beside(network: MachineNetwork, dies: Arc<Notify>) -> Self {
        let conditions = Conditions::default();
        let network = Network::new(AddressSource::Machine(network));
        let (address, watch) = (network.address(), conditions.watch());
        let (nameservers, time_servers) = (network.nameservers(), network.time_servers());
        let supervisor = Supervisor::builder().conditions(conditions).start(runnable(move |context| {
            let (network, dies) = (network.clone(), Arc::clone(&dies));
            async move {
                let companion = runnable(move |context| {
                    let dies = Arc::clone(&dies);
                    async move {
                        context.healthy();
                        context.unless_cancelled(dies.notified()).await?;
                        Err("the network is to die".into())
                    }
                });
                let members = [
                    ("network", SharedRunnable::new(network.runnable())),
                    ("companion", SharedRunnable::new(companion)),
                ];
                context.run_group(members)?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        }));
        Self { supervisor, address, nameservers, time_servers, conditions: watch }
    }

    /// Waits until the node has this address; none: `""`.
    #[track_caller]
    pub(crate) fn has(&mut self, expected: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let expected: Option<IpAddr> = (!expected.is_empty()).then(|| expected.parse().unwrap());
            let found = timeout(DEADLINE, self.address.wait_for(|address| *address == expected)).await.map(drop);
            assert!(found.is_ok(), "{caller}: {:?} instead of {expected:?}; {:?}", *self.address.borrow(), self.all());
        }
    }

    /// Waits until a condition is raised, and returns it.
    #[track_caller]
    pub(crate) fn raised(&mut self, name: &str) -> impl Future<Output = Condition> {
        let caller = std::panic::Location::caller();
        async move {
            let found = timeout(DEADLINE, self.conditions.wait_for(|all| all.contains_key(name))).await;
            let found = found.map(|all| all.unwrap()[name].clone());
            found.unwrap_or_else(|_| panic!("{caller}: no condition {name}"))
        }
    }

    /// Waits until no condition is raised.
    #[track_caller]
    pub(crate) fn all_is_well(&mut self) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let found = timeout(DEADLINE, self.conditions.wait_for(BTreeMap::is_empty)).await.map(drop);
            assert!(found.is_ok(), "{caller}: {:?}", self.all());
        }
    }

    fn all(&self) -> Vec<String> {
        self.conditions
            .borrow()
            .values()
            .map(|condition| format!("{}: {}", condition.name, condition.message))
            .collect()
    }

    /// The names of the conditions that are raised.
    pub(crate) fn conditions(&self) -> Vec<String> {
        self.conditions.borrow().keys().cloned().collect()
    }

    /// How often its runnables died.
    pub(crate) fn deaths(&self) -> u64 {
        self.supervisor.dump().iter().map(|report| report.restarts).sum()
    }

    pub(crate) async fn stop(self) {
        assert_eq!(self.deaths(), 0, "{:?}", self.supervisor.dump());
        self.end().await;
    }

    /// Ends it, whether or not something died.
    pub(crate) async fn end(self) {
        self.supervisor.shutdown().await.unwrap();
    }
}

/// Writes down every address that is published, from now on.
pub(crate) struct History {
    task: tokio::task::JoinHandle<Vec<Option<IpAddr>>>,
    end: tokio::sync::oneshot::Sender<()>,
}

impl History {
    pub(crate) fn of(node: &Node) -> Self {
        let mut address = node.address.clone();
        address.mark_unchanged();
        let (end, mut ended) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            let mut seen = Vec::new();
            loop {
                tokio::select! {
                    biased;
                    changed = address.changed() => {
                        changed.unwrap();
                        seen.push(*address.borrow_and_update());
                    }
                    _ = &mut ended => {
                        // Whoever ends this may have seen a value before this task was told of it.
                        if address.has_changed().unwrap() {
                            seen.push(*address.borrow());
                        }
                        return seen;
                    }
                }
            }
        });
        Self { task, end }
    }

    pub(crate) async fn end(self) -> Vec<Option<IpAddr>> {
        self.end.send(()).unwrap();
        self.task.await.unwrap()
    }
}
