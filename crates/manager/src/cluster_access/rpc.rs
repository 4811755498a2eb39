//! The way to a cluster over gRPC.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use polis_identity::{AuthorityCertificate, Certificate, ClusterId, NodeId, verify_certificate_authority};
use polis_parameters::StoragePolicy;
use polis_proto::common::{NodeStorageSecurity, NodeTpmUsage};
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::curator_local_client::CuratorLocalClient;
use polis_proto::curator_api::{
    CommitNodeRequest, GetCaCertificateRequest, JoinNodeRequest, RegisterNodeRequest, RegisterNodeResponse,
};
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_proto::enrolment::{
    CheckUnlockKeyRequest, CheckUnlockKeyResponse, GetTombstoneRequest, StoreRecoveryBlobRequest, StoreUnlockKeyRequest,
};
use polis_recovery::RecoveryPublicKey;
use polis_roleserve::Contact;
use polis_rpc::{
    CURATOR_PORT, CallError, CallPolicy, ClientIdentity, ClusterClient, ConnectError, Connector, EndpointFailure,
    ExpectedServer, ServerRefusal, describe,
};
use polis_secret::Secret32;
use polis_storage::journal::StorageSecurity;
use polis_supervisor::Context;
use polis_unlock::SignedMemberList;
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};
use zeroize::Zeroizing;

use super::{
    Admission, Applicant, ApplicantKey, ApplicantLink, Attempt, AttemptProblem, CallFailure, ClusterAccess, Commitment,
    KeptKey, Membership, News, Registration, Unheard,
};
use crate::unlock_keys::{Place, Standing};

/// How long one call is tried, with all that finding the leader takes. A leader that was lost is replaced within two seconds; after
/// that it is time to say what does not work.
const CALL_DEADLINE: Duration = Duration::from_secs(4);

/// How long a heartbeat is waited for before it is said that there is none. The first one of a node takes some milliseconds.
const HEARTBEAT_PATIENCE: Duration = Duration::from_secs(2);

/// How long it may take to find out who answers at an address where nobody helps.
const PROBE_DEADLINE: Duration = Duration::from_secs(1);

/// Addresses that are looked at for that: as many as a cluster hands out (metropolis.md, G.4, GetClusterInfo).
const MOST_PROBES: usize = 15;

/// The way to a cluster over gRPC. Clones are the same.
#[derive(Clone, Default)]
pub struct RpcAccess {
    member: Arc<OnceLock<InCluster>>,
}

/// What a node of a cluster has of it.
#[derive(Clone)]
pub struct InCluster {
    /// How it stands to the leader.
    pub contact: watch::Receiver<Contact>,
    /// The client with its credentials, once there is one.
    pub clients: watch::Receiver<Option<ClusterClient>>,
    /// The newest signed list of the consensus members.
    pub members: watch::Receiver<Option<Arc<SignedMemberList>>>,
    /// The public half of its recovery key; none as long as it has told none.
    pub recovery_key: watch::Receiver<Option<[u8; 32]>>,
}

impl RpcAccess {
    /// A way to any cluster.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what a node of the cluster has of it from here: that is the business of whoever keeps contact. To be called once, before
    /// the Manager runs, as that one needs the identity that the Manager publishes.
    pub fn follow(&self, member: InCluster) {
        // A second one would be of the same node.
        let _ = self.member.set(member);
    }

    /// Calls the leader as a node of the cluster.
    async fn call<T, F, R>(&self, call: F) -> Result<T, CallFailure>
    where
        F: FnMut(tonic::transport::Channel) -> R + Send,
        R: Future<Output = Result<T, Status>> + Send,
    {
        let client = self.member.get().and_then(|member| member.clients.borrow().clone());
        let Some(client) = client else { return Err(CallFailure::Unreachable { attempts: Vec::new() }) };
        client.call(CallPolicy::within(CALL_DEADLINE), call).await.map_err(|error| match error {
            CallError::Refused { address, status } | CallError::OutOfTime { last: Some((address, status)), .. } => {
                answered(address, &status, None)
            }
            CallError::OutOfTime { last: None, failures, .. } => CallFailure::Unreachable {
                attempts: failures
                    .into_iter()
                    .map(|(address, failure)| Attempt { address, problem: AttemptProblem::Failed(failure.text) })
                    .collect(),
            },
        })
    }
}

#[async_trait]
impl ClusterAccess for RpcAccess {
    fn apply(&self, context: &Context, applicant: Applicant) -> Arc<dyn ApplicantLink> {
        Arc::new(RpcApplicant::begin(context, applicant))
    }

    async fn heartbeat(&self) -> Result<(), Unheard> {
        let Some(mut contact) = self.member.get().map(|member| member.contact.clone()) else {
            sleep(HEARTBEAT_PATIENCE).await;
            return Err(Unheard { reason: None });
        };
        let heard = contact.wait_for(|contact| contact.last_heartbeat.is_some());
        let heard = timeout(HEARTBEAT_PATIENCE, heard).await.map(|heard| heard.is_ok());
        match heard {
            Ok(true) => Ok(()),
            // Nobody keeps contact any more: the node is being stopped.
            Ok(false) => std::future::pending().await,
            Err(_) => Err(Unheard { reason: contact.borrow().last_failure.clone() }),
        }
    }

    async fn news(&self, seen: &News) -> News {
        let Some(InCluster { mut contact, mut members, .. }) = self.member.get().cloned() else {
            return std::future::pending().await;
        };
        loop {
            let news = {
                let (contact, members) = (contact.borrow_and_update(), members.borrow_and_update());
                News {
                    in_contact: contact.established,
                    leader: contact.leader,
                    epoch: members.as_ref().map(|signed| signed.list().epoch()),
                }
            };
            if news != *seen {
                return news;
            }
            let changed = tokio::select! {
                changed = contact.changed() => changed,
                changed = members.changed() => changed,
            };
            if changed.is_err() {
                // Nobody keeps contact any more: the node is being stopped.
                return std::future::pending().await;
            }
        }
    }

    async fn check_unlock_key(&self) -> Result<KeptKey, CallFailure> {
        let answer = self
            .call(|channel| async move {
                Ok(EnrolmentClient::new(channel).check_unlock_key(CheckUnlockKeyRequest {}).await?.into_inner())
            })
            .await?;
        read_kept_key(&answer).map_err(|problem| CallFailure::Unusable { endpoint: None, problem })
    }

    async fn store_unlock_key(&self, key: &Secret32) -> Result<(), CallFailure> {
        self.call(|channel| {
            let request = StoreUnlockKeyRequest { cluster_unlock_key: key.expose().to_vec() };
            async move { EnrolmentClient::new(channel).store_unlock_key(request).await.map(|_| ()) }
        })
        .await
    }

    fn recovery_key(&self) -> watch::Receiver<Option<[u8; 32]>> {
        // Without a cluster nobody ever says one.
        self.member.get().map_or_else(|| watch::channel(None).1, |member| member.recovery_key.clone())
    }

    async fn store_recovery_blob(&self, key: &RecoveryPublicKey, blob: &[u8]) -> Result<(), CallFailure> {
        self.call(|channel| {
            let request =
                StoreRecoveryBlobRequest { recovery_public_key: key.as_bytes().to_vec(), blob: blob.to_vec() };
            async move { EnrolmentClient::new(channel).store_recovery_blob(request).await.map(|_| ()) }
        })
        .await
    }
}

/// Reads what a cluster keeps of the key of this node, or says what is wrong with it.
fn read_kept_key(answer: &CheckUnlockKeyResponse) -> Result<KeptKey, String> {
    let hash = match &answer.unlock_key_hash[..] {
        [] => None,
        hash => Some(hash.try_into().map_err(|_| format!("unlock_key_hash has {} bytes", hash.len()))?),
    };
    let place = match (answer.member, answer.learner) {
        (false, _) => Place::None,
        (true, true) => Place::Learner,
        (true, false) => Place::Voter,
    };
    Ok(KeptKey { hash, standing: Standing { voters: answer.voters, place } })
}

/// The link of a machine that is not a node of the cluster yet.
struct RpcApplicant {
    client: ClusterClient,
    /// Shows the same as the client, for a look at a single address.
    identity: ClientIdentity,
    authority: AuthorityCertificate,
    /// Its end ends the search for the leader.
    endpoints: Arc<watch::Sender<Vec<SocketAddr>>>,
}

/// Where the curators of nodes at these addresses are.
fn endpoints_of(addresses: &[IpAddr]) -> Vec<SocketAddr> {
    addresses.iter().map(|address| SocketAddr::new(*address, CURATOR_PORT)).collect()
}

impl RpcApplicant {
    fn begin(context: &Context, applicant: Applicant) -> Self {
        let Applicant { key, node: _, authority, mut addresses } = applicant;
        let endpoints = watch::Sender::new(endpoints_of(&addresses.borrow_and_update()));
        let identity = match &key {
            ApplicantKey::Node(key) => ClientIdentity::ephemeral(key),
            ApplicantKey::Join(key) => ClientIdentity::ephemeral(key),
        };
        let client = ClusterClient::new(identity.clone(), authority.clone(), endpoints.subscribe());
        let endpoints = Arc::new(endpoints);
        let (search, mut linked, following) = (client.clone(), endpoints.subscribe(), Arc::downgrade(&endpoints));
        context.spawn(async move {
            let follow = async {
                while addresses.changed().await.is_ok() {
                    if let Some(endpoints) = following.upgrade() {
                        endpoints.send_replace(endpoints_of(&addresses.borrow_and_update()));
                    }
                }
                // Those that were named stay.
                std::future::pending::<()>().await;
            };
            let unlinked = async { while linked.changed().await.is_ok() {} };
            tokio::select! {
                never = search.run() => match never {},
                () = follow => Ok(()),
                () = unlinked => Ok(()),
            }
        });
        Self { client, identity, authority, endpoints }
    }

    /// Makes a call to whoever leads, and finds out what its failure comes from.
    async fn call<T, F, R>(&self, call: F) -> Result<T, CallFailure>
    where
        F: FnMut(tonic::transport::Channel) -> R + Send,
        R: Future<Output = Result<T, Status>> + Send,
    {
        let error = match self.client.call(CallPolicy::within(CALL_DEADLINE), call).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let tombstone = error.removed_node().map(|removed| removed.signed_tombstone);
        Err(match error {
            CallError::Refused { address, status } => answered(address, &status, tombstone),
            CallError::OutOfTime { last: Some((address, status)), failures, .. }
                if failures.is_empty() || tombstone.is_some() =>
            {
                answered(address, &status, tombstone)
            }
            CallError::OutOfTime { failures, .. } if tombstone.is_some() => {
                let (endpoint, message) = failures
                    .into_iter()
                    .next()
                    .map_or((None, String::new()), |(address, failure)| (Some(address), failure.text));
                CallFailure::Answered { code: Code::Unauthenticated, message, endpoint, tombstone }
            }
            CallError::OutOfTime { failures, .. } => {
                CallFailure::Unreachable { attempts: self.explain(failures).await }
            }
        })
    }

    /// What became of each address.
    async fn explain(&self, failures: impl IntoIterator<Item = (SocketAddr, EndpointFailure)> + Send) -> Vec<Attempt> {
        let mut attempts: Vec<Attempt> = failures
            .into_iter()
            .map(|(address, failure)| Attempt { address, problem: AttemptProblem::Failed(failure.text) })
            .collect();
        // Where nothing is known yet, that is said too.
        for address in self.endpoints.borrow().iter() {
            if attempts.iter().all(|attempt| attempt.address != *address) {
                let problem = AttemptProblem::Failed("it has not answered yet".to_owned());
                attempts.push(Attempt { address: *address, problem });
            }
        }
        let probes = attempts.iter().take(MOST_PROBES).map(|attempt| self.other_cluster(attempt.address));
        let others = join_all(probes).await;
        for (attempt, other) in attempts.iter_mut().zip(others) {
            if let Some(problem) = other {
                attempt.problem = problem;
            }
        }
        attempts
    }

    /// Whether a node of another cluster answers at this address, and of which one.
    async fn other_cluster(&self, address: SocketAddr) -> Option<AttemptProblem> {
        let connector = Connector::new(&self.identity, ExpectedServer::Cluster(self.authority.clone()));
        match timeout(PROBE_DEADLINE, connector.connect(address)).await {
            Ok(Err(ConnectError::NotExpected { source: ServerRefusal::OtherCluster { .. }, .. })) => {
                let found = timeout(PROBE_DEADLINE, cluster_at(address)).await.ok().flatten();
                Some(AttemptProblem::OtherCluster { found })
            }
            Ok(Ok(_) | Err(_)) | Err(_) => None,
        }
    }
}

/// The cluster that whoever answers at an address claims to be of. Good for a message, and for nothing else.
async fn cluster_at(address: SocketAddr) -> Option<ClusterId> {
    let connector = Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Anybody);
    let mut client = CuratorLocalClient::new(connector.channel(address));
    let answer = client.get_ca_certificate(GetCaCertificateRequest {}).await.ok()?.into_inner();
    let certificate = Certificate::from_der(answer.identity_ca_certificate).ok()?;
    verify_certificate_authority(certificate).ok().map(|authority| authority.cluster_id())
}

#[async_trait]
impl ApplicantLink for RpcApplicant {
    async fn register(&self, request: Registration) -> Result<Admission, CallFailure> {
        let Registration { ticket, join_key, have_local_tpm, labels } = request;
        let answer = self
            .call(|channel| {
                let request = RegisterNodeRequest {
                    register_ticket: ticket.to_bytes().to_vec(),
                    join_key: join_key.as_bytes().to_vec(),
                    have_local_tpm,
                    labels: Some(labels.to_wire()),
                };
                async move { Ok(CuratorClient::new(channel).register_node(request).await?.into_inner()) }
            })
            .await?;
        read_admission(&answer).map_err(|problem| CallFailure::Unusable { endpoint: None, problem })
    }

    async fn commit(&self, request: Commitment) -> Result<Membership, CallFailure> {
        let Commitment { cluster_unlock_key, storage_security } = request;
        let storage_security = match storage_security {
            StorageSecurity::Insecure => NodeStorageSecurity::Insecure,
            StorageSecurity::Encrypted => NodeStorageSecurity::Encrypted,
            StorageSecurity::AuthenticatedEncrypted => NodeStorageSecurity::AuthenticatedEncrypted,
        };
        let answer = self
            .call(|channel| {
                let request = CommitNodeRequest {
                    cluster_unlock_key: cluster_unlock_key
                        .as_ref()
                        .map(|key| key.expose().to_vec())
                        .unwrap_or_default(),
                    storage_security: storage_security.into(),
                };
                async move { Ok(CuratorClient::new(channel).commit_node(request).await?.into_inner()) }
            })
            .await?;
        let leader = self.client.leader().await;
        Ok(Membership {
            authority: answer.ca_certificate,
            node_certificate: answer.node_certificate,
            leader: (leader.node_id, leader.address.ip()),
        })
    }

    async fn join(&self, sealed: bool) -> Result<Secret32, CallFailure> {
        let answer = self
            .call(|channel| {
                let request = JoinNodeRequest { using_sealed_configuration: sealed };
                async move { Ok(CuratorClient::new(channel).join_node(request).await?.into_inner()) }
            })
            .await?;
        let key = Zeroizing::new(answer.cluster_unlock_key);
        Secret32::try_from(&key[..]).map_err(|_| CallFailure::Unusable {
            endpoint: None,
            problem: format!("cluster_unlock_key has {} bytes, and a key has 32", key.len()),
        })
    }

    async fn tombstone(&self, node: NodeId) -> Result<Option<Vec<u8>>, CallFailure> {
        let answer = self
            .call(|channel| {
                let request = GetTombstoneRequest { node_id: node.to_string() };
                async move { Ok(EnrolmentClient::new(channel).get_tombstone(request).await?.into_inner()) }
            })
            .await?;
        Ok(answer.tombstone.map(|tombstone| tombstone.encode_to_vec()))
    }
}

/// An answer of the leader that is no success.
fn answered(address: SocketAddr, status: &Status, tombstone: Option<Vec<u8>>) -> CallFailure {
    CallFailure::Answered { code: status.code(), message: describe(status), endpoint: Some(address), tombstone }
}

/// Reads what a cluster answers to a machine that may ask for admission, or says what is wrong with it.
fn read_admission(answer: &RegisterNodeResponse) -> Result<Admission, String> {
    let configuration = answer.cluster_configuration.as_ref().ok_or("cluster_configuration is missing")?;
    let storage_policy =
        StoragePolicy::from_wire(configuration.storage_security_policy).map_err(|error| error.to_string())?;
    let recommended = answer.recommended_node_storage_security;
    let recommended_storage = match NodeStorageSecurity::try_from(recommended) {
        Ok(NodeStorageSecurity::Insecure) => StorageSecurity::Insecure,
        Ok(NodeStorageSecurity::Encrypted) => StorageSecurity::Encrypted,
        Ok(NodeStorageSecurity::AuthenticatedEncrypted) => StorageSecurity::AuthenticatedEncrypted,
        Ok(NodeStorageSecurity::Invalid) => return Err("recommended_node_storage_security is not set".into()),
        Err(_) => return Err(format!("recommended_node_storage_security has the unknown value {recommended}")),
    };
    let tpm_usage = NodeTpmUsage::try_from(answer.tpm_usage)
        .map_err(|_| format!("tpm_usage has the unknown value {}", answer.tpm_usage))?;
    Ok(Admission { storage_policy, recommended_storage, tpm_usage })
}

#[cfg(test)]
mod tests {
    use polis_proto::common::ClusterConfiguration;
    use polis_proto::common::cluster_configuration::StorageSecurityPolicy;

    use super::*;

    fn answer() -> RegisterNodeResponse {
        RegisterNodeResponse {
            cluster_configuration: Some(ClusterConfiguration {
                storage_security_policy: StorageSecurityPolicy::NeedsInsecure.into(),
                ..ClusterConfiguration::default()
            }),
            tpm_usage: NodeTpmUsage::NotPresent.into(),
            recommended_node_storage_security: NodeStorageSecurity::Insecure.into(),
        }
    }

    #[test]
    fn a_full_answer_is_read_and_anything_less_is_named() {
        let expect = Admission {
            storage_policy: StoragePolicy::NeedsInsecure,
            recommended_storage: StorageSecurity::Insecure,
            tpm_usage: NodeTpmUsage::NotPresent,
        };
        assert_eq!(read_admission(&answer()), Ok(expect));
        // What a cluster answers that does not know a repeated registration (window W17).
        let empty = RegisterNodeResponse::default();
        let table = [
            (empty, "cluster_configuration is missing"),
            (
                RegisterNodeResponse { recommended_node_storage_security: 0, ..answer() },
                "recommended_node_storage_security is not set",
            ),
            (RegisterNodeResponse { recommended_node_storage_security: 9, ..answer() }, "unknown value 9"),
            (RegisterNodeResponse { tpm_usage: 77, ..answer() }, "tpm_usage has the unknown value 77"),
            (
                RegisterNodeResponse { cluster_configuration: Some(ClusterConfiguration::default()), ..answer() },
                "storage_security_policy is not set",
            ),
        ];
        for (answer, part) in table {
            let problem = read_admission(&answer).unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
