//! The address of a node is where it is, not who it is.

#![forbid(unsafe_code)]

use polis_testkit::address::TestAddress;
use polis_testkit::{Host, checks, processes};

#[test]
fn a_node_that_is_started_at_another_address_is_the_same_member() {
    let mut host = Host::new(env!("CARGO_BIN_EXE_polis"));
    let parameters = host.bootstrap_parameters();
    let mut node = host.start(&parameters);
    let first = node.wait_running();
    let content = checks::running(&host.root(), &first, &checks::OnDisk::default());
    let (mut before, mut members) = (first.clone(), content.members);
    // Once after an orderly stop and once after a kill.
    for kill in [false, true] {
        if kill {
            node.kill();
            processes::wait_until_gone(&host.root()).unwrap_or_else(|left| panic!("{left}"));
        } else {
            assert!(node.stop().success());
        }
        let disk = checks::on_disk(&host.root());
        let other = TestAddress::claim();
        assert_ne!(other.ip, host.ip());
        host.move_to(other);
        node = host.start(&parameters);
        let status = node.wait_running();
        assert_eq!(status.address, Some(host.ip().to_string()));
        assert_ne!(status.address, before.address);
        let content = checks::running(&host.root(), &status, &disk);
        assert_eq!(content.members, members);
        let who = |status: &polis_control::Status| (status.node_id.clone(), status.cluster_id.clone());
        assert_eq!(who(&status), who(&first));
        assert_eq!(status.consensus.as_ref().unwrap().member_id, first.consensus.as_ref().unwrap().member_id);
        checks::leads(&host.root(), &node.wait_contact());
        (before, members) = (status, content.members);
    }
    assert!(node.stop().success());
    checks::stopped(&host);
}
