//! Certificates of ours as OpenSSL and the cluster's rules see them.

use std::net::IpAddr;

use polis_identity::{
    CLUSTER_AUTHORITY_NAME, Certificate, CertificateAuthority, ClusterId, IssueUserError, NodeId, NodeKey,
    NotANodeError, NotAUserError, OwnerKey, PEER_AUTHORITY_NAME, PeerAddress, PublicKey, verify_in_cluster,
    verify_node_in_cluster, verify_user_in_cluster,
};

use crate::openssl::OpenSsl;

/// What `openssl x509 -text` says of a certificate, without line breaks.
fn text(openssl: &OpenSsl, certificate: &Certificate) -> String {
    openssl.write("shown.pem", certificate.pem());
    let text = openssl.run("x509 -in shown.pem -noout -text -certopt no_pubkey,no_sigdump,no_serial");
    text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks that openssl accepts a certificate for exactly these purposes.
fn check_purposes(openssl: &OpenSsl, authority: &CertificateAuthority, certificate: &Certificate, expected: &[&str]) {
    openssl.write("ca.pem", authority.certificate().pem());
    openssl.write("leaf.pem", certificate.pem());
    let all = ["sslserver", "sslclient"];
    let accepted =
        |purpose: &&&str| openssl.try_run(&format!("verify -x509_strict -CAfile ca.pem -purpose {purpose} leaf.pem")).0;
    assert_eq!(all.iter().filter(accepted).copied().collect::<Vec<_>>(), expected);
}

#[test]
fn the_authority_is_one_for_openssl() {
    let openssl = OpenSsl::new();
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let text = text(&openssl, authority.certificate().certificate());
    for expected in [
        "Signature Algorithm: ED25519 Issuer: CN = Metropolis Cluster CA",
        "Not Before: Jan 1 00:00:00 1970 GMT Not After : Dec 31 23:59:59 9999 GMT",
        "Subject: CN = Metropolis Cluster CA",
        "Basic Constraints: critical CA:TRUE",
        "Key Usage: critical Digital Signature, Certificate Sign, CRL Sign",
        "Extended Key Usage: TLS Web Client Authentication, TLS Web Server Authentication, OCSP Signing",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    openssl.write("ca.pem", authority.certificate().pem());
    openssl.run("verify -x509_strict -check_ss_sig -CAfile ca.pem ca.pem");
    assert_eq!(authority.certificate().cluster_id(), ClusterId::of(&authority.key().public()));
}

#[test]
fn an_authority_comes_back_from_its_parts() {
    let authority = CertificateAuthority::generate(PEER_AUTHORITY_NAME);
    let certificate = Certificate::from_der(authority.certificate().der().to_vec()).unwrap();
    let again = CertificateAuthority::from_parts(authority.key().clone(), certificate).unwrap();
    assert_eq!(again.certificate(), authority.certificate());
    let key = NodeKey::generate().public();
    assert_eq!(verify_in_cluster(&again.issue_peer(&key), authority.certificate()), Ok(key));
}

#[test]
fn a_node_is_a_server_and_a_user_is_a_client() {
    let openssl = OpenSsl::new();
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let key = NodeKey::generate();
    let id = NodeId::of(&key.public());

    let node = authority.issue_node(&key.public());
    check_purposes(&openssl, &authority, &node, &["sslserver"]);
    let shown = text(&openssl, &node);
    for expected in [
        format!("Subject: CN = {id}"),
        format!("Subject Alternative Name: DNS:{id} X509v3"),
        "Basic Constraints: critical CA:FALSE".to_owned(),
        "Key Usage: critical Digital Signature X509v3".to_owned(),
        "Extended Key Usage: TLS Web Server Authentication X509v3".to_owned(),
        "Not Before: Jan 1 00:00:00 1970 GMT Not After : Dec 31 23:59:59 9999 GMT".to_owned(),
    ] {
        assert!(shown.contains(&expected), "{expected}\n{shown}");
    }
    let found = verify_node_in_cluster(&node, authority.certificate()).unwrap();
    assert_eq!((found.id, found.public_key), (id, key.public()));
    assert_eq!(verify_user_in_cluster(&node, authority.certificate()), Err(NotAUserError::NotForClients));

    let owner = OwnerKey::generate().public();
    let user = authority.issue_user("owner", &owner).unwrap();
    check_purposes(&openssl, &authority, &user, &["sslclient"]);
    let found = verify_user_in_cluster(&user, authority.certificate()).unwrap();
    assert_eq!((&found.name[..], found.public_key), ("owner", owner));
    assert_eq!(verify_node_in_cluster(&user, authority.certificate()), Err(NotANodeError::NotForServers));
}

#[test]
fn a_peer_is_both_and_has_its_address() {
    let openssl = OpenSsl::new();
    let authority = CertificateAuthority::generate(PEER_AUTHORITY_NAME);
    let key = NodeKey::generate();
    openssl.our_key("peer", &key);
    let peer = authority.issue_peer(&key.public());
    check_purposes(&openssl, &authority, &peer, &["sslserver", "sslclient"]);

    let id = NodeId::of(&key.public()).to_string();
    let address = PeerAddress::of(&key.public()).ip();
    assert_eq!(peer.dns_names().collect::<Vec<_>>(), [&id]);
    assert_eq!(peer.ip_addresses().collect::<Vec<_>>(), [IpAddr::V6(address)]);
    openssl.write("peer.pem", peer.pem());
    openssl.run(&format!("verify -CAfile ca.pem -verify_ip {address} peer.pem"));
    openssl.run(&format!("verify -CAfile ca.pem -verify_hostname {id} peer.pem"));
    // The certificate and the key file belong together for openssl, too.
    let of_key = openssl.run("pkey -in peer.key -pubout");
    assert_eq!(openssl.run("x509 -in peer.pem -noout -pubkey"), of_key);
    // In the cluster's own authority it would not make a node, as it has more than one name.
    let expected = NotANodeError::AlternativeNames { dns: 1, all: 2 };
    assert_eq!(verify_node_in_cluster(&peer, authority.certificate()), Err(expected));
}

#[test]
fn names_of_users_have_limits() {
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let key: PublicKey = OwnerKey::generate().public();
    let longest = "ö".repeat(64);
    let user = authority.issue_user(&longest, &key).unwrap();
    assert_eq!(verify_user_in_cluster(&user, authority.certificate()).unwrap().name, longest);
    assert_eq!(authority.issue_user("", &key), Err(IssueUserError::Empty));
    assert_eq!(authority.issue_user(&"o".repeat(65), &key), Err(IssueUserError::TooLong { found: 65 }));
}

#[test]
fn serial_numbers_are_never_used_twice_and_openssl_reads_the_same() {
    let openssl = OpenSsl::new();
    let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let key = NodeKey::generate().public();
    let (first, second) = (authority.issue_node(&key), authority.issue_node(&key));
    assert_ne!(first.serial_number(), second.serial_number());
    openssl.write("node.pem", first.pem());
    let shown = openssl.run("x509 -in node.pem -noout -serial");
    assert_eq!(shown.trim().to_lowercase(), format!("serial={}", first.serial_number()));
}
