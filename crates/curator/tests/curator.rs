//! A whole curator over a real etcd: it leads, serves where its node is, and comes back.

mod common;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use common::{Etcd, free_address};
use polis_consensus::Transaction;
use polis_curator::{Curator, Leadership, LeadershipTiming, NodeRecord, Settings, StateError, layout};
use polis_identity::OwnerKey;
use polis_proto::common::NodeStatus;
use polis_proto::curator_api::GetCurrentLeaderRequest;
use polis_proto::curator_api::curator_local_client::CuratorLocalClient;
use polis_rpc::{CURATOR_PORT, ClientIdentity, Connector, ExpectedServer, ServerIdentity};
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, Runnable as _};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A curator that runs.
struct Running {
    curator: Curator,
    address: watch::Sender<Option<IpAddr>>,
    harness: Harness,
}

async fn start(etcd: &Etcd, address: Option<IpAddr>) -> Running {
    let cluster = etcd.give_birth().await;
    let identity = ServerIdentity::new(&etcd.node_key, cluster.node_certificate, cluster.authority).unwrap();
    let address = watch::Sender::new(address);
    let curator = Curator::new(Settings {
        consensus: etcd.consensus.clone(),
        identity,
        address: address.subscribe(),
        timing: LeadershipTiming { alive_interval: Duration::from_millis(20), ..LeadershipTiming::default() },
    });
    let run = curator.clone();
    let harness = Harness::start(move |context: Context| {
        let run = run.clone();
        async move {
            context.run("curator", move |context: Context| run.run(context))?;
            context.healthy();
            Err(context.cancelled().await.into())
        }
    });
    Running { curator, address, harness }
}

impl Running {
    async fn leads(&self, etcd: &Etcd) -> polis_curator::LeaderState {
        let mut leadership = self.curator.leadership();
        let leads = etcd.within("it leads", leadership.wait_for(|known| known.leader().is_some()));
        leads.await.unwrap().leader().unwrap().clone()
    }

    async fn finish(self, etcd: Etcd) {
        assert_eq!(self.harness.conditions().snapshot(), []);
        self.harness.finish().await;
        etcd.stop().await;
    }
}

/// Whether a client is told at this address who leads.
async fn tells_leader(etcd: &Etcd, address: IpAddr) -> bool {
    let key = OwnerKey::generate();
    let authority = etcd.state().authority_certificate().await.unwrap();
    let connector = Connector::new(&ClientIdentity::ephemeral(&key), ExpectedServer::Cluster(authority));
    let Ok(channel) = connector.connect(SocketAddr::new(address, CURATOR_PORT)).await else { return false };
    let mut client = CuratorLocalClient::new(channel);
    let Ok(answer) = client.get_current_leader(GetCurrentLeaderRequest {}).await else { return false };
    match answer.into_inner().message().await {
        Ok(Some(leader)) => leader.leader_node_id == etcd.node_id().to_string(),
        Ok(None) | Err(_) => false,
    }
}

async fn serves(etcd: &Etcd, address: IpAddr) {
    let wait = async {
        while !tells_leader(etcd, address).await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    etcd.within(&format!("it serves at {address}"), wait).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_curator_alone_leads_and_gives_signs_of_life() {
    let etcd = Etcd::start().await;
    let running = start(&etcd, Some(free_address())).await;
    let leader = running.leads(&etcd).await;
    leader.transact("test/write", Transaction::new().put("key", "value")).await.unwrap();
    let first = etcd.root().get(layout::leader_alive()).await.unwrap().unwrap();
    let mut watch = etcd.root().watch_key(layout::leader_alive(), first.mod_revision);
    for _ in 0..3 {
        etcd.within("it gives a sign of life", watch.next()).await.unwrap();
    }
    let founder = running.curator.nodes().get(&etcd.node_id());
    assert!(founder.is_some_and(|founder| founder.value.is_consensus_member()));
    running.finish(etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_serves_where_its_node_is() {
    let etcd = Etcd::start().await;
    let running = start(&etcd, None).await;
    running.leads(&etcd).await;
    let (first, second) = (free_address(), free_address());
    running.address.send_replace(Some(first));
    serves(&etcd, first).await;
    running.address.send_replace(Some(second));
    serves(&etcd, second).await;
    assert!(!tells_leader(&etcd, first).await, "nobody listens where it was");
    running.finish(etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_taken_is_a_condition_until_it_is_free() {
    let etcd = Etcd::start().await;
    let address = free_address();
    let other = TcpListener::bind((address, CURATOR_PORT)).await.unwrap();
    let running = start(&etcd, Some(address)).await;
    let mut conditions = running.harness.conditions().watch();
    let raised =
        etcd.within("it is raised", conditions.wait_for(|all| all.contains_key("curator-cannot-listen"))).await;
    assert!(raised.unwrap()["curator-cannot-listen"].message.contains(&address.to_string()));
    // It leads all the same.
    running.leads(&etcd).await;
    drop(other);
    serves(&etcd, address).await;
    running.finish(etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_curator_that_is_started_anew_leads_again_at_once() {
    let etcd = Etcd::start().await;
    let running = start(&etcd, Some(free_address())).await;
    let first = running.leads(&etcd).await;
    let curator = running.curator.clone();
    running.harness.finish().await;
    assert_eq!(*curator.leadership().borrow(), Leadership::Unsettled);
    assert!(first.is_lost());
    let run = curator.clone();
    let harness = Harness::start(move |context: Context| run.run(context));
    let running = Running { curator, address: running.address, harness };
    let second = running.leads(&etcd).await;
    let moved = |record: Option<&NodeRecord>| {
        let status = NodeStatus { external_address: "127.9.9.9".into(), ..NodeStatus::default() };
        Ok::<_, StateError>(record.map(|record| NodeRecord { status: Some(status), ..record.clone() }))
    };
    second.update_node("test/move", &etcd.node_id(), moved).await.unwrap();
    assert!(matches!(first.node(&etcd.node_id()).await, Err(StateError::LostLeadership)));
    running.finish(etcd).await;
}
