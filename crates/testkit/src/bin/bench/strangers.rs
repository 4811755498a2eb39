//! What strangers at the unlock port cost a member, and how long another member waits for its key beside them. Each node, each stranger and
//! the owner are on a host of their own, in network namespaces.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polis_testkit::processes::processor_time;
use polis_testkit::unlock_caller::{Called, Flood, UnlockCaller};
use polis_testkit::world::{self, World};

use crate::BenchError;
use crate::arguments::Arguments;
use crate::contestant::{ALL, Contestant as _, MEMBERS};
use crate::machine::{Clock, Load};
use crate::place::Place;
use crate::polis_cluster::PolisCluster;
use crate::polis_node::NodePlace;
use crate::report::{Figure, Report, Target, Unit};
use crate::start::settle;
use crate::statistics::median;

/// Calls of strangers that are refused in a second of the member's processor time, at least.
const RATE: f64 = 2_000.0;

/// Longest time by which they may delay a member, in milliseconds.
const DELAY: f64 = 50.0;

/// The member that is called, and the one that calls as a member does.
const CALLED: usize = 0;
/// See [`CALLED`].
const CALLING: usize = 1;

/// Hosts of strangers, behind those of the nodes.
const STRANGERS: usize = 2;

/// Host of the owner.
const OWNER: usize = MEMBERS + STRANGERS;

/// Connections of each stranger at a time: as many as an address may have.
const CONNECTIONS: usize = 4;

/// Calls on each connection before the next one is made.
const CALLS: usize = 50;

/// Calls of the member that are measured in each round, in quiet and in the flood.
const MEASURED: usize = 50;

/// Pause between them, which keeps the member within what it may ask.
const PAUSE: Duration = Duration::from_millis(60);

/// Who calls whom.
#[derive(Clone)]
struct Scene {
    world: Arc<World>,
    /// Root of the member that calls.
    root: PathBuf,
    /// Address and process of the one that is called.
    called: (IpAddr, u32),
}

/// What has come of one round.
struct Round {
    flood: Flood,
    /// Processor time that the flood has cost the member.
    took: Duration,
    /// How long the other member has waited, in milliseconds.
    quiet: Vec<f64>,
    /// The same in the flood.
    flooded: Vec<f64>,
}

/// Floods a member, again and again.
pub(crate) async fn measure(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    if !world::available() {
        return Err("the hosts of strangers cannot be made".into());
    }
    let world = Arc::new(World::new(OWNER + 1));
    let places = ALL.map(|host| NodePlace::in_world(place, world.clone(), host)).collect::<Result<_, _>>()?;
    // The owner is this program.
    let _visit = world.host(OWNER).visit();
    let cluster = PolisCluster::encrypted_at(place, places, &place.encrypted_parameters()?).await?;
    let called = (cluster.ip(CALLED), cluster.process(CALLED)?);
    let scene = Scene { world: world.clone(), root: cluster.root(CALLING), called };
    let (mut rates, mut delays, mut longest) = (Vec::new(), Vec::new(), Vec::new());
    let mut load = Load::default();
    for run in 1..=arguments.runs {
        settle().await;
        let clock = Clock::now(&place.directory)?;
        let scene = scene.clone();
        // Both wait for their answers, while the logs of the nodes are read here.
        let round = tokio::task::spawn_blocking(move || scene.round()).await?.map_err(BenchError::from)?;
        load += clock.load()?;
        let quiet = median(&round.quiet);
        rates.push(round.flood.refused as f64 / round.took.as_secs_f64());
        delays.push(median(&round.flooded) - quiet);
        longest.push(round.flooded.iter().fold(0.0, |longest: f64, wait| longest.max(*wait)) - quiet);
        arguments
            .progress(&format!("run {run}: {:?} for {:.1?}; a member waits {quiet:.1} ms", round.flood, round.took));
    }
    let mut add = |name: &str, unit, values, target| {
        report.add(Figure {
            name: name.into(),
            unit,
            values,
            target: Some(target),
            beside: Vec::new(),
            others: load.share(),
        });
    };
    add("unlock calls of strangers refused per CPU second", Unit::Count, rates, Target::AtLeast(RATE));
    add("what they delay a member by, its median call", Unit::Milliseconds, delays, Target::AtMost(DELAY));
    add("what they delay a member by, its longest call", Unit::Milliseconds, longest, Target::AtMost(DELAY));
    cluster.kill().await
}

impl Scene {
    /// A member calls in quiet, and then beside strangers who call without a pause. Blocks.
    fn round(&self) -> Result<Round, String> {
        let (_, process) = self.called;
        let quiet = self.member()?;
        let processor = || processor_time(process).ok_or("the member has ended");
        let (is_over, before) = (AtomicBool::new(false), processor()?);
        let (flooded, floods) = std::thread::scope(|scope| {
            let is_over = &is_over;
            let strangers: Vec<_> =
                (MEMBERS..OWNER).map(|host| scope.spawn(move || self.stranger(host, is_over))).collect();
            let flooded = self.member();
            is_over.store(true, Ordering::Relaxed);
            (flooded, strangers.into_iter().map(|stranger| stranger.join()).collect::<Vec<_>>())
        });
        let took = processor()? - before;
        let mut flood = Flood::default();
        for stranger in floods {
            flood = flood + stranger.map_err(|_| "a stranger has panicked")?;
        }
        if flood.answered > 0 || flood.refused == 0 {
            return Err(format!("strangers were not just refused: {flood:?}"));
        }
        Ok(Round { flood, took, quiet, flooded: flooded? })
    }

    /// Calls of a stranger on this host until it is over.
    fn stranger(&self, host: usize, is_over: &AtomicBool) -> Flood {
        let stranger = UnlockCaller::stranger(&self.root, self.called.0);
        self.world.host(host).inside(|| stranger.flood(CONNECTIONS, CALLS, is_over))
    }

    /// How long the member waits for its key, in milliseconds. It is never refused.
    fn member(&self) -> Result<Vec<f64>, String> {
        let member = UnlockCaller::node(&self.root, self.called.0);
        let ask = || {
            std::thread::sleep(PAUSE);
            match member.ask() {
                (Called::Key, took) => Ok(took.as_secs_f64() * 1e3),
                (called, took) => Err(format!("a member was not given its key but {called:?}, after {took:?}")),
            }
        };
        self.world.host(CALLING).inside(|| (0..MEASURED).map(|_| ask()).collect())
    }
}
