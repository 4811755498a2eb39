//! How nodes and users of a cluster speak to each other: who is at the other end, what they may do, and where the leader is.
//!
//! All of it is gRPC over TLS 1.3 with Ed25519 certificates, as Metropolis speaks it (metropolis.md H). What is served is no
//! business of this crate; it knows certificates, the table of who may call what ([`polis_proto::authorization`]), and limits.
//!
//! # Servers
//!
//! [`serve`] runs the accept loop of one listener, and [`serve_pages`] one for monitoring. What they promise:
//!
//! * **Who calls** is known before a handler runs: [`Caller::of`] any request. A key is believed only from one who proved in
//!   the handshake of this very connection to hold it; there are no tickets to resume a session. Dates are not looked at.
//! * **Who may call what** is the option in the schema and nothing else. A method that has no entry never runs, a caller whose
//!   certificate is not believed gets UNAUTHENTICATED with the reason from every method, and a certificate is judged by what
//!   [`Trust`] says at the time of each call. Streams of a caller whom the cluster lets go end at once.
//! * **Strangers are kept small.** Whoever has no certificate of the cluster gets small requests, few of them, and a seat that
//!   is taken away when others want it ([`Limits`]). Nobody but the holders of certificates can fill the seats of these, and
//!   part of the handshakes are kept for places in the network that these came from last.
//! * **A panic** in a handler, or in the stream that it answers with, fails that call with INTERNAL.
//! * **A mutating call leaves a line** in the log, with target [`AUDIT_TARGET`]: method, caller, address, what it is about as far as its
//!   handler has said that ([`AuditObject`]), result, duration; never what else was asked or answered. Those of users have a journal of
//!   their own, so that a thousand nodes do not push them out.
//! * **It stops in order**: streams end with UNAVAILABLE, calls get [`STOP_GRACE`] to finish, connections get their GOAWAY.
//!
//! [`serve_by_key`] is the same for those who cannot have certificates of a cluster yet, or no clock and no names: both sides know
//! each other by the keys that they prove to hold, and nothing else. There the handlers say who may call what.
//!
//! # Clients
//!
//! [`Connector`] opens channels to one address and knows what went wrong ([`ConnectError`], also below a status:
//! [`connect_error`]). [`ClusterClient`] finds the leader over all endpoints at once and follows it.
//!
//! Statuses carry details that clients act on: [`detail`].

#![forbid(unsafe_code)]

mod authorize;
mod client_identity;
mod cluster;
mod connect_error;
mod connector;
pub mod detail;
mod failure;
mod key_identity;
mod known_keys;
mod limits;
mod peer;
mod server;
mod server_identity;
pub mod testing;
mod tls;
mod trust;

pub use client_identity::{ClientIdentity, ForeignCertificateError};
pub use cluster::{CallError, CallPolicy, ClusterClient, EndpointFailure, FailureKind, Judge, Leader, Search};
pub use connect_error::{ConnectError, ServerRefusal};
pub use connector::{Connector, ExpectedServer};
pub use failure::{connect_error, describe, is_transport_failure};
pub use key_identity::KeyIdentity;
pub use known_keys::KnownKeys;
pub use limits::{DESCRIPTORS_NEEDED, Limits};
pub use peer::{Caller, Peer};
pub use server::{
    AUDIT_TARGET, AuditObject, Bucket, KeyServerSettings, Rate, STOP_GRACE, ServerSettings, listen, serve,
    serve_by_key, serve_pages,
};
pub use server_identity::{ServerIdentity, ServerIdentityError};
pub use trust::{News, Trust};

/// Port of the curator: Curator, CuratorLocal, AAA, Management and the services of `polis` beside them (metropolis.md J.1).
pub const CURATOR_PORT: u16 = 7835;

/// Port of the unlock service, on every node that is or may become a member of an encrypted cluster (cold-start.md, Protocol).
pub const UNLOCK_PORT: u16 = 7836;

/// Port of NodeManagement, on every node (metropolis.md J.2).
pub const NODE_MANAGEMENT_PORT: u16 = 7839;

/// Port of the metrics, on every node (metropolis.md J.4).
pub const METRICS_PORT: u16 = 7840;
