//! Who may call which RPC, as the schemas say.

use crate::ext::Permission;

/// Who may call an RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authorization {
    /// A node or a user of the cluster that holds every one of these permissions. There is at least one.
    Need(&'static [Permission]),
    /// Anybody, also without a certificate of the cluster.
    AllowUnauthenticated,
}

/// An RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// As gRPC calls it: slash, service, slash, name.
    pub path: &'static str,
    /// Full name of its service, package included.
    pub service: &'static str,
    /// Its own name.
    pub name: &'static str,
    /// Who may call it.
    pub authorization: Authorization,
    /// Whether the request is a stream.
    pub client_streaming: bool,
    /// Whether the response is a stream.
    pub server_streaming: bool,
}

/// Every RPC of the schemas, ordered by path.
pub const METHODS: &[Method] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));

/// The RPC with this path; none when no schema has it.
pub fn of(path: &str) -> Option<&'static Method> {
    let index = METHODS.binary_search_by(|method| method.path.cmp(path)).ok()?;
    METHODS.get(index)
}
