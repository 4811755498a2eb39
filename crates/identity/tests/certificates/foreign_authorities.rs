//! Certificates of authorities that were made elsewhere.

use polis_identity::{
    AuthorityFromPartsError, Certificate, CertificateAuthority, NodeId, NodeKey, NotAnAuthorityError,
    verify_certificate_authority, verify_node_in_cluster,
};

use crate::openssl::{Kind, OpenSsl, Subject};

const GOOD: &str = "basicConstraints = critical, CA:TRUE\nkeyUsage = critical, keyCertSign, cRLSign, digitalSignature";

#[test]
fn one_made_by_metropolis_is_accepted() {
    let certificate = Certificate::from_der(include_bytes!("../data/metropolis-ca.der").to_vec()).unwrap();
    assert_eq!(certificate.common_name(), Some("Metropolis Cluster CA"));
    let authority = verify_certificate_authority(certificate).unwrap();
    let key = "bbedfc6a27245bb6b73cfc2bb3ce88c83108d8217a4feca9a233cb224efc1168";
    assert_eq!(authority.public_key().to_string(), key);
    assert_eq!(authority.cluster_id().to_string(), "650a3d578883beb330db641fcf5ce5f1");
}

#[test]
fn the_shape_decides() {
    let openssl = OpenSsl::new();
    openssl.key("ed25519", Kind::Ed25519);
    openssl.key("ec", Kind::Ec);
    let check = |key: &str, extensions: &str, expected: Option<NotAnAuthorityError>| {
        let certificate = openssl.self_signed(key, &Subject::new(&["CN = Metropolis Cluster CA"]), extensions);
        let found = verify_certificate_authority(certificate).err();
        assert_eq!(found, expected, "{key}: {extensions}");
    };
    check("ed25519", GOOD, None);
    check("ed25519", "basicConstraints = CA:TRUE", None);
    check("ed25519", "basicConstraints = critical, CA:TRUE, pathlen:0\nkeyUsage = keyCertSign", None);
    check("ed25519", "basicConstraints = critical, CA:FALSE", Some(NotAnAuthorityError::NoAuthorityFlag));
    check("ed25519", "keyUsage = critical, keyCertSign", Some(NotAnAuthorityError::NoAuthorityFlag));
    check(
        "ed25519",
        "basicConstraints = critical, CA:TRUE\nkeyUsage = cRLSign, digitalSignature",
        Some(NotAnAuthorityError::MayNotSign),
    );
    check(
        "ed25519",
        &format!("{GOOD}\nnameConstraints = critical, permitted;DNS:example.com"),
        Some(NotAnAuthorityError::UnknownCriticalExtension { object_identifier: "2.5.29.30".into() }),
    );
    check("ec", GOOD, Some(NotAnAuthorityError::OtherKey { object_identifier: "1.2.840.10045.2.1".into() }));
}

#[test]
fn one_can_go_on_issuing_here_whatever_its_name_is() {
    let cases: &[(&[&str], &'static str)] = &[
        (&["CN = Metropolis Cluster CA"], "utf8only"),
        (&["CN = Metropolis Cluster CA"], "default"),
        (&["C = DE", "O = Städtische Betriebe", "CN = Polis"], "utf8only"),
    ];
    for (attributes, string_mask) in cases {
        let openssl = OpenSsl::new();
        openssl.key("ca", Kind::Ed25519);
        let subject = Subject { string_mask, ..Subject::new(attributes) };
        let certificate = openssl.self_signed("ca", &subject, GOOD);
        let authority = CertificateAuthority::from_parts(openssl.authority_key("ca"), certificate).unwrap();

        let key = NodeKey::generate();
        let node = authority.issue_node(&key.public());
        assert_eq!(verify_node_in_cluster(&node, authority.certificate()).unwrap().id, NodeId::of(&key.public()));
        openssl.write("node.pem", node.pem());
        openssl.run("verify -x509_strict -CAfile ca.pem -purpose sslserver node.pem");
        openssl.write("list.pem", authority.certificate_revocation_list(1, &[]).pem());
        openssl.run("verify -crl_check -CRLfile list.pem -CAfile ca.pem node.pem");
    }
}

#[test]
fn key_certificate_and_name_must_fit() {
    let openssl = OpenSsl::new();
    openssl.key("ca", Kind::Ed25519);
    openssl.key("other", Kind::Ed25519);
    let subject = Subject::new(&["CN = Metropolis Cluster CA"]);
    let certificate = openssl.self_signed("ca", &subject, GOOD);
    let error = CertificateAuthority::from_parts(openssl.authority_key("other"), certificate).unwrap_err();
    assert!(matches!(error, AuthorityFromPartsError::OtherKey { .. }), "{error:?}");

    let certificate = openssl.self_signed("ca", &subject, "basicConstraints = CA:FALSE");
    let error = CertificateAuthority::from_parts(openssl.authority_key("ca"), certificate).unwrap_err();
    let AuthorityFromPartsError::NotAnAuthority { source } = error else { panic!("{error:?}") };
    assert_eq!(source, NotAnAuthorityError::NoAuthorityFlag);

    // 0x800 is openssl's number for BMPString, which no certificate of ours can repeat.
    let subject = Subject { string_mask: "MASK:0x800", ..subject };
    let certificate = openssl.self_signed("ca", &subject, GOOD);
    let error = CertificateAuthority::from_parts(openssl.authority_key("ca"), certificate).unwrap_err();
    assert!(matches!(error, AuthorityFromPartsError::Name), "{error:?}");
}
