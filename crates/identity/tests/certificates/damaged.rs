//! Damaged certificates: errors, never panics, and never accepted.

use std::sync::LazyLock;

use polis_identity::{
    CLUSTER_AUTHORITY_NAME, Certificate, CertificateAuthority, NodeKey, NotAnAuthorityError, NotInClusterError,
    OwnerKey, ParseCertificateError, ParseCertificatePemError, issue_ephemeral, verify_certificate_authority,
    verify_ephemeral, verify_in_cluster,
};
use proptest::prelude::*;

/// A cluster with one certificate of each kind.
struct Examples {
    authority: CertificateAuthority,
    node: Certificate,
    user: Certificate,
    ephemeral: Certificate,
}

static EXAMPLES: LazyLock<Examples> = LazyLock::new(|| {
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let key = NodeKey::generate();
    Examples {
        node: authority.issue_node(&key.public()),
        user: authority.issue_user("owner", &OwnerKey::generate().public()).unwrap(),
        ephemeral: issue_ephemeral(&key),
        authority,
    }
});

/// Whether anybody would take these bytes for a certificate of the cluster or an ephemeral one.
fn accepted(der: Vec<u8>) -> bool {
    Certificate::from_der(der).is_ok_and(|certificate| {
        verify_in_cluster(&certificate, EXAMPLES.authority.certificate()).is_ok()
            || verify_ephemeral(&certificate).is_ok()
    })
}

#[test]
fn no_bit_of_a_certificate_can_be_changed() {
    // The signature protects the inside of all kinds alike, so every byte of one kind is enough, and a few of the
    // others; cryptography without optimization is slow.
    for (certificate, step) in [(&EXAMPLES.node, 1), (&EXAMPLES.user, 11), (&EXAMPLES.ephemeral, 11)] {
        assert!(accepted(certificate.der().to_vec()));
        for position in (0..certificate.der().len()).step_by(step) {
            let mut changed = certificate.der().to_vec();
            changed[position] ^= 1 << (position % 8);
            assert!(!accepted(changed), "{certificate:?}, byte {position}");
        }
    }
}

#[test]
fn a_certificate_is_whole_and_alone() {
    let der = EXAMPLES.node.der();
    for length in 0..der.len() {
        let error = Certificate::from_der(&der[..length]).unwrap_err();
        assert!(matches!(error, ParseCertificateError::NotACertificate { .. }), "{length} bytes: {error:?}");
    }
    let error = Certificate::from_der([der, der].concat()).unwrap_err();
    assert!(matches!(error, ParseCertificateError::TrailingBytes { found } if found == der.len()), "{error:?}");
    let error = Certificate::from_der(vec![0x30; 16 * 1024 + 1]).unwrap_err();
    assert_eq!(error.to_string(), "a certificate has at most 16384 bytes, found 16385");
}

#[test]
fn pem_is_read_back_and_other_blocks_are_named() {
    let pem = EXAMPLES.node.pem();
    assert_eq!(Certificate::from_pem(&pem).unwrap(), EXAMPLES.node);
    assert_eq!(Certificate::from_pem(&format!("A node\n{pem}")).unwrap(), EXAMPLES.node);
    let error = Certificate::from_pem("no PEM at all").unwrap_err();
    assert!(matches!(error, ParseCertificatePemError::NotPem { .. }), "{error:?}");
    let error = Certificate::from_pem(&EXAMPLES.authority.key().pkcs8_pem()).unwrap_err();
    assert_eq!(error.to_string(), "the PEM block is a \"PRIVATE KEY\" and not a \"CERTIFICATE\"");
    let error = Certificate::from_pem(&pem.replacen("MII", "AII", 1)).unwrap_err();
    assert!(matches!(error, ParseCertificatePemError::Content { .. }), "{error:?}");
}

#[test]
fn two_extensions_of_a_kind_are_refused() {
    // The second says that the subject is an authority; which of the two holds would be up to the reader.
    let mut parameters = rcgen::CertificateParams::default();
    parameters.serial_number = Some(rcgen::SerialNumber::from(1));
    let constraints = |content: &[u8]| rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 19], content.to_vec());
    let der = |parameters: &rcgen::CertificateParams| {
        let key = NodeKey::generate();
        let key = TestKey { public: *key.public().as_bytes(), key };
        parameters.self_signed(&key).unwrap().der().to_vec()
    };
    parameters.custom_extensions = vec![constraints(&[0x30, 0])];
    assert!(Certificate::from_der(der(&parameters)).is_ok());
    parameters.custom_extensions.push(constraints(&[0x30, 3, 1, 1, 0xff]));
    let error = Certificate::from_der(der(&parameters)).unwrap_err();
    assert!(matches!(error, ParseCertificateError::NotACertificate { .. }), "{error:?}");
    // A known extension that cannot be read is an error, not an absent one.
    parameters.custom_extensions = vec![constraints(&[0x04, 0])];
    let error = Certificate::from_der(der(&parameters)).unwrap_err();
    assert_eq!(error.to_string(), "the certificate's extension 2.5.29.19 cannot be read");
}

#[test]
fn a_key_that_is_none_is_refused_though_the_authority_has_signed_it() {
    let authority = &EXAMPLES.authority;
    let key = NodeKey::from_secret(authority.key().secret().clone());
    let signer = TestKey { public: *key.public().as_bytes(), key: key.clone() };
    let mut parameters = rcgen::CertificateParams::default();
    parameters.serial_number = Some(rcgen::SerialNumber::from(1));
    let issuer = rcgen::Issuer::new(parameters.clone(), signer);
    let mut check = |public: [u8; 32], reason: &str| {
        let invalid = TestKey { public, key: key.clone() };
        parameters.is_ca = rcgen::IsCa::NoCa;
        let certificate = parameters.signed_by(&invalid, &issuer).unwrap();
        let certificate = Certificate::from_der(certificate.der().to_vec()).unwrap();
        assert_eq!(certificate.public_key(), None);
        let expected = NotInClusterError::InvalidKey { reason: reason.to_owned() };
        assert_eq!(verify_in_cluster(&certificate, authority.certificate()), Err(expected));

        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = parameters.signed_by(&invalid, &issuer).unwrap();
        let certificate = Certificate::from_der(certificate.der().to_vec()).unwrap();
        let expected = NotAnAuthorityError::InvalidKey { reason: reason.to_owned() };
        assert_eq!(verify_certificate_authority(certificate), Err(expected));
    };
    let mut no_point = [0; 32];
    no_point[0] = 2;
    check([0; 32], "the bytes are an Ed25519 point of small order, which is nobody's key");
    check(no_point, "the bytes are not a point of the Ed25519 curve");
}

/// A key that rcgen can sign with, to write what this crate would not.
struct TestKey {
    key: NodeKey,
    public: [u8; 32],
}

impl rcgen::PublicKeyData for TestKey {
    fn der_bytes(&self) -> &[u8] {
        &self.public
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

impl rcgen::SigningKey for TestKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.key.sign(message).to_vec())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn several_changed_bytes_are_never_accepted(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 1..=u8::MAX), 1..8),
        which in 0..3_usize,
    ) {
        let certificate = [&EXAMPLES.node, &EXAMPLES.user, &EXAMPLES.ephemeral][which];
        let mut changed = certificate.der().to_vec();
        for (index, mask) in changes {
            let position = index.index(changed.len());
            changed[position] ^= mask;
        }
        // Changes of the same byte can cancel out.
        prop_assert_eq!(accepted(changed.clone()), changed == certificate.der());
    }

    #[test]
    fn a_changed_authority_never_panics(position in any::<prop::sample::Index>(), mask in 1..=u8::MAX) {
        let mut changed = EXAMPLES.authority.certificate().der().to_vec();
        let position = position.index(changed.len());
        changed[position] ^= mask;
        if let Ok(authority) = Certificate::from_der(changed).map(verify_certificate_authority)
            && let Ok(authority) = authority
        {
            // It may still have the shape of an authority; then its key decides, as ever.
            let same_key = authority.public_key() == EXAMPLES.authority.key().public();
            prop_assert_eq!(verify_in_cluster(&EXAMPLES.node, &authority).is_ok(), same_key);
        }
    }

    #[test]
    fn garbage_is_never_accepted(bytes in proptest::collection::vec(any::<u8>(), 0..600), text in ".{0,200}") {
        prop_assert!(!accepted(bytes));
        prop_assert!(Certificate::from_pem(&text).is_err());
        prop_assert!(OwnerKey::from_pem(&text).is_err());
    }
}
