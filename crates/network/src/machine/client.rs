//! Runs the DHCP client of one interface: gives it a socket and a clock, and writes on the board what it has got.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use polis_network_configuration::HardwareAddress;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::dhcp::{Action, Client, Lease, Recipient, Trouble};
use super::frame::{CLIENT_PORT, DhcpSocket, SERVER_PORT};

/// Pause after a socket has failed, which it does when its interface goes down or is about to be taken out.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What the clients have got, by the number of the interface. It outlives the runnable, so that its next life goes on with what
/// the kernel has. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    entries: Arc<watch::Sender<BTreeMap<u32, Entry>>>,
    /// The beginning of all times on the board.
    start: Instant,
}

/// What one client has got.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    hardware: HardwareAddress,
    pub(crate) lease: Option<Obtained>,
    pub(crate) trouble: Trouble,
}

/// A lease in force.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Obtained {
    pub(crate) lease: Lease,
    /// When it was last confirmed.
    pub(crate) at: Duration,
    /// Place in the line: the lower, the longer this interface has had a lease without a break. No two have the same.
    pub(crate) rank: u32,
}

impl Board {
    pub(crate) fn new() -> Self {
        Self { entries: Arc::default(), start: Instant::now() }
    }

    pub(crate) fn watch(&self) -> watch::Receiver<BTreeMap<u32, Entry>> {
        self.entries.subscribe()
    }

    pub(crate) fn entries(&self) -> BTreeMap<u32, Entry> {
        self.entries.borrow().clone()
    }

    /// The present time.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Takes an interface off the board.
    pub(crate) fn remove(&self, interface: u32) {
        self.entries.send_if_modified(|entries| entries.remove(&interface).is_some());
    }

    fn bind(&self, interface: u32, hardware: HardwareAddress, lease: Lease, trouble: &Trouble) {
        let at = self.now();
        self.entries.send_modify(|entries| {
            let last = entries.values().filter_map(|entry| entry.lease.as_ref()).map(|lease| lease.rank).max();
            let held = entries.get(&interface).and_then(|entry| entry.lease.as_ref()).map(|lease| lease.rank);
            let rank = held.unwrap_or(last.map_or(0, |last| last.saturating_add(1)));
            let lease = Some(Obtained { lease, at, rank });
            entries.insert(interface, Entry { hardware, lease, trouble: trouble.clone() });
        });
    }

    fn change(&self, interface: u32, hardware: HardwareAddress, lost: bool, trouble: &Trouble) {
        self.entries.send_if_modified(|entries| {
            let before = entries.get(&interface).cloned();
            let lease = before.as_ref().and_then(|entry| entry.lease.clone()).filter(|_| !lost);
            let after = Entry { hardware, lease, trouble: trouble.clone() };
            let is_new = before.as_ref() != Some(&after);
            entries.insert(interface, after);
            is_new
        });
    }

    /// The lease that an earlier client of this interface has left.
    fn left_behind(&self, interface: u32, hardware: HardwareAddress) -> Option<(Lease, Duration)> {
        let entries = self.entries.borrow();
        let entry = entries.get(&interface).filter(|entry| entry.hardware == hardware)?;
        entry.lease.as_ref().map(|obtained| (obtained.lease.clone(), obtained.at))
    }
}

/// The interface that a client is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) hardware: HardwareAddress,
}

/// Runs the client of an interface for as long as it is not dropped.
pub(crate) async fn run(interface: Interface, mut carrier: watch::Receiver<bool>, board: Board) {
    let Interface { index, hardware, .. } = interface;
    let random = StdRng::from_rng(&mut rand::rng());
    let mut client = match board.left_behind(index, hardware) {
        None => {
            // An entry of another device that had this number is none of ours.
            board.remove(index);
            Client::new(hardware, random, board.now())
        }
        Some((lease, obtained)) => Client::resume(hardware, random, board.now(), lease, obtained),
    };
    client.carrier(board.now(), *carrier.borrow_and_update());
    let mut runner = Runner { interface, board, socket: None, unicast: None };
    loop {
        let actions = client.tick(runner.board.now(), host_name().as_deref());
        runner.carry_out(actions, &client);
        let wake = client.wake_at().map(|wake| runner.board.start + wake);
        tokio::select! {
            biased;
            changed = carrier.changed() => {
                if changed.is_err() {
                    return;
                }
                client.carrier(runner.board.now(), *carrier.borrow_and_update());
            }
            message = runner.receive() => {
                let actions = client.receive(runner.board.now(), &message);
                runner.carry_out(actions, &client);
            }
            () = async { match wake {
                Some(wake) => sleep_until(wake).await,
                None => std::future::pending().await,
            } } => {}
        }
    }
}

/// The name of this machine, as it is at this moment.
fn host_name() -> Option<String> {
    Some(rustix::system::uname().nodename().to_str().ok()?.to_owned())
}

struct Runner {
    interface: Interface,
    board: Board,
    socket: Option<DhcpSocket>,
    /// From our address to a server, and there so that the kernel does not tell servers that nobody listens at that port. What
    /// arrives is read from the other socket.
    unicast: Option<(Ipv4Addr, Socket)>,
}

impl Runner {
    fn carry_out(&mut self, actions: Vec<Action>, client: &Client) {
        let Interface { index, hardware, .. } = self.interface;
        for action in actions {
            match action {
                Action::Send { to, message } => {
                    if let Err(error) = self.send(to, &message) {
                        // It is repeated anyway, and a link that is gone is noticed elsewhere.
                        tracing::debug!("cannot send a DHCP message on {}: {error}", self.interface.name);
                    }
                }
                Action::Bound(lease) => {
                    self.unicast = None;
                    let duration = lease.duration.map_or("ever".to_owned(), |duration| format!("{duration:?}"));
                    tracing::info!(
                        "{}: {} has given {} for {duration}",
                        self.interface.name,
                        lease.server,
                        lease.address
                    );
                    self.board.bind(index, hardware, lease, client.trouble());
                }
                Action::Lost => {
                    self.unicast = None;
                    self.board.change(index, hardware, true, client.trouble());
                }
                Action::Trouble => self.board.change(index, hardware, false, client.trouble()),
            }
        }
    }

    fn send(&mut self, to: Recipient, message: &[u8]) -> io::Result<()> {
        match to {
            Recipient::Everybody { source } => {
                if !source.is_unspecified() {
                    self.open_unicast(source)?;
                }
                self.socket()?.broadcast(source, message)
            }
            Recipient::Server { source, server } => {
                // Also before it answers, which it does at once.
                self.socket()?;
                let socket = self.open_unicast(source)?;
                socket.send_to(message, &SocketAddrV4::new(server, SERVER_PORT).into())?;
                Ok(())
            }
        }
    }

    fn socket(&mut self) -> io::Result<&DhcpSocket> {
        if self.socket.is_none() {
            self.socket = Some(DhcpSocket::open(self.interface.index, self.interface.hardware)?);
        }
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn open_unicast(&mut self, source: Ipv4Addr) -> io::Result<&Socket> {
        if self.unicast.as_ref().is_none_or(|(bound, _)| *bound != source) {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
            socket.set_reuse_address(true)?;
            socket.bind_device(Some(self.interface.name.as_bytes()))?;
            socket.bind(&SocketAddrV4::new(source, CLIENT_PORT).into())?;
            self.unicast = Some((source, socket));
        }
        self.unicast.as_ref().map(|(_, socket)| socket).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Waits for a message of a server. Safe to drop before it is done.
    async fn receive(&mut self) -> Vec<u8> {
        loop {
            // It is opened to send something, and before that nobody answers.
            let Some(socket) = &self.socket else { std::future::pending().await };
            match socket.receive().await {
                Ok(message) => return message,
                Err(error) => {
                    tracing::debug!("cannot receive DHCP messages on {}: {error}", self.interface.name);
                    sleep(AFTER_FAILURE).await;
                }
            }
        }
    }
}
