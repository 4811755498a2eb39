//! Addresses at which an operator asks a cluster.

use std::net::{IpAddr, SocketAddr};

use polis_rpc::{CURATOR_PORT, UNLOCK_PORT};

/// Takes an IP address, with or without a port; without one it is that of the curator.
///
/// # Errors
///
/// Why the text is no such address.
pub(crate) fn parse(text: &str) -> Result<SocketAddr, String> {
    parse_at(CURATOR_PORT, text)
}

/// Takes an IP address, with or without a port; without one it is that at which a node is unlocked.
///
/// # Errors
///
/// Why the text is no such address.
pub(crate) fn parse_unlock(text: &str) -> Result<SocketAddr, String> {
    parse_at(UNLOCK_PORT, text)
}

fn parse_at(port: u16, text: &str) -> Result<SocketAddr, String> {
    let form = format!(
        "write an IP address with or without a port, for example 192.0.2.10, 192.0.2.10:{port} or [2001:db8::10]:{port}"
    );
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = match bare.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port),
        Err(_) => text.parse().map_err(|_| format!("it is no IP address; {form}"))?,
    };
    if address.ip().is_unspecified() || address.ip().is_multicast() {
        return Err(format!("{} is not the address of one node; {form}", address.ip()));
    }
    if address.port() == 0 {
        return Err(format!("nothing listens on port 0; {form}"));
    }
    Ok(address)
}

/// The shortest text that leads to the address.
pub(crate) fn show(address: SocketAddr) -> String {
    if address.port() == CURATOR_PORT { address.ip().to_string() } else { address.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_and_without_a_port() {
        for (text, expect) in [
            ("127.1.0.1", "127.1.0.1:7835"),
            ("127.1.0.1:1", "127.1.0.1:1"),
            ("2001:db8::1", "[2001:db8::1]:7835"),
            ("[2001:db8::1]", "[2001:db8::1]:7835"),
            ("[2001:db8::1]:99", "[2001:db8::1]:99"),
        ] {
            assert_eq!(parse(text).map(|address| address.to_string()).as_deref(), Ok(expect), "{text}");
            assert_eq!(
                parse_unlock(text).map(|address| address.port() == 7836),
                Ok(expect.ends_with(":7835")),
                "{text}"
            );
            assert_eq!(parse(text).and_then(|address| parse(&show(address))), parse(text));
        }
        for text in ["", "node-1", "127.1.0.1:", "127.1.0.1:70000", "127.1.0.1:0", "0.0.0.0", "224.0.0.1", "[::]"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("for example 192.0.2.10"), "{text}: {error}");
        }
    }
}
