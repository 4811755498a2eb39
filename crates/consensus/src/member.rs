//! The runnable around the etcd process: prepares what it needs, starts it, reads its log, stops it in order.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use polis_logtree::{Line, Logger, parse};
use polis_supervisor::{
    Context, ExitStatus, Importance, OutputSink, Process, ProcessSpec, RunnableResult, with_causes,
};
use tokio::time::{Instant, sleep, timeout};

use crate::BoxError;
use crate::arguments::{InitialCluster, MemberArguments, arguments, environment};
use crate::consensus::{Inner, Start};
use crate::fault::{
    ADDRESS_NOT_HERE, ALL_CONDITIONS, DATA_MISSING, ETCD_EXITING, ETCD_UNUSABLE, Fault, PORT_TAKEN, RUNS_ELSEWHERE,
};
use crate::health::Run;
use crate::log_line::classify;
use crate::nudge::nudge;
use crate::peer_url::PEER_PORT;
use crate::preparation::{MEMBER_DIRECTORY, prepare_files, probe};
use crate::room;
use crate::round_trip;
use crate::status::Phase;
use crate::timing::{Pace, Timing};
use crate::version::Version;

/// How long etcd gets to stop in order. A leader hands over in a few round trips; a transfer that cannot succeed, as when all
/// members stop at once, would take 7 s, and etcd loses nothing when it is killed: what it has acknowledged is on disk.
const STOP_DEADLINE: Duration = Duration::from_millis(400);

/// etcd matters more than what else runs on the machine, the node's own process included: without it the node is none, and
/// what it has promised it has promised to others. A little above the lowest, which is for what must never be killed.
const IMPORTANCE: Importance = Importance { out_of_memory_score: Some(-900), disk_level: Some(0) };

/// How long the first start waits for the answers of other members' machines. One that is farther, or down, is found out about
/// while it runs.
const MEASURING_DEADLINE: Duration = Duration::from_millis(100);

/// How long a start waits for an answer from where this member was before. Only a node that has moved waits for that long, and only
/// where nothing refuses it.
const ELSEWHERE_DEADLINE: Duration = Duration::from_millis(300);

/// First pause before a port or an address is tried again; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Longest pause: a person who has cured the fault does not want to wait much longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// First pause before a member that was removed runs again; it doubles up to [`LONGEST_REMOVED_PAUSE`]. Mostly its node is told at once
/// that it is no member any more, and stops it before.
const FIRST_REMOVED_PAUSE: Duration = Duration::from_secs(1);

/// Longest such pause. Who needs the vote has no leader until then; each run of one whose vote nobody needs takes a fraction of a second.
const LONGEST_REMOVED_PAUSE: Duration = Duration::from_secs(15);

/// etcd could not be started, or has ended.
#[derive(Debug, thiserror::Error)]
enum MemberError {
    #[error("the data of this member are not in {0}")]
    DataMissing(String),
    #[error("cannot get the current list of members, without which etcd cannot join")]
    FetchMembers(#[source] BoxError),
    #[error("etcd (process {process_id}) ended by itself: {status}")]
    Ended { process_id: u32, status: ExitStatus },
}

/// Why a run of etcd is over.
enum End {
    /// It is to be started again with other arguments.
    Renew,
    /// It has ended by itself.
    Died(ExitStatus),
}

/// Runs until it is cancelled or etcd dies.
pub(crate) async fn run(inner: Arc<Inner>, log: Logger, context: Context) -> RunnableResult {
    let mut member = Running {
        inner: &inner,
        log: &log,
        context: &context,
        healthy: false,
        damage_was_seen: false,
        has_panicked: false,
        removed_pause: FIRST_REMOVED_PAUSE,
    };
    let result = member.run().await;
    inner.take_down();
    if context.is_cancelled() {
        ALL_CONDITIONS.iter().for_each(|name| context.conditions().clear(name));
    }
    result
}

struct Running<'a> {
    inner: &'a Arc<Inner>,
    log: &'a Logger,
    context: &'a Context,
    healthy: bool,
    /// etcd has said once in this life that it cannot read its data.
    damage_was_seen: bool,
    /// etcd has panicked in this life because it did not find itself among the members.
    has_panicked: bool,
    /// How long the member rests when it is removed once more.
    removed_pause: Duration,
}

impl Running<'_> {
    async fn run(&mut self) -> RunnableResult {
        loop {
            self.wait_for_room().await?;
            let version = self.prepare().await?;
            let listen = self.free_address().await?;
            self.wait_for_the_only_one(listen).await?;
            let initial_cluster = self.initial_cluster().await?;
            let timing = *self.inner.timing.borrow();
            let process = self.start(version, initial_cluster, listen, timing).await?;
            let inner = Arc::clone(self.inner);
            let nudged = async {
                nudge(&inner, listen, version).await;
                std::future::pending().await
            };
            let end = tokio::select! {
                end = self.watch(&process, listen, timing) => end,
                never = nudged => never,
            };
            match end {
                Ok(End::Renew) => {
                    process.stop().await;
                    self.inner.take_down();
                }
                Ok(End::Died(status)) => {
                    let is_removed = self.inner.child.borrow().removed;
                    if self.inner.was_removed() || (is_removed && self.inner.does_not_find_itself()) {
                        self.rest_removed().await?;
                        continue;
                    }
                    self.inner.child.send_modify(|child| child.removed = false);
                    if let Some(said) = self.inner.damage() {
                        // One that has worked is another case each time.
                        self.damage_was_seen &= !self.has_answered();
                        if !self.damage_was_seen {
                            // Once may have been the disk's bad moment.
                            tracing::warn!("etcd cannot read its data ({said}); it is started once more");
                            self.damage_was_seen = true;
                            self.inner.take_down();
                            continue;
                        }
                        return self.stay_damaged(said).await;
                    }
                    if !self.has_panicked && self.inner.does_not_find_itself() {
                        // It panics when it is asked at the wrong moment, and what has become of its membership is told by its next start.
                        tracing::info!(
                            "etcd ended ({status}) as it did not find itself among the members; it is started again to find out"
                        );
                        self.has_panicked = true;
                        self.inner.take_down();
                        continue;
                    }
                    self.explain_death(status);
                    return Err(MemberError::Ended { process_id: process.id(), status }.into());
                }
                Err(cancelled) => {
                    process.stop().await;
                    return Err(cancelled);
                }
            }
        }
    }

    /// Waits until there is room for another run, if the last one had none.
    async fn wait_for_room(&self) -> Result<(), BoxError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let room = room::missing(self.inner);
            // The observer tells of it.
            self.inner.child.send_if_modified(|child| std::mem::replace(&mut child.awaited_room, room) != room);
            if room.is_none() {
                return Ok(());
            }
            self.context.unless_cancelled(sleep(pause)).await?;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Makes the directories and files that etcd needs, from whatever an earlier start left, and finds out its version at
    /// the same time.
    async fn prepare(&self) -> Result<Version, BoxError> {
        let inner = Arc::clone(self.inner);
        let prepared = async {
            tokio::join!(
                self.inner.etcd.verify(),
                self.context.blocking(move || prepare_files(&inner)),
                self.inner.measure_pace()
            )
        };
        let (version, files, ()) = self.context.unless_cancelled(prepared).await?;
        let outcome = version.map_err(BoxError::from).and_then(|version| {
            files.map_err(BoxError::from)?;
            Ok(version)
        });
        match outcome {
            Ok(version) => {
                self.context.conditions().clear(ETCD_UNUSABLE);
                self.inner.status.send_if_modified(|status| status.version.replace(version) != Some(version));
                Ok(version)
            }
            Err(error) => {
                Fault::EtcdUnusable(with_causes(&*error)).raise(self.context.conditions());
                Err(error)
            }
        }
    }

    async fn initial_cluster(&self) -> Result<InitialCluster, BoxError> {
        // With data, etcd looks there and nowhere else.
        let existing = || InitialCluster::Existing(Vec::new());
        if self.inner.data_path.join(MEMBER_DIRECTORY).join("wal").is_dir() {
            self.context.conditions().clear(DATA_MISSING);
            return Ok(existing());
        }
        match &self.inner.start {
            Start::Found => Ok(InitialCluster::New),
            Start::Existing => {
                let directory = self.inner.data_path.display().to_string();
                Fault::DataMissing(directory.clone()).raise(self.context.conditions());
                Err(MemberError::DataMissing(directory).into())
            }
            Start::Join(source) => {
                let members =
                    self.context.unless_cancelled(source.fetch()).await?.map_err(MemberError::FetchMembers)?;
                let others = members.into_iter().filter_map(|member| {
                    let address = member.address.filter(|address| *address != self.inner.identity_address)?;
                    // Only the address counts for etcd; but every member needs a name of its own.
                    let name = member.node_id.map_or_else(|| format!("member-{:016x}", member.id), |id| id.to_string());
                    Some((name, address))
                });
                Ok(InitialCluster::Existing(others.collect()))
            }
        }
    }

    /// Waits until the node has an address on which the peer port is free.
    async fn free_address(&self) -> Result<IpAddr, BoxError> {
        let mut addresses = self.inner.address.clone();
        let mut pause = FIRST_PAUSE;
        loop {
            let address = *addresses.borrow_and_update();
            if let Some(address) = address {
                match probe(address) {
                    None => {
                        self.context.conditions().clear(PORT_TAKEN);
                        self.context.conditions().clear(ADDRESS_NOT_HERE);
                        return Ok(address);
                    }
                    Some(fault) => {
                        let other = if fault.name() == PORT_TAKEN { ADDRESS_NOT_HERE } else { PORT_TAKEN };
                        self.context.conditions().clear(other);
                        fault.raise(self.context.conditions());
                    }
                }
            }
            tokio::select! {
                cancelled = self.context.cancelled() => return Err(cancelled.into()),
                // Without a sender the address never changes.
                Ok(()) = addresses.changed() => pause = FIRST_PAUSE,
                () = sleep(pause), if address.is_some() => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }

    /// Waits until no etcd with the key of this member answers where it was before.
    async fn wait_for_the_only_one(&self, listen: IpAddr) -> Result<(), BoxError> {
        let former = self.inner.former_addresses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let former: Vec<SocketAddr> = former
            .into_iter()
            .filter(|address| *address != listen)
            .map(|address| SocketAddr::new(address, PEER_PORT))
            .collect();
        let mut pause = FIRST_PAUSE;
        loop {
            let asked = former.iter().map(|address| async {
                let version = self.inner.prober.version(self.inner.identity_address, *address);
                timeout(ELSEWHERE_DEADLINE, version).await.is_ok_and(|answer| answer.is_ok()).then_some(*address)
            });
            let found = self.context.unless_cancelled(join_all(asked)).await?.into_iter().flatten().next();
            let Some(address) = found else {
                self.context.conditions().clear(RUNS_ELSEWHERE);
                return Ok(());
            };
            Fault::RunsElsewhere(address).raise(self.context.conditions());
            self.context.unless_cancelled(sleep(pause)).await?;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn start(
        &self,
        version: Version,
        initial_cluster: InitialCluster,
        listen: IpAddr,
        timing: Timing,
    ) -> Result<Process, BoxError> {
        let inner = self.inner;
        let member = MemberArguments {
            version,
            name: inner.name.to_string(),
            identity_address: inner.identity_address,
            listen,
            data_directory: inner.data_path.clone(),
            timing,
            quota_bytes: inner.quota_bytes.load(Ordering::Relaxed),
            initial_cluster,
        };
        inner.complaints().clear();
        let started = Instant::now();
        let mut spec = ProcessSpec::new(inner.etcd.path()).arguments(arguments(&member));
        for (name, value) in environment(inner.dialer.proxy_url()) {
            spec = spec.variable(name, value);
        }
        spec.working_directory = Some(inner.ephemeral_path.clone());
        spec.stop_deadline = STOP_DEADLINE;
        spec.importance = IMPORTANCE;
        spec.standard_output = self.lines(started);
        spec.standard_error = self.lines(started);
        let process = self.context.process(spec).await.inspect_err(|error| {
            Fault::EtcdUnusable(with_causes(error)).raise(self.context.conditions());
        })?;
        inner.child.send_modify(|child| {
            // Its first lines may have been read already.
            let run = child.run.take().filter(|run| run.started == started);
            let run = run.unwrap_or_else(|| Run::new(started));
            child.run = Some(Run { process_id: Some(process.id()), ..run });
        });
        Ok(process)
    }

    /// What happens to each line that etcd prints.
    fn lines(&self, started: Instant) -> OutputSink {
        let (inner, log) = (Arc::clone(self.inner), self.log.clone());
        OutputSink::lines(move |line| {
            let parsed = Line { data: line.as_bytes(), original_length: line.len() };
            let (timestamp, payload) = parse::etcd(parsed, Timestamp::now());
            log.write(timestamp, payload);
            inner.take_hint(classify(line), line, started);
        })
    }

    /// Watches a run until there is a reason to end it, or it ends.
    async fn watch(&mut self, process: &Process, listen: IpAddr, timing: Timing) -> Result<End, BoxError> {
        let mut addresses = self.inner.address.clone();
        let mut timings = self.inner.timing.subscribe();
        let mut status = self.inner.status.subscribe();
        loop {
            tokio::select! {
                biased;
                cancelled = self.context.cancelled() => return Err(cancelled.into()),
                status = process.wait() => return Ok(End::Died(status)),
                // An address that is gone for now is waited for: etcd goes on serving what it has.
                Ok(address) = addresses.wait_for(|address| address.is_some_and(|address| address != listen)) => {
                    let address = *address;
                    tracing::info!("the node's address is {address:?} and no longer {listen}: etcd is started again");
                    return Ok(End::Renew);
                }
                Ok(_) = timings.wait_for(|wanted| *wanted != timing) => {
                    tracing::info!("etcd is started again with another raft timing");
                    return Ok(End::Renew);
                }
                Ok(_) = status.wait_for(|status| status.is_ready()), if !self.healthy => {
                    self.healthy = true;
                    self.context.healthy();
                }
            }
        }
    }

    /// The member was removed, and rests before it runs again. It does so until its node stops it: those who stay may not know of the
    /// removal. etcd tells the one that goes first and writes down for itself, with its next entry, that the change holds; a leader
    /// that is killed between the two comes back as one of as many as before, and may need this vote to find out.
    async fn rest_removed(&mut self) -> Result<(), BoxError> {
        let is_new = !self.inner.child.borrow().removed;
        self.inner.child.send_modify(|child| (child.run, child.removed) = (None, true));
        self.inner.status.send_modify(|status| {
            (status.phase, status.process_id, status.leader) = (Phase::Removed, None, None);
        });
        if is_new {
            tracing::warn!(
                "the cluster has removed this member; it runs now and then, until its node is told, as others may need its vote to \
                 finish that"
            );
        }
        if !self.healthy {
            self.healthy = true;
            self.context.healthy();
        }
        let pause = self.removed_pause;
        self.removed_pause = (pause * 2).min(LONGEST_REMOVED_PAUSE);
        Ok(self.context.unless_cancelled(sleep(pause)).await?)
    }

    /// The data cannot be read; etcd is not started again. What follows is for others to decide.
    async fn stay_damaged(&mut self, said: String) -> RunnableResult {
        let directory = self.inner.data_path.display().to_string();
        Fault::DataDamaged { directory, said: said.clone() }.raise(self.context.conditions());
        self.context.conditions().clear(ETCD_EXITING);
        self.inner.take_down();
        self.inner.status.send_modify(|status| status.damage = Some(said));
        if !self.healthy {
            self.healthy = true;
            self.context.healthy();
        }
        Err(self.context.cancelled().await.into())
    }

    /// Whether the last run of etcd has ever answered.
    fn has_answered(&self) -> bool {
        self.inner.child.borrow().run.as_ref().is_some_and(|run| run.has_answered)
    }

    fn explain_death(&self, status: ExitStatus) {
        if self.has_answered() {
            // It is started again; only if that does not go well is there something for people to do.
            tracing::warn!("etcd ended by itself: {status}");
            return;
        }
        let last_lines = self.inner.complaints().iter().cloned().collect();
        Fault::EtcdExiting { status: status.to_string(), last_lines }.raise(self.context.conditions());
    }
}

impl Inner {
    /// Before the first start: finds out how far the others are, if there are others.
    async fn measure_pace(&self) {
        if !self.timing.borrow().is_network() || self.is_paced.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut peers = self.peers.borrow().clone();
        peers.remove(&self.identity_address);
        if let Some(round_trip) = round_trip::farthest(&self.prober, &peers, MEASURING_DEADLINE).await {
            let measured = Timing::Network(Pace::of(round_trip, Duration::ZERO));
            self.timing
                .send_if_modified(|timing| timing.is_network() && std::mem::replace(timing, measured) != measured);
        }
    }
}
