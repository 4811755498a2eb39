//! The recovery key, what nodes seal to it, and the word that two members are to stay two.

use std::time::Duration;

use polis_curator::layout;
use polis_proto::cluster::{ConfirmTwoRequest, GetRecoveryBlobRequest, GetStatusRequest, SetRecoveryKeyRequest};
use polis_proto::enrolment::enrolment_client::EnrolmentClient;
use polis_proto::enrolment::{Orders, StoreRecoveryBlobRequest, WatchOrdersRequest};
use polis_recovery::BLOB_LIMIT;
use polis_unlock::SignedMemberList;
use tonic::{Code, Status, Streaming};

use crate::world::{World, code};

const KEYS: [[u8; 32]; 2] = [[7; 32], [8; 32]];

/// Points of small order, as RFC 7748 says that they may be looked for: zero, one, the two of order eight, and the same with what the
/// curve does not look at.
fn small_order() -> Vec<[u8; 32]> {
    let of = |hex: &str| <[u8; 32]>::try_from(hex::decode(hex).unwrap()).unwrap();
    let points = [
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    ];
    let with_top_bit = |mut point: [u8; 32]| {
        point[31] |= 0x80;
        point
    };
    points.map(of).into_iter().flat_map(|point| [point, with_top_bit(point)]).collect()
}

async fn set_key(world: &World, public_key: &[u8]) -> Result<bool, Status> {
    let request = SetRecoveryKeyRequest { public_key: public_key.to_vec() };
    Ok(world.cluster().await.set_recovery_key(request).await?.into_inner().replaced)
}

async fn confirm(world: &World, withdraw: bool) -> Result<(), Status> {
    world.cluster().await.confirm_two(ConfirmTwoRequest { withdraw }).await.map(|_| ())
}

async fn store(world: &World, key: &[u8], blob: &[u8]) -> Result<(), Status> {
    let request = StoreRecoveryBlobRequest { recovery_public_key: key.to_vec(), blob: blob.to_vec() };
    EnrolmentClient::new(world.founder()).store_recovery_blob(request).await.map(|_| ())
}

/// Whether the founder's blob is one for the present key.
async fn has_blob(world: &World) -> bool {
    world.cluster().await.get_status(GetStatusRequest {}).await.unwrap().into_inner().members[0].recovery_blob
}

/// The orders, once they are as wanted.
async fn orders(world: &World, stream: &mut Streaming<Orders>, wanted: impl Fn(&Orders) -> bool) -> Orders {
    let found = async {
        loop {
            let orders = stream.message().await.unwrap().expect("the leader goes on");
            if wanted(&orders) {
                break orders;
            }
        }
    };
    world.within("the orders say it", found).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_seal_to_the_key_that_the_cluster_has_and_to_no_other() {
    let world = World::start().await;
    let id = world.etcd.node_id().to_string();
    let mut stream =
        EnrolmentClient::new(world.founder()).watch_orders(WatchOrdersRequest {}).await.unwrap().into_inner();
    assert!(orders(&world, &mut stream, |_| true).await.recovery_public_key.is_empty());
    assert_eq!(code(store(&world, &KEYS[0], b"sealed").await), Code::FailedPrecondition, "there is none yet");
    for wrong in [&[7; 31][..], &[7; 33], &[]] {
        assert_eq!(code(set_key(&world, wrong).await), Code::InvalidArgument, "{wrong:?}");
    }
    for point in small_order() {
        let refused = set_key(&world, &point).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{point:?}");
        assert!(refused.message().contains("small order"), "{}", refused.message());
    }
    assert!(!set_key(&world, &KEYS[0]).await.unwrap());
    assert!(!set_key(&world, &KEYS[0]).await.unwrap(), "the same again replaces nothing");
    orders(&world, &mut stream, |orders| orders.recovery_public_key == KEYS[0]).await;

    assert_eq!(code(store(&world, &KEYS[1], b"sealed").await), Code::FailedPrecondition);
    for length in [0, BLOB_LIMIT + 1] {
        assert_eq!(code(store(&world, &KEYS[0], &vec![1; length]).await), Code::InvalidArgument, "{length}");
    }
    assert!(!has_blob(&world).await);
    store(&world, &KEYS[0], &vec![1; BLOB_LIMIT]).await.unwrap();
    store(&world, &KEYS[0], b"sealed").await.unwrap();
    assert!(has_blob(&world).await);
    let written =
        async || world.etcd.root().get(layout::recovery_blob(&world.etcd.node_id())).await.unwrap().unwrap().version;
    let before = written().await;
    store(&world, &KEYS[0], b"sealed").await.unwrap();
    assert_eq!(written().await, before, "the same again writes nothing");
    let request = GetRecoveryBlobRequest { node_id: id.clone() };
    let kept = world.cluster().await.get_recovery_blob(request).await.unwrap().into_inner();
    assert_eq!((&kept.recovery_public_key[..], &kept.blob[..]), (&KEYS[0][..], &b"sealed"[..]));
    let nobody = GetRecoveryBlobRequest { node_id: format!("metropolis-{:032x}", 1) };
    assert_eq!(code(world.cluster().await.get_recovery_blob(nobody).await), Code::NotFound);

    // What was sealed to the key before is kept until there is something better, and does not count.
    assert!(set_key(&world, &KEYS[1]).await.unwrap());
    orders(&world, &mut stream, |orders| orders.recovery_public_key == KEYS[1]).await;
    assert!(!has_blob(&world).await);
    assert_eq!(code(store(&world, &KEYS[0], b"late").await), Code::FailedPrecondition);
    store(&world, &KEYS[1], b"again").await.unwrap();
    assert!(has_blob(&world).await);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_are_confirmed_only_where_there_is_a_recovery_key() {
    let world = World::start().await;
    let refused = confirm(&world, false).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("no recovery key"), "{}", refused.message());
    confirm(&world, true).await.unwrap();
    set_key(&world, &KEYS[0]).await.unwrap();
    let list = |orders: &Orders| {
        SignedMemberList::verify(orders.signed_list.clone().unwrap(), &world.authority).unwrap().list().clone()
    };
    let first = list(&orders_now(&world).await);
    assert!(!first.is_two_confirmed());
    // Members decide by the signed list, so it is made anew; once for what was said twice.
    let mut last = first.epoch();
    for (withdraw, is_news) in [(false, true), (false, false), (true, true)] {
        confirm(&world, withdraw).await.unwrap();
        let said = async {
            loop {
                let orders = orders_now(&world).await;
                let list = list(&orders);
                if orders.two_confirmed != withdraw && list.is_two_confirmed() != withdraw {
                    break list;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let said = world.within("the list says it", said).await;
        assert_eq!(said.epoch() > last, is_news, "{said:?}");
        assert_eq!(said.members(), first.members());
        last = said.epoch();
    }
    world.finish().await;
}

async fn orders_now(world: &World) -> Orders {
    let stream = EnrolmentClient::new(world.founder()).watch_orders(WatchOrdersRequest {}).await;
    stream.unwrap().into_inner().message().await.unwrap().unwrap()
}
