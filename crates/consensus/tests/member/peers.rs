//! Port 7834 speaks with members of this cluster and with nobody else.

use std::fs;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use polis_consensus::{PEER_PORT, PeerPki, ReplaceRevocationsError, Start};
use polis_identity::{Certificate, CertificateAuthority, NodeKey, PEER_AUTHORITY_NAME, issue_ephemeral};

use crate::node::Node;

/// What only an etcd that lets the caller in answers.
const ANSWER: &str = "\"etcdserver\":";

/// Asks for etcd's version on the peer port, by a client that is not ours. What comes back until the answer, or the end.
fn ask(directory: &Path, address: SocketAddr, credentials: Option<(&Certificate, &NodeKey)>) -> String {
    let mut client = Command::new("openssl");
    client.args(["s_client", "-quiet", "-ign_eof", "-connect", &address.to_string()]);
    if let Some((certificate, key)) = credentials {
        let (certificate_file, key_file) = (directory.join("client.pem"), directory.join("client-key.pem"));
        fs::write(&certificate_file, certificate.pem()).unwrap();
        fs::write(&key_file, key.pkcs8_pem().as_bytes()).unwrap();
        client.arg("-cert").arg(certificate_file).arg("-key").arg(key_file);
    }
    let request = directory.join("request");
    fs::write(&request, "GET /version HTTP/1.0\r\n\r\n").unwrap();
    client.stdin(fs::File::open(request).unwrap()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = client.spawn().expect("openssl can be run");
    let mut output = client.stdout.take().unwrap();
    let (mut answer, mut piece) = (String::new(), [0; 1024]);
    loop {
        let length = output.read(&mut piece).unwrap();
        answer.push_str(&String::from_utf8_lossy(&piece[..length]));
        if length == 0 || answer.contains(ANSWER) {
            break;
        }
    }
    // The connection of one that was let in stays open for a while; one that was not has ended by itself.
    let _ = client.kill();
    client.wait().unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_peer_port_refuses_no_foreign_and_revoked_certificates() {
    let mut node = Node::new();
    let authority = CertificateAuthority::generate(PEER_AUTHORITY_NAME);
    let foreign = CertificateAuthority::generate(PEER_AUTHORITY_NAME);
    let key = NodeKey::generate();
    let (good, revoked) = (authority.issue_peer(&key.public()), authority.issue_peer(&key.public()));
    let pki = PeerPki::issued(
        authority.certificate().clone(),
        authority.certificate_revocation_list(2, &[revoked.serial_number().clone()]),
        authority.issue_peer(&node.public_key()),
        &node.key,
    );
    node.start(pki, Start::Found);
    node.ready().await;
    let address = SocketAddr::new(node.ip(), PEER_PORT);
    let other_key = NodeKey::generate();
    let table = [
        ("a member's certificate", Some((&good, &key)), true),
        ("no certificate", None, false),
        ("a foreign certificate", Some((&foreign.issue_peer(&key.public()), &key)), false),
        ("a certificate signed by itself", Some((&issue_ephemeral(&other_key), &other_key)), false),
        ("a revoked certificate", Some((&revoked, &key)), false),
        ("a member's certificate again", Some((&good, &key)), true),
    ];
    for (name, credentials, expected) in table {
        let answer = ask(node.path(), address, credentials);
        assert_eq!(answer.contains(ANSWER), expected, "{name}: {answer:?}");
        assert!(expected || answer.is_empty(), "{name}: {answer:?}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_let_go_is_refused_by_a_member_that_runs() {
    let mut node = Node::new();
    node.found();
    let before = node.ready().await;
    let pki = PeerPki::load(&node.layout.data.etcd.credentials, &node.key).unwrap().unwrap();
    let authority = pki.authority().unwrap();
    let (key, other) = (NodeKey::generate(), NodeKey::generate());
    let (gone, stays) = (authority.issue_peer(&key.public()), authority.issue_peer(&other.public()));
    let address = SocketAddr::new(node.ip(), PEER_PORT);
    let is_let_in = |certificate, key| ask(node.path(), address, Some((certificate, key))).contains(ANSWER);
    assert!(is_let_in(&gone, &key) && is_let_in(&stays, &other));

    let list = authority.certificate_revocation_list(7, &[gone.serial_number().clone()]);
    node.consensus().replace_revocations(list).unwrap();
    assert!(!is_let_in(&gone, &key), "its certificate is revoked");
    assert!(is_let_in(&stays, &other), "and nobody else's");
    // Neither an older list nor one of somebody else takes that back.
    let older = authority.certificate_revocation_list(6, &[]);
    node.consensus().replace_revocations(older).unwrap();
    let foreign = CertificateAuthority::generate(PEER_AUTHORITY_NAME).certificate_revocation_list(9, &[]);
    let error = node.consensus().replace_revocations(foreign).unwrap_err();
    assert!(matches!(error, ReplaceRevocationsError::Foreign(_)), "{error:?}");
    assert!(!is_let_in(&gone, &key));
    // Nor a new start of etcd.
    node.kill_etcd();
    node.wait_for("restarted", |status| status.is_ready() && status.process_id != before.process_id).await;
    assert!(!is_let_in(&gone, &key) && is_let_in(&stays, &other));
    node.stop().await;
}
