//! The DHCPv4 client of one link, without sockets and clocks (metropolis.md D.3, RFC 2131).
//!
//! [`Client`] is given messages, the time and the state of the link, and says what to send and what has become of the lease.
//! `message` puts its requests into bytes and takes answers apart, with the codec of smoltcp; `lease` decides which answers are
//! acceptable and what follows from them; `backoff` when something is sent again.

mod backoff;
mod client;
#[cfg(test)]
mod client_tests;
mod lease;
mod message;

pub(crate) use client::{Action, Client, LostLease, Recipient, Trouble, Unanswered};
pub(crate) use lease::{Lease, LeaseRoute};
