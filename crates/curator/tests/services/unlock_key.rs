//! StoreUnlockKey and CheckUnlockKey: a node replaces the key that the cluster keeps for it.

use polis_proto::curator_api::JoinNodeRequest;
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_proto::enrolment::{CheckUnlockKeyRequest, CheckUnlockKeyResponse, StoreUnlockKeyRequest};
use polis_rpc::ClientIdentity;
use polis_secret::Secret32;
use polis_unlock::ClusterUnlockKey;
use tonic::Code;

use crate::world::{AUTHENTICATED, INSECURE, Machine, World, code};

async fn store(world: &World, machine: &Machine, key: &[u8]) -> Result<(), tonic::Status> {
    let request = StoreUnlockKeyRequest { cluster_unlock_key: key.to_vec() };
    world.enrolment_of(machine).store_unlock_key(request).await.map(|_| ())
}

/// What the cluster tells of this key.
fn hash(byte: u8) -> Vec<u8> {
    ClusterUnlockKey::new(Secret32::new([byte; 32])).check_value().as_bytes().to_vec()
}

async fn check(world: &World, machine: &Machine) -> CheckUnlockKeyResponse {
    world.enrolment_of(machine).check_unlock_key(CheckUnlockKeyRequest {}).await.unwrap().into_inner()
}

/// A node that was committed like this.
async fn node(world: &World, storage: i32, key: &[u8]) -> Machine {
    let mut machine = Machine::new();
    world.register(&machine).await.unwrap();
    world.approve(&machine).await.unwrap();
    let committed = world.commit(&machine, storage, key).await.unwrap();
    machine.certificate = Some(polis_identity::Certificate::from_der(committed.node_certificate).unwrap());
    machine
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_replaces_its_key_and_gets_the_new_one_when_it_joins() {
    let world = World::start().await;
    let machine = node(&world, AUTHENTICATED, &[7; 32]).await;
    let kept = CheckUnlockKeyResponse { unlock_key_hash: hash(7), voters: 1, member: false, learner: false };
    assert_eq!(check(&world, &machine).await, kept);
    for _ in 0..2 {
        store(&world, &machine, &[8; 32]).await.unwrap();
        assert_eq!(check(&world, &machine).await.unlock_key_hash, hash(8), "a repetition is the same");
    }
    let mut joins = CuratorClient::new(world.channel(&ClientIdentity::ephemeral(&machine.join_key)));
    let joined = joins.join_node(JoinNodeRequest { using_sealed_configuration: false }).await.unwrap();
    assert_eq!(joined.into_inner().cluster_unlock_key, [8; 32]);
    // A lost answer to the commit is still answered.
    assert_eq!(code(world.commit(&machine, AUTHENTICATED, &[7; 32]).await), Code::Ok);
    assert_eq!(check(&world, &machine).await.unlock_key_hash, hash(8), "and takes nothing back");
    // The founder is a member with a vote, and has insecure data here.
    let founder = EnrolmentClient::new(world.founder()).check_unlock_key(CheckUnlockKeyRequest {}).await.unwrap();
    let expected = CheckUnlockKeyResponse { unlock_key_hash: Vec::new(), voters: 1, member: true, learner: false };
    assert_eq!(founder.into_inner(), expected);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_else_replaces_a_key_and_no_key_is_of_another_length() {
    let world = World::start().await;
    let machine = node(&world, AUTHENTICATED, &[7; 32]).await;
    for length in [0, 31, 33] {
        assert_eq!(code(store(&world, &machine, &vec![8; length]).await), Code::InvalidArgument, "{length}");
    }
    let plain = node(&world, INSECURE, &[]).await;
    assert_eq!(code(store(&world, &plain, &[8; 32]).await), Code::FailedPrecondition);
    let request = || StoreUnlockKeyRequest { cluster_unlock_key: vec![8; 32] };
    let owner = EnrolmentClient::new(world.owner().await).store_unlock_key(request()).await;
    assert_eq!(code(owner), Code::PermissionDenied, "an owner is no node");
    let stranger = world.channel(&ClientIdentity::ephemeral(&machine.key));
    let outcome = code(EnrolmentClient::new(stranger).store_unlock_key(request()).await);
    assert!(matches!(outcome, Code::PermissionDenied | Code::Unauthenticated), "{outcome:?}");
    assert_eq!(check(&world, &machine).await.unlock_key_hash, hash(7));
    world.finish().await;
}
