//! The unlock file, as a node finds it on its ESP.

use polis_condition::Severity;
use polis_identity::{AuthorityCertificate, ClusterId, NodeId};
use polis_secret::Secret32;
use polis_storage::{Loaded, TwoGenerations, UnlockShares};
use polis_supervisor::{Context, with_causes};
use polis_unlock::{SealedUnlockFile, UnlockFile};

use super::store::is_damage;
use crate::consensus::ConsensusProvider;
use crate::manager::Inner;
use crate::trouble::{Ended, Trouble};

/// Name of the condition that the unlock file is of no use.
const UNLOCK_FILE_UNUSABLE: &str = "unlock-file-unusable";

impl<C: ConsensusProvider> Inner<C> {
    /// The unlock file of this node; nothing when it has none, or none that it has written itself with its own half of the key.
    /// Nothing is changed: it is replaced by whoever splits the key anew.
    pub(crate) async fn load_unlock_file(
        &self,
        context: &Context,
        node_unlock_key: &Secret32,
        authority: &AuthorityCertificate,
        own: &NodeId,
    ) -> Result<Option<UnlockFile>, Ended> {
        let stored = self.layout.esp.polis.unlock.clone();
        let (key, cluster, own) = (node_unlock_key.clone(), authority.cluster_id(), *own);
        let problem = match self.on_disk(context, move || read(&stored, &key, &cluster, &own)).await? {
            Ok(Some(file)) => {
                context.conditions().clear(UNLOCK_FILE_UNUSABLE);
                return Ok(Some(file));
            }
            Ok(None) => None,
            Err(problem) => Some(problem),
        };
        match problem {
            None => context.conditions().clear(UNLOCK_FILE_UNUSABLE),
            Some(problem) => context.conditions().raise(
                UNLOCK_FILE_UNUSABLE,
                Severity::Error,
                format!(
                    "the unlock file of this node cannot be used, so that the other members cannot open its data with their shares: \
                     {problem}; nothing was changed"
                ),
                "the node waits for a running cluster, which keeps its key as well, and then writes the file anew; if disks were swapped \
                 or brought back from a backup, put those together that belong together",
            ),
        }
        Ok(None)
    }
}

/// Reads the file. Says what is wrong with one that is there and cannot be used.
fn read(
    file: &TwoGenerations<UnlockShares>,
    node_unlock_key: &Secret32,
    cluster: &ClusterId,
    own: &NodeId,
) -> Result<Result<Option<UnlockFile>, String>, Trouble> {
    let Loaded { value, fault, .. } = match file.load() {
        Ok(Some(loaded)) => loaded,
        Ok(None) => return Ok(Ok(None)),
        Err(error) if is_damage(&error) => return Ok(Err(with_causes(&error))),
        Err(error) => return Err(Trouble::of_generations(error, "the unlock file cannot be used")),
    };
    if let Some(fault) = fault {
        tracing::warn!(%fault, "one of the two unlock files of this node is damaged; the other is used");
    }
    let UnlockShares { content, mac } = value;
    let opened = UnlockFile::open(&SealedUnlockFile { content, mac }, node_unlock_key, cluster, own);
    Ok(opened.map(Some).map_err(|invalid| with_causes(&invalid)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use polis_identity::NodeKey;
    use polis_storage::simulation::SimulatedDisk;
    use polis_storage::{Disk, DiskPath, FILE_MODE, Layout};
    use polis_unlock::{ClusterUnlockKey, Epoch, Scheme, Split};

    use super::*;

    /// What is on the disk.
    #[derive(Clone, Copy, Debug)]
    enum Content {
        Nothing,
        Ours,
        OtherHalf,
        OtherOwner,
        OtherCluster,
        Torn,
    }

    #[test]
    fn only_what_this_node_has_written_with_its_own_half_of_the_key_is_believed() {
        use Content::{Nothing, OtherCluster, OtherHalf, OtherOwner, Ours, Torn};
        let (cluster, other_cluster) = (ClusterId::from_bytes([1; 16]), ClusterId::from_bytes([2; 16]));
        let [own, other] = [(); 2].map(|()| NodeId::of(&NodeKey::generate().public()));
        let (half, other_half) = (Secret32::random(), Secret32::random());
        let unlock_file = |cluster, owner, epoch| {
            let check_value = ClusterUnlockKey::new(Secret32::random()).check_value();
            let epoch = Epoch { incarnation: 1, epoch };
            let current = Split { epoch, scheme: Scheme::Local, holders: Vec::new(), check_value };
            UnlockFile { cluster, owner, current, pending: None }
        };
        // An older generation of this node is there in all of them; what is found, or what is said.
        for (content, expect) in [
            (Nothing, Ok(1)),
            (Ours, Ok(2)),
            (OtherHalf, Err("its MAC is not one")),
            (OtherOwner, Err("its MAC is not one")),
            (OtherCluster, Err("its MAC is not one")),
            (Torn, Ok(1)),
        ] {
            let disk = Arc::new(SimulatedDisk::default());
            let layout = Layout::new(Arc::clone(&disk) as Arc<dyn Disk>);
            layout.prepare_start().unwrap();
            let file = &layout.esp.polis.unlock;
            let store = |unlock_file: UnlockFile, half| {
                let SealedUnlockFile { content, mac } = unlock_file.seal(half);
                file.store(&UnlockShares { content, mac }, "test").unwrap();
            };
            assert_eq!(read(file, &half, &cluster, &own).unwrap(), Ok(None));
            store(unlock_file(cluster, own, 1), &half);
            match content {
                Nothing => {}
                Ours => store(unlock_file(cluster, own, 2), &half),
                OtherHalf => store(unlock_file(cluster, own, 2), &other_half),
                OtherOwner => store(unlock_file(cluster, other, 2), &half),
                OtherCluster => store(unlock_file(other_cluster, own, 2), &half),
                Torn => {
                    let path = DiskPath::parse("esp/polis/unlock.1").unwrap();
                    disk.create_exclusive(&path, FILE_MODE, b"POLISULK").unwrap();
                }
            }
            let before = disk.image();
            match (read(file, &half, &cluster, &own).unwrap(), expect) {
                (Ok(Some(found)), Ok(epoch)) => assert_eq!(found.current.epoch.epoch, epoch, "{content:?}"),
                (Err(problem), Err(part)) => assert!(problem.contains(part), "{content:?}: {problem}"),
                (found, _) => panic!("{content:?}: {found:?}"),
            }
            assert!(disk.image() == before, "{content:?}: something has changed");
        }
    }
}
