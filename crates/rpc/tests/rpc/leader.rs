//! Finding the leader and following it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};
use polis_identity::{AuthorityCertificate, NodeId};
use polis_proto::curator_api::curator_local_server::{CuratorLocal, CuratorLocalServer};
use polis_proto::curator_api::{
    GetCaCertificateRequest, GetCaCertificateResponse, GetCurrentLeaderRequest, GetCurrentLeaderResponse,
};
use polis_proto::rpc_detail::LeaderHint;
use polis_rpc::testing::{TestCluster, TestNode, TestServer, test_listener};
use polis_rpc::{CallError, CallPolicy, ClientIdentity, ClusterClient, Judge, Leader, Limits, Search, detail, listen};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::fake::{Fake, PATIENCE, READ, call, one};

/// What a node says of who leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// This one of the cluster does.
    Leads(usize),
    /// Nobody does, and the call ends with that.
    Unsettled,
    /// Nobody does, and the call ends with a detail that says that this one does.
    Hints(usize),
}

struct Local {
    own: usize,
    ids: Vec<String>,
    addresses: Vec<SocketAddr>,
    says: watch::Receiver<Says>,
}

#[tonic::async_trait]
impl CuratorLocal for Local {
    type GetCurrentLeaderStream = BoxStream<'static, Result<GetCurrentLeaderResponse, Status>>;

    async fn get_current_leader(
        &self,
        _: Request<GetCurrentLeaderRequest>,
    ) -> Result<Response<Self::GetCurrentLeaderStream>, Status> {
        let own = self.own;
        let ids = self.ids.clone();
        let addresses = self.addresses.clone();
        let mut says = self.says.clone();
        says.mark_changed();
        let answers = stream::unfold(Some(says), move |says| {
            let (ids, addresses) = (ids.clone(), addresses.clone());
            async move {
                let mut says = says?;
                says.changed().await.ok()?;
                let now = *says.borrow_and_update();
                match now {
                    Says::Leads(leader) => {
                        // The leader does not say where it is, as in Metropolis.
                        let host = if leader == own { String::new() } else { addresses[leader].ip().to_string() };
                        let answer = GetCurrentLeaderResponse {
                            leader_node_id: ids[leader].clone(),
                            leader_host: host,
                            leader_port: addresses[leader].port().into(),
                            this_node_id: ids[own].clone(),
                        };
                        Some((Ok(answer), Some(says)))
                    }
                    Says::Unsettled => Some((Err(Status::unavailable("nobody leads yet")), None)),
                    Says::Hints(leader) => Some((Err(hint(&ids[leader], addresses[leader])), None)),
                }
            }
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn get_ca_certificate(
        &self,
        _: Request<GetCaCertificateRequest>,
    ) -> Result<Response<GetCaCertificateResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }
}

fn hint(id: &str, address: SocketAddr) -> Status {
    let hint = LeaderHint { node_id: id.to_owned(), host: address.ip().to_string(), port: address.port().into() };
    detail::with_leader(Status::unavailable("another node leads"), &hint)
}

/// A cluster of curators that say what the test wants.
struct Curators {
    cluster: TestCluster,
    nodes: Vec<TestNode>,
    addresses: Vec<SocketAddr>,
    says: Vec<watch::Sender<Says>>,
    servers: Vec<Option<TestServer>>,
    /// Calls of [`READ`] that each has got.
    calls: Vec<Arc<AtomicUsize>>,
}

impl Curators {
    fn start(count: usize, says: Says) -> Self {
        let cluster = TestCluster::default();
        let nodes: Vec<_> = (0..count).map(|_| cluster.node()).collect();
        // Their addresses are known before they listen. Nobody takes a port that was given out just now.
        let addresses = (0..count).map(|_| test_listener()).map(|listener| listener.local_addr().unwrap()).collect();
        let mut curators = Self {
            cluster,
            nodes,
            addresses,
            says: (0..count).map(|_| watch::Sender::new(says)).collect(),
            servers: (0..count).map(|_| None).collect(),
            calls: (0..count).map(|_| Arc::default()).collect(),
        };
        for index in 0..count {
            curators.up(index);
        }
        curators
    }

    fn up(&mut self, index: usize) {
        let ids: Vec<_> = self.nodes.iter().map(|node| node.id.to_string()).collect();
        let says = self.says[index].subscribe();
        let local = Local { own: index, ids: ids.clone(), addresses: self.addresses.clone(), says: says.clone() };
        let calls = Arc::clone(&self.calls[index]);
        let addresses = self.addresses.clone();
        let routes = Fake::routes(move |_, _, _| {
            calls.fetch_add(1, Ordering::SeqCst);
            let now = *says.borrow();
            let answer = match now {
                Says::Leads(leader) if leader == index => Ok(one(index.to_string())),
                Says::Leads(leader) | Says::Hints(leader) => Err(hint(&ids[leader], addresses[leader])),
                Says::Unsettled => Err(Status::unavailable("nobody leads yet")),
            };
            async move { answer }
        });
        let routes: Routes = routes.add_service(CuratorLocalServer::new(local));
        let listener = listen(self.addresses[index]).unwrap();
        let server = TestServer::start_at(listener, &self.nodes[index].identity, Limits::default(), routes);
        self.servers[index] = Some(server);
    }

    async fn down(&mut self, index: usize) {
        if let Some(server) = self.servers[index].take() {
            server.finish().await;
        }
    }

    fn all_say(&self, says: Says) {
        for sender in &self.says {
            sender.send_replace(says);
        }
    }

    fn client(&self, endpoints: Vec<SocketAddr>) -> Client {
        self.client_with(endpoints, ClusterClient::new)
    }

    fn client_with(
        &self,
        endpoints: Vec<SocketAddr>,
        make: impl FnOnce(ClientIdentity, AuthorityCertificate, watch::Receiver<Vec<SocketAddr>>) -> ClusterClient,
    ) -> Client {
        let endpoints = watch::Sender::new(endpoints);
        let identity = self.cluster.user("owner").identity;
        let client = make(identity, self.cluster.authority_certificate(), endpoints.subscribe());
        let running = tokio::spawn({
            let client = client.clone();
            async move { match client.run().await {} }
        });
        Client { client, endpoints, running }
    }

    async fn finish(mut self) {
        for index in 0..self.servers.len() {
            self.down(index).await;
        }
    }
}

struct Client {
    client: ClusterClient,
    endpoints: watch::Sender<Vec<SocketAddr>>,
    running: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Client {
    /// Waits until it knows no leader.
    async fn loses(&self) {
        let mut search = self.client.search();
        let lost = search.wait_for(|search| search.leader().is_none());
        tokio::time::timeout(PATIENCE, lost).await.expect("nobody leads").unwrap();
    }

    /// Waits until this node is found, and tells how long it took.
    async fn finds(&self, node: &TestNode) -> (Leader, Duration) {
        let began = Instant::now();
        let mut search = self.client.search();
        let found = search.wait_for(|search| search.leader().is_some_and(|leader| leader.node_id == node.id));
        let found = tokio::time::timeout(PATIENCE, found).await;
        let found = found.unwrap_or_else(|_| panic!("{} was not found: {:?}", node.id, self.client.search().borrow()));
        (found.unwrap().leader().unwrap().clone(), began.elapsed())
    }
}

/// Generous for a loaded machine; the bar is 100 ms.
const SOON: Duration = Duration::from_millis(400);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_found_wherever_one_asks_and_followed() {
    let mut curators = Curators::start(3, Says::Leads(1));
    // One that leads, one that does not, one where nobody is, and one that is no node.
    let nobody = test_listener().local_addr().unwrap();
    let foreign = TestServer::start(&TestCluster::default().node().identity, Fake::answering());
    for endpoints in
        [vec![curators.addresses[1]], vec![curators.addresses[0]], vec![nobody, foreign.address, curators.addresses[2]]]
    {
        let client = curators.client(endpoints);
        let (leader, took) = client.finds(&curators.nodes[1]).await;
        assert_eq!(leader.address, curators.addresses[1]);
        assert!(took < SOON, "{took:?}");
        assert_eq!(call(&leader.channel, READ, b"").await.unwrap(), b"1");
    }

    let client = curators.client(vec![curators.addresses[0]]);
    client.finds(&curators.nodes[1]).await;
    // It moves, as all say.
    curators.all_say(Says::Leads(2));
    let (_, took) = client.finds(&curators.nodes[2]).await;
    assert!(took < SOON, "{took:?}");
    // It dies, and the others know of another one only later.
    for index in [0, 1] {
        curators.says[index].send_replace(Says::Unsettled);
    }
    curators.down(2).await;
    client.loses().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    for index in [0, 1] {
        curators.says[index].send_replace(Says::Leads(0));
    }
    let (_, took) = client.finds(&curators.nodes[0]).await;
    assert!(took < SOON, "{took:?}");
    foreign.finish().await;
    drop(client);
    curators.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_is_believed_only_when_it_says_so_itself() {
    let curators = Curators::start(3, Says::Leads(2));
    // Two say what is not so any more, and the one that they name does not say it.
    curators.says[2].send_replace(Says::Leads(1));
    let client = curators.client(curators.addresses.clone());
    // Both that are named deny it.
    let mut search = client.client.search();
    let refuted = search.wait_for(|search| match search {
        Search::Searching { failures, .. } => curators.addresses[1..]
            .iter()
            .all(|address| failures.get(address).is_some_and(|failure| failure.text.contains("does not lead"))),
        Search::Found(leader) => panic!("{leader:?}"),
    });
    tokio::time::timeout(PATIENCE, refuted).await.unwrap().unwrap();
    // Now it does, and those who named it say nothing new.
    curators.says[2].send_replace(Says::Leads(2));
    let (_, took) = client.finds(&curators.nodes[2]).await;
    assert!(took < SOON, "{took:?}");
    drop(client);
    curators.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_named_node_has_to_be_at_the_named_address() {
    let mut curators = Curators::start(2, Says::Leads(1));
    // Another node of the same cluster is where the leader should be.
    curators.down(1).await;
    let impostor = TestServer::start_at(
        listen(curators.addresses[1]).unwrap(),
        &curators.cluster.node().identity,
        Limits::default(),
        Fake::answering(),
    );
    let client = curators.client(vec![curators.addresses[0]]);
    let mut search = client.client.search();
    let failure = |search: &Search| search.failures().get(&curators.addresses[1]).map(|failure| failure.text.clone());
    let told = search.wait_for(|search| failure(search).is_some_and(|text| text.contains("was expected")));
    tokio::time::timeout(PATIENCE, told).await.unwrap().unwrap();
    assert_eq!(impostor.harness().observer().dump().len(), 1);
    drop(client);
    impostor.finish().await;
    curators.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_down_and_up_again() {
    let mut curators = Curators::start(3, Says::Leads(0));
    let client = curators.client(curators.addresses.clone());
    client.finds(&curators.nodes[0]).await;
    for index in 0..3 {
        curators.down(index).await;
    }
    let down = Instant::now();
    // Long enough for pauses to have grown.
    tokio::time::sleep(Duration::from_millis(700)).await;
    let mut search = client.client.search();
    let refused = search.wait_for(|search| {
        let failures = search.failures();
        let is_refused =
            |address| failures.get(address).is_some_and(|failure| failure.text.contains("refuses connections"));
        curators.addresses.iter().all(is_refused)
    });
    tokio::time::timeout(PATIENCE, refused).await.unwrap().unwrap();
    let down = down.elapsed();
    curators.all_say(Says::Leads(1));
    for index in 0..3 {
        curators.up(index);
    }
    let (_, took) = client.finds(&curators.nodes[1]).await;
    // Pauses are a part of the time that all were down.
    assert!(took < down.mul_f64(0.6) + SOON, "{took:?} after {down:?}");
    drop(client);
    curators.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_endpoints_are_asked_at_once() {
    let curators = Curators::start(1, Says::Leads(0));
    let nobody = test_listener().local_addr().unwrap();
    let client = curators.client(vec![nobody]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    client.endpoints.send_replace(vec![nobody, curators.addresses[0]]);
    let (_, took) = client.finds(&curators.nodes[0]).await;
    assert!(took < SOON, "{took:?}");
    drop(client);
    curators.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_to_whoever_leads() {
    let curators = Curators::start(3, Says::Leads(0));
    let client = curators.client(vec![curators.addresses[2]]);
    let policy = CallPolicy::within(PATIENCE);
    let read = async || client.client.call(policy, |channel| async move { call(&channel, READ, b"").await }).await;
    assert_eq!(read().await.unwrap(), b"0");
    // Hints are followed, also where the streams have not said anything.
    curators.says[1].send_replace(Says::Leads(1));
    curators.says[0].send_replace(Says::Hints(1));
    assert_eq!(read().await.unwrap(), b"1");
    // While nobody leads, calls wait.
    curators.all_say(Says::Unsettled);
    let began = Instant::now();
    let (answer, ()) = tokio::join!(read(), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        curators.all_say(Says::Leads(2));
    });
    assert_eq!(answer.unwrap(), b"2");
    assert!(began.elapsed() < Duration::from_millis(300) + SOON, "{:?}", began.elapsed());
    drop(client);
    curators.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_hangs_is_made_again_when_another_node_leads() {
    let curators = Curators::start(2, Says::Leads(0));
    let client = curators.client(curators.addresses.clone());
    client.finds(&curators.nodes[0]).await;
    let attempts = AtomicUsize::new(0);
    let answer = client.client.call(CallPolicy::within(PATIENCE), |channel| {
        let attempt = attempts.fetch_add(1, Ordering::SeqCst);
        async move {
            if attempt == 0 {
                return std::future::pending().await;
            }
            call(&channel, READ, b"").await
        }
    });
    let (answer, ()) = tokio::join!(answer, async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        curators.all_say(Says::Leads(1));
    });
    assert_eq!(answer.unwrap(), b"1");
    assert_eq!(attempts.load(Ordering::SeqCst), 2);
    drop(client);
    curators.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_calls_say_what_happened() {
    let curators = Curators::start(2, Says::Leads(0));
    let client = curators.client(curators.addresses.clone());
    let policy = CallPolicy::within(Duration::from_millis(400));
    let refusal = client
        .client
        .call(policy, |_| async { Err::<(), _>(Status::failed_precondition("the node is not approved")) })
        .await
        .unwrap_err();
    assert!(matches!(&refusal, CallError::Refused { status, .. } if status.code() == Code::FailedPrecondition));
    assert!(refusal.to_string().contains("the node is not approved"), "{refusal}");

    let attempts = AtomicUsize::new(0);
    let unavailable = client
        .client
        .call(policy, |_| {
            attempts.fetch_add(1, Ordering::SeqCst);
            async { Err::<(), _>(Status::unavailable("too busy")) }
        })
        .await
        .unwrap_err();
    assert!(unavailable.to_string().contains("too busy"), "{unavailable}");
    assert!((3..40).contains(&attempts.load(Ordering::SeqCst)), "{attempts:?}");

    curators.all_say(Says::Unsettled);
    client.loses().await;
    let nobody =
        client.client.call(policy, |channel| async move { call(&channel, READ, b"").await }).await.unwrap_err();
    let text = nobody.to_string();
    for words in ["nobody leads yet", &curators.addresses[0].to_string(), &curators.addresses[1].to_string()] {
        assert!(text.contains(words), "{words:?} is not in {text:?}");
    }

    let hanging = policy.each_within(Duration::from_millis(50));
    curators.all_say(Says::Leads(0));
    client.finds(&curators.nodes[0]).await;
    let hangs = client.client.call(hanging, |_| std::future::pending::<Result<(), Status>>()).await.unwrap_err();
    assert!(matches!(hangs, CallError::OutOfTime { attempts: 3.., .. }), "{hangs:?}");
    drop(client);
    curators.finish().await;
}

/// Lets one node be followed.
#[derive(Debug)]
struct Only(watch::Receiver<NodeId>);

impl Judge for Only {
    fn judge<'a>(
        &'a self,
        leader: NodeId,
        _: &'a Channel,
        _: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<(), Status>> {
        let fits = *self.0.borrow() == leader;
        std::future::ready(if fits { Ok(()) } else { Err(Status::failed_precondition("it leads others")) }).boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_judged_unfit_is_not_followed() {
    let curators = Curators::start(2, Says::Unsettled);
    for (index, says) in curators.says.iter().enumerate() {
        says.send_replace(Says::Leads(index));
    }
    let only = watch::Sender::new(curators.nodes[1].id);
    let judge = Arc::new(Only(only.subscribe()));
    let client = curators.client_with(curators.addresses.clone(), |identity, authority, endpoints| {
        ClusterClient::judged(identity, authority, endpoints, judge)
    });
    client.finds(&curators.nodes[1]).await;
    // It leads no more, and the other one is still unfit: nobody is followed, and it is said why.
    curators.says[1].send_replace(Says::Unsettled);
    let mut search = client.client.search();
    let address = curators.addresses[0];
    let refused = search.wait_for(|search| {
        search.failures().get(&address).is_some_and(|failure| failure.text.contains("it leads others"))
    });
    tokio::time::timeout(PATIENCE, refused).await.expect("the unfit leader is named with the reason").unwrap();
    // It is asked again, and then it fits.
    only.send_replace(curators.nodes[0].id);
    client.finds(&curators.nodes[0]).await;
    drop(client);
    curators.finish().await;
}
