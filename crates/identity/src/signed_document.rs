//! The shell that X.509 puts around what is signed: the same for certificates and revocation lists.
//!
//! The signature covers what is inside the shell and not the shell itself, and parsers are lenient about it. A
//! document that could be written in two ways would have two digests under one signature, so only the one form that
//! DER allows is taken.

use x509_parser::asn1_rs::BitString;
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::x509::AlgorithmIdentifier;

/// DER of the algorithm Ed25519 (RFC 8410: no parameters), and of the beginning of a bit string of 64 bytes.
const BETWEEN: &[u8] = &[0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 65, 0];

/// RFC 8410 gives Ed25519 one identifier for keys and signatures, always without parameters.
pub(crate) fn is_ed25519(algorithm: &AlgorithmIdentifier<'_>) -> bool {
    algorithm.algorithm == OID_SIG_ED25519 && algorithm.parameters.is_none()
}

/// The signature, if it is an Ed25519 signature of the right length.
pub(crate) fn ed25519_signature(algorithm: &AlgorithmIdentifier<'_>, value: &BitString<'_>) -> Option<[u8; 64]> {
    let signature = <[u8; 64]>::try_from(&value.data[..]).ok()?;
    (is_ed25519(algorithm) && value.unused_bits == 0).then_some(signature)
}

/// Whether `document` is what DER makes of the signed part and its Ed25519 signature, byte by byte.
pub(crate) fn is_canonical(document: &[u8], signed: &[u8], signature: &[u8; 64]) -> bool {
    let length = signed.len() + BETWEEN.len() + signature.len();
    let significant: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    let mut expected = vec![0x30];
    if length >= 0x80 {
        expected.push(0x80 | u8::try_from(significant.len()).expect("a length has at most 8 bytes"));
    }
    expected.extend(significant);
    for part in [signed, BETWEEN, signature] {
        expected.extend_from_slice(part);
    }
    document == expected
}
