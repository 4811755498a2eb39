//! What a client asks, in both versions of the protocol.

use serde::{Deserialize, Serialize};

use crate::{PROTOCOL_VERSION, Peer};

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The [`Status`](crate::Status).
    Status {
        /// Send it again after every change, until the client hangs up.
        follow: bool,
    },
    /// Where an operator says that other nodes are, instead of what was said before. Answered by the list that holds now.
    SetPeers {
        /// At most [`MAX_PEERS`](crate::MAX_PEERS).
        peers: Vec<Peer>,
    },
    /// Everything that helps somebody who is not here to see what is wrong: a [`Report`](crate::Report).
    Report {},
    /// This node's root user wants another owner of the cluster; it takes a quorum of nodes that say the same. Answered by
    /// [`OwnerProposed`](crate::OwnerProposed).
    ProposeOwner {
        /// Ed25519 public key of the new owner, 64 hexadecimal digits.
        public_key: String,
    },
}

/// How the answer to a request is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Version 1: the bare status.
    Bare,
    /// Version 2: an [`Answer`](crate::Answer).
    Enveloped,
}

/// Why a line is not a request that can be answered.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It is no request of any version.
    #[error("the request cannot be read")]
    Unreadable(#[source] serde_json::Error),
    /// It is of a version that this code does not know.
    #[error(
        "the request has version {0} of the protocol, and this node speaks versions 1 to {PROTOCOL_VERSION}; use the `polis` \
         that runs the node"
    )]
    Version(u32),
}

/// Only the version, whatever else stands there.
#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

/// A request of version 1.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct First {
    #[serde(rename = "version")]
    _version: u32,
    follow: bool,
}

/// A request of version 2.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Second<R> {
    version: u32,
    request: R,
}

impl Request {
    /// The request as it is sent, with the line break.
    ///
    /// # Errors
    ///
    /// When it has no JSON form, which does not happen.
    pub fn to_line(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut line = serde_json::to_vec(&Second { version: PROTOCOL_VERSION, request: self })?;
        line.push(b'\n');
        Ok(line)
    }

    /// Reads a request of any version.
    ///
    /// # Errors
    ///
    /// See [`RequestError`].
    pub fn from_line(line: &[u8]) -> Result<(Protocol, Self), RequestError> {
        let AnyVersion { version } = serde_json::from_slice(line).map_err(RequestError::Unreadable)?;
        match version {
            1 => {
                let First { follow, .. } = serde_json::from_slice(line).map_err(RequestError::Unreadable)?;
                Ok((Protocol::Bare, Self::Status { follow }))
            }
            PROTOCOL_VERSION => {
                let Second { request, .. } = serde_json::from_slice(line).map_err(RequestError::Unreadable)?;
                Ok((Protocol::Enveloped, request))
            }
            other => Err(RequestError::Version(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_and_look_as_documented() {
        let peer = "metropolis-00112233445566778899aabbccddeeff=192.0.2.10".parse().unwrap();
        let table = [
            (Request::Status { follow: true }, r#"{"version":2,"request":{"status":{"follow":true}}}"#),
            (
                Request::SetPeers { peers: vec![peer] },
                r#"{"version":2,"request":{"set_peers":{"peers":[{"node_id":"metropolis-00112233445566778899aabbccddeeff","address":"192.0.2.10"}]}}}"#,
            ),
            (Request::Report {}, r#"{"version":2,"request":{"report":{}}}"#),
            (
                Request::ProposeOwner { public_key: "ab".into() },
                r#"{"version":2,"request":{"propose_owner":{"public_key":"ab"}}}"#,
            ),
        ];
        for (request, text) in table {
            assert_eq!(request.to_line().unwrap(), format!("{text}\n").into_bytes());
            assert_eq!(Request::from_line(text.as_bytes()).unwrap(), (Protocol::Enveloped, request));
        }
    }

    #[test]
    fn version_one_is_understood_and_a_later_one_named() {
        let (protocol, request) = Request::from_line(b"{\"version\":1,\"follow\":false}\n").unwrap();
        assert_eq!((protocol, request), (Protocol::Bare, Request::Status { follow: false }));

        let error = Request::from_line(br#"{"version":3,"anything":[]}"#).unwrap_err();
        assert!(matches!(error, RequestError::Version(3)), "{error}");
        assert!(error.to_string().contains("speaks versions 1 to 2"), "{error}");
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let table: [&[u8]; 7] = [
            b"",
            b"\n",
            b"[]",
            b"{\"version\":2}",
            b"{\"version\":2,\"request\":{\"status\":{}}}",
            b"{\"version\":2,\"request\":{\"erase\":{}}}",
            b"{\"version\":1,\"follow\":false,\"more\":1}",
        ];
        for line in table {
            assert!(matches!(Request::from_line(line), Err(RequestError::Unreadable(_))), "{line:?}");
        }
    }
}
