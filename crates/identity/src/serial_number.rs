//! Serial numbers of certificates.

use std::fmt;

/// The serial number of a certificate: a non-negative number, kept as big-endian bytes without leading zeros.
///
/// Text form: hexadecimal digits, two for each byte, as OpenSSL prints it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SerialNumber(Vec<u8>);

impl SerialNumber {
    /// A new random number of 127 bits (metropolis.md E.3), never zero.
    ///
    /// Random, so that certificates can be issued in two places without agreeing on a counter first.
    #[must_use]
    pub fn random() -> Self {
        loop {
            let mut bytes = *polis_secret::Secret::<16>::random().expose();
            bytes[0] &= 0x7f;
            let serial_number = Self::from_be_bytes(&bytes);
            // RFC 5280 wants a positive number; drawing zero will never happen, but costs nothing to exclude.
            if serial_number.0 != [0] {
                return serial_number;
            }
        }
    }

    /// The number with these big-endian bytes.
    #[must_use]
    pub fn from_be_bytes(bytes: &[u8]) -> Self {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        match &bytes[zeros..] {
            [] => Self(vec![0]),
            significant => Self(significant.to_vec()),
        }
    }

    /// Big-endian bytes without leading zeros; one zero byte for zero.
    #[must_use]
    pub fn as_be_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<u64> for SerialNumber {
    fn from(number: u64) -> Self {
        Self::from_be_bytes(&number.to_be_bytes())
    }
}

impl From<&SerialNumber> for rcgen::SerialNumber {
    fn from(serial_number: &SerialNumber) -> Self {
        Self::from_slice(&serial_number.0)
    }
}

impl fmt::Display for SerialNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for SerialNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SerialNumber({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_make_no_difference() {
        assert_eq!(SerialNumber::from_be_bytes(&[0, 0, 1, 0]), SerialNumber::from(256));
        assert_eq!(SerialNumber::from_be_bytes(&[]), SerialNumber::from(0));
        assert_eq!(SerialNumber::from(256).to_string(), "0100");
    }

    #[test]
    fn random_numbers_are_positive_and_have_at_most_127_bits() {
        let numbers: Vec<_> = (0..64).map(|_| SerialNumber::random()).collect();
        for number in &numbers {
            let bytes = number.as_be_bytes();
            assert!(bytes.len() < 16 || bytes.len() == 16 && bytes[0] < 0x80, "{number}");
        }
        let distinct: std::collections::BTreeSet<_> = numbers.iter().collect();
        assert_eq!(distinct.len(), numbers.len());
        // The 16th byte is in use: 64 numbers of 119 bits or fewer would be no accident.
        assert!(numbers.iter().any(|number| number.as_be_bytes().len() == 16));
    }
}
