//! The operator's commands against a cluster in this process: a leader, a follower and addresses where nobody is.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority, NodeKey, OwnerKey};
use polis_parameters::{ClusterParameters, Parameters};
use polis_proto::api::node::Health;
use polis_proto::cluster::get_status_response as wire_status;
use polis_proto::common;
use serde_json::json;
use tonic::Status;

use crate::fake::{FakeCluster, Fault, margin_refusal, run, up};

/// An address at which nobody is, in a network that no test uses.
const NOBODY: &str = "127.255.255.1";

#[test]
fn an_owner_takes_the_cluster_and_asks_about_it() {
    let cluster = FakeCluster::start(2);
    let accept = "--insecure-accept-and-persist-first-encountered-ca";
    // Nobody is there to be asked, so the command that accepts is named.
    cluster
        .polis("polis cluster takeownership", &[1])
        .fails(2, &["not known yet", "it shows the CA", "polis cluster takeownership --config", accept]);
    assert!(!cluster.path("ca.pem").exists());
    cluster.polis("polis node list", &[1]).fails(2, &["not known yet"]);

    let taken = cluster.polis(&format!("polis cluster takeownership {accept}"), &[1]);
    assert!(taken.succeeds().contains("you are now the owner of cluster"), "{taken:#?}");
    let mode = |name: &str| std::fs::metadata(cluster.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("ca.pem"), mode("owner.pem")), (0o600, 0o644));
    let before = std::fs::read(cluster.path("owner.pem")).unwrap();
    cluster.polis("polis cluster takeownership", &[0]).succeeds();
    assert!(!before.is_empty());

    // Over a follower, a dead address and the leader alike.
    let list = cluster.polis(&format!("polis node list -o json --endpoints {NOBODY}"), &[1]);
    assert_eq!(list.json().as_array().unwrap().len(), 2);
    assert_eq!(list.json()[0]["health"], "HEALTHY");
    let table = cluster.polis("polis node list", &[0]);
    let first = table.succeeds().lines().next().unwrap().split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(first, "NODE ID STATE ADDRESS HEALTH ROLES HEARTBEAT");

    let info = cluster.polis("polis cluster info -o json", &[0]).json();
    assert_eq!(info["configuration"]["tpm_mode"], "DISABLED");
    assert_eq!(info["directory"].as_array().unwrap().len(), 2);
    let status = cluster.polis("polis cluster status -o yaml", &[1]);
    assert!(status.succeeds().contains("quorum: 2\n"), "{status:#?}");
    assert_eq!(cluster.polis("polis consensus members -o json", &[1]).json()[1]["member_id"], "b");
    let ticket = cluster.polis("polis cluster ticket show", &[0]);
    assert_eq!(ticket.succeeds(), format!("0a20{}\n", "5a".repeat(32)));
    assert_eq!(
        cluster.polis("polis cluster ticket rotate -o json", &[0]).json(),
        json!({"ticket": format!("0a20{}", "5b".repeat(32))})
    );
    cluster.finish();
}

#[test]
fn the_ca_of_another_cluster_is_never_taken() {
    let cluster = FakeCluster::start(1);
    // The owner certificate is of another cluster, and no flag makes up for that.
    let other = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
    let certificate = other.issue_user("owner", &cluster.key.public()).unwrap();
    std::fs::write(cluster.path("owner.pem"), certificate.pem()).unwrap();
    let line = "polis node list --insecure-accept-and-persist-first-encountered-ca";
    cluster.polis(line, &[0]).fails(1, &["is not the one that", "owner.pem is of", "it shows the CA"]);
    assert!(!cluster.path("ca.pem").exists());
    // The right certificate vouches for its CA without a question.
    cluster.own();
    std::fs::remove_file(cluster.path("ca.pem")).unwrap();
    cluster.polis("polis node list", &[0]).succeeds();
    assert!(cluster.path("ca.pem").exists());
    // A CA that was kept is not the one at the endpoint: that is said of the endpoint.
    std::fs::write(cluster.path("ca.pem"), other.certificate().pem()).unwrap();
    std::fs::write(cluster.path("owner.pem"), certificate.pem()).unwrap();
    cluster.polis("polis node list --timeout 1s", &[0]).fails(
        1,
        &[
            "no leader was found",
            "not a node of the cluster",
            "is of another cluster than the CA",
            "cluster takeownership",
        ],
    );
    cluster.finish();
}

#[test]
fn when_nobody_answers_each_address_has_its_cause() {
    let mut cluster = FakeCluster::start(2);
    cluster.own();
    let begin = Instant::now();
    let line = format!("polis node list --timeout 1s --endpoints {NOBODY}");
    cluster.state().leader = None;
    cluster.polis(&line, &[1]).fails(
        1,
        &[
            "no leader was found within",
            &format!("{NOBODY}:7835 refuses connections"),
            "no node is known to lead",
            "quorum: not known",
            "polis cluster health --config",
        ],
    );
    cluster.kill(0);
    cluster.kill(1);
    cluster
        .polis(&line, &[0, 1])
        .fails(1, &[&format!("{}:7835 ", cluster.address(0)), &format!("{}:7835 ", cluster.address(1))]);
    assert!(begin.elapsed() < Duration::from_secs(10));
    run(&format!("polis node list --config {}", cluster.directory.path().display()))
        .fails(2, &["--endpoints 192.0.2.10"]);
    cluster.finish();
}

#[test]
fn changes_are_made_and_repeated_while_that_is_harmless() {
    let cluster = FakeCluster::start(3);
    cluster.own();
    let (first, second) = (cluster.node_id(0), cluster.node_id(1));
    let all = &[0, 1, 2];
    let lost = || Fault::DoAnd(Status::unavailable("lost leadership"));

    // The answer is lost, the change is repeated, and the result is the same.
    cluster.state().faults.push_back(("update_node_labels", lost()));
    cluster.polis(&format!("polis node set label {first} site=lab old-"), all).succeeds();
    assert_eq!(cluster.state().changes.drain(..).count(), 2);
    let node = cluster.polis(&format!("polis node describe {first} -o json"), all).json();
    assert_eq!(node[0]["labels"], json!({"site": "lab"}));

    cluster.polis(&format!("polis node add role KubernetesWorker {first} {second}"), all).succeeds();
    assert_eq!(
        cluster.state().changes.drain(..).collect::<Vec<_>>(),
        [format!("roles {first}"), format!("roles {second}")]
    );

    let key = "kubernetes.node_labels_to_synchronize";
    cluster.polis(&format!("polis cluster configure set {key} ^first$"), all).succeeds();
    // A configuration that an earlier attempt has changed is what was wanted.
    cluster.state().faults.push_back(("configure_cluster", lost()));
    let set = cluster.polis(&format!("polis cluster configure set {key} ^site$ ^rack$"), all);
    assert_eq!(set.succeeds(), "^site$ ^rack$\n");
    assert_eq!(
        cluster.polis(&format!("polis cluster configure get {key} -o json"), all).json()[key],
        json!(["^site$", "^rack$"])
    );
    cluster.polis("polis cluster configure set tpm_mode required", all).fails(2, &["cannot be changed"]);
    cluster.polis("polis cluster configure get colour", all).fails(2, &["known are cluster_domain"]);

    // A ticket must not be made twice behind the operator's back.
    cluster.state().changes.clear();
    cluster.state().faults.push_back(("rotate_register_ticket", lost()));
    cluster
        .polis("polis cluster ticket rotate", all)
        .fails(1, &["was not renewed", "lost leadership", "polis cluster ticket show"]);
    assert_eq!(cluster.state().changes.drain(..).collect::<Vec<_>>(), ["ticket"]);

    // The first attempt has deleted it, and its answer was lost.
    cluster.state().faults.push_back(("delete_node", lost()));
    let bypasses = "--bypass-has-roles --bypass-not-decommissioned";
    cluster.polis(&format!("polis node delete {second} {bypasses}"), all).succeeds();
    assert_eq!(cluster.state().changes.drain(..).collect::<Vec<_>>(), [format!("delete {second}")]);
    cluster.polis(&format!("polis node delete {second} {bypasses}"), all).fails(1, &["there is no node"]);
    cluster.finish();
}

#[test]
fn refusals_name_the_flag_and_the_numbers() {
    let cluster = FakeCluster::start(3);
    cluster.own();
    let (first, second) = (cluster.node_id(0), cluster.node_id(1));
    let all = &[1];
    cluster.polis(&format!("polis node delete {first}"), all).fails(
        3,
        &[
            "the node still has roles (FAILED_PRECONDITION)",
            "quorum: none: the leader answered",
            "polis node remove role ConsensusMember",
            "--bypass-has-roles --bypass-not-decommissioned --config",
        ],
    );
    let refused = |text: &str| Fault::Refuse(Status::failed_precondition(text));
    cluster.state().faults.push_back(("decommission_node", refused("the node still has roles (ConsensusMember)")));
    cluster.polis(&format!("polis node decommission {first}"), all).fails(
        3,
        &[
            "was not told to leave",
            &format!("polis node remove role ConsensusMember {first} --config"),
            &format!("polis node decommission {first} --wait --config"),
        ],
    );
    cluster.state().nodes[1].state = common::NodeState::Standby.into();
    cluster.state().faults.push_back(("update_node_roles", refused("the node is STANDBY")));
    cluster.polis(&format!("polis node add role KubernetesWorker {second}"), all).fails(
        3,
        &["polis node status --root DIR", &format!("then: polis node add role KubernetesWorker {second} --config")],
    );
    cluster.state().nodes[1].state = common::NodeState::Up.into();
    cluster.state().faults.push_back(("update_node_roles", Fault::Refuse(margin_refusal(&second))));
    cluster
        .polis(&format!("polis node remove role ConsensusMember {first}"), all)
        .fails(3, &["1 of 2 members with a vote would answer, and 2 must", &second, "no flag overrides this"]);
    // One of three is away: another one must not be restarted.
    cluster.state().status.members[2].reachable = false;
    cluster.polis(&format!("polis node reboot {second}"), all).fails(3, &["1 of 3 members", "--bypass-quorum"]);
    cluster.polis(&format!("polis node reboot {second} --bypass-quorum"), all).succeeds();
    cluster.polis(&format!("polis node poweroff {}", cluster.node_id(2)), all).succeeds();
    assert_eq!(cluster.state().changes.drain(..).collect::<Vec<_>>(), ["reboot 1 1", "reboot 2 3"]);
    cluster.polis("polis node list --filter nonsense", all).fails(2, &["is no CEL expression", "INVALID_ARGUMENT"]);
    assert_eq!(cluster.polis("polis node list --filter none -o json", all).json(), json!([]));
    cluster.state().faults.push_back(("get_nodes", Fault::Refuse(Status::unauthenticated("revoked"))));
    cluster.polis("polis node list", all).fails(1, &["revoked", "polis cluster takeownership --config"]);
    cluster.finish();
}

#[test]
fn nodes_are_approved_decommissioned_and_shown() {
    let cluster = FakeCluster::start(1);
    cluster.own();
    let new = NodeKey::generate().public();
    {
        let mut node = up(new, cluster.address(0));
        (node.state, node.roles, node.status) = (common::NodeState::New.into(), None, None);
        cluster.state().nodes.push(node);
    }
    let id = polis_identity::NodeId::of(&new).to_string();
    let waiting = cluster.polis("polis node approve", &[0]);
    assert!(
        waiting.succeeds().contains(&new.to_string()) && waiting.stdout.contains("polis node approve ID --config"),
        "{waiting:#?}"
    );
    cluster
        .polis(&format!("polis node logs {id}"), &[0])
        .fails(1, &["it is not known where", "has not reported an address"]);
    // The first digits fit this node only.
    let digits = &id["metropolis-".len()..][..8];
    cluster.polis(&format!("polis node approve {digits}"), &[0]).succeeds();
    cluster.polis(&format!("polis node approve {id}"), &[0]).succeeds();
    assert_eq!(cluster.state().changes.drain(..).collect::<Vec<_>>(), [format!("approve {id}")]);
    assert_eq!(cluster.polis("polis node approve -o json", &[0]).json(), json!([]));
    cluster.polis("polis node approve xyz", &[0]).fails(2, &["is no node id"]);

    let logs = cluster.polis(&format!("polis node logs {} --dn root.manager", cluster.node_id(0)), &[0]);
    logs.succeeds();
    cluster.polis(&format!("polis node decommission {id} --wait"), &[0]).succeeds();
    cluster.polis(&format!("polis node decommission {id}"), &[0]).succeeds();
    cluster.polis(&format!("polis node delete {id}"), &[0]).succeeds();
    cluster.finish();
}

#[test]
fn an_owner_is_rotated_even_when_the_answer_is_lost() {
    let cluster = FakeCluster::start(1);
    cluster.own();
    let key = || std::fs::read(cluster.path("owner-key.pem")).unwrap();
    let first = key();
    cluster.polis("polis owner rotate", &[0]).succeeds();
    let second = key();
    assert_ne!(first, second);
    cluster.polis("polis node list", &[0]).succeeds();

    cluster.state().faults.push_back(("rotate_owner", Fault::DoAnd(Status::unavailable("gone"))));
    cluster.polis("polis owner rotate", &[0]).fails(1, &["polis owner rotate --config"]);
    assert_eq!(key(), second, "the present key stays until the new one is known to be taken");
    cluster.polis("polis owner rotate", &[0]).succeeds();
    let third = key();
    assert_ne!(second, third);
    assert!(!cluster.path("owner-key-next.pem").exists());
    cluster.polis("polis cluster takeownership", &[0]).succeeds();

    // The cluster never heard of this one: it is tried again with the same key.
    crate::owner::create_key(&cluster.path("owner-key-next.pem")).unwrap();
    let next = crate::owner::read_key(&cluster.path("owner-key-next.pem")).unwrap();
    cluster.polis("polis owner rotate", &[0]).succeeds();
    assert_eq!(cluster.state().owner, next);

    std::fs::write(cluster.path("owner-key.pem"), OwnerKey::generate().to_owner_pem().as_bytes()).unwrap();
    cluster.polis("polis node list", &[0]).fails(2, &["do not belong together"]);
    cluster.polis("polis cluster takeownership", &[0]).fails(1, &["not the owner's key", "PERMISSION_DENIED"]);
    cluster.finish();
}

#[test]
fn parameters_and_certificates_are_written_for_their_owner_only() {
    let cluster = FakeCluster::start(2);
    cluster.own();
    let path = cluster.path("node.pb");
    let line = format!("polis parameters register --label site=lab -o {}", path.display());
    cluster.polis(&line, &[0]).succeeds();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    match Parameters::parse(&std::fs::read(&path).unwrap()).unwrap().cluster {
        ClusterParameters::Register(register) => {
            assert_eq!(register.addresses, [cluster.address(0), cluster.address(1)])
        }
        ClusterParameters::Bootstrap(_) => unreachable!("register was written"),
    }
    assert!(cluster.polis(&line, &[0]).succeeds().starts_with("unchanged:"));

    let directory = cluster.path("tls");
    run(&format!(
        "polis certificate export --config {} --dir {}",
        cluster.directory.path().display(),
        directory.display()
    ))
    .succeeds();
    let mode = |name: &str| std::fs::metadata(directory.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("key.pem"), mode("certificate.pem"), mode("ca.pem")), (0o600, 0o644, 0o644));
    assert!(std::fs::read_to_string(directory.join("key.pem")).unwrap().starts_with("-----BEGIN PRIVATE KEY-----"));
    cluster.finish();
}

#[test]
fn health_says_everything_at_once() {
    let mut cluster = FakeCluster::start(3);
    cluster.own();
    let well = cluster.polis("polis cluster health", &[0, 1, 2]);
    assert!(well.succeeds().contains("nothing is wrong"), "{well:#?}");

    cluster.kill(2);
    {
        let mut state = cluster.state();
        state.nodes[2].health = Health::HeartbeatTimeout.into();
        state.nodes[2].time_since_heartbeat = Some(prost_types::Duration { seconds: 25, nanos: 0 });
        state.status.members[2].reachable = false;
        state.status.margin = 0;
        state.status.alarms.push("NOSPACE".into());
        state.status.queue.push(wire_status::QueuedJoin {
            node_id: "metropolis-q".into(),
            reason: "it died".into(),
            attempts: 2,
        });
    }
    let ill = cluster.polis("polis cluster health", &[0, 1, 2]);
    assert!(!ill.success && ill.failure.is_none(), "{ill:#?}");
    let dead = cluster.node_id(2);
    let quorum = "error    2 of 3 members with a vote answer, 2 must  [quorum]";
    for part in [
        &*format!("error    {dead}: {}:7835 cannot be asked", cluster.address(2)),
        &format!("error    {dead}: the leader has not heard of it for 25s"),
        &format!("error    {dead}: its consensus member does not answer"),
        &format!("error    {dead}: does not say how it is"),
        "error    etcd has raised the alarm NOSPACE",
        "error    metropolis-q: has not become a consensus member in 2 attempts",
        "refuses connections",
        quorum,
        "quorum: one more failure stops all changes",
        "next:   ",
        "warning  2 of 3 nodes are healthy",
        "warning  2 of 3 nodes asked directly have no error, 1 did not answer",
    ] {
        assert!(ill.stdout.contains(part), "{part:?} is missing in:\n{}", ill.stdout);
    }
    let json = cluster.polis("polis cluster health -o json", &[0]).json();
    assert_eq!(json["healthy"], false);
    assert_eq!(json["findings"][0]["level"], "error");

    // Without a leader, what can still be asked is asked.
    cluster.state().leader = None;
    let headless = cluster.polis("polis cluster health --timeout 1s", &[0, 1, 2]);
    assert!(!headless.success);
    for part in [
        "nobody answers for the cluster as its leader",
        "no node is known to lead",
        "either it is lost, or",
        "ok       2 of 2 nodes asked directly have no error",
    ] {
        assert!(headless.stdout.contains(part), "{part:?} is missing in:\n{}", headless.stdout);
    }
    cluster.finish();
}

#[test]
fn without_a_leader_a_node_is_found_among_the_endpoints() {
    let cluster = FakeCluster::start(2);
    cluster.own();
    cluster.state().leader = None;
    let (first, second) = (cluster.node_id(0), cluster.node_id(1));
    let line = |id: &str| format!("polis node logs {id} --timeout 1s");
    cluster.polis(&line(&second), &[0, 1]).succeeds();
    cluster.polis(&line(&second), &[0]).fails(1, &["there is no node", "only the nodes at the endpoints are known"]);
    cluster.polis(&format!("polis node reboot {first} --timeout 1s"), &[0]).fails(1, &["no leader was found"]);
    // What was not done is named, and what to do.
    for (line, not_done) in [
        (format!("node delete {second}"), "was not deleted"),
        (format!("node decommission {second}"), "was not told to leave"),
        (format!("node approve {second}"), "was not approved"),
        (format!("node remove role ConsensusMember {second}"), "did not lose the role ConsensusMember"),
    ] {
        let not_done = format!("{second} {not_done}: no leader was found within 1.00 s");
        cluster
            .polis(&format!("polis {line} --timeout 1s"), &[0])
            .fails(1, &[&not_done, "quorum: ", "more than half of the consensus members"]);
    }
    cluster.polis(&format!("polis node reboot {first} --timeout 1s --bypass-quorum"), &[0]).succeeds();
    assert_eq!(cluster.state().changes.drain(..).collect::<Vec<_>>(), ["reboot 0 1"]);
    cluster.finish();
}

#[test]
fn a_thousand_nodes_are_listed_within_a_second() {
    let cluster = FakeCluster::start(1);
    cluster.own();
    {
        let mut state = cluster.state();
        let example = state.nodes[0].clone();
        state.nodes.extend(
            (0..999_u32)
                .map(|number| polis_proto::api::Node { id: format!("metropolis-{number:032x}"), ..example.clone() }),
        );
    }
    let begin = Instant::now();
    let list = cluster.polis("polis node list", &[0]);
    let taken = begin.elapsed();
    assert_eq!(list.succeeds().lines().count(), 1_001);
    assert!(taken < Duration::from_secs(1), "{taken:?}");
    cluster.finish();
}
