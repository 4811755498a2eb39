//! A client that shares nothing with Polis but the table of the wire contract does what Metropolis' own client does, in its
//! order of calls (metropolis.md, J.7): `wire/client.py`, over grpclib and OpenSSL.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::Cluster;
use serde_json::{Value, json};

/// How long what the cluster does by itself may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the client.
struct Client<'a> {
    directory: PathBuf,
    cluster: &'a Cluster,
}

impl Client<'_> {
    fn run(&self, arguments: &[&str]) -> (bool, Value) {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire/client.py");
        let mut command = Command::new("python3");
        command.arg(program).arg(&self.directory).args(arguments);
        if let Some(path) = python_path() {
            command.env("PYTHONPATH", path);
        }
        let output = command.output().expect("python3 can be started");
        let text = String::from_utf8_lossy(&output.stdout);
        let value = serde_json::from_str(&text)
            .unwrap_or_else(|_| panic!("{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr)));
        (output.status.success(), value)
    }

    /// A call to node `number` that is answered.
    #[track_caller]
    fn call(&self, number: usize, arguments: &[&str]) -> Value {
        let (answered, value) = self.ask(number, arguments);
        assert!(answered, "{arguments:?}: {value}");
        value
    }

    /// A call that is refused: its code.
    #[track_caller]
    fn refused(&self, number: usize, arguments: &[&str]) -> String {
        let (answered, value) = self.ask(number, arguments);
        assert!(!answered, "{arguments:?}: {value}");
        value["code"].as_str().expect("a refusal has a code").to_owned()
    }

    fn ask(&self, number: usize, arguments: &[&str]) -> (bool, Value) {
        let address = self.cluster.hosts[number].ip().to_string();
        self.run(&[&[&*address], arguments].concat())
    }

    /// Lists until the list satisfies `wanted`.
    #[track_caller]
    fn wait_list(&self, filter: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let list = self.call(0, &["list", filter]);
            let list = list.as_array().expect("a list");
            if wanted(list) {
                return list.clone();
            }
            assert!(Instant::now() < deadline, "{filter:?}: {list:?}");
        }
    }
}

/// Where scripts/setup puts what Python needs, for a test that is not run by scripts/test.
fn python_path() -> Option<String> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    let places = ["grpclib", "python3-protobuf/usr/lib/python3/dist-packages"].map(|place| tools.join(place));
    let given = std::env::var("PYTHONPATH").ok();
    let places = places.into_iter().filter(|place| place.is_dir()).map(|place| place.display().to_string());
    let all: Vec<String> = given.into_iter().chain(places).collect();
    (!all.is_empty()).then(|| all.join(":"))
}

#[test]
fn a_client_of_other_people_takes_a_node_through_its_life() {
    let mut cluster = Cluster::on_loopback(Path::new(env!("CARGO_BIN_EXE_polis")), 2);
    cluster.found_unowned();
    let directory = cluster.configuration();
    let founder = cluster.id(0);
    let parameters = directory.join("register.pb");
    {
        let client = Client { directory: directory.clone(), cluster: &cluster };
        let (taken, leader) = client.run(&["takeownership", &cluster.hosts[0].ip().to_string()]);
        assert!(taken, "{leader}");
        assert_eq!(leader, json!({"leader": founder, "this": founder}));
        // A register ticket is a message with 32 random bytes in it.
        assert_eq!(client.call(0, &["ticket"]), json!({"bytes": 34}));
        let info = client.call(0, &["info"]);
        assert_eq!(info["cluster_directory"]["nodes"][0]["id"], founder.as_str());
        assert_eq!(info["cluster_directory"]["nodes"][0]["addresses"][0]["host"], cluster.hosts[0].ip().to_string());
        assert_eq!(info["cluster_configuration"]["cluster_domain"], "cluster.internal");
        let _ = client.call(0, &["parameters", parameters.to_str().unwrap()]);
    }
    cluster.nodes[1] = Some(cluster.hosts[1].start(&parameters));
    let id = cluster.id(1);
    {
        let client = Client { directory: directory.clone(), cluster: &cluster };
        let new = client.wait_list("node.state == NODE_STATE_NEW", |list| !list.is_empty());
        assert_eq!(new[0]["id"], id.as_str());
        let key: Vec<u8> = decode(new[0]["pubkey"].as_str().unwrap());
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(client.refused(0, &["approve", "00"]), "INVALID_ARGUMENT");
        let _ = client.call(0, &["approve", &key]);
    }
    let _ = cluster.node(1).wait_state(NodeState::Running);
    let client = Client { directory, cluster: &cluster };
    let _ = client.wait_list("node.state == NODE_STATE_UP && node.health == HEALTH_HEALTHY", |list| list.len() == 2);
    let one = format!("node.id == '{id}'");

    let _ = client.call(0, &["roles", &id, "kubernetes_worker=true"]);
    assert!(client.call(0, &["list", &one])[0]["roles"].get("kubernetes_worker").is_some());
    assert_eq!(client.refused(0, &["roles", &id, "kubernetes_controller=true"]), "FAILED_PRECONDITION");
    let _ = client.call(0, &["roles", &id, "kubernetes_worker=false"]);
    assert!(client.call(0, &["list", &one])[0]["roles"].get("kubernetes_worker").is_none());

    let _ = client.call(0, &["labels", &id, "site=lab", "rack=7"]);
    let _ = client.call(0, &["labels", &id, "rack-"]);
    assert_eq!(client.call(0, &["list", &one])[0]["labels"]["pairs"], json!([{"key": "site", "value": "lab"}]));
    assert_eq!(client.refused(0, &["labels", &id, "-bad=1"]), "INVALID_ARGUMENT");

    let logs = client.call(1, &["logs", "root", "5"]);
    assert_eq!(logs.as_array().map(Vec::len), Some(5), "{logs}");
    assert!(logs[0]["dn"].as_str().is_some_and(|name| name.starts_with("root")), "{logs}");

    assert_eq!(client.refused(0, &["delete", &id]), "FAILED_PRECONDITION");
    let _ = client.call(0, &["delete", &id, "not_decommissioned"]);
    assert_eq!(client.call(0, &["list", &one]), json!([]));
    assert_eq!(client.refused(0, &["list", "node.id =="]), "INVALID_ARGUMENT");
    let end = cluster.node(1).wait_exit();
    assert_eq!(end.code(), Some(1), "a node that was deleted says so and stops");
}

/// JSON has bytes in base64.
fn decode(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}
