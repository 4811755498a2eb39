//! What it takes to make a cluster again of what one member has left: `polis cluster recover` of 100 MiB, on encrypted and on plain data,
//! in turn.
//!
//! The others are gone, and a refused connection is no proof of that: for some seconds they are asked again and again. That is part of
//! the command and of the first figure; the work itself begins with the first step that the command tells.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{Channel, Client};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use polis_testkit::{mounts, processes};
use tokio::time::sleep;
use tonic::transport::Endpoint;

use crate::BenchError;
use crate::arguments::Arguments;
use crate::contestant::{ALL, Contestant as _};
use crate::machine::{Clock, Load};
use crate::place::Place;
use crate::polis_cluster::PolisCluster;
use crate::process;
use crate::raw_etcd::SOCKET;
use crate::report::{Beside, Figure, Report, Target, Unit};
use crate::start::{last, milliseconds, settle};

/// Longest time that the work may take, in milliseconds, by the clock and of the processors.
const LIMIT: f64 = 5_000.0;

/// The member that is left.
const SURVIVOR: usize = 1;

/// Values that are written, and their length: 100 MiB.
const VALUES: usize = 1_600;
/// See [`VALUES`].
const VALUE_LENGTH: usize = 64 << 10;

/// Values that are written at a time.
const AT_ONCE: usize = 8;

/// Time after which a survivor knows all as committed that was acknowledged.
const REST: Duration = Duration::from_secs(3);

/// What one survivor has needed, run by run.
#[derive(Default)]
struct Times {
    command: Vec<Duration>,
    work: Vec<Duration>,
    processor: Vec<Duration>,
}

/// A member that is left of a cluster, as it was found.
struct Survivor<'a> {
    place: &'a Place,
    /// Dropped after the files in it are not used any more.
    _cluster: PolisCluster<'a>,
    root: PathBuf,
    saved: PathBuf,
    /// File of the words of the recovery key, where it needs them.
    words: Option<PathBuf>,
    times: Times,
}

/// Recovers both, again and again, each time from the same files.
pub(crate) async fn measure(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let (parameters, words) = place.recoverable_parameters()?;
    let encrypted = PolisCluster::encrypted(place, &parameters).await?;
    let mut encrypted = Survivor::of(place, encrypted, Some(words)).await?;
    let mut plain = Survivor::of(place, PolisCluster::with_three_members(place).await?, None).await?;
    let mut load = Load::default();
    for run in 1..=arguments.runs {
        encrypted.recover(&mut load).await?;
        plain.recover(&mut load).await?;
        arguments.progress(&format!(
            "run {run}: recover: encrypted {}; plain {}",
            encrypted.times.last(),
            plain.times.last()
        ));
    }
    let mut add = |name: &str, own: &[Duration], plain: &[Duration], limit: Option<f64>| {
        report.add(Figure {
            name: name.into(),
            unit: Unit::Milliseconds,
            values: milliseconds(own),
            target: limit.map(Target::AtMost),
            beside: vec![Beside { label: "plain data", values: milliseconds(plain), target: None }],
            others: load.share(),
        });
    };
    let (own, plain) = (&encrypted.times, &plain.times);
    add("cluster recover of 100 MiB: the work", &own.work, &plain.work, Some(LIMIT));
    add("the same: processor time of all its processes", &own.processor, &plain.processor, Some(LIMIT));
    add("the same: the whole command, with the search for the others", &own.command, &plain.command, None);
    Ok(())
}

impl Times {
    fn last(&self) -> String {
        let [command, work, processor] = [&self.command, &self.work, &self.processor].map(|times| last(times));
        format!("{work:.1?}, processors {processor:.1?}, command {command:.1?}")
    }
}

impl<'a> Survivor<'a> {
    /// Fills a cluster, kills all of it, and keeps what one member has.
    async fn of(place: &'a Place, mut cluster: PolisCluster<'a>, words: Option<PathBuf>) -> Result<Self, BenchError> {
        let root = cluster.root(SURVIVOR);
        fill(&root).await?;
        cluster.whole().await?;
        sleep(REST).await;
        cluster.send_kill(ALL);
        cluster.ended(ALL).await?;
        let saved = root.with_file_name("saved");
        copy(&root, &saved)?;
        Ok(Self { place, _cluster: cluster, root, saved, words, times: Times::default() })
    }

    /// Brings back what there was, and recovers it.
    async fn recover(&mut self, load: &mut Load) -> Result<(), BenchError> {
        mounts::clear(&self.root);
        fs::remove_dir_all(&self.root)?;
        copy(&self.saved, &self.root)?;
        settle().await;
        let mut command = processes::bound_to_test(&self.place.polis);
        command.args(["cluster", "recover", "--yes", "--others-are-gone", "--root"]).arg(&self.root);
        command.arg("--etcd").arg(&self.place.etcd);
        if let Some(words) = &self.words {
            command.arg("--recovery").arg(words);
        }
        let (clock, before) = (Clock::now(&self.place.directory)?, processor_time_of_ended_children()?);
        let (whole, work) = tokio::task::spawn_blocking(|| run(command)).await??;
        // Those that have ended were waited for, and count as this process.
        processes::wait_until_gone(&self.root)?;
        *load += clock.load()?;
        self.times.processor.push(processor_time_of_ended_children()? - before);
        self.times.command.push(whole);
        self.times.work.push(work);
        Ok(())
    }
}

/// Runs it to its end. Returns how long all of it took, and how long from the first step that it told. Blocks.
fn run(mut command: Command) -> Result<(Duration, Duration), String> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let begin = Instant::now();
    let mut child = processes::spawn(command);
    let heard = hear(child.stderr.take());
    let status = child.wait().map_err(|error| error.to_string())?;
    let end = Instant::now();
    let (first, text) = heard?;
    if status.success() {
        Ok((end - begin, end - first))
    } else {
        Err(format!("polis cluster recover: {status}: {text}"))
    }
}

/// All that it tells, and when the first line of it came. Blocks until it has told all.
fn hear(told: Option<ChildStderr>) -> Result<(Instant, String), String> {
    let mut told = BufReader::new(told.ok_or("its standard error is not connected")?);
    let mut text = String::new();
    told.read_line(&mut text).map_err(|error| error.to_string())?;
    let first = Instant::now();
    told.read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok((first, text))
}

/// Processor time of all children of this process that have ended, and of theirs.
fn processor_time_of_ended_children() -> Result<Duration, BenchError> {
    let [_, _, user, system] = process::ticks("self")?;
    Ok(Duration::from_millis((user + system) * 1_000 / process::TICKS_A_SECOND))
}

/// Writes the values into the etcd of a node, past the node: what is written is nothing that it knows.
async fn fill(root: &Path) -> Result<(), BenchError> {
    // A socket's address is short, and the directory may be deep.
    let directory = File::open(root.join("ephemeral/consensus"))?;
    let socket = format!("unix:///proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
    let client = Client::from_channel(Channel::Tonic(Endpoint::from_shared(socket)?.connect_lazy()), None).await?;
    let write = |number: usize| {
        let mut client = client.kv_client();
        async move { client.put(format!("bench/{number}"), vec![number as u8; VALUE_LENGTH], None).await }
    };
    stream::iter((0..VALUES).map(write)).buffer_unordered(AT_ONCE).try_for_each(async |_| Ok(())).await?;
    Ok(())
}

/// Copies a directory with all that is in it, as it is.
fn copy(from: &Path, to: &Path) -> Result<(), BenchError> {
    let output = Command::new("cp").arg("-a").arg("--").arg(from).arg(to).stdin(Stdio::null()).output()?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
}
