//! Where an operator says that other nodes are: what was given at the start, and what was set later and is kept on the disk.

use std::net::IpAddr;
use std::sync::Arc;

use polis_condition::Severity;
use polis_control::{MAX_PEERS, Peer, Refusal};
use polis_identity::NodeId;
use polis_roleserve::{load_operator_peers, store_operator_peers};
use polis_storage::{Disk, GenerationsError, Layout, TwoGenerationsError};
use polis_supervisor::{Context, with_causes};
use tokio::sync::watch;

/// Condition that is raised while what was set earlier cannot be read.
const CONDITION: &str = "peers-unreadable";

/// Where an operator says that other nodes are. Clones are the same.
#[derive(Clone)]
pub(crate) struct KnownPeers {
    disk: Arc<dyn Disk>,
    /// Given at the start; they hold for as long as this process runs.
    given: Arc<[Peer]>,
    known: watch::Sender<Vec<(NodeId, IpAddr)>>,
}

impl KnownPeers {
    pub(crate) fn new(disk: Arc<dyn Disk>, given: &[Peer]) -> Self {
        let known = watch::Sender::new(pairs(given));
        Self { disk, given: given.into(), known }
    }

    /// All of them, those given and those set.
    pub(crate) fn watch(&self) -> watch::Receiver<Vec<(NodeId, IpAddr)>> {
        self.known.subscribe()
    }

    /// Reads what was set by earlier starts. What cannot be read is missing, which a condition says: it only helps to find others.
    pub(crate) async fn load(&self, context: &Context) {
        let disk = Arc::clone(&self.disk);
        match context.blocking(move || load_operator_peers(&disk)).await {
            Ok(set) => {
                context.conditions().clear(CONDITION);
                self.publish(set);
            }
            Err(error) => context.conditions().raise(
                CONDITION,
                Severity::Warning,
                format!("where an operator said that other nodes are cannot be read: {}", with_causes(&error)),
                "say it again: polis node peers set",
            ),
        }
    }

    /// Keeps these instead of what was set before, and says what holds now.
    ///
    /// # Errors
    ///
    /// When there are too many, or the disk fails; then all is as it was.
    pub(crate) async fn set(&self, context: &Context, peers: Vec<Peer>) -> Result<Vec<Peer>, Refusal> {
        if peers.len() > MAX_PEERS {
            return Err(Refusal::new(format!(
                "{} peers were given, and a node takes {MAX_PEERS} at most",
                peers.len()
            )));
        }
        let (disk, set) = (Arc::clone(&self.disk), pairs(&peers));
        let stored = {
            let set = set.clone();
            context.blocking(move || store(&disk, &set)).await
        };
        stored.map_err(|error| {
            Refusal::new(format!("the peers could not be written down: {}", with_causes(&error)))
                .hint("those from before still hold; see to the disk and repeat it")
        })?;
        context.conditions().clear(CONDITION);
        tracing::info!(count = peers.len(), "an operator has said where other nodes are");
        self.publish(set);
        Ok(self.known.borrow().iter().map(|(node_id, address)| Peer { node_id: *node_id, address: *address }).collect())
    }

    fn publish(&self, set: Vec<(NodeId, IpAddr)>) {
        let mut all = pairs(&self.given);
        all.extend(set);
        all.sort();
        all.dedup();
        self.known.send_if_modified(|known| {
            let changed = *known != all;
            *known = all;
            changed
        });
    }
}

/// Writes the peers down instead of what was there. Blocks.
///
/// # Errors
///
/// When the disk fails.
pub(crate) fn store(disk: &Arc<dyn Disk>, peers: &[(NodeId, IpAddr)]) -> Result<(), TwoGenerationsError> {
    match store_operator_peers(disk, peers) {
        // Both copies are damaged. What is in them is replaced anyway.
        Err(TwoGenerationsError::Files(GenerationsError::BothUnusable { .. })) => {
            Layout::new(Arc::clone(disk)).esp.polis.operator_peers.discard("peers/discard")?;
            store_operator_peers(disk, peers)
        }
        stored => stored,
    }
}

pub(crate) fn pairs(peers: &[Peer]) -> Vec<(NodeId, IpAddr)> {
    peers.iter().map(|peer| (peer.node_id, peer.address)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polis_storage::DiskPath;
    use polis_storage::simulation::{Failure, SimulatedDisk};
    use polis_supervisor::testing::Harness;
    use tokio::sync::oneshot;

    use super::*;

    fn peer(digit: char, address: &str) -> Peer {
        format!("metropolis-{}={address}", digit.to_string().repeat(32)).parse().unwrap()
    }

    /// Runs `work` within a runnable.
    async fn within<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        work: impl FnOnce(Context) -> F + Send + 'static,
    ) -> T {
        let (sender, receiver) = oneshot::channel();
        let work = std::sync::Mutex::new(Some((work, sender)));
        let harness = Harness::start(move |context: Context| {
            let work = work.lock().unwrap().take();
            async move {
                context.healthy();
                if let Some((work, sender)) = work {
                    let _ = sender.send(work(context.clone()).await);
                }
                Err(context.cancelled().await.into())
            }
        });
        let result = tokio::time::timeout(Duration::from_secs(20), receiver).await.unwrap().unwrap();
        harness.finish().await;
        result
    }

    #[tokio::test]
    async fn what_was_given_holds_beside_what_is_set() {
        let simulated = Arc::new(SimulatedDisk::default());
        let disk: Arc<dyn Disk> = simulated.clone();
        Layout::new(Arc::clone(&disk)).prepare_lasting().unwrap();
        let (given, set, other) = (peer('a', "192.0.2.1"), peer('b', "2001:db8::1"), peer('c', "192.0.2.3"));
        let known = KnownPeers::new(Arc::clone(&disk), &[given]);
        let watch = known.watch();
        let result = within({
            let known = known.clone();
            async move |context| (known.set(&context, vec![set]).await, known.set(&context, vec![other, other]).await)
        });
        assert_eq!(result.await, (Ok(vec![given, set]), Ok(vec![given, other])));
        assert_eq!(*watch.borrow(), pairs(&[given, other]));

        // A later start finds what was set, and not what was given to the earlier one.
        let later = KnownPeers::new(Arc::clone(&disk), &[]);
        within({
            let later = later.clone();
            async move |context| later.load(&context).await
        })
        .await;
        assert_eq!(*later.watch().borrow(), pairs(&[other]));

        // Damaged copies are replaced.
        for name in ["esp/polis/peers.0", "esp/polis/peers.1"] {
            let path = DiskPath::parse(name).unwrap();
            disk.remove_file(&path).unwrap();
            disk.create_exclusive(&path, 0o600, b"torn").unwrap();
        }
        let (refused, replaced) = within(async move |context| {
            simulated.fail_from(0, Failure::Forbidden);
            let refused = later.set(&context, vec![set]).await;
            simulated.cure();
            later.load(&context).await;
            let raised = context.conditions().get(CONDITION).is_some();
            let replaced = later.set(&context, vec![set]).await;
            ((refused.is_err(), raised), (replaced, context.conditions().get(CONDITION)))
        })
        .await;
        assert_eq!(refused, (true, true));
        assert_eq!(replaced, (Ok(vec![set]), None));
    }

    #[tokio::test]
    async fn too_many_are_refused() {
        let known = KnownPeers::new(Arc::new(SimulatedDisk::default()), &[]);
        let many = vec![peer('a', "192.0.2.1"); MAX_PEERS + 1];
        let refusal = within(async move |context| known.set(&context, many).await).await.unwrap_err();
        assert!(refusal.message.contains("at most"), "{refusal}");
    }
}
