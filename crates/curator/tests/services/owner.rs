//! Escrow, RotateOwner and ProposeOwner.

use polis_identity::{OwnerKey, StatementKind, verify_user_in_cluster};
use polis_proto::api::aaa_client::AaaClient;
use polis_proto::api::escrow_request::Parameters;
use polis_proto::api::escrow_response::proof_request::Kind;
use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::{EscrowRequest, GetClusterInfoRequest};
use polis_proto::cluster::RotateOwnerRequest;
use polis_proto::cluster::cluster_client::ClusterClient;
use polis_proto::enrolment::ProposeOwnerRequest;
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_rpc::ClientIdentity;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::world::{World, code};

async fn escrow(world: &World, identity: &ClientIdentity, name: &str, key: &OwnerKey) -> (Vec<Kind>, Code) {
    let mut aaa = AaaClient::new(world.channel(identity));
    let public_key = key.public().as_bytes().to_vec();
    let parameters = Parameters { requested_identity_name: name.into(), public_key };
    let first = EscrowRequest { parameters: Some(parameters), proofs: None };
    let mut answers = match aaa.escrow(futures::stream::iter([first])).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => return (Vec::new(), status.code()),
    };
    let mut needed = Vec::new();
    loop {
        match answers.message().await {
            Ok(Some(answer)) => needed.extend(answer.needed.iter().map(|proof| proof.kind())),
            Ok(None) => return (needed, Code::Ok),
            Err(status) => return (needed, status.code()),
        }
    }
}

/// Whether one can do what an owner can.
async fn works(channel: Channel) -> bool {
    ManagementClient::new(channel).get_register_ticket(polis_proto::api::GetRegisterTicketRequest {}).await.is_ok()
}

async fn rotate(world: &World, channel: Channel, key: &OwnerKey, proof: Option<Vec<u8>>) -> Result<Vec<u8>, Status> {
    let statement = world.authority.cluster_id().to_string();
    let proof = proof.unwrap_or_else(|| {
        key.sign_statement(StatementKind::new("polis owner rotation v1"), statement.as_bytes()).to_vec()
    });
    let request = RotateOwnerRequest { public_key: key.public().as_bytes().to_vec(), proof };
    Ok(ClusterClient::new(channel).rotate_owner(request).await?.into_inner().certificate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_gets_the_same_certificate_each_time_and_nobody_else_any() {
    let world = World::start().await;
    let (owner, other) = (&world.etcd.owner, OwnerKey::generate());
    let first = world.escrow(owner).await.unwrap();
    assert_eq!(verify_user_in_cluster(&first, &world.authority).unwrap().name, "owner");
    assert_eq!(world.escrow(owner).await.unwrap(), first);
    let ephemeral = |key: &OwnerKey| ClientIdentity::ephemeral(key);
    let user = ClientIdentity::user(owner, &first).unwrap();
    for (identity, name, key, needed, expected) in [
        (ephemeral(&other), "owner", &other, vec![], Code::PermissionDenied),
        (ephemeral(&other), "owner", owner, vec![], Code::Unimplemented),
        (ephemeral(owner), "admin", owner, vec![], Code::Unimplemented),
        (ClientIdentity::anonymous(), "owner", owner, vec![Kind::RefreshCertificate], Code::Unauthenticated),
        (user, "owner", owner, vec![], Code::InvalidArgument),
    ] {
        assert_eq!(escrow(&world, &identity, name, key).await, (needed, expected), "{name}, {identity:?}");
    }
    let mut aaa = AaaClient::new(world.channel(&ephemeral(owner)));
    let nothing = aaa.escrow(futures::stream::iter([EscrowRequest::default()])).await;
    assert_eq!(code(nothing), Code::InvalidArgument);
    let silent = aaa.escrow(futures::stream::iter([])).await;
    assert_eq!(code(silent), Code::InvalidArgument);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_key_takes_over_and_the_old_one_is_out_at_once() {
    let world = World::start().await;
    let new = OwnerKey::generate();
    let old_channel = world.owner().await;
    assert_eq!(code(rotate(&world, old_channel.clone(), &new, Some(vec![1; 64])).await), Code::InvalidArgument);
    assert_eq!(code(rotate(&world, old_channel.clone(), &new, Some(vec![])).await), Code::InvalidArgument);
    assert_eq!(code(rotate(&world, world.founder(), &new, None).await), Code::PermissionDenied);
    let foreign = OwnerKey::generate();
    let foreign_proof = foreign.sign_statement(
        StatementKind::new("polis owner rotation v1"),
        world.authority.cluster_id().to_string().as_bytes(),
    );
    let by_another = rotate(&world, old_channel.clone(), &new, Some(foreign_proof.to_vec())).await;
    assert_eq!(code(by_another), Code::InvalidArgument, "the new key itself must sign");
    assert!(works(old_channel.clone()).await, "nothing has changed so far");

    let certificate = rotate(&world, old_channel.clone(), &new, None).await.unwrap();
    let certificate = polis_identity::Certificate::from_der(certificate).unwrap();
    assert_eq!(verify_user_in_cluster(&certificate, &world.authority).unwrap().public_key, new.public());
    let refused = async {
        while works(old_channel.clone()).await {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    world.within("the old certificate is refused", refused).await;
    assert_eq!(code(world.escrow(&world.etcd.owner).await), Code::PermissionDenied);
    assert_eq!(world.escrow(&new).await.unwrap(), certificate);
    let new_channel = world.channel(&ClientIdentity::user(&new, &certificate).unwrap());
    assert!(works(new_channel.clone()).await);
    // Asked again, it is the same.
    assert_eq!(rotate(&world, new_channel, &new, None).await.unwrap(), certificate.der());
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_of_the_members_can_replace_a_lost_owner() {
    let world = World::start().await;
    let old_channel = world.owner().await;
    let new = OwnerKey::generate();
    let bystander = world.enrol().await;
    let propose = async |channel, key: &OwnerKey| {
        let request = ProposeOwnerRequest { public_key: key.public().as_bytes().to_vec() };
        EnrolmentClient::new(channel).propose_owner(request).await.map(tonic::Response::into_inner)
    };
    let refused = propose(world.channel_of(&bystander), &new).await;
    assert_eq!(code(refused), Code::FailedPrecondition, "no consensus member");
    assert_eq!(code(propose(old_channel.clone(), &new).await), Code::PermissionDenied, "no node");
    // Here the founder is the quorum.
    let proposed = propose(world.founder(), &new).await.unwrap();
    assert_eq!((proposed.proposals, proposed.needed, proposed.replaced), (1, 1, true));
    let again = propose(world.founder(), &new).await.unwrap();
    assert!(again.replaced);
    assert!(works(world.user(&new).await.unwrap()).await);
    assert_eq!(code(world.escrow(&world.etcd.owner).await), Code::PermissionDenied);
    let refused = async {
        while works(old_channel.clone()).await {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    world.within("the old certificate is refused", refused).await;
    let info = ManagementClient::new(world.founder()).get_cluster_info(GetClusterInfoRequest {}).await;
    assert_eq!(code(info), Code::Ok);
    world.finish().await;
}
