//! Certificates of nodes and users that another tool made, good ones and every kind of bad one.

use polis_identity::{
    AuthorityCertificate, NodeId, NodeIdentity, NodeKey, NotANodeError, NotAUserError, NotInClusterError, UserIdentity,
    verify_certificate_authority, verify_in_cluster, verify_node_in_cluster, verify_user_in_cluster,
};

use crate::openssl::{Kind, OpenSsl, Subject};

const AUTHORITY: &str = "basicConstraints = critical, CA:TRUE\nkeyUsage = critical, keyCertSign, cRLSign";
const SERVER: &str =
    "basicConstraints = critical, CA:FALSE\nkeyUsage = critical, digitalSignature\nextendedKeyUsage = serverAuth\n";
const CLIENT: &str =
    "basicConstraints = critical, CA:FALSE\nkeyUsage = critical, digitalSignature\nextendedKeyUsage = clientAuth\n";

/// A cluster whose authority openssl runs, with the key of one node.
struct Cluster {
    openssl: OpenSsl,
    authority: AuthorityCertificate,
    key: NodeKey,
    id: NodeId,
}

impl Cluster {
    fn new() -> Self {
        let openssl = OpenSsl::new();
        openssl.key("ca", Kind::Ed25519);
        let authority = openssl.self_signed("ca", &Subject::new(&["CN = Metropolis Cluster CA"]), AUTHORITY);
        let key = NodeKey::generate();
        openssl.our_key("node", &key);
        let id = NodeId::of(&key.public());
        Self { authority: verify_certificate_authority(authority).unwrap(), openssl, key, id }
    }

    /// Issues a certificate for the node's key with this common name, and judges it as a node's.
    fn node(&self, common_name: &str, extensions: &str) -> Result<NodeIdentity, NotANodeError> {
        let attribute = format!("CN = {common_name}");
        let subject = Subject::new(&[&attribute]);
        verify_node_in_cluster(&self.openssl.signed_by("ca", "node", &subject, extensions), &self.authority)
    }

    /// Issues a certificate for the node's key with these attributes, and judges it as a user's.
    fn user(&self, attributes: &[&str], extensions: &str) -> Result<UserIdentity, NotAUserError> {
        let certificate = self.openssl.signed_by("ca", "node", &Subject::new(attributes), extensions);
        verify_user_in_cluster(&certificate, &self.authority)
    }
}

#[test]
fn a_node_is_accepted_also_after_its_certificate_has_expired() {
    let cluster = Cluster::new();
    let id = cluster.id;
    let public_key = cluster.key.public();
    let expected = Ok(NodeIdentity { id, public_key });
    assert_eq!(cluster.node(&id.to_string(), &format!("{SERVER}subjectAltName = DNS:{id}")), expected);
    let both = format!("extendedKeyUsage = clientAuth, serverAuth\nsubjectAltName = critical, DNS:{id}");
    assert_eq!(cluster.node(&id.to_string(), &both), expected);

    let attribute = format!("CN = {id}");
    let subject = Subject { days: -1, ..Subject::new(&[&attribute]) };
    let certificate = cluster.openssl.signed_by("ca", "node", &subject, &format!("{SERVER}subjectAltName = DNS:{id}"));
    let (accepted, text) = cluster.openssl.try_run("verify -CAfile ca.pem node.pem");
    assert!(!accepted && text.contains("certificate has expired"), "{text}");
    assert_eq!(verify_node_in_cluster(&certificate, &cluster.authority), expected);
}

#[test]
fn a_user_is_accepted() {
    let cluster = Cluster::new();
    for (attributes, name) in [
        (&["CN = owner"][..], "owner"),
        (&["O = Städtische Betriebe", "CN = Zoë"][..], "Zoë"),
        (&["CN = metropolis-00000000000000000000000000000000"], "metropolis-00000000000000000000000000000000"),
    ] {
        let found = cluster.user(attributes, CLIENT).unwrap();
        assert_eq!((&found.name[..], found.public_key), (name, cluster.key.public()));
    }
}

#[test]
fn nodes_are_no_users_and_users_are_no_nodes() {
    let cluster = Cluster::new();
    let id = cluster.id.to_string();
    let name = format!("subjectAltName = DNS:{id}");
    assert_eq!(cluster.user(&[&format!("CN = {id}")], &format!("{SERVER}{name}")), Err(NotAUserError::NotForClients));
    assert_eq!(cluster.node(&id, &format!("{CLIENT}{name}")), Err(NotANodeError::NotForServers));
    // Without the extension every use is allowed by X.509, and with "any" in it, but not by the cluster.
    assert_eq!(cluster.node(&id, &name), Err(NotANodeError::NotForServers));
    assert_eq!(cluster.user(&["CN = owner"], "keyUsage = digitalSignature"), Err(NotAUserError::NotForClients));
    let any = format!("extendedKeyUsage = anyExtendedKeyUsage\n{name}");
    assert_eq!(cluster.node(&id, &any), Err(NotANodeError::NotForServers));
    assert_eq!(cluster.user(&["CN = owner"], &any), Err(NotAUserError::NotForClients));
}

#[test]
fn a_node_has_its_one_name_and_no_other() {
    let cluster = Cluster::new();
    let id = cluster.id;
    let other = NodeId::of(&NodeKey::generate().public());
    let node = |common_name: &str, names: &str| cluster.node(common_name, &format!("{SERVER}{names}"));
    let name = id.to_string();

    for (names, dns, all) in [
        (String::new(), 0, 0),
        (format!("subjectAltName = DNS:{id}, DNS:{other}"), 2, 2),
        (format!("subjectAltName = DNS:{id}, DNS:{id}"), 2, 2),
        (format!("subjectAltName = DNS:{id}, IP:127.0.0.1"), 1, 2),
        (format!("subjectAltName = email:node@example.com, DNS:{id}"), 1, 2),
        (format!("subjectAltName = DNS:{id}, URI:spiffe://{other}"), 1, 2),
        ("subjectAltName = IP:fd00::1".to_owned(), 0, 1),
    ] {
        assert_eq!(node(&name, &names), Err(NotANodeError::AlternativeNames { dns, all }), "{names}");
    }

    let own = format!("subjectAltName = DNS:{id}");
    let common_name = |common_name: Option<&str>| {
        Err(NotANodeError::CommonName { common_name: common_name.map(str::to_owned), dns_name: id.to_string() })
    };
    assert_eq!(node("owner", &own), common_name(Some("owner")));
    assert_eq!(node(&other.to_string(), &own), common_name(Some(&other.to_string())));
    for attributes in [&["O = Polis"][..], &[&format!("0.CN = {id}"), &format!("1.CN = {id}")]] {
        let certificate = cluster.openssl.signed_by("ca", "node", &Subject::new(attributes), &format!("{SERVER}{own}"));
        assert_eq!(verify_node_in_cluster(&certificate, &cluster.authority), common_name(None), "{attributes:?}");
    }

    for found in [other.to_string(), id.to_string().to_uppercase(), format!("{id}."), "localhost".to_owned()] {
        let result = node(&found, &format!("subjectAltName = DNS:{found}"));
        assert_eq!(result, Err(NotANodeError::OtherNode { found, expected: id }));
    }
}

#[test]
fn a_user_has_one_name_that_is_not_empty() {
    let cluster = Cluster::new();
    for attributes in [&["O = Polis"][..], &["0.CN = owner", "1.CN = guest"]] {
        assert_eq!(cluster.user(attributes, CLIENT), Err(NotAUserError::NoName), "{attributes:?}");
    }
}

#[test]
fn what_the_authority_should_not_have_issued_is_refused() {
    let cluster = Cluster::new();
    let id = cluster.id;
    let name = format!("subjectAltName = DNS:{id}\nextendedKeyUsage = serverAuth, clientAuth");
    let check = |key: &str, extensions: &str, expected: NotInClusterError| {
        let attribute = format!("CN = {id}");
        let certificate = cluster.openssl.signed_by("ca", key, &Subject::new(&[&attribute]), extensions);
        let authority = &cluster.authority;
        assert_eq!(verify_in_cluster(&certificate, authority), Err(expected.clone()), "{extensions}");
        let as_node = verify_node_in_cluster(&certificate, authority);
        assert_eq!(as_node, Err(NotANodeError::NotInCluster { source: expected.clone() }), "{extensions}");
        let as_user = verify_user_in_cluster(&certificate, authority);
        assert_eq!(as_user, Err(NotAUserError::NotInCluster { source: expected }), "{extensions}");
    };
    check("node", &format!("{AUTHORITY}\n{name}"), NotInClusterError::IsAuthority);
    check(
        "node",
        &format!("{name}\n1.3.6.1.4.1.99999.1 = critical, ASN1:NULL"),
        NotInClusterError::UnknownCriticalExtension { object_identifier: "1.3.6.1.4.1.99999.1".into() },
    );
    cluster.openssl.key("ec", Kind::Ec);
    check("ec", &name, NotInClusterError::OtherKey { object_identifier: "1.2.840.10045.2.1".into() });
    // An extension that is unknown but not critical is nobody's business.
    let result = cluster.node(&id.to_string(), &format!("{name}\n1.3.6.1.4.1.99999.1 = ASN1:NULL"));
    assert_eq!(result.map(|node| node.id), Ok(id));
}

#[test]
fn only_the_authority_can_issue_not_its_name() {
    let cluster = Cluster::new();
    let openssl = &cluster.openssl;
    let id = cluster.id;
    let own = format!("CN = {id}");
    let subject = Subject::new(&[&own]);
    let extensions = format!("{SERVER}subjectAltName = DNS:{id}");
    let not_signed = || NotInClusterError::NotSignedByAuthority { authority: cluster.authority.public_key() };

    openssl.key("impostor", Kind::Ed25519);
    let name = Subject::new(&["CN = Metropolis Cluster CA"]);
    let impostor = openssl.self_signed("impostor", &name, AUTHORITY);
    assert_eq!(verify_in_cluster(&impostor, &cluster.authority), Err(not_signed()));
    let certificate = openssl.signed_by("impostor", "node", &subject, &extensions);
    assert_eq!(verify_in_cluster(&certificate, &cluster.authority), Err(not_signed()));

    // An intermediate authority, even one that the cluster's authority signed, can issue nothing.
    openssl.key("intermediate", Kind::Ed25519);
    let intermediate = openssl.signed_by("ca", "intermediate", &Subject::new(&["CN = Intermediate"]), AUTHORITY);
    assert_eq!(verify_in_cluster(&intermediate, &cluster.authority), Err(NotInClusterError::IsAuthority));
    let certificate = openssl.signed_by("intermediate", "node", &subject, &extensions);
    assert_eq!(verify_in_cluster(&certificate, &cluster.authority), Err(not_signed()));

    openssl.key("ec", Kind::Ec);
    openssl.self_signed("ec", &name, AUTHORITY);
    let certificate = openssl.signed_by("ec", "node", &subject, &extensions);
    let expected = NotInClusterError::OtherSignature { object_identifier: "1.2.840.10045.4.3.2".into() };
    assert_eq!(verify_in_cluster(&certificate, &cluster.authority), Err(expected));

    let itself = openssl.self_signed("node", &subject, &extensions);
    assert_eq!(verify_in_cluster(&itself, &cluster.authority), Err(not_signed()));

    // The authority's own certificate is signed by the authority and is still nobody's.
    let authority = cluster.authority.certificate();
    assert_eq!(verify_in_cluster(authority, &cluster.authority), Err(NotInClusterError::IsAuthority));
}
