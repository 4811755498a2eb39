//! Ephemeral certificates.

use polis_identity::{
    CLUSTER_AUTHORITY_NAME, CertificateAuthority, JoinKey, NodeKey, NotEphemeralError, NotInClusterError, OwnerKey,
    issue_ephemeral, verify_ephemeral, verify_in_cluster,
};

use crate::openssl::{Kind, OpenSsl, Subject};

const CLIENT: &str = "basicConstraints = critical, CA:FALSE\nextendedKeyUsage = clientAuth";

#[test]
fn every_kind_of_key_can_have_one_and_openssl_agrees() {
    let (node, join, owner) = (NodeKey::generate(), JoinKey::generate(), OwnerKey::generate());
    let openssl = OpenSsl::new();
    for (certificate, key) in [
        (issue_ephemeral(&node), node.public()),
        (issue_ephemeral(&join), join.public()),
        (issue_ephemeral(&owner), owner.public()),
    ] {
        assert_eq!(verify_ephemeral(&certificate), Ok(key));
        openssl.write("ephemeral.pem", certificate.pem());
        openssl.run("verify -check_ss_sig -CAfile ephemeral.pem -purpose sslclient ephemeral.pem");
        assert!(!openssl.try_run("verify -CAfile ephemeral.pem -purpose sslserver ephemeral.pem").0);
    }
}

#[test]
fn one_made_by_openssl_is_accepted_and_other_shapes_are_not() {
    let openssl = OpenSsl::new();
    let subject = Subject::new(&["CN = anything"]);
    for name in ["ca", "client"] {
        openssl.key(name, Kind::Ed25519);
    }
    openssl.key("ec", Kind::Ec);
    let authority = "basicConstraints = critical, CA:TRUE\nextendedKeyUsage = clientAuth";

    let good = openssl.self_signed("client", &subject, CLIENT);
    assert_eq!(verify_ephemeral(&good), Ok(good.public_key().unwrap()));
    let server = "extendedKeyUsage = serverAuth";
    let certificate = openssl.self_signed("client", &subject, server);
    assert_eq!(verify_ephemeral(&certificate), Err(NotEphemeralError::NotForClients));
    let certificate = openssl.self_signed("ca", &subject, authority);
    assert_eq!(verify_ephemeral(&certificate), Err(NotEphemeralError::IsAuthority));
    let certificate = openssl.self_signed("ec", &subject, CLIENT);
    assert_eq!(verify_ephemeral(&certificate), Err(NotEphemeralError::NotEd25519));

    // Signed by another key, under the same name and under another one.
    let key = good.public_key().unwrap();
    let certificate = openssl.signed_by("ca", "client", &subject, CLIENT);
    assert_eq!(verify_ephemeral(&certificate), Err(NotEphemeralError::NotSignedByItself { key }));
    let certificate = openssl.signed_by("ca", "client", &Subject::new(&["CN = other"]), CLIENT);
    assert_eq!(verify_ephemeral(&certificate), Err(NotEphemeralError::OtherIssuer));
}

#[test]
fn ephemeral_certificates_and_those_of_the_cluster_are_never_taken_for_each_other() {
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let key = NodeKey::generate();
    let expected = NotInClusterError::NotSignedByAuthority { authority: authority.key().public() };
    assert_eq!(verify_in_cluster(&issue_ephemeral(&key), authority.certificate()), Err(expected));
    let user = authority.issue_user("owner", &key.public()).unwrap();
    assert_eq!(verify_ephemeral(&user), Err(NotEphemeralError::OtherIssuer));
}
