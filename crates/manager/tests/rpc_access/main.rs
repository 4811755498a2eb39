//! The way to a cluster over gRPC, against servers in this process that speak for clusters that are nothing but a CA.

mod server;

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority, JoinKey, NodeId, NodeKey};
use polis_manager::{
    Applicant, ApplicantKey, ApplicantLink, AttemptProblem, CallFailure, ClusterAccess as _, Commitment, InCluster,
    Registration, RpcAccess,
};
use polis_parameters::{Labels, RegisterTicket, StoragePolicy};
use polis_proto::common::NodeTpmUsage;
use polis_roleserve::Contact;
use polis_storage::journal::StorageSecurity;
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, runnable};
use tokio::sync::{oneshot, watch};
use tonic::Code;

use server::Server;

/// Patience with what should take a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(20);

/// A ticket of these bytes.
fn ticket(byte: u8) -> RegisterTicket {
    RegisterTicket::from_bytes(&[&[0x0a, 32][..], &[byte; 32]].concat()).unwrap()
}

/// A machine that asks for admission, in a tree of runnables of its own.
struct Machine {
    key: NodeKey,
    join_key: JoinKey,
    link: Arc<dyn ApplicantLink>,
    harness: Harness,
}

impl Machine {
    /// A machine that was told this CA and these addresses.
    async fn told(authority: &CertificateAuthority, addresses: &[IpAddr]) -> Self {
        let key = NodeKey::generate();
        let applicant = Applicant {
            key: ApplicantKey::Node(key.clone()),
            node: key.public(),
            authority: authority.certificate().clone(),
            addresses: watch::Sender::new(addresses.to_vec()).subscribe(),
        };
        let (sender, receiver) = oneshot::channel();
        let parts = Mutex::new(Some((applicant, sender)));
        let harness = Harness::start(runnable(move |context: Context| {
            let parts = parts.lock().unwrap().take();
            async move {
                let (applicant, sender) = parts.ok_or("it has died before")?;
                sender.send(RpcAccess::new().apply(&context, applicant)).map_err(|_| "nobody waits for it")?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        }));
        Self { key, join_key: JoinKey::generate(), link: receiver.await.unwrap(), harness }
    }

    fn registration(&self, ticket: RegisterTicket) -> Registration {
        Registration { ticket, join_key: self.join_key.public(), have_local_tpm: false, labels: Labels::default() }
    }

    async fn finish(self) {
        drop(self.link);
        self.harness.finish().await;
    }
}

const INSECURE: Commitment = Commitment { cluster_unlock_key: None, storage_security: StorageSecurity::Insecure };

#[tokio::test]
async fn a_machine_registers_and_becomes_a_member() {
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let server = Server::start(&authority);
    let machine = Machine::told(&authority, &[server.address]).await;

    let admission = machine.link.register(machine.registration(ticket(1))).await.unwrap();
    assert_eq!(
        (admission.storage_policy, admission.recommended_storage, admission.tpm_usage),
        (StoragePolicy::NeedsInsecure, StorageSecurity::Insecure, NodeTpmUsage::NotPresent)
    );
    let early = machine.link.commit(INSECURE).await.unwrap_err();
    assert!(matches!(early, CallFailure::Answered { code: Code::PermissionDenied, .. }), "{early}");

    server.approve();
    let membership = machine.link.commit(INSECURE).await.unwrap();
    assert_eq!(membership.authority, authority.certificate().der());
    assert_eq!(membership.leader, (server.node, server.address));
    assert_eq!(server.registered(), Some((machine.key.public(), machine.join_key.public())));
    machine.finish().await;
    server.finish().await;
}

#[tokio::test]
async fn a_refusal_comes_at_once_and_in_the_clusters_own_words() {
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let server = Server::start(&authority);
    let machine = Machine::told(&authority, &[server.address]).await;
    let begun = Instant::now();
    let failure = machine.link.register(machine.registration(ticket(2))).await.unwrap_err();
    let CallFailure::Answered { code: Code::PermissionDenied, message, endpoint: Some(endpoint), tombstone: None } =
        failure
    else {
        panic!("{failure}");
    };
    assert_eq!((&*message, endpoint.ip()), ("this is not the ticket", server.address));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    machine.finish().await;
    server.finish().await;
}

#[tokio::test]
async fn a_tombstone_is_handed_on() {
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let server = Server::start(&authority);
    let machine = Machine::told(&authority, &[server.address]).await;
    let node = NodeId::of(&machine.key.public());
    assert_eq!(machine.link.tombstone(node).await, Ok(None));
    server.delete(&machine.key.public());
    let shown = machine.link.tombstone(node).await.unwrap().expect("the node was deleted");
    let failure = machine.link.commit(INSECURE).await.unwrap_err();
    let CallFailure::Answered { code: Code::NotFound, tombstone: Some(tombstone), .. } = failure else {
        panic!("{failure}");
    };
    assert_eq!(tombstone, shown);
    machine.finish().await;
    server.finish().await;
}

#[tokio::test]
async fn where_nobody_of_the_cluster_answers_each_address_is_named_with_what_is_there() {
    let [authority, other] = [(), ()].map(|()| CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME));
    let foreign = Server::start(&other);
    let nobody = server::free_address();
    let machine = Machine::told(&authority, &[foreign.address, nobody.ip()]).await;
    let begun = Instant::now();
    let failure = machine.link.register(machine.registration(ticket(1))).await.unwrap_err();
    let CallFailure::Unreachable { attempts } = failure else { panic!("{failure}") };
    let at = |address: IpAddr| {
        let found = attempts.iter().find(|attempt| attempt.address.ip() == address);
        found.unwrap_or_else(|| panic!("{address} is not named: {attempts:?}"))
    };
    let found = Some(other.certificate().cluster_id());
    assert_eq!(at(foreign.address).problem, AttemptProblem::OtherCluster { found });
    let refused = at(nobody.ip()).to_string();
    assert!(refused.contains("refuses connections"), "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    machine.finish().await;
    foreign.finish().await;
}

#[tokio::test]
async fn a_leader_that_comes_late_is_found() {
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let address = server::free_address();
    let machine = Machine::told(&authority, &[address.ip()]).await;
    let failure = machine.link.register(machine.registration(ticket(1))).await.unwrap_err();
    assert!(matches!(failure, CallFailure::Unreachable { .. }), "{failure}");
    let server = Server::start_at(&authority, address);
    let registered = async { while machine.link.register(machine.registration(ticket(1))).await.is_err() {} };
    tokio::time::timeout(PATIENCE, registered).await.expect("it is found");
    machine.finish().await;
    server.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_is_heard_when_whoever_keeps_contact_says_so() {
    let access = RpcAccess::new();
    let unheard = access.heartbeat().await.unwrap_err();
    assert_eq!(unheard.reason, None);

    let contact = watch::Sender::new(Contact::default());
    access.follow(InCluster {
        contact: contact.subscribe(),
        clients: watch::Sender::new(None).subscribe(),
        members: watch::Sender::new(None).subscribe(),
        recovery_key: watch::Sender::new(None).subscribe(),
    });
    contact.send_modify(|contact| contact.last_failure = Some("no leader".into()));
    assert_eq!(access.heartbeat().await.unwrap_err().reason.as_deref(), Some("no leader"));
    let heard = tokio::spawn({
        let access = access.clone();
        async move { access.heartbeat().await }
    });
    tokio::task::yield_now().await;
    assert!(!heard.is_finished());
    contact.send_modify(|contact| contact.last_heartbeat = Some(tokio::time::Instant::now()));
    assert_eq!(heard.await.unwrap(), Ok(()));
}
