//! A cluster of several nodes.

use std::sync::Arc;
use std::time::Duration;

use polis_consensus::{Member, Pace, PeerPki, Start, Status, Timing};
use polis_identity::{CertificateAuthority, NodeId};

use crate::node::{FixedMembers, Node, PATIENCE, introduce};

/// A cluster, its first node being the founder.
pub(crate) struct Cluster {
    pub(crate) authority: CertificateAuthority,
    pub(crate) nodes: Vec<Node>,
}

impl Cluster {
    /// One founder.
    pub(crate) async fn found() -> Self {
        Self::found_on(Node::new()).await
    }

    /// This one as the founder.
    pub(crate) async fn found_on(mut founder: Node) -> Self {
        founder.found();
        founder.ready().await;
        let pki = PeerPki::load(&founder.layout.data.etcd.credentials, &founder.key).unwrap().unwrap();
        let authority = pki.authority().unwrap();
        Self { authority, nodes: vec![founder] }
    }

    /// A founder and two that joined.
    pub(crate) async fn of_three() -> Self {
        let mut cluster = Self::found().await;
        cluster.grow().await;
        cluster.grow().await;
        cluster
    }

    pub(crate) fn pki(&self, node: &Node) -> PeerPki {
        PeerPki::issued(
            self.authority.certificate().clone(),
            self.authority.certificate_revocation_list(1, &[]),
            self.authority.issue_peer(&node.public_key()),
            &node.key,
        )
    }

    /// One more member: learner, in sync, with a vote.
    pub(crate) async fn grow(&mut self) {
        self.grow_by(Node::new()).await;
    }

    /// This one as one more member.
    pub(crate) async fn grow_by(&mut self, node: Node) {
        let joiner = self.join(node).await;
        joiner.ready().await;
        self.nodes.push(joiner);
    }

    /// A node with an empty data directory becomes a member. The founder of a cluster of one gets its other timing first: it
    /// elects itself much sooner while nobody else is a member.
    pub(crate) async fn join(&self, mut joiner: Node) -> Node {
        joiner.timing = Timing::Network(Pace::Near);
        let founder = &self.nodes[0];
        if self.nodes.len() == 1 && !founder.consensus().status().borrow().timing.is_network() {
            let before = founder.consensus().status().borrow().process_id;
            founder.consensus().set_timing(Timing::Network(Pace::Near));
            founder.wait_for("restarted", |status| status.is_ready() && status.process_id != before).await;
        }
        let membership = founder.consensus().membership();
        let members = membership.add_learner("test/add", &joiner.public_key()).await.unwrap();
        let own = members.iter().find(|member| member.address == Some(joiner.identity_address())).unwrap();
        assert!(own.is_learner && !own.is_started && own.node_id.is_none(), "{own:?}");
        let own = own.clone();
        let pki = self.pki(&joiner);
        pki.store(&joiner.layout.data.etcd.credentials, "test/store").unwrap();
        joiner.start_among(pki, Start::Join(Arc::new(FixedMembers(members))), &self.nodes.iter().collect::<Vec<_>>());
        self.wait_until_caught_up(&own, &joiner).await;
        let promoted = membership.promote("test/promote", &joiner.public_key(), PATIENCE).await;
        promoted.unwrap_or_else(|error| panic!("{error:?}\n{}\n{}", founder.describe(), joiner.describe()));
        joiner
    }

    /// Waits until whoever leads says that the learner has come far enough.
    async fn wait_until_caught_up(&self, learner: &Member, joiner: &Node) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            for node in &self.nodes {
                if node.consensus().catch_up(learner.id).await.is_some_and(|progress| progress.is_ready) {
                    return;
                }
            }
            assert!(tokio::time::Instant::now() < deadline, "it does not catch up\n{}", joiner.describe());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn introduce(&self) {
        introduce(&self.nodes.iter().collect::<Vec<_>>());
    }

    /// Writes through each node and reads it through all others.
    pub(crate) async fn check(&self, what: &str) {
        for writer in &self.nodes {
            let key = format!("{what}/{}", NodeId::of(&writer.public_key()));
            writer.consensus().kv_root().put("test/put", &key, what).await.unwrap_or_else(|error| {
                panic!("{what}: {error:?}\n{}", writer.describe());
            });
            for reader in &self.nodes {
                let found = reader.consensus().kv_root().get(&key).await.unwrap().unwrap();
                assert_eq!(found.value, what.as_bytes());
            }
        }
    }

    /// Waits until every member is ready and knows of every other that it is a member with a vote.
    pub(crate) async fn all_ready(&self) -> Vec<Status> {
        let mut all = Vec::new();
        for node in &self.nodes {
            let is_settled = |status: &Status| {
                let voters = status.members.iter().filter(|member| member.is_started && !member.is_learner);
                status.is_ready() && voters.count() == self.nodes.len()
            };
            all.push(node.wait_for("settled", is_settled).await);
        }
        all
    }

    pub(crate) async fn stop(mut self) {
        futures::future::join_all(self.nodes.iter_mut().map(Node::stop)).await;
    }
}
