//! No secret that passes through the services is in a log or in a message to anybody.

use std::time::Duration;

use base64::Engine as _;
use polis_proto::api::UpdateNodeLabelsRequest;
use polis_proto::api::update_node_labels_request::{Node as Target, Pair};
use polis_proto::cluster::RotateRegisterTicketRequest;
use polis_proto::curator_api::JoinNodeRequest;
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_rpc::ClientIdentity;

use crate::log::Log;
use crate::world::{AUTHENTICATED, Machine, World};

/// The forms in which a secret could be written down.
fn forms(secret: &[u8]) -> Vec<String> {
    vec![
        hex::encode(secret),
        base64::engine::general_purpose::STANDARD_NO_PAD.encode(secret),
        format!("{secret:?}").trim_matches(['[', ']']).to_owned(),
        secret.escape_ascii().to_string(),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_and_messages_hold_no_secret() {
    let log = Log::start();
    let world = World::start().await;
    let machine = Machine::new();
    let ticket = world.ticket().await;
    let unlock_key: Vec<u8> = (100..132).collect();
    let mut said = String::new();
    let mut note = |text: String| said.push_str(&text);
    world.register_with(&machine, &ticket).await.unwrap();
    let mut wrong = ticket.clone();
    wrong[10] ^= 0xff;
    note(world.register_with(&Machine::new(), &wrong).await.unwrap_err().to_string());
    note(world.commit(&machine, AUTHENTICATED, &unlock_key).await.unwrap_err().to_string());
    world.approve(&machine).await.unwrap();
    world.commit(&machine, AUTHENTICATED, &unlock_key).await.unwrap();
    note(world.commit(&machine, 2, &unlock_key).await.unwrap_err().to_string());
    note(world.commit(&machine, AUTHENTICATED, &unlock_key[1..]).await.unwrap_err().to_string());
    let mut joins = CuratorClient::new(world.channel(&ClientIdentity::ephemeral(&machine.join_key)));
    let joined = joins.join_node(JoinNodeRequest::default()).await.unwrap().into_inner();
    assert_eq!(joined.cluster_unlock_key, unlock_key);
    let id = machine.id();
    let labels = UpdateNodeLabelsRequest {
        node: Some(Target::Id(id.to_string())),
        upsert: vec![Pair { key: "site".into(), value: "of-no-interest".into() }],
        delete: vec!["old".into()],
    };
    world.management().await.update_node_labels(labels).await.unwrap();
    let rotated = world.cluster().await.rotate_register_ticket(RotateRegisterTicketRequest {}).await.unwrap();
    let rotated = rotated.into_inner().ticket;
    // The log says who did what to which node, and no more.
    for (method, about) in [
        ("Curator/RegisterNode", format!("node {id}")),
        ("Management/ApproveNode", format!("node {id}")),
        ("Management/UpdateNodeLabels", format!("node {id}: labels +site -old")),
        ("Cluster/RotateRegisterTicket", "register ticket, rotated".to_owned()),
    ] {
        let object = format!("object={about:?}");
        let is_told = || log.read().lines().any(|line| line.contains(method) && line.contains(&object));
        let told = async {
            while !is_told() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        world.within(&format!("{method} of {about} is in the log"), told).await;
    }
    note(log.read());
    assert!(!said.contains("of-no-interest"), "values of labels are nobody's business");
    assert!(said.contains(&machine.id().to_string()), "the log was read");
    for secret in [&ticket[..], &ticket[2..], &rotated, &rotated[2..], &wrong[2..], &unlock_key, &unlock_key[1..]] {
        for form in forms(secret) {
            assert!(!said.contains(&form), "a secret was written as {form}");
        }
    }
    let planted = format!("{said}{}", hex::encode(&unlock_key));
    assert!(forms(&unlock_key).iter().any(|form| planted.contains(form)), "a planted one would be found");
    world.finish().await;
}
