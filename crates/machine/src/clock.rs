//! The clock of the machine: never before the last known time, and set by servers of time as soon as one answers.
//!
//! Nothing waits for it. Certificates of a cluster do not expire, and its members agree by counting, so a machine without time from
//! the network works; its log then says what its hardware clock says.
//!
//! The servers are not authenticated. What they can do is bounded by the floor: a time before one that this machine has known
//! earlier is refused.

mod discipline;
pub(crate) mod floor;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use polis_condition::Severity;
use polis_supervisor::{BoxError, Context, RunnableResult, with_causes};
use polis_sys::hardware::{declare_clock_synchronized, slew_clock};
use rsntp::{AsyncSntpClient, Config};
use rustix::time::{ClockId, Timespec, clock_settime};
use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::command_line::MAX_TIME_SERVERS;
use crate::machine::Machine;
use crate::names::changed;
use discipline::{Adjustment, Sample, Verdict, judge};
use floor::FloorFile;

/// Name of the condition that no server of time has answered since the start.
pub const CLOCK_NOT_SYNCHRONIZED: &str = "clock-not-synchronized";

/// Name of the condition that servers of time say so different things that none is believed.
pub const TIME_SERVERS_DISAGREE: &str = "time-servers-disagree";

/// Name of the condition that servers of time say that it is earlier than it is known to be.
pub const TIME_TOO_EARLY: &str = "time-servers-too-early";

/// The port of servers of time (RFC 5905).
const NTP_PORT: u16 = 123;

/// How long one server may take to answer, its name included.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// How often the servers are asked once the clock is right: in that time an ordinary quartz is off by 50 ms.
const INTERVAL: Duration = Duration::from_secs(1024);

/// The first and the longest pause between attempts until then.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

/// How often the known time is written to the disk while the machine runs, beside the first time and the end: flash wears out.
const FLOOR_INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// Where the clock of this life of the machine stands.
struct Clock {
    file: Option<FloorFile>,
    /// Not before this.
    floor: Option<Timestamp>,
    synchronized: bool,
    floor_written: Option<tokio::time::Instant>,
}

/// Keeps the clock right for as long as the machine runs: a runnable.
pub(crate) async fn keep(
    context: Context,
    machine: Machine,
    mut network: watch::Receiver<Vec<IpAddr>>,
) -> RunnableResult {
    let file = FloorFile::on(machine.esp());
    let read = file.clone();
    let floor = context.blocking(move || read.and_then(|file| file.load())).await;
    let mut clock = Clock { file, floor, synchronized: false, floor_written: None };
    context.healthy();
    let given = machine.command_line().time_servers.clone();
    let ended = clock.follow(&context, &given, &mut network).await;
    if clock.synchronized {
        clock.write_floor(&context).await;
    }
    ended
}

impl Clock {
    async fn follow(
        &mut self,
        context: &Context,
        given: &[String],
        network: &mut watch::Receiver<Vec<IpAddr>>,
    ) -> RunnableResult {
        let mut pause = FIRST_PAUSE;
        loop {
            let servers = servers(given, &network.borrow_and_update());
            if servers.is_empty() {
                self.not_synchronized(context, "no server of time is known");
                context.unless_cancelled(changed(network)).await?;
                continue;
            }
            let samples = context.unless_cancelled(ask_all(&servers)).await?;
            let right = self.take(context, &samples, &servers).await;
            let wait = if right { INTERVAL } else { pause };
            pause = if right { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            context
                .unless_cancelled(async {
                    tokio::select! {
                        () = sleep(wait) => {}
                        () = changed(network) => {}
                    }
                })
                .await?;
        }
    }

    /// Acts on the answers. Whether the clock is right now.
    async fn take(&mut self, context: &Context, samples: &[Sample], servers: &[String]) -> bool {
        let conditions = context.conditions();
        let verdict = judge(samples, !self.synchronized);
        if verdict != Verdict::Disagree {
            conditions.clear(TIME_SERVERS_DISAGREE);
        }
        let (adjustment, error) = match verdict {
            Verdict::NoAnswer => {
                self.not_synchronized(context, &format!("no answer from {}", servers.join(", ")));
                return false;
            }
            Verdict::Disagree => {
                conditions.raise(
                    TIME_SERVERS_DISAGREE,
                    Severity::Warning,
                    format!(
                        "the servers of time {} differ, and no majority agrees; the clock goes on by itself",
                        servers.join(", ")
                    ),
                    "name servers that are right, three or more of them",
                );
                return false;
            }
            Verdict::Adjust { adjustment, error_microseconds } => (adjustment, error_microseconds),
        };
        let now = Timestamp::now();
        let told = now.checked_add(SignedDuration::from_micros(adjustment.microseconds())).unwrap_or(now);
        if self.floor.is_some_and(|floor| told < floor) {
            conditions.raise(
                TIME_TOO_EARLY,
                Severity::Warning,
                format!(
                    "the servers of time {} say that it is {told:.0}, and this machine knows that it is later; they are not believed",
                    servers.join(", ")
                ),
                "name servers that are right; if this machine was once set to a time in the future, remove clock.0 and clock.1 \
                 in the directory polis of its EFI system partition",
            );
            return false;
        }
        conditions.clear(TIME_TOO_EARLY);
        if let Err(failure) = set(adjustment, now, error) {
            self.not_synchronized(context, &format!("the clock cannot be set: {failure}"));
            return false;
        }
        conditions.clear(CLOCK_NOT_SYNCHRONIZED);
        if !self.synchronized {
            tracing::info!("the clock is right now, by {} of {} servers of time", samples.len(), servers.len());
        }
        self.synchronized = true;
        if self.floor_written.is_none_or(|written| written.elapsed() >= FLOOR_INTERVAL) {
            self.write_floor(context).await;
        }
        true
    }

    fn not_synchronized(&self, context: &Context, reason: &str) {
        // Once it was right it stays so for a while; that servers do not answer then is no news.
        if !self.synchronized {
            context.conditions().raise(
                CLOCK_NOT_SYNCHRONIZED,
                Severity::Info,
                format!("the clock is that of the hardware: {reason}"),
                "servers of time come from DHCP, the network configuration, or polis.time-server=HOST on the kernel command line",
            );
        }
    }

    /// Writes the time that is known now. What cannot be written is missed by nobody but the next start.
    async fn write_floor(&mut self, context: &Context) {
        let now = Timestamp::now();
        self.floor_written = Some(tokio::time::Instant::now());
        self.floor = self.floor.max(Some(now));
        if let Some(file) = self.file.clone()
            && let Err(error) = context.blocking(move || file.store(now)).await
        {
            tracing::warn!("the time that is known now cannot be kept for the next start: {}", with_causes(&*error));
        }
    }
}

/// The servers to ask: those given first, each once.
fn servers(given: &[String], network: &[IpAddr]) -> Vec<String> {
    let mut servers: Vec<String> = Vec::new();
    for server in given.iter().cloned().chain(network.iter().map(IpAddr::to_string)) {
        if servers.len() < MAX_TIME_SERVERS && !servers.contains(&server) {
            servers.push(server);
        }
    }
    servers
}

async fn ask_all(servers: &[String]) -> Vec<Sample> {
    join_all(servers.iter().map(|server| ask(server))).await.into_iter().flatten().collect()
}

async fn ask(server: &str) -> Option<Sample> {
    match timeout(ANSWER_DEADLINE, exchange(server)).await {
        Ok(Ok(sample)) => Some(sample),
        Ok(Err(error)) => {
            tracing::debug!("no time from {server}: {}", with_causes(&*error));
            None
        }
        Err(_) => None,
    }
}

async fn exchange(server: &str) -> Result<Sample, BoxError> {
    let address = resolve(server).await?;
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let config = Config::default().timeout(ANSWER_DEADLINE).bind_address(SocketAddr::new(any, 0));
    let answer = AsyncSntpClient::with_config(config).synchronize(address).await?;
    Ok(Sample {
        offset_microseconds: microseconds(answer.clock_offset().as_secs_f64())?,
        delay_microseconds: microseconds(answer.round_trip_delay().as_secs_f64())?.max(0),
    })
}

/// The address of a server that is given as an address or a name, with or without a port.
async fn resolve(server: &str) -> Result<SocketAddr, BoxError> {
    if let Ok(address) = server.parse::<SocketAddr>() {
        return Ok(address);
    }
    if let Ok(address) = server.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, NTP_PORT));
    }
    let found = match server.rsplit_once(':') {
        Some((host, port)) => lookup_host((host, port.parse()?)).await?.next(),
        None => lookup_host((server, NTP_PORT)).await?.next(),
    };
    found.ok_or_else(|| "the name has no address".into())
}

fn microseconds(seconds: f64) -> Result<i64, BoxError> {
    Ok(i64::try_from(SignedDuration::try_from_secs_f64(seconds)?.as_micros())?)
}

fn set(adjustment: Adjustment, now: Timestamp, error_microseconds: i64) -> std::io::Result<()> {
    match adjustment {
        Adjustment::Leave(_) => {}
        Adjustment::Slew(microseconds) => slew_clock(microseconds)?,
        Adjustment::Step(microseconds) => {
            let right = now.checked_add(SignedDuration::from_micros(microseconds)).map_err(std::io::Error::other)?;
            set_to(right)?;
            tracing::info!("set the clock from {now:.3} to {right:.3}");
        }
    }
    declare_clock_synchronized(error_microseconds)
}

/// Sets the system clock.
fn set_to(time: Timestamp) -> std::io::Result<()> {
    let time = Timespec { tv_sec: time.as_second(), tv_nsec: time.subsec_nanosecond().into() };
    Ok(clock_settime(ClockId::Realtime, time)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds from the beginning of NTP's time to that of ours.
    const NTP_EPOCH: u64 = 2_208_988_800;

    /// A server on loopback whose clock is `ahead` of ours. Answers once.
    async fn server(ahead: Duration) -> (SocketAddr, tokio::task::JoinHandle<()>) {
        let socket = tokio::net::UdpSocket::bind("127.1.0.9:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            let mut request = [0; 48];
            let (count, client) = socket.recv_from(&mut request).await.unwrap();
            assert_eq!((count, request[0] & 7), (48, 3), "a request of a client");
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap() + ahead;
            let fraction = (u64::from(now.subsec_nanos()) << 32) / 1_000_000_000;
            let stamp = (((now.as_secs() + NTP_EPOCH) << 32) | fraction).to_be_bytes();
            let mut reply = [0; 48];
            // Version 4, a server, of the first stratum; then the client's stamp, and when it came and went.
            (reply[0], reply[1]) = (0x24, 1);
            reply[24..32].copy_from_slice(&request[40..48]);
            for at in [16, 32, 40] {
                reply[at..at + 8].copy_from_slice(&stamp);
            }
            socket.send_to(&reply, client).await.unwrap();
        });
        (address, answering)
    }

    #[tokio::test]
    async fn a_server_that_is_ahead_tells_by_how_much() {
        let (address, answering) = server(Duration::from_secs(100)).await;
        let sample = ask(&address.to_string()).await.unwrap();
        answering.await.unwrap();
        let error = (sample.offset_microseconds - 100_000_000).abs();
        assert!(error <= sample.delay_microseconds / 2 + 1000, "{sample:?}");
    }

    #[tokio::test]
    async fn servers_are_given_in_every_form() {
        for (text, expected) in [
            ("192.0.2.1", "192.0.2.1:123"),
            ("192.0.2.1:1123", "192.0.2.1:1123"),
            ("2001:db8::1", "[2001:db8::1]:123"),
            ("[2001:db8::1]:1123", "[2001:db8::1]:1123"),
        ] {
            assert_eq!(resolve(text).await.unwrap().to_string(), expected);
        }
        assert_eq!(resolve("localhost:1123").await.unwrap().port(), 1123);
        assert!(resolve("name:port").await.is_err());
    }

    #[test]
    fn servers_are_asked_once_each_and_not_too_many() {
        let text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let addresses = ["10.0.0.1", "fd00::1"].map(|address| address.parse().unwrap());
        assert_eq!(servers(&text(&["a", "10.0.0.1"]), &addresses), text(&["a", "10.0.0.1", "fd00::1"]));
        let many: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        assert_eq!(servers(&many, &[]).len(), MAX_TIME_SERVERS);
    }
}
