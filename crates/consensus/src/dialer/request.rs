//! What a caller asks of the dialer, and whether it gets it. Pure.

use std::net::{Ipv6Addr, SocketAddrV6};

use super::Authorization;
use crate::peer_url::PEER_PORT;

/// Longest request head. etcd's has about 300 bytes.
pub(super) const MAX_HEAD: usize = 4096;

/// Why a caller does not get a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No HTTP request, or one with bytes behind it.
    Malformed,
    /// Longer than [`MAX_HEAD`].
    TooLong,
    /// Not with the token of this dialer.
    Token,
    /// Something else than CONNECT.
    Method,
    /// Not the peer port of a mapped identity address.
    Unmapped,
    /// The peer did not take the connection in time.
    Unreachable,
}

impl Refusal {
    /// The whole answer; the connection is closed after it.
    pub(super) const fn response(self) -> &'static str {
        match self {
            Self::Malformed => "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            Self::TooLong => {
                "HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            }
            Self::Token => {
                "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"polis\"\r\n\
                 Connection: close\r\nContent-Length: 0\r\n\r\n"
            }
            Self::Method => "HTTP/1.1 405 Method Not Allowed\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            Self::Unmapped => "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            Self::Unreachable => "HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        }
    }
}

/// Whether `received` holds a whole head; its length including the empty line at its end.
pub(super) fn head_end(received: &[u8]) -> Option<usize> {
    received.windows(4).position(|window| window == b"\r\n\r\n").map(|start| start + 4)
}

/// The identity address that the request in `head` asks for. Nothing but the token decides what a caller without it
/// is told.
pub(super) fn target(head: &[u8], authorization: &Authorization) -> Result<Ipv6Addr, Refusal> {
    let head = std::str::from_utf8(head).map_err(|_| Refusal::Malformed)?;
    let mut lines = head.split("\r\n");
    let request = lines.next().unwrap_or_default();
    let mut words = request.split(' ');
    let (Some(method), Some(authority), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refusal::Malformed);
    };
    if !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        return Err(Refusal::Malformed);
    }
    let mut given = lines
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.eq_ignore_ascii_case("proxy-authorization"))
        .map(|(_, value)| value.trim_matches([' ', '\t']));
    let known = match (given.next(), given.next()) {
        (Some(value), None) => Authorization::try_from(value.as_bytes()).is_ok_and(|value| value == *authorization),
        _ => false,
    };
    if !known {
        return Err(Refusal::Token);
    }
    if method != "CONNECT" {
        return Err(Refusal::Method);
    }
    match authority.parse::<SocketAddrV6>() {
        Ok(address) if address.port() == PEER_PORT && address.scope_id() == 0 => Ok(*address.ip()),
        _ => Err(Refusal::Unmapped),
    }
}
