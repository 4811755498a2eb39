//! The members' answers of this moment.

use std::time::{Duration, Instant};

use polis_consensus::{SURVEY_DEADLINE, Survey};
use rustix::process::Signal;

use crate::cluster::Cluster;

/// Surveys until it is as wanted: how far a follower is known to be comes a heartbeat later.
async fn survey(cluster: &Cluster, by: usize, wanted: impl Fn(&Survey) -> bool) -> Survey {
    let deadline = Instant::now() + crate::node::PATIENCE;
    loop {
        let began = Instant::now();
        let survey = cluster.nodes[by].consensus().survey().await.unwrap();
        assert!(began.elapsed() < SURVEY_DEADLINE + Duration::from_millis(500), "{:?}", began.elapsed());
        if wanted(&survey) {
            return survey;
        }
        assert!(Instant::now() < deadline, "{survey:#?}");
    }
}

fn reachable(survey: &Survey) -> usize {
    survey.members.iter().filter(|member| member.is_reachable()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_member_is_asked_at_this_moment_and_one_that_does_not_answer_is_named() {
    let cluster = Cluster::of_three().await;
    cluster.all_ready().await;
    cluster.check("before").await;
    let mut leader = 0;
    for index in 0..3 {
        if cluster.nodes[index].ready().await.is_leader() {
            leader = index;
        }
    }
    let all = survey(&cluster, leader, |survey| {
        reachable(survey) == 3 && survey.members.iter().all(|member| member.lag == Some(0))
    })
    .await;
    assert!(all.leader.is_some() && all.raft_term > 0 && all.alarms.is_empty(), "{all:?}");
    assert_eq!(all.members.iter().filter(|member| member.database_bytes.is_some_and(|bytes| bytes > 0)).count(), 1);
    let version = cluster.nodes[leader].ready().await.version;
    assert!(all.members.iter().all(|member| member.version == version && member.failure.is_none()), "{all:?}");

    // Another member sees the same, except how far they are.
    let follower = (leader + 1) % 3;
    let seen = survey(&cluster, follower, |survey| reachable(survey) == 3).await;
    assert_eq!(seen.leader, all.leader);

    // One hangs: its machine answers, and its etcd does not.
    let hanging = &cluster.nodes[(leader + 2) % 3];
    let id = hanging.ready().await.member_id.unwrap();
    hanging.signal_etcd(Signal::STOP);
    let without = survey(&cluster, leader, |survey| reachable(survey) == 2).await;
    let member = without.members.iter().find(|member| member.member.id == id).unwrap();
    let failure = member.failure.as_deref().unwrap();
    assert!(failure.contains("no answer from") && failure.contains("within 1000 ms"), "{failure}");
    hanging.signal_etcd(Signal::CONT);
    survey(&cluster, leader, |survey| reachable(survey) == 3).await;

    // One whose place is not known, as after a move that nobody was told of.
    let others = cluster.nodes.iter().filter(|node| node.ip() != hanging.ip()).map(crate::node::Node::mapping);
    cluster.nodes[leader].consensus().set_peers(others.collect());
    let without = survey(&cluster, leader, |survey| reachable(survey) == 2).await;
    let member = without.members.iter().find(|member| member.member.id == id).unwrap();
    assert!(member.failure.as_deref().unwrap().contains("nobody has told where it is"), "{member:?}");
    cluster.introduce();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_answers_in_the_place_of_a_member_is_not_taken_for_it() {
    let cluster = Cluster::of_three().await;
    let before = cluster.all_ready().await;
    // The second node's place is given as that of the third: it is a member, but another one.
    let (first, second, third) = (&cluster.nodes[0], &cluster.nodes[1], &cluster.nodes[2]);
    let wrong = [first.mapping(), (second.identity_address(), third.mapping().1), third.mapping()];
    first.consensus().set_peers(wrong.into_iter().collect());
    let survey = survey(&cluster, 0, |survey| reachable(survey) == 2).await;
    let member = survey.members.iter().find(|member| Some(member.member.id) == before[1].member_id).unwrap();
    assert!(!member.is_reachable(), "{member:?}");
    cluster.introduce();
    cluster.stop().await;
}
