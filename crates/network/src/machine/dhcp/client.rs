//! The states of the client and the ways between them.

use std::net::Ipv4Addr;
use std::time::Duration;

use polis_network_configuration::HardwareAddress;
use rand::RngExt as _;
use rand::rngs::StdRng;

use super::backoff::{Backoff, MAXIMUM, MAXIMUM_WITH_LEASE};
use super::lease::{Lease, Unacceptable, option};
use super::message::{Envelope, Reply, ReplyKind, Request};

/// How long an offer is waited for to be confirmed (metropolis.md D.3).
const OFFER_HELD: Duration = Duration::from_secs(30);
/// What counts as nothing left of a time (metropolis.md D.3).
const NOTHING_LEFT: Duration = Duration::from_millis(10);
/// How long an address is kept whose renewal was refused. A new one comes within a second, or four where the server first
/// looks whether somebody has it (dnsmasq), and then the node goes from one to the other instead of losing both.
const REFUSED_HELD: Duration = Duration::from_secs(5);
/// How long a link may be without a carrier before its lease counts as lost. A switch that starts again, or negotiates, takes
/// some seconds; whoever pulls a cable means it.
const CARRIER_GRACE: Duration = Duration::from_secs(10);
/// After how long without a usable answer that is worth a word. Two more tries than a healthy network ever needs.
const SILENCE: Duration = Duration::from_secs(10);

/// The client of one link. Times are those since any fixed instant.
#[derive(Debug)]
pub(crate) struct Client {
    hardware: HardwareAddress,
    random: StdRng,
    state: State,
    /// Since when the link has no carrier; absent while it has one.
    without_carrier: Option<Duration>,
    /// Since when there is no lease, with a carrier.
    seeking_since: Option<Duration>,
    /// The last address, which is asked for again.
    last: Option<Ipv4Addr>,
    trouble: Trouble,
    /// Why the last answer could not be taken, while that has not been told.
    unacceptable: Option<String>,
}

/// What an operator should know of. All of it is over with the next lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// There is no usable answer.
    pub(crate) unanswered: Option<Unanswered>,
    /// There was a lease, and there is none any more.
    pub(crate) lost: Option<LostLease>,
}

/// Why there is no usable answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Nobody answers.
    Silence,
    /// Somebody does, but not in a usable way.
    Unusable {
        /// What is wrong with it.
        reason: String,
    },
}

/// A lease that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LostLease {
    /// Its address.
    pub(crate) address: Ipv4Addr,
    /// Why.
    pub(crate) reason: &'static str,
}

/// What the client wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send a message.
    Send { to: Recipient, message: Vec<u8> },
    /// This lease is valid from now on, in place of any other.
    Bound(Lease),
    /// There is no lease any more.
    Lost,
    /// [`Client::trouble`] has changed.
    Trouble,
}

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipient {
    /// Everybody on the link, from `source`: this machine's address if it has one.
    Everybody { source: Ipv4Addr },
    /// One server, reached by way of the routes, from `source`.
    Server { source: Ipv4Addr, server: Ipv4Addr },
}

#[derive(Clone, Debug)]
enum State {
    /// Looks for a server. `held` is a lease whose renewal was refused, and until when it is kept.
    Discovering { exchange: Exchange, held: Option<Held> },
    /// Has taken an offer, and waits for it to be confirmed.
    Requesting { exchange: Exchange, offer: Lease, until: Duration, held: Option<Held> },
    /// Has a lease.
    Bound { lease: Lease, times: Times },
    /// Asks the server for more time.
    Renewing { lease: Lease, times: Times, exchange: Exchange },
    /// Asks every server for more time.
    Rebinding { lease: Lease, times: Times, exchange: Exchange },
}

#[derive(Clone, Debug)]
struct Held {
    lease: Lease,
    until: Duration,
}

/// Until when a lease is good for what; absent: for ever.
#[derive(Clone, Copy, Debug)]
struct Times {
    renew: Option<Duration>,
    rebind: Option<Duration>,
    expire: Option<Duration>,
}

/// A request that is repeated until it is answered.
#[derive(Clone, Debug)]
struct Exchange {
    transaction: u32,
    begun: Duration,
    next: Duration,
    backoff: Backoff,
}

impl Exchange {
    fn new(random: &mut StdRng, now: Duration, first: Duration, maximum: Duration) -> Self {
        Self { transaction: random.random(), begun: now, next: first, backoff: Backoff::new(maximum) }
    }

    /// Whether it is time to send, and the envelope if so.
    fn due<'a>(
        &mut self,
        random: &mut StdRng,
        now: Duration,
        hardware: HardwareAddress,
        host_name: Option<&'a str>,
    ) -> Option<Envelope<'a>> {
        if now < self.next {
            return None;
        }
        self.next = now + self.backoff.pause(random);
        let seconds = now.saturating_sub(self.begun).as_secs();
        let seconds = u16::try_from(seconds).unwrap_or(u16::MAX);
        Some(Envelope { transaction: self.transaction, seconds, hardware, host_name })
    }
}

impl Times {
    fn of(lease: &Lease, now: Duration) -> Self {
        let Some(duration) = lease.duration else {
            return Self { renew: None, rebind: None, expire: None };
        };
        Self {
            renew: Some(now + lease.renew_after),
            rebind: Some(now + lease.rebind_after),
            expire: Some(now + duration),
        }
    }
}

/// Whether `time` is over, or as good as.
fn is_over(time: Option<Duration>, now: Duration) -> bool {
    time.is_some_and(|time| time.saturating_sub(now) < NOTHING_LEFT)
}

impl Client {
    /// A client that looks for a server at once.
    pub(crate) fn new(hardware: HardwareAddress, mut random: StdRng, now: Duration) -> Self {
        let exchange = Exchange::new(&mut random, now, now, MAXIMUM);
        Self {
            hardware,
            random,
            state: State::Discovering { exchange, held: None },
            without_carrier: None,
            seeking_since: Some(now),
            last: None,
            trouble: Trouble::default(),
            unacceptable: None,
        }
    }

    /// A client that goes on where another one has ended that got this lease at `obtained`: it asks at once whether it still
    /// holds.
    pub(crate) fn resume(
        hardware: HardwareAddress,
        random: StdRng,
        now: Duration,
        lease: Lease,
        obtained: Duration,
    ) -> Self {
        let mut client = Self::new(hardware, random, now);
        client.last = Some(lease.address.addr());
        client.seeking_since = None;
        let exchange = Exchange::new(&mut client.random, now, now, MAXIMUM_WITH_LEASE);
        client.state = State::Rebinding { times: Times::of(&lease, obtained), lease, exchange };
        client
    }

    /// What is not as it should be.
    pub(crate) const fn trouble(&self) -> &Trouble {
        &self.trouble
    }

    /// When [`Client::tick`] has to be called, at the latest.
    pub(crate) fn wake_at(&self) -> Option<Duration> {
        let carrier = self.without_carrier.map(|since| since + CARRIER_GRACE);
        let sending = self.without_carrier.is_none();
        let times = match &self.state {
            State::Discovering { exchange, held } => {
                [sending.then_some(exchange.next), held.as_ref().map(|held| held.until), self.silent_at()]
            }
            State::Requesting { exchange, until, held, .. } => {
                let next = exchange.next.min(*until);
                [sending.then_some(next), held.as_ref().map(|held| held.until), self.silent_at()]
            }
            State::Bound { times, .. } => [times.renew, times.rebind, times.expire],
            State::Renewing { times, exchange, .. } => [sending.then_some(exchange.next), times.rebind, times.expire],
            State::Rebinding { times, exchange, .. } => [sending.then_some(exchange.next), None, times.expire],
        };
        let carrier = carrier.filter(|_| self.lease().is_some());
        times.into_iter().flatten().chain(carrier).min()
    }

    /// When the silence is to be told, unless it has been.
    fn silent_at(&self) -> Option<Duration> {
        let is_told = self.trouble.unanswered.is_some();
        self.seeking_since.filter(|_| !is_told && self.without_carrier.is_none()).map(|since| since + SILENCE)
    }

    /// The lease in force.
    fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Discovering { held, .. } | State::Requesting { held, .. } => held.as_ref().map(|held| &held.lease),
            State::Bound { lease, .. } | State::Renewing { lease, .. } | State::Rebinding { lease, .. } => Some(lease),
        }
    }

    /// Tells of the carrier of the link. One that comes back is asked whether the lease still holds there, as it may be another
    /// network.
    pub(crate) fn carrier(&mut self, now: Duration, has_carrier: bool) {
        match (has_carrier, self.without_carrier) {
            (true, Some(_)) => {
                self.without_carrier = None;
                let exchange = |random: &mut StdRng, maximum| Exchange::new(random, now, now, maximum);
                match self.state.clone() {
                    State::Bound { lease, times }
                    | State::Renewing { lease, times, .. }
                    | State::Rebinding { lease, times, .. } => {
                        let exchange = exchange(&mut self.random, MAXIMUM_WITH_LEASE);
                        self.state = State::Rebinding { lease, times, exchange };
                    }
                    State::Discovering { held, .. } | State::Requesting { held, .. } => {
                        self.seeking_since = Some(now);
                        self.state = State::Discovering { exchange: exchange(&mut self.random, MAXIMUM), held };
                    }
                }
            }
            (false, None) => self.without_carrier = Some(now),
            (true, None) | (false, Some(_)) => {}
        }
    }

    /// Does what is due. `host_name` is that of the machine.
    pub(crate) fn tick(&mut self, now: Duration, host_name: Option<&str>) -> Vec<Action> {
        let mut actions = Vec::new();
        self.age(now, &mut actions);
        if self.without_carrier.is_none() {
            self.send(now, host_name, &mut actions);
            self.tell_of_silence(now, &mut actions);
        }
        actions
    }

    /// Takes the ways out of a state that only time opens.
    fn age(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let too_long = self.without_carrier.is_some_and(|since| now >= since + CARRIER_GRACE);
        if too_long && self.lease().is_some() {
            return self.lose(now, "its link has no carrier", actions);
        }
        match self.state.clone() {
            State::Discovering { held, .. } | State::Requesting { held, .. } => {
                if held.is_some_and(|held| is_over(Some(held.until), now)) {
                    self.forget_held(now, actions);
                }
                if let State::Requesting { until, held, .. } = self.state.clone()
                    && now >= until
                {
                    self.discover(now, now, held);
                }
            }
            State::Bound { times, .. } | State::Renewing { times, .. } | State::Rebinding { times, .. }
                if is_over(times.expire, now) =>
            {
                self.lose(now, "no server has extended it", actions);
            }
            State::Bound { lease, times } | State::Renewing { lease, times, .. } if is_over(times.rebind, now) => {
                let exchange = Exchange::new(&mut self.random, now, now, MAXIMUM_WITH_LEASE);
                self.state = State::Rebinding { lease, times, exchange };
            }
            State::Bound { lease, times } if is_over(times.renew, now) => {
                let exchange = Exchange::new(&mut self.random, now, now, MAXIMUM_WITH_LEASE);
                self.state = State::Renewing { lease, times, exchange };
            }
            State::Bound { .. } | State::Renewing { .. } | State::Rebinding { .. } => {}
        }
    }

    fn send(&mut self, now: Duration, host_name: Option<&str>, actions: &mut Vec<Action>) {
        let (random, hardware) = (&mut self.random, self.hardware);
        let held_address = |held: &Option<Held>| held.as_ref().map(|held| held.lease.address.addr());
        let sent = match &mut self.state {
            State::Discovering { exchange, held } => {
                let wish = held_address(held).or(self.last);
                exchange.due(random, now, hardware, host_name).map(|envelope| {
                    let to = Recipient::Everybody { source: Ipv4Addr::UNSPECIFIED };
                    (to, Request::Discover { wish }, envelope)
                })
            }
            State::Requesting { exchange, offer, .. } => {
                let request = Request::Select { address: offer.address.addr(), server: offer.server };
                let to = Recipient::Everybody { source: Ipv4Addr::UNSPECIFIED };
                exchange.due(random, now, hardware, host_name).map(|envelope| (to, request, envelope))
            }
            State::Bound { .. } => None,
            State::Renewing { lease, exchange, .. } => {
                let source = lease.address.addr();
                let to = Recipient::Server { source, server: lease.server };
                let request = Request::Extend { address: source };
                exchange.due(random, now, hardware, host_name).map(|envelope| (to, request, envelope))
            }
            State::Rebinding { lease, exchange, .. } => {
                let source = lease.address.addr();
                let request = Request::Extend { address: source };
                let to = Recipient::Everybody { source };
                exchange.due(random, now, hardware, host_name).map(|envelope| (to, request, envelope))
            }
        };
        actions.extend(sent.map(|(to, request, envelope)| Action::Send { to, message: request.encode(envelope) }));
    }

    fn tell_of_silence(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.silent_at().is_some_and(|at| now >= at) {
            let unanswered = match self.unacceptable.take() {
                None => Unanswered::Silence,
                Some(reason) => Unanswered::Unusable { reason },
            };
            self.set_trouble(Trouble { unanswered: Some(unanswered), lost: self.trouble.lost.clone() }, actions);
        }
    }

    /// Takes a message of a server, without headers. What is not for this client, or not expected, is ignored.
    pub(crate) fn receive(&mut self, now: Duration, message: &[u8]) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(reply) = Reply::decode(message).filter(|reply| reply.hardware == self.hardware) else {
            return actions;
        };
        let expected = match &self.state {
            State::Bound { .. } => return actions,
            State::Discovering { exchange, .. }
            | State::Requesting { exchange, .. }
            | State::Renewing { exchange, .. }
            | State::Rebinding { exchange, .. } => exchange.transaction,
        };
        if reply.transaction != expected {
            return actions;
        }
        match (self.state.clone(), reply.kind) {
            (State::Discovering { held, .. }, ReplyKind::Offer) => {
                if let Some(offer) = self.acceptable(Lease::from_reply(&reply), &mut actions) {
                    // The exchange goes on under the same number (RFC 2131, 4.4.1), and is in a hurry again.
                    let mut exchange = Exchange::new(&mut self.random, now, now, MAXIMUM);
                    exchange.transaction = expected;
                    self.state = State::Requesting { exchange, offer, until: now + OFFER_HELD, held };
                }
            }
            (State::Discovering { .. }, ReplyKind::Acknowledge) => {
                // At once, as we have asked for (RFC 4039).
                if reply.option(option::RAPID_COMMIT).is_some() {
                    self.take(now, &reply, &mut actions);
                }
            }
            (State::Requesting { offer, .. }, ReplyKind::Acknowledge) => {
                // Another server confirms only what was asked of it.
                if reply.addresses(option::SERVER).next() == Some(offer.server) {
                    self.take(now, &reply, &mut actions);
                }
            }
            (State::Requesting { offer, held, .. }, ReplyKind::Refuse) => {
                if reply.addresses(option::SERVER).next().is_none_or(|server| server == offer.server) {
                    // Not at once: a server that offers what it then refuses would be asked without end.
                    let pause = Backoff::new(MAXIMUM).pause(&mut self.random);
                    self.last = None;
                    self.discover(now, now + pause, held);
                }
            }
            (State::Renewing { .. } | State::Rebinding { .. }, ReplyKind::Acknowledge) => {
                self.take(now, &reply, &mut actions);
            }
            (State::Renewing { lease, times, .. } | State::Rebinding { lease, times, .. }, ReplyKind::Refuse) => {
                let until = now + REFUSED_HELD;
                let until = times.expire.map_or(until, |expire| until.min(expire));
                self.seeking_since = Some(now);
                self.discover(now, now, Some(Held { lease, until }));
            }
            // What comes late, and was answered by somebody else before.
            (State::Discovering { .. }, ReplyKind::Refuse)
            | (State::Requesting { .. } | State::Renewing { .. } | State::Rebinding { .. }, ReplyKind::Offer)
            | (State::Bound { .. }, ReplyKind::Offer | ReplyKind::Acknowledge | ReplyKind::Refuse) => {}
        }
        actions
    }

    fn take(&mut self, now: Duration, reply: &Reply, actions: &mut Vec<Action>) {
        if let Some(lease) = self.acceptable(Lease::from_reply(reply), actions) {
            self.last = Some(lease.address.addr());
            self.seeking_since = None;
            self.unacceptable = None;
            self.set_trouble(Trouble::default(), actions);
            self.state = State::Bound { times: Times::of(&lease, now), lease: lease.clone() };
            actions.push(Action::Bound(lease));
        }
    }

    fn acceptable(&mut self, lease: Result<Lease, Unacceptable>, actions: &mut Vec<Action>) -> Option<Lease> {
        match lease {
            Ok(lease) => Some(lease),
            Err(reason) => {
                let reason = reason.to_string();
                if self.trouble.unanswered.is_some() {
                    let unanswered = Some(Unanswered::Unusable { reason });
                    self.set_trouble(Trouble { unanswered, lost: self.trouble.lost.clone() }, actions);
                } else {
                    self.unacceptable = Some(reason);
                }
                None
            }
        }
    }

    /// Begins anew, with the first message at `first`.
    fn discover(&mut self, now: Duration, first: Duration, held: Option<Held>) {
        let exchange = Exchange::new(&mut self.random, now, first, MAXIMUM);
        self.state = State::Discovering { exchange, held };
    }

    fn lose(&mut self, now: Duration, reason: &'static str, actions: &mut Vec<Action>) {
        let lost = self.lease().map(|lease| LostLease { address: lease.address.addr(), reason });
        self.seeking_since = Some(now);
        self.discover(now, now, None);
        actions.push(Action::Lost);
        self.set_trouble(Trouble { unanswered: None, lost }, actions);
    }

    fn forget_held(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let (State::Discovering { held, .. } | State::Requesting { held, .. }) = &mut self.state else { return };
        if let Some(Held { lease, .. }) = held.take() {
            let address = lease.address.addr();
            // Nobody gives it any more.
            self.last = None;
            self.seeking_since = Some(now);
            actions.push(Action::Lost);
            let reason = "its server has refused to extend it, and no server gave another one in time";
            self.set_trouble(Trouble { unanswered: None, lost: Some(LostLease { address, reason }) }, actions);
        }
    }

    fn set_trouble(&mut self, trouble: Trouble, actions: &mut Vec<Action>) {
        if self.trouble != trouble {
            self.trouble = trouble;
            actions.push(Action::Trouble);
        }
    }
}
