//! Whom a server knows that knows its callers by their keys.

use std::collections::BTreeSet;
use std::net::IpAddr;

use polis_identity::PublicKey;

/// Whom a server knows that knows its callers by their keys. It watches a value of this type
/// ([`KeyServerSettings`](crate::KeyServerSettings)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownKeys {
    /// Keys of the members. Connections of all others are those of strangers; whether their calls are answered is for the handlers
    /// to say.
    pub keys: BTreeSet<PublicKey>,
    /// Where members were when they were last heard of, by whomever. A server that has just started learns from it for whom it
    /// keeps seats; beyond that it remembers where members came from.
    pub addresses: BTreeSet<IpAddr>,
}
