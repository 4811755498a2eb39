//! What a thousand nodes cost the leader, and how fast it tells them something.

use std::time::{Duration, Instant};

use polis_proto::api::management_client::ManagementClient;
use polis_proto::api::update_node_roles_request::Node as Target;
use polis_proto::api::{GetNodesRequest, UpdateNodeRolesRequest};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::{sleep, timeout};

use crate::BenchError;
use crate::arguments::{Arguments, Subject};
use crate::child::PATIENCE;
use crate::contestant::Contestant as _;
use crate::machine::{Clock, Load};
use crate::place::Place;
use crate::polis_cluster::PolisCluster;
use crate::process::{memory, processor_time};
use crate::report::{Figure, Report, Target as Bar, Unit};
use crate::simulated::{Connected, HEARTBEAT_INTERVAL, Simulated, enrol};

/// Simulated nodes.
const NODES: usize = 1_000;

/// Files that this process opens beside the connections.
const OTHER_FILES: u64 = 256;

/// Pause before the leader's memory is measured without and with the nodes, in which what was begun before comes to its end; with
/// the nodes, all of them have shown twice that they are alive.
const SETTLE: Duration = HEARTBEAT_INTERVAL.saturating_mul(2);

/// How long the leader's processor time is added up for one value: all nodes show twice that they are alive.
const WINDOW: Duration = HEARTBEAT_INTERVAL.saturating_mul(2);

/// Calls of GetNodes for one value: the kernel tells the time of a process in steps of 10 ms only.
const CALLS: u32 = 20;

/// Role changes for each run: they are short.
const CHANGES_PER_RUN: u32 = 5;

/// Between two nodes whose role is changed, so that they are spread over all: has no divisor in common with their number.
const STRIDE: usize = 377;

/// Measures whichever of these is wanted.
pub(crate) async fn measure(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    allow_files(NODES as u64 + OTHER_FILES)?;
    let cluster = PolisCluster::with_three_members(place).await?;
    let leader = cluster.whole().await?;
    sleep(SETTLE).await;
    let idle = memory(cluster.process(leader)?, "VmRSS:")?;
    let begin = Instant::now();
    let nodes = enrol(&cluster, leader, NODES).await?;
    let process = cluster.process(leader)?;
    let after = memory(process, "VmRSS:")?;
    arguments.progress(&format!(
        "{NODES} nodes enrolled in {:.1?}; leader VmRSS {idle:.1} MiB before, {after:.1} MiB after",
        begin.elapsed()
    ));
    let mut crowd = Crowd { arguments, place, report, cluster, leader, process };
    if arguments.wants(Subject::ManyNodes) || arguments.wants(Subject::RoleChange) {
        let mut connected = Connected::new(&crowd.cluster, leader, &nodes).await?;
        sleep(SETTLE).await;
        if arguments.wants(Subject::ManyNodes) {
            crowd.load(&mut connected, idle).await?;
        }
        if arguments.wants(Subject::RoleChange) {
            crowd.role_changes(&mut connected, &nodes).await?;
        }
        connected.check()?;
    }
    if arguments.wants(Subject::GetNodes) {
        // The connections have just been closed.
        sleep(SETTLE).await;
        crowd.get_nodes().await?;
    }
    crowd.cluster.kill().await
}

/// A cluster with many nodes.
struct Crowd<'a, 'p> {
    arguments: &'a Arguments,
    place: &'p Place,
    report: &'a mut Report,
    cluster: PolisCluster<'p>,
    leader: usize,
    /// Process id of the leader.
    process: u32,
}

impl Crowd<'_, '_> {
    /// What connected nodes cost, of which nothing is wanted.
    async fn load(&mut self, connected: &mut Connected, idle: f64) -> Result<(), BenchError> {
        let (mut shares, mut kibibytes) = (Vec::new(), Vec::new());
        let mut load = Load::default();
        for run in 1..=self.arguments.runs {
            let clock = Clock::now(&self.place.directory)?;
            let (begin, before) = (Instant::now(), processor_time(self.process)?);
            sleep(WINDOW).await;
            let used = processor_time(self.process)?.saturating_sub(before);
            let share = used.as_secs_f64() / begin.elapsed().as_secs_f64();
            shares.push(share);
            load += clock.load()?;
            let resident = memory(self.process, "VmRSS:")?;
            kibibytes.push((resident - idle) * 1024.0 / NODES as f64);
            connected.check()?;
            self.arguments.progress(&format!("run {run}: {NODES} nodes: {share:.3} core, {resident:.1} MiB"));
        }
        self.add("1,000 nodes: the leader's polis process", Unit::Cores, shares, 0.25, load);
        self.add("1,000 nodes: more memory than the idle leader, for each", Unit::Kibibytes, kibibytes, 64.0, load);
        Ok(())
    }

    /// From before a role is changed until its node has heard of it.
    async fn role_changes(&mut self, connected: &mut Connected, nodes: &[Simulated]) -> Result<(), BenchError> {
        // All have heard of themselves when they began to watch.
        while connected.events.try_recv().is_ok() {}
        let mut times = Vec::new();
        let clock = Clock::now(&self.place.directory)?;
        for change in 0..self.arguments.runs * CHANGES_PER_RUN {
            let number = change as usize * STRIDE % nodes.len();
            let is_worker = (change as usize / nodes.len()).is_multiple_of(2);
            let request = UpdateNodeRolesRequest {
                node: Some(Target::Id(nodes[number].id.to_string())),
                kubernetes_worker: Some(is_worker),
                consensus_member: None,
                kubernetes_controller: None,
            };
            let mut management = ManagementClient::new(self.cluster.channel(self.leader));
            let begin = Instant::now();
            let heard = async {
                while let Some(event) = connected.events.recv().await {
                    if event.node == number && event.is_worker == is_worker {
                        return Ok(event.at);
                    }
                }
                Err("no node is connected")
            };
            let (answered, heard) = tokio::join!(management.update_node_roles(request), timeout(PATIENCE, heard));
            answered?;
            times.push((heard?? - begin).as_secs_f64() * 1e3);
        }
        let load = clock.load()?;
        self.arguments.progress(&format!("role changes: {times:.1?} ms"));
        self.add("a role change reaches its node, among 1,000", Unit::Milliseconds, times, 100.0, load);
        Ok(())
    }

    /// What it costs to list all nodes.
    async fn get_nodes(&mut self) -> Result<(), BenchError> {
        let mut times = Vec::new();
        let mut load = Load::default();
        let mut management = ManagementClient::new(self.cluster.channel(self.leader));
        for run in 1..=self.arguments.runs {
            let clock = Clock::now(&self.place.directory)?;
            let before = processor_time(self.process)?;
            for _ in 0..CALLS {
                let mut answers = management.get_nodes(GetNodesRequest::default()).await?.into_inner();
                let mut count = 0;
                while answers.message().await?.is_some() {
                    count += 1;
                }
                if count < NODES {
                    return Err(format!("GetNodes gave {count} nodes, which are too few").into());
                }
            }
            let used = processor_time(self.process)?.saturating_sub(before) / CALLS;
            load += clock.load()?;
            times.push(used.as_secs_f64() * 1e3);
            self.arguments.progress(&format!("run {run}: GetNodes: {used:.1?} of processor time"));
        }
        self.add("GetNodes with 1,000 nodes, processor time", Unit::Milliseconds, times, 20.0, load);
        Ok(())
    }

    fn add(&mut self, name: &str, unit: Unit, values: Vec<f64>, limit: f64, load: Load) {
        let target = Some(Bar::AtMost(limit));
        self.report.add(Figure { name: name.into(), unit, values, target, beside: Vec::new(), others: load.share() });
    }
}

/// Lets this process have that many files open.
fn allow_files(count: u64) -> Result<(), BenchError> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < count) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: limit.maximum })
            .map_err(|error| format!("a thousand connections need {count} open files: {error}"))?;
    }
    Ok(())
}
