//! The client under simulated time: scripts of what a server says, and what the client does about it.

use std::net::Ipv4Addr;
use std::time::Duration;

use polis_network_configuration::HardwareAddress;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use smoltcp::wire::{DhcpMessageType, DhcpPacket};

use super::client::{Action, Client, LostLease, Recipient, Trouble, Unanswered};
use super::lease::option;
use super::message::{Reply, ReplyKind};

const HARDWARE: HardwareAddress = HardwareAddress([2, 0, 0, 0, 0, 1]);
const OFFERED: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 5);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const OTHER_SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
/// Of the leases that are given here, in seconds.
const LEASE: u64 = 1000;

/// A client and the wire that it is on.
struct Wire {
    client: Client,
    now: Duration,
    /// What was sent and not looked at.
    sent: Vec<(Recipient, Vec<u8>)>,
    /// What became of the lease, in words.
    events: Vec<String>,
    /// The leases that it got.
    leases: Vec<Action>,
}

impl Wire {
    fn new() -> Self {
        let now = Duration::from_secs(1_000_000);
        let client = Client::new(HARDWARE, StdRng::seed_from_u64(1), now);
        let mut wire = Self { client, now, sent: Vec::new(), events: Vec::new(), leases: Vec::new() };
        wire.tick();
        wire
    }

    fn tick(&mut self) {
        let actions = self.client.tick(self.now, Some("node"));
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, message } => self.sent.push((to, message)),
                Action::Bound(lease) => {
                    self.events.push(format!("bound {}", lease.address));
                    self.leases.push(Action::Bound(lease));
                }
                Action::Lost => self.events.push("lost".to_owned()),
                Action::Trouble => self.events.push("trouble".to_owned()),
            }
        }
    }

    /// Lets time pass, with the client awake whenever it wants to be.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut wakes = 0;
        while let Some(wake) = self.client.wake_at().filter(|wake| *wake <= end) {
            self.now = wake.max(self.now);
            self.tick();
            wakes += 1;
            assert!(wakes < 10_000, "the client never sleeps");
        }
        self.now = end;
    }

    fn seconds(&mut self, seconds: u64) {
        self.pass(Duration::from_secs(seconds));
    }

    /// The messages that were sent since the last look: kind, and to whom.
    fn sent(&mut self) -> Vec<(DhcpMessageType, Recipient)> {
        let kind = |message: &[u8]| {
            let packet = DhcpPacket::new_checked(message).unwrap();
            let kind = packet.options().find(|option| option.kind == 53).unwrap().data[0];
            DhcpMessageType::from(kind)
        };
        self.sent.drain(..).map(|(to, message)| (kind(&message), to)).collect()
    }

    fn events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// Number of the exchange that the last message belongs to.
    fn transaction(&self) -> u32 {
        DhcpPacket::new_checked(&self.sent.last().unwrap().1).unwrap().transaction_id()
    }

    /// Answers the last message that was sent, and sends at once what follows.
    fn answer(&mut self, kind: ReplyKind, change: impl FnOnce(&mut Reply)) {
        let mut reply = Reply::for_test(OFFERED);
        reply.kind = kind;
        reply.transaction = self.transaction();
        reply.set(option::SERVER, &SERVER.octets());
        reply.set(option::SUBNET_MASK, &[255, 255, 255, 0]);
        reply.set(option::LEASE_TIME, &u32::try_from(LEASE).unwrap().to_be_bytes());
        change(&mut reply);
        let actions = self.client.receive(self.now, &reply.encode());
        self.carry_out(actions);
        self.tick();
    }

    /// A client with a lease that it has just got.
    fn bound() -> Self {
        let mut wire = Self::new();
        wire.answer(ReplyKind::Offer, |_| ());
        wire.answer(ReplyKind::Acknowledge, |_| ());
        assert_eq!(wire.events(), ["bound 10.1.0.5/24"]);
        wire.sent();
        wire
    }
}

fn everybody(source: Ipv4Addr) -> Recipient {
    Recipient::Everybody { source }
}

const NOBODY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const DISCOVER: DhcpMessageType = DhcpMessageType::Discover;
const REQUEST: DhcpMessageType = DhcpMessageType::Request;

#[test]
fn discovering_requesting_bound() {
    let mut wire = Wire::new();
    let exchange = wire.transaction();
    wire.answer(ReplyKind::Offer, |_| ());
    assert_eq!(wire.transaction(), exchange);
    wire.answer(ReplyKind::Acknowledge, |_| ());
    assert_eq!(wire.sent(), [(DISCOVER, everybody(NOBODY)), (REQUEST, everybody(NOBODY))]);
    assert_eq!(wire.events(), ["bound 10.1.0.5/24"]);
    wire.seconds(499);
    assert_eq!(wire.sent(), []);
}

#[test]
fn discovering_goes_on_with_pauses_that_grow() {
    let mut wire = Wire::new();
    wire.seconds(3600);
    let sent = wire.sent();
    assert!(sent.iter().all(|(kind, _)| *kind == DISCOVER), "{sent:?}");
    // 1.4, 2.8, 5.6, 11.2, 22.4 and then 30 s each, give or take a fifth.
    assert!((100..=155).contains(&sent.len()), "{} messages in an hour", sent.len());
    assert_eq!(wire.events(), ["trouble"]);
    assert_eq!(*wire.client.trouble(), Trouble { unanswered: Some(Unanswered::Silence), lost: None });
    // All is well as soon as there is an answer.
    wire.tick();
    wire.seconds(60);
    wire.answer(ReplyKind::Offer, |_| ());
    wire.answer(ReplyKind::Acknowledge, |_| ());
    assert_eq!(wire.events(), ["trouble", "bound 10.1.0.5/24"]);
    assert_eq!(*wire.client.trouble(), Trouble::default());
}

#[test]
fn the_first_usable_offer_is_taken_and_others_are_left_alone() {
    let mut wire = Wire::new();
    wire.answer(ReplyKind::Offer, |reply| reply.your_address = NOBODY);
    assert_eq!(wire.sent.len(), 1);
    wire.answer(ReplyKind::Offer, |_| ());
    // The other server's offer is late, and so is its confirmation of what nobody has asked it for.
    wire.answer(ReplyKind::Offer, |reply| reply.your_address = Ipv4Addr::new(10, 1, 0, 99));
    wire.answer(ReplyKind::Acknowledge, |reply| reply.set(option::SERVER, &OTHER_SERVER.octets()));
    wire.answer(ReplyKind::Refuse, |reply| reply.set(option::SERVER, &OTHER_SERVER.octets()));
    assert_eq!(wire.events(), [""; 0]);
    wire.answer(ReplyKind::Acknowledge, |_| ());
    assert_eq!(wire.events(), ["bound 10.1.0.5/24"]);
}

#[test]
fn an_unusable_answer_is_told_with_its_reason() {
    let mut wire = Wire::new();
    for _ in 0..3 {
        wire.answer(ReplyKind::Offer, |reply| reply.set(option::LEASE_TIME, &[]));
        wire.seconds(4);
    }
    let reason = "it does not say for how long (option 51)".to_owned();
    assert_eq!(*wire.client.trouble(), Trouble { unanswered: Some(Unanswered::Unusable { reason }), lost: None });
    wire.answer(ReplyKind::Offer, |reply| reply.set(option::SERVER, &[]));
    let reason = "it does not name itself (option 54)".to_owned();
    assert_eq!(*wire.client.trouble(), Trouble { unanswered: Some(Unanswered::Unusable { reason }), lost: None });
}

#[test]
fn an_offer_that_nobody_confirms_is_given_up() {
    let mut wire = Wire::new();
    wire.answer(ReplyKind::Offer, |_| ());
    wire.sent();
    wire.seconds(29);
    let sent = wire.sent();
    assert!(sent.len() >= 3 && sent.iter().all(|(kind, _)| *kind == REQUEST), "{sent:?}");
    wire.seconds(2);
    assert_eq!(wire.sent().last().unwrap().0, DISCOVER);
}

#[test]
fn an_offer_that_is_taken_back_is_looked_for_again_but_not_in_a_hurry() {
    let mut wire = Wire::new();
    wire.answer(ReplyKind::Offer, |_| ());
    wire.answer(ReplyKind::Refuse, |_| ());
    wire.sent();
    wire.pass(Duration::from_secs(1));
    assert_eq!(wire.sent(), []);
    wire.pass(Duration::from_secs(1));
    assert_eq!(wire.sent(), [(DISCOVER, everybody(NOBODY))]);
    assert_eq!(wire.events(), [""; 0]);
}

#[test]
fn rapid_commit_skips_the_offer() {
    let mut wire = Wire::new();
    // Only with the option; anything else is an answer to something else.
    wire.answer(ReplyKind::Acknowledge, |_| ());
    assert_eq!(wire.events(), [""; 0]);
    wire.answer(ReplyKind::Acknowledge, |reply| reply.set(option::RAPID_COMMIT, &[]));
    assert_eq!(wire.events(), ["bound 10.1.0.5/24"]);
}

#[test]
fn bound_renewing_bound() {
    let mut wire = Wire::bound();
    for _ in 0..3 {
        wire.seconds(499);
        assert_eq!(wire.sent(), []);
        wire.seconds(2);
        let to = Recipient::Server { source: OFFERED, server: SERVER };
        wire.answer(ReplyKind::Acknowledge, |_| ());
        assert_eq!(wire.sent(), [(REQUEST, to)]);
        assert_eq!(wire.events(), ["bound 10.1.0.5/24"]);
    }
}

#[test]
fn renewing_rebinding_bound() {
    let mut wire = Wire::bound();
    wire.seconds(849);
    let sent = wire.sent();
    let to = Recipient::Server { source: OFFERED, server: SERVER };
    assert!(sent.len() > 5 && sent.iter().all(|message| *message == (REQUEST, to)), "{sent:?}");
    wire.seconds(2);
    // Any server may answer now.
    wire.answer(ReplyKind::Acknowledge, |reply| reply.set(option::SERVER, &OTHER_SERVER.octets()));
    assert_eq!(wire.sent(), [(REQUEST, everybody(OFFERED))]);
    assert_eq!(wire.events(), ["bound 10.1.0.5/24"]);
    wire.seconds(501);
    assert_eq!(wire.sent(), [(REQUEST, Recipient::Server { source: OFFERED, server: OTHER_SERVER })]);
}

#[test]
fn rebinding_discovering() {
    let mut wire = Wire::bound();
    wire.seconds(LEASE - 1);
    wire.sent();
    assert_eq!(wire.events(), [""; 0]);
    wire.seconds(2);
    assert_eq!(wire.sent(), [(DISCOVER, everybody(NOBODY))]);
    assert_eq!(wire.events(), ["lost", "trouble"]);
    let lost = Some(LostLease { address: OFFERED, reason: "no server has extended it" });
    assert_eq!(*wire.client.trouble(), Trouble { unanswered: None, lost: lost.clone() });
    // Both are told while there is no answer either.
    wire.seconds(20);
    assert_eq!(wire.events(), ["trouble"]);
    assert_eq!(*wire.client.trouble(), Trouble { unanswered: Some(Unanswered::Silence), lost });
    wire.answer(ReplyKind::Offer, |_| ());
    wire.answer(ReplyKind::Acknowledge, |_| ());
    assert_eq!(wire.events(), ["trouble", "bound 10.1.0.5/24"]);
}

#[test]
fn another_address_at_renewal_is_taken() {
    let mut wire = Wire::bound();
    wire.seconds(501);
    wire.answer(ReplyKind::Acknowledge, |reply| reply.your_address = Ipv4Addr::new(10, 1, 0, 77));
    assert_eq!(wire.events(), ["bound 10.1.0.77/24"]);
}

#[test]
fn a_refused_renewal_keeps_the_address_until_there_is_another() {
    let mut wire = Wire::bound();
    wire.seconds(501);
    wire.answer(ReplyKind::Refuse, |_| ());
    assert_eq!(wire.sent().last().unwrap().0, DISCOVER, "at once");
    assert_eq!(wire.events(), [""; 0]);
    wire.seconds(4);
    wire.answer(ReplyKind::Offer, |reply| reply.your_address = Ipv4Addr::new(10, 1, 0, 77));
    wire.answer(ReplyKind::Acknowledge, |reply| reply.your_address = Ipv4Addr::new(10, 1, 0, 77));
    assert_eq!(wire.events(), ["bound 10.1.0.77/24"]);
    wire.seconds(10);
    assert_eq!(wire.events(), [""; 0]);
}

#[test]
fn a_refused_renewal_without_another_address_is_a_loss_after_a_few_seconds() {
    let mut wire = Wire::bound();
    wire.seconds(501);
    wire.answer(ReplyKind::Refuse, |_| ());
    wire.seconds(6);
    assert_eq!(wire.events(), ["lost", "trouble"]);
    assert_eq!(wire.client.trouble().lost.as_ref().unwrap().address, OFFERED);
}

#[test]
fn a_short_break_of_the_link_is_no_loss_and_the_lease_is_asked_about() {
    let mut wire = Wire::bound();
    wire.client.carrier(wire.now, false);
    wire.seconds(9);
    assert_eq!(wire.sent(), []);
    wire.client.carrier(wire.now, true);
    wire.tick();
    wire.answer(ReplyKind::Acknowledge, |_| ());
    assert_eq!(wire.sent(), [(REQUEST, everybody(OFFERED))]);
    assert_eq!(wire.events(), ["bound 10.1.0.5/24"]);
}

#[test]
fn a_long_break_of_the_link_is_a_loss_and_silence_until_it_is_back() {
    let mut wire = Wire::bound();
    wire.client.carrier(wire.now, false);
    wire.seconds(3600);
    assert_eq!((wire.sent(), wire.events()), (vec![], vec!["lost".to_owned(), "trouble".to_owned()]));
    let reason = "its link has no carrier";
    let lost = Some(LostLease { address: OFFERED, reason });
    assert_eq!(*wire.client.trouble(), Trouble { unanswered: None, lost });
    wire.client.carrier(wire.now, true);
    wire.tick();
    wire.answer(ReplyKind::Offer, |_| ());
    wire.answer(ReplyKind::Acknowledge, |_| ());
    assert_eq!(wire.events(), ["trouble", "bound 10.1.0.5/24"]);
}

#[test]
fn a_client_that_goes_on_asks_whether_its_lease_still_holds() {
    let mut wire = Wire::new();
    wire.answer(ReplyKind::Offer, |_| ());
    wire.answer(ReplyKind::Acknowledge, |_| ());
    let obtained = wire.now;
    let Some(Action::Bound(lease)) = wire.leases.pop() else { panic!("there is a lease") };
    wire.sent();
    wire.events();
    wire.seconds(100);
    wire.client = Client::resume(HARDWARE, StdRng::seed_from_u64(2), wire.now, lease, obtained);
    wire.tick();
    assert_eq!(wire.sent(), [(REQUEST, everybody(OFFERED))]);
    // It runs out when it would have.
    wire.seconds(LEASE - 101);
    assert_eq!(wire.events(), [""; 0]);
    wire.seconds(2);
    assert_eq!(wire.events(), ["lost", "trouble"]);
}

#[test]
fn a_lease_for_ever_is_never_asked_about() {
    let mut wire = Wire::new();
    wire.answer(ReplyKind::Offer, |reply| reply.set(option::LEASE_TIME, &[255; 4]));
    wire.answer(ReplyKind::Acknowledge, |reply| reply.set(option::LEASE_TIME, &[255; 4]));
    wire.sent();
    assert_eq!(wire.client.wake_at(), None);
    wire.seconds(1_000_000_000);
    assert_eq!(wire.sent(), []);
}

#[test]
fn messages_for_others_and_garbage_are_ignored() {
    let mut wire = Wire::new();
    wire.answer(ReplyKind::Offer, |reply| reply.transaction ^= 1);
    wire.answer(ReplyKind::Offer, |reply| reply.hardware = HardwareAddress([2, 0, 0, 0, 0, 2]));
    let actions = wire.client.receive(wire.now, &[0; 400]);
    assert_eq!(actions, []);
    assert_eq!(wire.sent(), [(DISCOVER, everybody(NOBODY))]);
}

/// Whatever a server says and whenever the link breaks, the client keeps its promises: it always wakes again unless it has a
/// lease for ever or no carrier, it is never bound to what it has not been given, and once the server is sane it gets a lease.
#[test]
fn any_script_ends_well() {
    use proptest::prelude::*;

    let step = (0_u8..8, 0_u64..700, any::<u8>());
    let script = proptest::collection::vec(step, 0..60);
    proptest!(|(script in script)| {
        let mut wire = Wire::new();
        let mut has_carrier = true;
        for (what, seconds, byte) in script {
            match what {
                0 | 1 => wire.seconds(seconds),
                2 => {
                    has_carrier = !has_carrier;
                    wire.client.carrier(wire.now, has_carrier);
                    wire.tick();
                }
                _ if wire.sent.is_empty() => wire.seconds(seconds / 10),
                3 => wire.answer(ReplyKind::Refuse, |_| ()),
                4 => wire.answer(ReplyKind::Offer, |_| ()),
                5 => wire.answer(ReplyKind::Acknowledge, |reply| reply.your_address = Ipv4Addr::new(10, 1, 0, byte)),
                6 => wire.answer(ReplyKind::Offer, |reply| reply.set(option::LEASE_TIME, &[0, 0, 0, byte])),
                _ => wire.answer(ReplyKind::Acknowledge, |reply| reply.set(option::RAPID_COMMIT, &[])),
            }
        }
        wire.client.carrier(wire.now, true);
        // After at most a lease, all that was is over, and the client asks.
        wire.sent.clear();
        wire.events.clear();
        wire.seconds(LEASE + 60);
        prop_assert!(!wire.sent.is_empty());
        wire.answer(ReplyKind::Offer, |_| ());
        wire.answer(ReplyKind::Acknowledge, |_| ());
        let events = wire.events();
        prop_assert_eq!(events.last().map(String::as_str), Some("bound 10.1.0.5/24"));
        prop_assert_eq!(wire.client.trouble(), &Trouble::default());
    });
}
