//! Loopback addresses that belong to one test alone, so that suites can run side by side and beside a running cluster.

use std::net::{IpAddr, Ipv4Addr};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Addresses that tests share out: 127.1.0.0 to 127.200.255.255, without those of `polis dev` in 127.0.0.0/16.
const ADDRESSES: u32 = 200 << 16;

/// An address that no other test holds, until it is dropped.
#[derive(Debug)]
pub struct TestAddress {
    /// The address.
    pub ip: IpAddr,
    /// Holds the claim: a name in the abstract socket namespace, which the kernel frees when the process ends. Absent for an
    /// address that this machine does not have.
    _claim: Option<UnixListener>,
}

impl TestAddress {
    /// Claims an address.
    ///
    /// # Panics
    ///
    /// When all of them are taken.
    #[must_use]
    pub fn claim() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Processes begin far apart, so that the first try nearly always succeeds.
        let start = std::process::id().wrapping_mul(2_654_435_761) % ADDRESSES;
        for _ in 0..ADDRESSES {
            let number = (start + NEXT.fetch_add(1, Ordering::Relaxed)) % ADDRESSES;
            let [_, high, middle, low] = number.to_be_bytes();
            if matches!(low, 0 | 255) {
                continue;
            }
            let ip = IpAddr::V4(Ipv4Addr::new(127, high + 1, middle, low));
            let name = SocketAddr::from_abstract_name(format!("polis-test-{ip}")).expect("the name is short");
            if let Ok(claim) = UnixListener::bind_addr(&name) {
                return Self { ip, _claim: Some(claim) };
            }
        }
        panic!("all {ADDRESSES} test addresses are taken");
    }

    /// An address that no machine of the test has, so that there is nothing to claim.
    #[must_use]
    pub const fn of_nobody(ip: IpAddr) -> Self {
        Self { ip, _claim: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_differ_while_they_are_held() {
        let held: Vec<TestAddress> = (0..300).map(|_| TestAddress::claim()).collect();
        let mut addresses: Vec<IpAddr> = held.iter().map(|address| address.ip).collect();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), held.len());
        for address in addresses {
            assert!(address.is_loopback() && address >= IpAddr::from([127, 1, 0, 0]), "{address}");
        }
    }
}
