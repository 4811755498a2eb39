//! Several nodes that follow one leadership, over a real etcd. What raft says of each is set by the test.

use std::net::IpAddr;
use std::time::Duration;

use polis_consensus::{Phase, Status, Transaction};
use polis_identity::{NodeId, NodeKey};
use polis_proto::common::NodeStatus;
use polis_supervisor::testing::Harness;
use polis_supervisor::{Context, Runnable as _};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{Follow, Leadership, LeadershipTiming, alive};
use crate::common::{Etcd, record};
use crate::{Heartbeats, LeaderState, NodeRecord, Nodes, StateError, layout};

/// Short enough for a test, and so that a busy machine does not take a leader for a silent one.
const TIMING: LeadershipTiming =
    LeadershipTiming { alive_interval: Duration::from_millis(50), silence: Duration::from_millis(1500) };

/// Silence that no test waits for.
const PATIENT: LeadershipTiming =
    LeadershipTiming { alive_interval: Duration::from_millis(50), silence: Duration::from_secs(3600) };

/// A node that follows the leadership.
struct Node {
    id: NodeId,
    timing: LeadershipTiming,
    status: watch::Sender<Status>,
    heartbeats: Heartbeats,
    published: watch::Sender<Leadership>,
    harness: Option<Harness>,
}

impl Node {
    /// A node whose member is well and does not lead raft.
    fn new(etcd: &Etcd, id: NodeId, timing: LeadershipTiming) -> Self {
        let mut node = Self {
            id,
            timing,
            status: watch::Sender::new(Status { raft_term: 2, leader: Some(0), ..etcd.status().borrow().clone() }),
            heartbeats: Heartbeats::default(),
            published: watch::Sender::new(Leadership::Unsettled),
            harness: None,
        };
        node.start(etcd);
        node
    }

    fn start(&mut self, etcd: &Etcd) {
        let state = etcd.state();
        let nodes = Nodes::new(state.clone(), self.status.subscribe());
        let follow = Follow {
            state,
            own: self.id,
            status: self.status.subscribe(),
            nodes: nodes.clone(),
            heartbeats: self.heartbeats.clone(),
            timing: self.timing,
            published: self.published.clone(),
        };
        self.harness = Some(Harness::start(move |context: Context| {
            let (follow, nodes) = (follow.clone(), nodes.clone());
            async move {
                context.run("nodes", move |context: Context| nodes.run(context))?;
                context.run("follow", move |context: Context| follow.run(context))?;
                context.healthy();
                Err(context.cancelled().await.into())
            }
        }));
    }

    async fn stop(&mut self) {
        self.harness.take().unwrap().finish().await;
    }

    /// What raft says to this node.
    fn raft(&self, leads: bool, raft_term: u64) {
        self.status.send_modify(|status| {
            status.leader = if leads { status.member_id } else { Some(0) };
            status.raft_term = raft_term;
        });
    }

    async fn wait(&self, etcd: &Etcd, what: &str, wanted: impl Fn(&Leadership) -> bool) -> Leadership {
        let mut leadership = self.published.subscribe();
        etcd.within(what, leadership.wait_for(|leadership| wanted(leadership))).await.unwrap().clone()
    }

    async fn leads(&self, etcd: &Etcd) -> LeaderState {
        let what = format!("{} leads", self.id);
        self.wait(etcd, &what, |leadership| leadership.leader().is_some()).await.leader().unwrap().clone()
    }

    async fn follows(&self, etcd: &Etcd, other: &Self) {
        let what = format!("{} follows {}", self.id, other.id);
        let is_it = |known: &Leadership| matches!(known, Leadership::Follower { leader, .. } if *leader == other.id);
        self.wait(etcd, &what, is_it).await;
    }
}

/// The founder of the cluster and two more, none of which leads.
async fn three(timing: LeadershipTiming) -> (Etcd, [Node; 3]) {
    let (etcd, _) = Etcd::start_cluster().await;
    let ids = [etcd.node_id(), NodeId::of(&NodeKey::generate().public()), NodeId::of(&NodeKey::generate().public())];
    let nodes = ids.map(|id| Node::new(&etcd, id, timing));
    (etcd, nodes)
}

async fn stop(etcd: Etcd, nodes: [Node; 3]) {
    for mut node in nodes {
        if node.harness.is_some() {
            node.stop().await;
        }
    }
    etcd.stop().await;
}

async fn write(leader: &LeaderState) -> Result<(), StateError> {
    leader.transact("test/write", Transaction::new().put("key", "value")).await.map(|_| ())
}

async fn claimed(etcd: &Etcd) -> i64 {
    etcd.root().get(layout::leader()).await.unwrap().map_or(0, |pair| pair.mod_revision)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leadership_follows_raft() {
    let (etcd, nodes) = three(PATIENT).await;
    let [one, two, three] = &nodes;
    one.raft(true, 2);
    let first = one.leads(&etcd).await;
    assert_eq!((first.node_id(), first.raft_term()), (&one.id, 2));
    two.follows(&etcd, one).await;
    three.follows(&etcd, one).await;
    write(&first).await.unwrap();

    // One that raft has elected since.
    one.raft(false, 3);
    three.raft(true, 3);
    let second = three.leads(&etcd).await;
    one.follows(&etcd, three).await;
    two.follows(&etcd, three).await;
    assert!(first.is_lost(), "the first has stepped down");
    assert!(matches!(write(&first).await, Err(StateError::LostLeadership)));
    write(&second).await.unwrap();
    stop(etcd, nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_all_that_claim_at_once_one_leads() {
    let (etcd, nodes) = three(PATIENT).await;
    for term in 2..6 {
        nodes.iter().for_each(|node| node.raft(true, term));
        let leader = etcd.within("the claims are made", async {
            loop {
                let claim = etcd.root().get(layout::leader()).await.unwrap();
                let claim =
                    claim.map(|pair| <polis_proto::curator_state::Leader as prost::Message>::decode(&pair.value[..]));
                match claim {
                    Some(Ok(claim)) if claim.raft_term == term => break claim.node_id,
                    Some(_) | None => tokio::task::yield_now().await,
                }
            }
        });
        let leader = leader.await;
        let leader = nodes.iter().find(|node| node.id.to_string() == leader).unwrap();
        let state = leader.leads(&etcd).await;
        for other in nodes.iter().filter(|node| node.id != leader.id) {
            other.follows(&etcd, leader).await;
        }
        write(&state).await.unwrap();
        assert_eq!(claimed(&etcd).await, state.fence().revision, "nobody claims again in the same term");
    }
    stop(etcd, nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_leader_is_replaced_and_stays_so_until_raft_elects_it_anew() {
    let (etcd, mut nodes) = three(TIMING).await;
    nodes[0].raft(true, 2);
    let silent = nodes[0].leads(&etcd).await;
    // While it gives signs of life, nothing happens for longer than the silence that is waited for.
    tokio::select! {
        error = alive(&silent, TIMING) => panic!("it can give signs of life: {error}"),
        () = sleep(TIMING.silence * 2) => {}
    }
    assert_eq!(claimed(&etcd).await, silent.fence().revision);

    // Its curator hangs: it neither gives signs of life nor sees what others do.
    nodes[0].stop().await;
    let began = Instant::now();
    let leads = async {
        loop {
            match nodes[1..].iter().find_map(|node| node.published.borrow().leader().cloned()) {
                Some(state) => break state,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let second = etcd.within("another leads", leads).await;
    assert!(began.elapsed() < TIMING.silence + Duration::from_secs(5), "{:?}", began.elapsed());
    let (leader, other) = if *second.node_id() == nodes[1].id { (1, 2) } else { (2, 1) };
    nodes[other].follows(&etcd, &nodes[leader]).await;
    write(&second).await.unwrap();
    assert!(matches!(write(&silent).await, Err(StateError::LostLeadership)));

    // It comes back, and still leads raft in the term of the claim.
    let living = async { alive(&second, TIMING).await };
    let test = async {
        nodes[0].start(&etcd);
        nodes[0].follows(&etcd, &nodes[leader]).await;
        nodes[0].raft(true, 3);
        nodes[0].leads(&etcd).await
    };
    let third = tokio::select! {
        biased;
        third = test => third,
        error = living => panic!("it leads until it is replaced: {error}"),
    };
    write(&third).await.unwrap();
    stop(etcd, nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_started_anew_claims_again_at_once() {
    let (etcd, mut nodes) = three(PATIENT).await;
    nodes[0].raft(true, 2);
    let first = nodes[0].leads(&etcd).await;
    let now = Instant::now();
    assert!(nodes[0].heartbeats.age(&nodes[0].id, now).is_some(), "who leads has heard of itself");
    nodes[0].heartbeats.stamp(nodes[1].id, now);
    assert!(nodes[0].heartbeats.age(&nodes[1].id, now).is_some());
    nodes[0].stop().await;
    assert_eq!(*nodes[0].published.borrow(), Leadership::Unsettled);
    assert!(first.is_lost(), "what is left of an earlier life is over");
    assert_eq!(nodes[0].heartbeats.age(&nodes[1].id, now), None);
    nodes[0].start(&etcd);
    let again = nodes[0].leads(&etcd).await;
    write(&again).await.unwrap();
    assert!(matches!(write(&first).await, Err(StateError::LostLeadership)));
    stop(etcd, nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_contact_does_not_say_who_leads_and_a_leader_returns_with_it() {
    let (etcd, nodes) = three(PATIENT).await;
    let [one, two, three] = &nodes;
    one.raft(true, 2);
    let first = one.leads(&etcd).await;
    two.follows(&etcd, one).await;
    let contact = |node: &Node, phase| node.status.send_modify(|status| status.phase = phase);
    contact(one, Phase::Leaderless);
    contact(two, Phase::Leaderless);
    two.wait(&etcd, "what a follower knows may be old", |known| *known == Leadership::Unsettled).await;
    one.wait(&etcd, "a leader retreats", |known| *known == Leadership::Unsettled).await;
    assert!(!first.is_lost(), "nobody has claimed");
    contact(one, Phase::Ready);
    let same = one.leads(&etcd).await;
    assert_eq!(same.fence(), first.fence());
    write(&first).await.unwrap();

    // Two cannot claim: it has no contact.
    contact(one, Phase::Leaderless);
    two.raft(true, 3);
    three.raft(true, 4);
    three.leads(&etcd).await;
    // The watch tells the one that was deposed, whatever its member says of itself.
    etcd.within("it is told", first.lost()).await;
    one.wait(&etcd, "it steps down", |known| known.leader().is_none()).await;
    contact(one, Phase::Ready);
    one.follows(&etcd, three).await;
    stop(etcd, nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_knows_where_its_leader_is() {
    let (etcd, nodes) = three(PATIENT).await;
    nodes[0].raft(true, 2);
    let leader = nodes[0].leads(&etcd).await;
    let told = async |address: IpAddr| {
        let expected = Leadership::Follower { leader: nodes[0].id, address: Some(address) };
        nodes[1].wait(&etcd, "the address is known", |known| *known == expected).await;
    };
    // Where the cluster was born, and then where it moves to.
    told(etcd.address.borrow().unwrap()).await;
    for address in ["127.9.9.1", "127.9.9.2"] {
        let moved = |record: Option<&NodeRecord>| {
            let status = NodeStatus { external_address: address.into(), ..NodeStatus::default() };
            Ok::<_, StateError>(record.map(|record| NodeRecord { status: Some(status), ..record.clone() }))
        };
        leader.update_node("test/move", &nodes[0].id, moved).await.unwrap();
        told(address.parse().unwrap()).await;
    }
    stop(etcd, nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_an_earlier_version_gets_its_member_list() {
    let (etcd, cluster) = Etcd::start_cluster().await;
    let root = etcd.root();
    root.delete("test/older", layout::epoch()).await.unwrap();
    root.delete("test/older", layout::enrolment(&etcd.node_id())).await.unwrap();
    // A node that is no member has no part in it.
    let worker = record(&NodeKey::generate());
    root.put("test/worker", layout::node(&worker.id), worker.encode()).await.unwrap();
    let mut node = Node::new(&etcd, etcd.node_id(), PATIENT);
    node.raft(true, 2);
    let leader = node.leads(&etcd).await;
    let list = leader.get_message(&layout::epoch()).await.unwrap().expect("it is there before anybody leads");
    let list = polis_unlock::SignedMemberList::verify(list.value, &cluster.authority).unwrap();
    assert_eq!(list.list().epoch(), polis_unlock::Epoch::FIRST);
    let members: Vec<NodeId> = list.list().members().iter().map(|member| member.node_id).collect();
    assert_eq!(members, [etcd.node_id()]);
    // The next leader finds it.
    node.stop().await;
    node.start(&etcd);
    let again = node.leads(&etcd).await;
    let same =
        again.get_message::<polis_proto::curator_state::SignedMemberList>(&layout::epoch()).await.unwrap().unwrap();
    assert_eq!(same.value, *list.wire());
    node.stop().await;
    etcd.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_cannot_be_read_is_replaced() {
    let (etcd, nodes) = three(PATIENT).await;
    etcd.root().put("test/damage", layout::leader(), "\u{ff}").await.unwrap();
    nodes[0].raft(true, 2);
    let leader = nodes[0].leads(&etcd).await;
    write(&leader).await.unwrap();
    etcd.root().put("test/damage", layout::leader(), "\u{ff}").await.unwrap();
    etcd.within("the fence is gone", leader.lost()).await;
    etcd.within("it leads again", async {
        while write(&nodes[0].leads(&etcd).await).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    stop(etcd, nodes).await;
}
