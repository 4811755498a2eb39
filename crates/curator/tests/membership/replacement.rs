//! A member that cannot read its data is replaced.

use std::time::Duration;

use polis_curator::membership::RemovalError;
use polis_curator::{NodeRecord, StateError};
use polis_identity::NodeId;
use polis_proto::common::NodeRoles;
use polis_proto::common::node_roles::{KubernetesController, KubernetesWorker};
use tokio::time::{Instant, sleep};

use crate::common::PATIENCE;
use crate::town::Town;

/// What happens to a node meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// An operator takes the role of a controller away.
    TakesController,
}

/// The roles of Kubernetes of a node: controller, worker.
async fn kubernetes(town: &Town, node: NodeId) -> (bool, bool) {
    let record = town.with_leader("roles", async |leader, _| leader.node(&node).await).await.unwrap();
    let NodeRoles { kubernetes_controller, kubernetes_worker, .. } = &record.value.roles;
    (kubernetes_controller.is_some(), kubernetes_worker.is_some())
}

async fn member_id(town: &Town, node: NodeId) -> Option<u64> {
    let (leader, members) = town.leader().await;
    let status = members.status(&leader).await.ok()?;
    let index = status.nodes.iter().position(|known| *known == node)?;
    Some(status.survey.members[index].member.id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_cannot_read_its_data_is_replaced_and_its_node_keeps_its_roles() {
    let town = Town::found().await;
    let founder = town.founder.node_id();
    let (second, third) = (town.add_node().await, town.add_node().await);
    for (joiner, members) in [(second, vec![founder, second]), (third, vec![founder, second, third])] {
        town.join(joiner).await;
        town.settled(&members).await;
    }
    let all = [founder, second, third];
    for (meanwhile, kept) in [(Meanwhile::Nothing, true), (Meanwhile::TakesController, false)] {
        town.with_leader("roles", async |leader, _| {
            leader
                .update_node("test/roles", &third, |record| {
                    let record = record.expect("it is there").clone();
                    let roles = NodeRoles {
                        kubernetes_controller: Some(KubernetesController {}),
                        kubernetes_worker: Some(KubernetesWorker {}),
                        ..record.roles.clone()
                    };
                    Ok::<_, StateError>(Some(NodeRecord { roles, ..record }))
                })
                .await
        })
        .await;
        let before = member_id(&town, third).await.unwrap();
        town.break_node(third).await;
        let ask = async || {
            town.with_leader("replace", async |leader, members| {
                members.request_replacement(&leader, &third, "the log ends in the middle").await
            })
            .await;
        };
        ask().await;
        // Lost answers are asked for again.
        ask().await;
        let deadline = Instant::now() + PATIENCE;
        while kubernetes(&town, third).await != (false, true) {
            assert!(Instant::now() < deadline, "it is not removed\n{}", town.describe().await);
            sleep(Duration::from_millis(20)).await;
        }
        match meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::TakesController => {
                town.with_leader("the role is taken", async |leader, members| {
                    members.forget_controller(&leader, &third).await
                })
                .await;
            }
        }
        town.mend_node(third).await;
        town.settled(&all).await;
        assert_ne!(member_id(&town, third).await, Some(before), "it is another member");
        assert_eq!(kubernetes(&town, third).await, (kept, true), "{meanwhile:?}");
        // Who has no vote needs nothing, and who has waits for nothing.
        let (leader, members) = town.leader().await;
        assert!(members.status(&leader).await.unwrap().queue.is_empty());
    }
    town.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_that_would_cost_the_quorum_is_refused_and_changes_nothing() {
    let town = Town::found().await;
    let founder = town.founder.node_id();
    let second = town.add_node().await;
    town.join(second).await;
    town.settled(&[founder, second]).await;
    let bystander = town.add_node().await;
    let (leader, members) = town.leader().await;
    members.request_replacement(&leader, &bystander, "no member").await.unwrap();
    let nobody = NodeId::of(&polis_identity::NodeKey::generate().public());
    let unknown = members.request_replacement(&leader, &nobody, "no node").await.unwrap_err();
    assert!(matches!(unknown, RemovalError::NoSuchNode(node) if node == nobody), "{unknown:?}");
    let roles = kubernetes(&town, founder).await;
    town.leave(second).await;
    town.settled(&[founder]).await;
    let (leader, members) = town.leader().await;
    let refused = members.request_replacement(&leader, &founder, "the only one").await.unwrap_err();
    assert!(matches!(refused, RemovalError::Refused { node, .. } if node == founder), "{refused:?}");
    town.settled(&[founder]).await;
    assert_eq!(kubernetes(&town, founder).await, roles);
    town.stop().await;
}
