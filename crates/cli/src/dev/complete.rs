//! Making a cluster complete, from whatever is there: what `up` and `add` do.
//!
//! Each stage looks at what is there and does what is missing, so it does not matter where an earlier attempt ended:
//!
//! 0. Nodes that the cluster has let go are forgotten: those that know it, and those that were down then, if there is a leader
//!    to be asked.
//! 1. The nodes that were started before are started, all at once: without most of them there is no quorum. Of a new cluster
//!    that is node 1, which creates it. One that learns only now that it was let go is forgotten, too.
//! 2. The cluster is owned.
//! 3. The other nodes get parameters and are started, all at once; each is approved when it asks.
//! 4. Nodes that are no consensus members become members.
//! 5. The leader has heard of all nodes.

use std::path::Path;
use std::time::Duration;

use futures::future::try_join_all;
use polis_parameters::Labels;
use tokio::time::{Instant, sleep};

use super::access;
use super::directory::Directory;
use super::follow::{self, Subject};
use super::record::Record;
use super::start::{Node, address_of};
use crate::arguments::Role;
use crate::atomic_file::Existing;
use crate::cluster::{get_status, take_ownership};
use crate::failure::Failure;
use crate::fleet::{self, NodeDocument};
use crate::node_status::{ask, runtime};
use crate::operator::Operator;
use crate::parameters::{REGISTER_MODE, register_file, write_output};
use crate::view::Progress;

/// Pause between two looks at the cluster. Approving, learning and the first heartbeat take some tens of milliseconds each.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest time for asking which nodes the cluster has. When nobody leads, a node that was let go is told so when it starts.
const LEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time that a node that has failed takes to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time that a node has to answer on its control socket.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Does what is missing. Each stage may take `timeout`.
///
/// # Errors
///
/// When a stage fails or takes too long; running the command again goes on from there.
pub(super) fn run(
    directory: &Directory,
    record: &mut Record,
    etcd: Option<&Path>,
    timeout: Duration,
    progress: &Progress,
) -> Result<(), Failure> {
    let stages = Stages { directory, etcd, timeout, progress };
    let nodes = stages.nodes(record)?;
    stages.forget_let_go(record, &nodes)?;
    let (begun, mut new): (Vec<Node<'_>>, Vec<Node<'_>>) = nodes.into_iter().partition(Node::has_begun);
    for node in stages.bring_up(record, &begun)? {
        node.forget(progress)?;
        new.push(node);
    }
    stages.own(record)?;
    if !new.is_empty() {
        stages.prepare(record, &new)?;
        if let Some(node) = stages.bring_up(record, &new)?.first() {
            return Err(Failure::failed(format!(
                "node {} was let go by the cluster before it was a part of it",
                node.number
            ))
            .hint(format!("a new one takes its place with: polis dev up{}", directory.option())));
        }
    }
    runtime()?.block_on(Operator::run_here(&stages.connection(record)?, "dev up", async |operator| {
        stages.make_members(operator, record).await?;
        stages.hear_of_all(operator, record).await
    }))
}

/// The nodes that no run has made nodes of the cluster yet.
pub(super) fn unfinished(directory: &Directory, record: &Record) -> Result<Vec<u32>, Failure> {
    let mut unfinished = Vec::new();
    for number in record.numbers() {
        let node = Node { directory, number, address: address_of(record, number)? };
        if !node.has_begun() || node.enrolled_as().is_none() && !node.is_removed() {
            unfinished.push(number);
        }
    }
    Ok(unfinished)
}

struct Stages<'a> {
    directory: &'a Directory,
    etcd: Option<&'a Path>,
    timeout: Duration,
    progress: &'a Progress,
}

impl<'a> Stages<'a> {
    fn nodes(&self, record: &Record) -> Result<Vec<Node<'a>>, Failure> {
        let node = |number| Ok(Node { directory: self.directory, number, address: address_of(record, number)? });
        record.numbers().map(node).collect()
    }

    fn connection(&self, record: &Record) -> Result<crate::arguments::ConnectionArguments, Failure> {
        access::connection(self.directory, record, self.timeout)
    }

    /// Forgets nodes that do not run and that the cluster has let go.
    fn forget_let_go(&self, record: &Record, nodes: &[Node<'_>]) -> Result<(), Failure> {
        // Until the cluster is owned there is none that could let go.
        if !self.directory.is_owned() {
            return Ok(());
        }
        let (running, away): (Vec<&Node<'_>>, Vec<&Node<'_>>) = nodes.iter().partition(|node| node.is_running(record));
        let (removed, away): (Vec<&Node<'_>>, Vec<&Node<'_>>) = away.into_iter().partition(|node| node.is_removed());
        removed.into_iter().try_for_each(|node| node.forget(self.progress))?;
        let away: Vec<(&Node<'_>, String)> =
            away.into_iter().filter_map(|node| Some((node, node.enrolled_as()?))).collect();
        if away.is_empty() || running.is_empty() {
            return Ok(());
        }
        let connection = access::connection(self.directory, record, self.timeout.min(LEADER_TIMEOUT))?;
        let known = Operator::run(&connection, "dev up", async |operator| Ok(fleet::get_nodes(operator, "").await?));
        let Ok(known) = known else { return Ok(()) };
        let mut deleted = away.into_iter().filter(|(_, id)| known.iter().all(|node| node.node_id != *id));
        deleted.try_for_each(|(node, _)| node.forget(self.progress))
    }

    /// Starts these nodes and waits until all are Running; those that ask for admission get it. Returns those that were told that
    /// the cluster has let them go, and have ended.
    fn bring_up<'n>(&self, record: &mut Record, nodes: &[Node<'n>]) -> Result<Vec<Node<'n>>, Failure> {
        let mut subjects: Vec<(Node<'n>, Subject<'_>)> = Vec::new();
        for node in nodes {
            subjects.push((*node, node.launch(record, self.etcd, self.progress)?));
        }
        let alone = subjects.len() == 1;
        let running = try_join_all(subjects.into_iter().map(|(node, subject)| self.follow(node, subject, alone)));
        let let_go = runtime()?.block_on(async {
            if !self.directory.is_owned() {
                return running.await;
            }
            tokio::select! {
                result = running => result,
                // It ends only when it could not begin; what the nodes say about that is of more use.
                error = self.approve_all(record) => Err(error),
            }
        })?;
        Ok(let_go.into_iter().flatten().collect())
    }

    /// Waits until the node is Running; returns it when the cluster has let it go instead and it has ended.
    async fn follow<'n>(&self, node: Node<'n>, subject: Subject<'_>, alone: bool) -> Result<Option<Node<'n>>, Failure> {
        let process = subject.identity.clone();
        let Err(error) = follow::until_running(subject, self.timeout, alone, self.progress).await else {
            return Ok(None);
        };
        let deadline = Instant::now() + END_TIMEOUT;
        while error.has_failed && process.is_running() && Instant::now() < deadline {
            sleep(PAUSE).await;
        }
        // What it has written down last is there once it has ended.
        let was_let_go = error.has_failed && !process.is_running() && node.is_removed() && self.directory.is_owned();
        if was_let_go { Ok(Some(node)) } else { Err(error.into()) }
    }

    fn own(&self, record: &Record) -> Result<(), Failure> {
        if self.directory.is_owned() {
            return Ok(());
        }
        let cluster = take_ownership(&self.connection(record)?)?;
        self.progress.line(&format!("cluster          {cluster} is yours"));
        Ok(())
    }

    /// Gives nodes that were never started the parameters to ask for admission.
    fn prepare(&self, record: &Record, nodes: &[Node<'_>]) -> Result<(), Failure> {
        let connection = self.connection(record)?;
        let bytes =
            Operator::run(&connection, "dev up", async |operator| register_file(operator, &Labels::default()).await)?;
        for node in nodes {
            node.make_directory()?;
            let path = self.directory.node_parameters(node.number);
            write_output(&path, &bytes, REGISTER_MODE, Existing::Replace).map_err(|error| {
                Failure::of(&error).hint(format!("cure it and run again: polis dev up{}", self.directory.option()))
            })?;
        }
        Ok(())
    }

    /// Approves nodes of this directory when they ask, and only these; for as long as it is awaited.
    async fn approve_all(&self, record: &Record) -> Failure {
        let connection = match self.connection(record) {
            Ok(connection) => connection,
            Err(failure) => return failure,
        };
        let watched: Result<std::convert::Infallible, Failure> =
            Operator::run_here(&connection, "dev up", async |operator| {
                loop {
                    // Without a leader nobody can be approved, and one will come.
                    if let Ok(nodes) = fleet::get_nodes(operator, "").await {
                        for node in nodes.iter().filter(|node| node.state == "NEW") {
                            if let Some(number) = self.number_of(record, node).await {
                                fleet::approve(operator, node).await?;
                                self.progress.line(&format!("node {number}           approved"));
                            }
                        }
                    }
                    sleep(PAUSE).await;
                }
            })
            .await;
        match watched {
            Ok(never) => match never {},
            Err(failure) => failure,
        }
    }

    /// Which node of this directory it is, by what the nodes say themselves.
    async fn number_of(&self, record: &Record, node: &NodeDocument) -> Option<u32> {
        for number in record.numbers() {
            let id = self.node_id(number).await;
            if id.as_deref() == Some(&*node.node_id) {
                return Some(number);
            }
        }
        None
    }

    async fn node_id(&self, number: u32) -> Option<String> {
        ask(&self.directory.node_root(number), ANSWER_TIMEOUT).await.ok()?.node_id
    }

    /// The nodes of this directory among those of the cluster, in their order.
    async fn own_nodes(&self, operator: &Operator, record: &Record) -> Result<Vec<(u32, NodeDocument)>, Failure> {
        let nodes = fleet::get_nodes(operator, "").await?;
        let mut own = Vec::new();
        for number in record.numbers() {
            let id = self.node_id(number).await;
            if let Some(node) = nodes.iter().find(|node| id.as_deref() == Some(&*node.node_id)) {
                own.push((number, node.clone()));
            }
        }
        Ok(own)
    }

    async fn make_members(&self, operator: &Operator, record: &Record) -> Result<(), Failure> {
        let nodes = self.own_nodes(operator, record).await?;
        let mut missing: Vec<(u32, String)> = Vec::new();
        let status = get_status(operator).await?;
        let votes = |status: &crate::cluster::StatusDocument, id: &str| {
            status.voters().any(|member| member.node_id.as_deref() == Some(id))
        };
        for (number, node) in &nodes {
            if !votes(&status, &node.node_id) {
                fleet::set_role(operator, node, Role::ConsensusMember, true).await?;
                missing.push((*number, node.node_id.clone()));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        self.until("the nodes are not all consensus members", async || {
            let status = get_status(operator).await?;
            for (number, _) in missing.extract_if(.., |(_, id)| votes(&status, id)) {
                self.progress.line(&format!("node {number}           is a consensus member"));
            }
            let waiting = status.change.as_ref().map(crate::cluster::ChangeDocument::text);
            Ok((missing.is_empty(), waiting.unwrap_or_else(|| "no change is under way".into())))
        })
        .await
    }

    async fn hear_of_all(&self, operator: &Operator, record: &Record) -> Result<(), Failure> {
        self.until("the leader does not hear of all nodes", async || {
            let nodes = self.own_nodes(operator, record).await?;
            let all = record.numbers().count();
            let well = nodes.iter().filter(|(_, node)| node.is_up() && node.is_healthy()).count();
            Ok((well == all, format!("{well} of {all} are up and healthy")))
        })
        .await
    }

    /// Looks again and again until it is so.
    async fn until(
        &self,
        what: &str,
        mut look: impl AsyncFnMut() -> Result<(bool, String), Failure>,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let (done, waiting) = look().await?;
            if done {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let again = format!("it goes on by itself; look again: polis dev up{}", self.directory.option());
                return Err(Failure::failed(what).because_of(waiting).hint(again));
            }
            self.progress.waiting(&format!("cluster          {waiting} ..."));
            sleep(PAUSE).await;
        }
    }
}
