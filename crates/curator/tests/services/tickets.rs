//! The register ticket: the same until it is rotated, and what is told about a wrong one.

use polis_proto::api::GetRegisterTicketRequest;
use polis_proto::api::management_client::ManagementClient;
use polis_proto::cluster::RotateRegisterTicketRequest;
use polis_proto::cluster::cluster_client::ClusterClient;
use tonic::Code;

use crate::world::{Machine, World, code};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_is_good_until_it_is_rotated_and_a_bad_one_is_named() {
    let world = World::start().await;
    let first = world.ticket().await;
    assert_eq!(first.len(), 34);
    assert_eq!(world.ticket().await, first);
    let rotated = world.cluster().await.rotate_register_ticket(RotateRegisterTicketRequest {}).await.unwrap();
    let second = rotated.into_inner().ticket;
    assert_ne!(second, first);
    assert_eq!(world.ticket().await, second);
    let mut wrong = second.clone();
    wrong[20] ^= 1;
    for (ticket, part) in [
        (&first[..], "an old one"),
        (&wrong, "not that of this cluster"),
        (&second[..33], "cut short"),
        (&[&second[..], b"\n"].concat(), "something was added"),
        (&[0x5a; 34], "not its form"),
        (&[], "there is no register ticket"),
    ] {
        let refused = world.register_with(&Machine::new(), ticket).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains(part), "{}", refused.message());
    }
    world.register_with(&Machine::new(), &second).await.unwrap();
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_owner_sees_and_rotates_it() {
    let world = World::start().await;
    for channel in [world.anonymous(), world.founder()] {
        let expected = [Code::Unauthenticated, Code::PermissionDenied];
        let seen = ManagementClient::new(channel.clone()).get_register_ticket(GetRegisterTicketRequest {}).await;
        assert!(expected.contains(&code(seen)));
        let rotated = ClusterClient::new(channel).rotate_register_ticket(RotateRegisterTicketRequest {}).await;
        assert!(expected.contains(&code(rotated)));
    }
    // Asked for at the same time for the first time, it is still one.
    let tickets = futures::future::join_all((0..8).map(|_| world.ticket())).await;
    assert!(tickets.iter().all(|ticket| *ticket == tickets[0]));
    world.finish().await;
}
