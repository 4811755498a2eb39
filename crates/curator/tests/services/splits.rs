//! What nodes report of the splits of their keys, and what becomes of it.

use polis_identity::Certificate;
use polis_proto::cluster::GetStatusRequest;
use polis_proto::curator_state::{Epoch, SplitReport};
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_proto::enrolment::{ReportNodeRequest, WatchOrdersRequest};
use tonic::{Code, Status};

use crate::roles::{give, only};
use crate::world::{AUTHENTICATED, Machine, World, code};

fn split(epoch: u64) -> SplitReport {
    SplitReport { epoch: Some(Epoch { incarnation: 1, epoch }), ..SplitReport::default() }
}

async fn report(world: &World, split: SplitReport) -> Result<(), Status> {
    let request = ReportNodeRequest { split: Some(split), ..ReportNodeRequest::default() };
    EnrolmentClient::new(world.founder()).report_node(request).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reported_split_is_shown_and_raises_the_floor() {
    let world = World::start().await;
    let mut stream =
        EnrolmentClient::new(world.founder()).watch_orders(WatchOrdersRequest {}).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    assert_eq!((first.floors.len(), first.two_confirmed), (0, false));
    let told = async || world.cluster().await.get_status(GetStatusRequest {}).await.unwrap().into_inner();
    assert!(told().await.members[0].split.is_none(), "it has not said that it can");
    report(&world, SplitReport::default()).await.unwrap();
    assert_eq!(told().await.members[0].split, Some(SplitReport::default()));
    let own = world.etcd.node_id().to_string();
    let untrue = SplitReport { holders: vec![own.clone()], ..split(1) };
    assert_eq!(code(report(&world, untrue).await), Code::InvalidArgument, "nobody holds a share of its own key");
    // The only list has the epoch 1.
    report(&world, split(2)).await.unwrap();
    assert_eq!(told().await.members[0].split, Some(SplitReport::default()), "there is no such list");
    report(&world, split(1)).await.unwrap();
    assert_eq!(told().await.members[0].split, Some(split(1)));
    let floor = async {
        loop {
            let orders = stream.message().await.unwrap().unwrap();
            if let Some(floor) = orders.floors.into_iter().next() {
                break floor;
            }
        }
    };
    let floor = world.within("the floor is told", floor).await;
    assert_eq!((floor.node_id, floor.epoch), (own, split(1).epoch));
    // What does not encrypt says nothing of a cold start.
    assert!(told().await.cold_start.is_none() && told().await.unfinished_removals.is_empty());
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_node_without_a_share_key_gets_no_role() {
    let world = World::start().await;
    let mut machine = Machine::new();
    world.register(&machine).await.unwrap();
    world.approve(&machine).await.unwrap();
    let committed = world.commit(&machine, AUTHENTICATED, &[7; 32]).await.unwrap();
    machine.certificate = Some(Certificate::from_der(committed.node_certificate).unwrap());
    world.beat(&machine).await.unwrap();
    let refused = give(&world, &machine, only("consensus_member")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("share key"), "{}", refused.message());
    // One that comes a moment later is waited for.
    let request = ReportNodeRequest { share_key: vec![9; 32], ..ReportNodeRequest::default() };
    let mut enrolment = world.enrolment_of(&machine);
    let late = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        world.beat(&machine).await.unwrap();
        enrolment.report_node(request).await.unwrap();
    };
    let (given, ()) = tokio::join!(give(&world, &machine, only("consensus_member")), late);
    given.unwrap();
    world.finish().await;
}
