//! Where another node is, as an operator says it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use polis_identity::{NodeId, ParseNodeIdError};
use serde::{Deserialize, Serialize};

/// Where another node is, as an operator says it: `ID=ADDR`. The address is a hint; the node's key decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// The node.
    pub node_id: NodeId,
    /// Where it is.
    pub address: IpAddr,
}

/// Why a text is no [`Peer`].
#[derive(Debug, thiserror::Error)]
pub enum ParsePeerError {
    /// There is no `=`.
    #[error("{text:?} does not say where a node is: write ID=ADDR, the node's id, an equals sign and its IP address")]
    Form {
        /// The text.
        text: String,
    },
    /// What stands before it is no node id.
    #[error(transparent)]
    Node(#[from] ParseNodeIdError),
    /// What stands behind it is no address.
    #[error("{text:?} is not an IP address; a peer is given by address, without a port and without a name")]
    Address {
        /// The text.
        text: String,
    },
    /// No node can be at that address.
    #[error("no node can be at {address}: that is the address of nobody in particular")]
    Nobody {
        /// The address.
        address: IpAddr,
    },
}

impl FromStr for Peer {
    type Err = ParsePeerError;

    fn from_str(text: &str) -> Result<Self, ParsePeerError> {
        let (node_id, address) =
            text.split_once('=').ok_or_else(|| ParsePeerError::Form { text: text.chars().take(200).collect() })?;
        let node_id = node_id.parse()?;
        let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
        let address: IpAddr =
            bare.parse().map_err(|_| ParsePeerError::Address { text: address.chars().take(200).collect() })?;
        if address.is_unspecified() || address.is_multicast() {
            return Err(ParsePeerError::Nobody { address });
        }
        Ok(Self { node_id, address })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.node_id, self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "metropolis-00112233445566778899aabbccddeeff";

    #[test]
    fn a_peer_is_a_node_and_an_address() {
        for (address, expect) in [("192.0.2.1", "192.0.2.1"), ("2001:db8::1", "2001:db8::1"), ("[::1]", "::1")] {
            let peer: Peer = format!("{NODE}={address}").parse().unwrap();
            assert_eq!(peer.to_string(), format!("{NODE}={expect}"));
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_reason() {
        let table = [
            (NODE.to_owned(), "write ID=ADDR"),
            ("node=192.0.2.1".to_owned(), "does not start with"),
            (format!("{NODE}="), "is not an IP address"),
            (format!("{NODE}=host.example"), "is not an IP address"),
            (format!("{NODE}=192.0.2.1:7834"), "is not an IP address"),
            (format!("{NODE}=0.0.0.0"), "nobody in particular"),
            (format!("{NODE}=ff02::1"), "nobody in particular"),
        ];
        for (text, expect) in table {
            let error = text.parse::<Peer>().unwrap_err().to_string();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }
}
