//! What a server allows its callers, each number with its reason.

use std::time::Duration;

/// The limits of one server. The default is what a node runs with; tests use smaller ones to reach them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// How long a TLS handshake may take. 5 s: three round trips on the slowest link that a node may have, with one packet lost.
    pub handshake_timeout: Duration,
    /// Handshakes that are under way at the same time. When there are more, the oldest is dropped: an honest one takes
    /// milliseconds, so it lives through a flood of 100,000 connections per second.
    pub handshakes: usize,
    /// How many of these are for places in the network from which nodes or users came last. Half: whoever floods us from elsewhere
    /// pushes out no handshake of these. Always less than all ([`Limits::checked`]): those who come for the first time need some.
    pub handshakes_kept: usize,
    /// The same from one address. A quarter of all: many nodes may be behind one address, and one address alone cannot
    /// push out the handshakes of all others.
    pub handshakes_per_address: usize,
    /// Connections of peers without a certificate of the cluster. When there are more, the one that was idle for longest is closed.
    /// 1,024: registering nodes and clients that look for the leader, of a cluster of a thousand nodes that starts at once.
    pub strangers: usize,
    /// The same from one address; half of all, so that one address alone cannot take all seats.
    pub strangers_per_address: usize,
    /// Connections of nodes and users. 4,608: every node of a cluster of 1,500 with three, and some for operators.
    pub members: usize,
    /// The same for one certificate. A program that forgets to close its connections takes its own seats, and not those of the owner.
    pub members_per_key: usize,
    /// How long a stranger's connection, or one that never made a call, may be without a call. 30 s: an operator's client
    /// makes its first call at once.
    pub idle_timeout: Duration,
    /// Calls that a stranger's connection may have open. They look for the leader and make one call beside that.
    pub streams_of_stranger: u32,
    /// Calls that a node's or user's connection may have open. 200 is what clients of gRPC expect.
    pub streams_of_member: u32,
    /// Longest message that a stranger may send, in bytes. Registration, the longest, has labels: 128 of at most 380 bytes.
    pub message_of_stranger: usize,
    /// Longest message that a node or user may send, in bytes: gRPC's own default.
    pub message_of_member: usize,
    /// How long a stranger may take to send the whole request of one call, so that no call is begun and never made.
    pub request_timeout_of_stranger: Duration,
    /// Calls per second from one address, of strangers. A node that waits for its approval makes one in some seconds, and behind one
    /// address there may be hundreds of them; all of them together take some percent of a core.
    pub calls_per_second: f64,
    /// Calls that may come at once before [`Limits::calls_per_second`] counts: those of some hundred nodes that start at once.
    pub calls_at_once: f64,
}

impl Limits {
    /// What a node runs with; for limits that are constants.
    pub const DEFAULT: Self = Self {
        handshake_timeout: Duration::from_secs(5),
        handshakes: HANDSHAKES,
        handshakes_kept: HANDSHAKES / 2,
        handshakes_per_address: HANDSHAKES / 4,
        strangers: STRANGERS,
        strangers_per_address: STRANGERS / 2,
        members: MEMBERS,
        members_per_key: 512,
        idle_timeout: Duration::from_secs(30),
        streams_of_stranger: 16,
        streams_of_member: 200,
        message_of_stranger: 64 * 1024,
        message_of_member: 4 * 1024 * 1024,
        request_timeout_of_stranger: Duration::from_secs(30),
        calls_per_second: 250.0,
        calls_at_once: 1_000.0,
    };

    /// These limits, which leave everybody some room. Every server looks at that when it begins; limits that are constants are looked
    /// at when they are compiled.
    ///
    /// # Panics
    ///
    /// When there is no room for handshakes of those who come for the first time, beside those that are kept for others.
    #[must_use]
    pub const fn checked(self) -> Self {
        assert!(self.handshakes_kept < self.handshakes, "no handshakes are left for those who come for the first time");
        self
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const HANDSHAKES: usize = 4_096;
const STRANGERS: usize = 1_024;
const MEMBERS: usize = 4_608;

/// Connections beyond their seats: accepted and not yet seated, or being closed.
const BETWEEN_SEATS: usize = 256;

/// File descriptors that one server with the default limits needs when all seats are taken. Whoever runs servers sees to it that the
/// process may have as many for each ([`Limits::descriptors`]), and its own beside them.
pub const DESCRIPTORS_NEEDED: usize = HANDSHAKES + STRANGERS + MEMBERS + BETWEEN_SEATS;

impl Limits {
    /// File descriptors that a server with these limits needs when all seats are taken.
    #[must_use]
    pub const fn descriptors(&self) -> usize {
        self.handshakes + self.strangers + self.members + BETWEEN_SEATS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constant_is_that_of_the_default() {
        assert_eq!(Limits::default().checked().descriptors(), DESCRIPTORS_NEEDED);
    }

    #[test]
    fn limits_without_room_for_those_who_come_first_are_refused() {
        for (handshakes, handshakes_kept, is_fine) in
            [(2, 1, true), (256, 128, true), (256, 256, false), (256, 2_048, false)]
        {
            let limits = Limits { handshakes, handshakes_kept, ..Limits::default() };
            let checked = std::panic::catch_unwind(|| limits.checked());
            assert_eq!(checked.is_ok(), is_fine, "{handshakes} and {handshakes_kept} kept");
        }
    }
}
