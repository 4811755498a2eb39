//! Floods, connections that say nothing, and garbage, all from other addresses than those of members.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use polis_identity::JoinKey;
use polis_proto::unlock::unlock_client::UnlockClient;
use polis_rpc::{Connector, ExpectedServer, KeyIdentity};
use polis_unlock::{UnlockReply, UnlockRequest, Want};
use tokio::io::AsyncWriteExt as _;

use crate::proxy::{Proxy, connect_from};
use crate::world::{OPEN_WITHIN, World, all_open, finish};

/// One of many addresses at which no member is.
fn stranger_address(number: usize) -> IpAddr {
    let [_, _, high, low] = u32::try_from(number).unwrap().to_be_bytes();
    Ipv4Addr::new(127, 12, high, low.max(1)).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_start_goes_on_beside_connections_that_say_nothing_and_garbage() {
    let world = World::new(3);
    let mut nodes = vec![world.start(0)];
    nodes[0].wait_status("its port is open", |status| status.failures.len() == 2).await;
    // For each node more than it has seats, all the time.
    let ends = Arc::new(AtomicBool::new(false));
    let floods: Vec<_> = world.nodes.iter().map(|node| tokio::spawn(hold(node.address, Arc::clone(&ends)))).collect();
    nodes.extend([world.start(1), world.start(2)]);
    let took = all_open(&nodes).await;
    eprintln!("a cold start beside connections that say nothing: {took:?}");
    assert!(took < OPEN_WITHIN, "{took:?}");
    ends.store(true, Ordering::SeqCst);
    for flood in floods {
        flood.await.unwrap();
    }
    finish(nodes).await;
}

/// Keeps a hundred connections that begin and do not go on, as long as the node takes them, for at most ten seconds.
async fn hold(to: SocketAddr, ends: Arc<AtomicBool>) {
    const BEGINNINGS: [&[u8]; 4] = [b"", &[0x16, 3, 1, 2, 0, 1], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 4_000]];
    let mut held = std::collections::VecDeque::new();
    let deadline = Instant::now() + Duration::from_secs(10);
    for number in 0.. {
        if ends.load(Ordering::SeqCst) || Instant::now() > deadline {
            return;
        }
        if let Ok(mut stream) = connect_from(stranger_address(number % 10_000), to).await {
            // Where the seat is taken away already, it cannot be written.
            let _ = stream.write_all(BEGINNINGS[number % BEGINNINGS.len()]).await;
            held.push_back(stream);
        } else {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if held.len() > 100 {
            held.pop_front();
        }
        if number % 20 == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// How long one request of a member takes, its connection included.
async fn member_request(world: &World, to: usize) -> Duration {
    let member = world.node(2);
    let began = Instant::now();
    let request = UnlockRequest { owner: member.id, share: None, list_epoch: None, want: Want::Any, list: None };
    let channel = world.node(to).channel(&member.join_key);
    let response = UnlockClient::new(channel).unlock(polis_proto::unlock::UnlockRequest::from(request)).await.unwrap();
    let reply = UnlockReply::try_from(response.into_inner()).unwrap();
    assert!(matches!(reply, UnlockReply::Full(_)), "{reply:?}");
    began.elapsed()
}

async fn member_requests(world: &World, count: usize) -> Vec<Duration> {
    let mut took = Vec::new();
    for _ in 0..count {
        took.push(member_request(world, 0).await);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    took.sort();
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_answered_beside_a_flood_of_requests() {
    let world = World::new(3);
    let nodes = vec![world.start(0), world.start(1)];
    all_open(&nodes).await;
    world.running.nodes.lock().unwrap().insert(world.node(0).id);
    let quiet = member_requests(&world, 30).await;

    // Strangers, each on a connection of its own for some requests, from a thread of their own for a bounded time.
    let ends = Arc::new(AtomicBool::new(false));
    let (refused, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let strangers = std::thread::spawn({
        let (ends, refused, failed) = (Arc::clone(&ends), Arc::clone(&refused), Arc::clone(&failed));
        let (to, key) = (world.node(0).address, world.node(0).join_key.public());
        let owner = world.node(1).id;
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(futures::future::join_all((0..8).map(|number| {
                let (ends, refused, failed) = (&ends, &refused, &failed);
                async move {
                    let deadline = Instant::now() + Duration::from_secs(20);
                    let proxy = Proxy::start(stranger_address(number), to, Vec::new()).await;
                    while !ends.load(Ordering::SeqCst) && Instant::now() < deadline {
                        let identity = KeyIdentity::new(&JoinKey::generate()).client_identity();
                        let channel = Connector::new(&identity, ExpectedServer::Key(key)).channel(proxy.address);
                        let mut client = UnlockClient::new(channel);
                        for _ in 0..50 {
                            let request =
                                UnlockRequest { owner, share: None, list_epoch: None, want: Want::Any, list: None };
                            let request = polis_proto::unlock::UnlockRequest::from(request);
                            match client.unlock(request).await {
                                Ok(_) => refused.fetch_add(1, Ordering::SeqCst),
                                Err(status) if status.code() == tonic::Code::ResourceExhausted => {
                                    refused.fetch_add(1, Ordering::SeqCst)
                                }
                                Err(_) => failed.fetch_add(1, Ordering::SeqCst),
                            };
                        }
                    }
                }
            })));
        }
    });
    let began = Instant::now();
    let flooded = member_requests(&world, 60).await;
    let rate = refused.load(Ordering::SeqCst) as f64 / began.elapsed().as_secs_f64();
    ends.store(true, Ordering::SeqCst);
    strangers.join().unwrap();
    let show = |took: &[Duration]| format!("median {:?}, longest {:?}", took[took.len() / 2], took.last().unwrap());
    eprintln!(
        "a member's request: {} when it is quiet; {} beside {rate:.0} refused requests a second ({} lost their connection)",
        show(&quiet),
        show(&flooded),
        failed.load(Ordering::SeqCst)
    );
    assert!(refused.load(Ordering::SeqCst) > 0);
    // An overloaded machine is slow by itself; none was turned away, and none waited for a seat.
    assert!(*flooded.last().unwrap() < OPEN_WITHIN, "{flooded:?}");
    finish(nodes).await;
}
