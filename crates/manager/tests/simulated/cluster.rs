//! A cluster that others run, as far as one node sees it: its rules are real, its leader does what a script says.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use polis_curator::Tombstone;
use polis_identity::{AuthorityCertificate, CLUSTER_AUTHORITY_NAME, CertificateAuthority, NodeId, NodeKey, PublicKey};
use polis_manager::{
    Admission, Applicant, ApplicantKey, ApplicantLink, CallFailure, ClusterAccess, ColdStart, Commitment, KeptKey,
    Manager, Membership, News, Place, Registration, Standing, Unheard,
};
use polis_parameters::StoragePolicy;
use polis_proto::common::NodeTpmUsage;
use polis_recovery::RecoveryPublicKey;
use polis_secret::Secret32;
use polis_storage::data::UnlockKeys;
use polis_storage::journal::{Seals, StorageSecurity};
use polis_storage::simulation::SimulatedDisk;
use polis_storage::{Layout, NodeCredentials};
use polis_supervisor::Context;
use polis_unlock::ClusterUnlockKey;
use tokio::sync::watch;
use tonic::Code;

use crate::common::SimulatedConsensus;
use crate::partition::Encrypted;

/// Everything that the cluster knows. A clone is what it knew then.
#[derive(Clone)]
pub(crate) struct Cluster {
    authority: Arc<CertificateAuthority>,
    leader: NodeId,
    secret: [u8; 32],
    policy: StoragePolicy,
    records: BTreeMap<[u8; 32], Record>,
    tombstones: BTreeMap<[u8; 32], Vec<u8>>,
    /// How many records were ever made.
    pub(crate) made: u32,
    /// How many approvals there were.
    pub(crate) approvals: u32,
    /// What it keeps of the key of the one node's data.
    pub(crate) kept: Option<Secret32>,
    /// What it keeps of what the one node has sealed to the recovery key.
    pub(crate) recovery_blob: Option<Vec<u8>>,
    /// How the one node stands in the consensus; absent while it is out of contact.
    pub(crate) standing: Option<Standing>,
    /// How data are best protected in it.
    pub(crate) recommended: StorageSecurity,
    /// How nodes are to use their TPM.
    pub(crate) tpm_usage: NodeTpmUsage,
    /// Whether the one node has said that it has a TPM, when it registered.
    pub(crate) told_of_tpm: Option<bool>,
}

#[derive(Clone)]
struct Record {
    key: PublicKey,
    join_key: PublicKey,
    state: RecordState,
}

#[derive(Clone)]
enum RecordState {
    New,
    Standby,
    Up { certificate: Vec<u8> },
}

/// A call, as scripts see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Called {
    Register,
    Commit,
    Join,
    Tombstone,
    StoreUnlockKey,
}

/// What happens to a call.
#[derive(Clone)]
pub(crate) enum Fate {
    /// What the rules say.
    Answered,
    /// It never arrives.
    Lost,
    /// It has its effect, and the answer never arrives.
    AnswerLost,
    /// It is answered like this and has no effect.
    Refused(CallFailure),
    /// The node is deleted before it, with this reason.
    Deleted(&'static str),
    /// The cluster loses the record of the node before it, as after a restore: there is no tombstone.
    Forgotten,
}

/// What the leader and the operator of the cluster do.
#[derive(Clone)]
pub(crate) struct Script {
    /// Commits that come too early, before an operator approves.
    pub(crate) early_commits: u32,
    /// What happens to the calls, by kind and number from 1 on.
    pub(crate) fate: Arc<dyn Fn(Called, u32) -> Fate + Send + Sync>,
}

impl Default for Script {
    fn default() -> Self {
        Self { early_commits: 2, fate: Arc::new(|_, _| Fate::Answered) }
    }
}

impl Script {
    pub(crate) fn new(fate: impl Fn(Called, u32) -> Fate + Send + Sync + 'static) -> Self {
        Self { fate: Arc::new(fate), ..Self::default() }
    }
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self {
            authority: Arc::new(CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME)),
            leader: NodeId::of(&NodeKey::generate().public()),
            secret: [0x5a; 32],
            policy: StoragePolicy::NeedsInsecure,
            records: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            made: 0,
            approvals: 0,
            kept: None,
            recovery_blob: None,
            standing: None,
            recommended: StorageSecurity::Insecure,
            tpm_usage: NodeTpmUsage::NotPresent,
            told_of_tpm: None,
        }
    }

    /// The same with a change.
    pub(crate) fn changed(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut changed = self.clone();
        change(&mut changed);
        changed
    }

    pub(crate) fn authority(&self) -> &AuthorityCertificate {
        self.authority.certificate()
    }

    /// What signs for the cluster.
    pub(crate) fn signs(&self) -> &CertificateAuthority {
        &self.authority
    }

    pub(crate) const fn leader(&self) -> (NodeId, IpAddr) {
        (self.leader, IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)))
    }

    /// The ticket that it takes.
    pub(crate) fn ticket(&self) -> Vec<u8> {
        [&[0x0a, 32][..], &self.secret].concat()
    }

    pub(crate) const fn ticket_secret(&self) -> &[u8; 32] {
        &self.secret
    }

    pub(crate) fn rotate_ticket(&mut self, secret: [u8; 32]) {
        self.secret = secret;
    }

    /// Whether it has the record of one node, which is UP and has these credentials, and has never had another.
    pub(crate) fn has_one_node(&self, credentials: &NodeCredentials) -> Result<(), String> {
        let key = NodeKey::from_secret(credentials.node_key.clone()).public();
        let record = self.records.get(key.as_bytes()).ok_or("the cluster does not know this node")?;
        if self.made != 1 || self.approvals != 1 {
            return Err(format!("there were {} records and {} approvals", self.made, self.approvals));
        }
        match &record.state {
            RecordState::Up { certificate } if *certificate == credentials.node_certificate => Ok(()),
            RecordState::Up { .. } => {
                Err("the certificate of the node is not the one that the cluster has issued".into())
            }
            RecordState::New | RecordState::Standby => Err("the node runs and is not UP".into()),
        }
    }

    fn register(&mut self, key: PublicKey, request: &Registration) -> Result<Admission, CallFailure> {
        if *request.ticket.to_bytes() != self.ticket() {
            return Err(refusal(Code::PermissionDenied, "wrong register ticket"));
        }
        if self.tombstones.contains_key(key.as_bytes()) {
            return Err(refusal(Code::FailedPrecondition, "this node was deleted"));
        }
        self.told_of_tpm = Some(request.have_local_tpm);
        match self.records.get(key.as_bytes()) {
            None => {
                let record = Record { key, join_key: request.join_key, state: RecordState::New };
                self.records.insert(*key.as_bytes(), record);
                self.made += 1;
            }
            Some(record) if record.join_key != request.join_key => {
                return Err(refusal(Code::FailedPrecondition, "registered with another join key"));
            }
            Some(Record { state: RecordState::Up { .. }, .. }) => {
                return Err(refusal(Code::FailedPrecondition, "the node is UP"));
            }
            Some(_) => {}
        }
        Ok(Admission { storage_policy: self.policy, recommended_storage: self.recommended, tpm_usage: self.tpm_usage })
    }

    fn commit(&mut self, key: PublicKey, approve: bool, request: &Commitment) -> Result<Membership, CallFailure> {
        let Some(record) = self.records.get_mut(key.as_bytes()) else {
            return Err(refusal(Code::NotFound, "no such node"));
        };
        if matches!(record.state, RecordState::New) && approve {
            record.state = RecordState::Standby;
            self.approvals += 1;
        }
        match &record.state {
            RecordState::New => return Err(refusal(Code::PermissionDenied, "the node is not approved")),
            RecordState::Standby => {
                let certificate = self.authority.issue_node(&record.key).der().to_vec();
                record.state = RecordState::Up { certificate };
                self.kept.clone_from(&request.cluster_unlock_key);
            }
            RecordState::Up { .. } => {}
        }
        let RecordState::Up { certificate } = &record.state else { unreachable!("it was just made so") };
        Ok(Membership {
            authority: self.authority.certificate().der().to_vec(),
            node_certificate: certificate.clone(),
            leader: self.leader(),
        })
    }

    fn delete(&mut self, key: PublicKey, reason: &str) {
        self.records.remove(key.as_bytes());
        self.tombstones.insert(*key.as_bytes(), self.tombstone_of(key, reason));
    }

    /// A tombstone that it has signed.
    pub(crate) fn tombstone_of(&self, public_key: PublicKey, reason: &str) -> Vec<u8> {
        let cluster_id = self.authority().cluster_id();
        Tombstone { cluster_id, public_key, reason: reason.to_owned() }.sign(&self.authority).encode()
    }
}

fn refusal(code: Code, message: &str) -> CallFailure {
    CallFailure::Answered { code, message: message.into(), endpoint: None, tombstone: None }
}

/// What a node and its cluster compare.
fn check_value(key: &Secret32) -> [u8; 32] {
    *ClusterUnlockKey::new(key.clone()).check_value().as_bytes()
}

/// What a caller sees when a call or its answer is lost.
pub(crate) fn unavailable() -> CallFailure {
    refusal(Code::Unavailable, "the leader has changed")
}

/// The way to a scripted cluster.
#[derive(Clone)]
pub(crate) struct Scripted(Arc<Mutex<Inner>>);

struct Inner {
    disk: Arc<SimulatedDisk>,
    cluster: Cluster,
    script: Script,
    calls: BTreeMap<Called, u32>,
    history: Vec<(usize, Cluster)>,
    /// The node that has called.
    node: Option<PublicKey>,
    recovery_key: watch::Sender<Option<[u8; 32]>>,
}

impl Scripted {
    /// The way there for a node with this disk.
    pub(crate) fn new(disk: Arc<SimulatedDisk>, cluster: Cluster, script: Script) -> Self {
        let history = vec![(0, cluster.clone())];
        let (calls, recovery_key) = (BTreeMap::new(), watch::Sender::new(None));
        Self(Arc::new(Mutex::new(Inner { disk, cluster, script, calls, history, node: None, recovery_key })))
    }

    /// Something happens in the cluster.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Cluster)) {
        let mut inner = self.0.lock().unwrap();
        change(&mut inner.cluster);
        let entry = (inner.disk.position(), inner.cluster.clone());
        inner.history.push(entry);
    }

    /// What the cluster knew, and where the disk of the node stood then.
    pub(crate) fn history(&self) -> Vec<(usize, Cluster)> {
        self.0.lock().unwrap().history.clone()
    }

    /// How often this was called.
    pub(crate) fn calls(&self, called: Called) -> u32 {
        self.0.lock().unwrap().calls.get(&called).copied().unwrap_or_default()
    }
}

impl Inner {
    fn call<T>(
        &mut self,
        called: Called,
        node: PublicKey,
        answer: impl FnOnce(&mut Cluster, u32) -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        self.node = Some(node);
        let number = self.calls.entry(called).or_default();
        *number += 1;
        let number = *number;
        let fate = (self.script.fate)(called, number);
        match &fate {
            Fate::Lost => return Err(unavailable()),
            Fate::Refused(failure) => return Err(failure.clone()),
            Fate::Deleted(reason) => self.cluster.delete(node, reason),
            Fate::Forgotten => {
                self.cluster.records.remove(node.as_bytes());
            }
            Fate::Answered | Fate::AnswerLost => {}
        }
        let answer = answer(&mut self.cluster, number);
        self.history.push((self.disk.position(), self.cluster.clone()));
        if matches!(fate, Fate::AnswerLost) { Err(unavailable()) } else { answer }
    }
}

#[async_trait]
impl ClusterAccess for Scripted {
    fn apply(&self, _: &Context, applicant: Applicant) -> Arc<dyn ApplicantLink> {
        Arc::new(ScriptedLink { access: self.clone(), applicant })
    }

    async fn heartbeat(&self) -> Result<(), Unheard> {
        let is_up = {
            let inner = self.0.lock().unwrap();
            let states = inner.cluster.records.values();
            states.into_iter().any(|record| matches!(record.state, RecordState::Up { .. }))
        };
        if is_up {
            return Ok(());
        }
        // As long as a real try would last, in the simulated time of these tests.
        tokio::time::sleep(Duration::from_secs(2)).await;
        Err(Unheard { reason: Some("no node of this cluster is UP".into()) })
    }

    async fn news(&self, seen: &News) -> News {
        let in_contact = self.0.lock().unwrap().cluster.standing.is_some();
        if seen.in_contact == in_contact {
            return std::future::pending().await;
        }
        News { in_contact, ..News::default() }
    }

    async fn check_unlock_key(&self) -> Result<KeptKey, CallFailure> {
        let inner = self.0.lock().unwrap();
        let standing = inner.cluster.standing.ok_or_else(unavailable)?;
        Ok(KeptKey { hash: inner.cluster.kept.as_ref().map(check_value), standing })
    }

    async fn store_unlock_key(&self, key: &Secret32) -> Result<(), CallFailure> {
        let mut inner = self.0.lock().unwrap();
        let node = inner.node.unwrap_or_else(|| NodeKey::from_secret(Secret32::new([1; 32])).public());
        inner.call(Called::StoreUnlockKey, node, |cluster, _| {
            cluster.kept = Some(key.clone());
            Ok(())
        })
    }

    fn recovery_key(&self) -> watch::Receiver<Option<[u8; 32]>> {
        self.0.lock().unwrap().recovery_key.subscribe()
    }

    async fn store_recovery_blob(&self, key: &RecoveryPublicKey, blob: &[u8]) -> Result<(), CallFailure> {
        let mut inner = self.0.lock().unwrap();
        assert_eq!(*inner.recovery_key.borrow(), Some(*key.as_bytes()), "it is sealed to the key that was told");
        inner.cluster.standing.ok_or_else(unavailable)?;
        inner.cluster.recovery_blob = Some(blob.to_vec());
        Ok(())
    }
}

impl Scripted {
    /// The cluster is given this recovery key.
    pub(crate) fn set_recovery_key(&self, key: &RecoveryPublicKey) {
        self.0.lock().unwrap().recovery_key.send_replace(Some(*key.as_bytes()));
    }

    /// What the cluster keeps of what the node has sealed to the recovery key.
    pub(crate) fn recovery_blob(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap().cluster.recovery_blob.clone()
    }

    /// Waits until the key of the node is in order: no change is under way, the journal has a copy just where it must, and what the
    /// cluster keeps opens the data, and nothing else does.
    pub(crate) async fn settled(&self, manager: &Manager<SimulatedConsensus>, seals: &Seals) {
        while !self.is_settled(manager, seals) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn is_settled(&self, manager: &Manager<SimulatedConsensus>, seals: &Seals) -> bool {
        let (standing, kept, disk) = {
            let inner = self.0.lock().unwrap();
            (inner.cluster.standing.expect("the node is in contact"), inner.cluster.kept.clone(), inner.disk.clone())
        };
        // No list says who would hold shares of its key, so that a member never gives its copy away.
        let alone = standing.place == Place::Voter;
        let wanted = if alone { ColdStart::Local } else { ColdStart::Cluster };
        if manager.watch().borrow().cold_start != Some(wanted) || Encrypted::slots(&disk) != 1 {
            return false;
        }
        let journal = Layout::new(disk.clone()).journal_store(seals.clone()).load().unwrap().unwrap().value;
        let is_changing = journal.cluster_unlock_key.is_some_and(|key| key.pending.is_some());
        let keys = journal.node_unlock_key.zip(kept).map(|(node, cluster)| UnlockKeys { node, cluster });
        !is_changing && keys.is_some_and(|keys| Encrypted::opens(&disk, &keys))
    }
}

struct ScriptedLink {
    access: Scripted,
    applicant: Applicant,
}

impl ScriptedLink {
    fn call<T>(
        &self,
        called: Called,
        answer: impl FnOnce(&mut Cluster, u32) -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        let mut inner = self.access.0.lock().unwrap();
        // Who founds a cluster has a CA of its own.
        let is_founder = matches!(self.applicant.key, ApplicantKey::Join(_)) && inner.cluster.made == 0;
        if self.applicant.authority != *inner.cluster.authority() && !is_founder {
            return Err(CallFailure::Unreachable { attempts: Vec::new() });
        }
        inner.call(called, self.applicant.node, answer)
    }
}

#[async_trait]
impl ApplicantLink for ScriptedLink {
    async fn register(&self, request: Registration) -> Result<Admission, CallFailure> {
        let node = self.applicant.node;
        self.call(Called::Register, |cluster, _| cluster.register(node, &request))
    }

    async fn commit(&self, request: Commitment) -> Result<Membership, CallFailure> {
        let node = self.applicant.node;
        let (early, recommended) = {
            let inner = self.access.0.lock().unwrap();
            (inner.script.early_commits, inner.cluster.recommended)
        };
        assert_eq!(request.storage_security, recommended);
        assert_eq!(request.cluster_unlock_key.is_some(), recommended != StorageSecurity::Insecure);
        self.call(Called::Commit, |cluster, number| cluster.commit(node, number > early, &request))
    }

    async fn join(&self, _: bool) -> Result<Secret32, CallFailure> {
        assert!(matches!(self.applicant.key, ApplicantKey::Join(_)), "the join key is shown");
        self.call(Called::Join, |cluster, _| match (&cluster.kept, cluster.standing) {
            (_, None) => Err(CallFailure::Unreachable { attempts: Vec::new() }),
            (Some(kept), Some(_)) => Ok(kept.clone()),
            (None, Some(_)) => Err(refusal(Code::NotFound, "no such node")),
        })
    }

    async fn tombstone(&self, node: NodeId) -> Result<Option<Vec<u8>>, CallFailure> {
        let key = self.applicant.node;
        assert_eq!(node, NodeId::of(&key));
        self.call(Called::Tombstone, |cluster, _| Ok(cluster.tombstones.get(key.as_bytes()).cloned()))
    }
}
