//! Parameters files made by other implementations, each given to the real binary: it does what their README says.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use polis_control::{NodeState, Status};
use polis_testkit::checks::{self, OnDisk, Phase};
use polis_testkit::confined::{Namespace, in_namespace};
use polis_testkit::refusal::{Says, has_condition, refused};
use polis_testkit::store::Content;
use polis_testkit::{Host, processes};
use serde_json::{Value, json};

/// What a node does with a file.
enum Does {
    /// It makes a cluster of its own.
    Bootstraps(Bootstrap),
    /// It asks this cluster for admission at this endpoint, for as long as nobody answers there.
    Registers { cluster: &'static str, endpoint: &'static str },
    /// It makes a cluster of its own, on data that are encrypted and authenticated.
    Encrypts,
    /// It ends on a host without a TPM, because of what this part of its message says.
    RefusesByName(&'static str),
    /// It ends, because this field has this fault.
    Refuses { field: &'static str, fault: &'static str },
}

struct Bootstrap {
    domain: &'static str,
    labels: &'static [(&'static str, &'static str)],
    /// Beginnings of the labels that are left out, each with the reason.
    left_out: &'static [(&'static str, &'static str)],
    /// What the log says besides.
    remark: Option<&'static str>,
}

const PLAIN: Bootstrap = Bootstrap { domain: "cluster.internal", labels: &[], left_out: &[], remark: None };

const TPM: &str = "require a TPM";

const BAD_KEY: &str = "its key must have 1 to 63 characters";
const BAD_VALUE: &str = "its value must have at most 63 characters";

/// Every file of the set.
const FILES: &[(&str, Does)] = &[
    ("bootstrap-insecure.pb", Does::Bootstraps(PLAIN)),
    (
        "bootstrap-insecure-labels-domain.pb",
        Does::Bootstraps(Bootstrap {
            domain: "cluster.example.internal",
            labels: &[("site", "lab-1"), ("example.com/rack", "r07"), ("empty", "")],
            ..PLAIN
        }),
    ),
    (
        "bootstrap-insecure-static-network.pb",
        Does::Bootstraps(Bootstrap {
            remark: Some(
                "the parameters carry a static network configuration; the network of this host is its own business",
            ),
            ..PLAIN
        }),
    ),
    ("bootstrap-defaults.pb", Does::RefusesByName(TPM)),
    ("bootstrap-authenticated-no-tpm.pb", Does::Encrypts),
    ("bootstrap-authenticated-tpm.pb", Does::RefusesByName(TPM)),
    ("register.pb", Does::Registers { cluster: "650a3d578883beb330db641fcf5ce5f1", endpoint: "192.0.2.10:7835" }),
    (
        "bad-labels.pb",
        Does::Bootstraps(Bootstrap {
            labels: &[("ok", "1")],
            left_out: &[("-x=y", BAD_KEY), ("aaaaaaaa", BAD_KEY), ("k=vvvvvvvv", BAD_VALUE)],
            ..PLAIN
        }),
    ),
    (
        "bad-labels-129.pb",
        Does::Bootstraps(Bootstrap {
            labels: &[("k0", "v"), ("k127", "v")],
            left_out: &[("k128=v", "a node has at most 128 labels")],
            ..PLAIN
        }),
    ),
    ("bad-cut.pb", Does::Refuses { field: "NodeParameters", fault: "or was cut short" }),
    ("bad-empty.pb", Does::Refuses { field: "the file", fault: "is empty" }),
    ("bad-neither-variant.pb", Does::Refuses { field: "cluster_bootstrap", fault: "neither" }),
    ("bad-owner-key-31-bytes.pb", Does::Refuses { field: "owner_public_key", fault: "has 31 bytes" }),
    ("bad-owner-key-missing.pb", Does::Refuses { field: "owner_public_key", fault: "is missing" }),
    (
        "bad-storage-policy-unknown.pb",
        Does::Refuses { field: "storage_security_policy", fault: "has the unknown value" },
    ),
    (
        "bad-register-address-not-an-ip.pb",
        Does::Refuses { field: "cluster_directory", fault: "which is not an IP address" },
    ),
    ("bad-register-ca-not-a-certificate.pb", Does::Refuses { field: "ca_certificate", fault: "is not a certificate" }),
    ("bad-register-empty-directory.pb", Does::Refuses { field: "cluster_directory", fault: "names no node" }),
    ("bad-register-no-ticket.pb", Does::Refuses { field: "register_ticket", fault: "is missing" }),
    ("bad-register-node-without-address.pb", Does::Refuses { field: "cluster_directory", fault: "without an address" }),
];

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../parameters/tests/data")
}

/// A host that has this file of the set as its parameters.
fn host(name: &str) -> (Host, PathBuf) {
    let host = Host::new(env!("CARGO_BIN_EXE_polis"));
    let bytes = fs::read(data().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let path = host.write_parameters(&bytes);
    (host, path)
}

fn command(host: &Host, parameters: &Path) -> Command {
    let mut command = host.command();
    command.arg("--parameters").arg(parameters);
    command
}

#[test]
fn no_file_is_forgotten() {
    let entries = fs::read_dir(data()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut there: Vec<String> = entries.filter(|name| name.ends_with(".pb")).collect();
    let mut known: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
    there.sort_unstable();
    known.sort_unstable();
    assert_eq!(there, known);
}

#[test]
fn good_files_and_those_with_bad_labels_bootstrap() {
    let mut done = 0;
    for (name, does) in FILES {
        let Does::Bootstraps(expected) = does else { continue };
        let (host, parameters) = host(name);
        bootstraps(&host, &parameters, name, expected);
        done += 1;
    }
    assert_eq!(done, 5);
}

#[test]
fn what_a_host_without_a_tpm_cannot_do_is_refused_by_name() {
    let mut done = 0;
    for (name, does) in FILES {
        let Does::RefusesByName(why) = does else { continue };
        let (host, parameters) = host(name);
        let says =
            Says { what: "the node did not start", place: &parameters, why, next: "`polis parameters bootstrap" };
        let mut command = command(&host, &parameters);
        command.env("POLIS_TPM_TCTI", "device:/nonexistent/tpm");
        refused(&host, command, 1, says);
        assert!(!host.root().exists(), "{name}");
        done += 1;
    }
    assert_eq!(done, 2);
}

#[test]
fn a_file_that_asks_for_encryption_gets_it() {
    let Some((name, _)) = FILES.iter().find(|(_, does)| matches!(does, Does::Encrypts)) else { panic!("there is one") };
    let (host, parameters) = host(name);
    let mut node = host.spawn(command(&host, &parameters));
    let status = node.wait_state(NodeState::Running);
    let storage = status.storage.expect("a running node knows its storage");
    assert_eq!((storage.security.as_str(), storage.backend.as_str()), ("authenticated", "gocryptfs"));
    assert!(node.stop().success(), "{name}");
    // Nothing of it is there to be read without the keys.
    assert!(!host.root().join("data/partition").exists());
}

#[test]
fn a_file_for_registration_makes_a_node_that_asks_until_it_is_answered() {
    let mut done = 0;
    for (name, does) in FILES {
        let Does::Registers { cluster, endpoint } = does else { continue };
        let (host, parameters) = host(name);
        let given = fs::read(&parameters).unwrap();
        // In a network without anybody else; the second start finds the intent of the first.
        let mut before = OnDisk::default();
        for _ in 0..2 {
            let command = in_namespace(Namespace::Network, "ip link set lo up", &[], command(&host, &parameters));
            let mut node = host.spawn(command);
            let status = node.wait_condition("cluster-unreachable");
            let says = Says {
                what: "cannot be reached",
                place: Path::new(endpoint),
                why: "Network is unreachable",
                next: "see whether one of these is a running node of the cluster",
            };
            has_condition(&status, "cluster-unreachable", says);
            assert_eq!(status.state, NodeState::Registering);
            assert_eq!(status.cluster_id.as_deref(), Some(*cluster));
            assert!(node.stop().success());
            processes::wait_until_gone(&host.root()).unwrap_or_else(|left| panic!("{left}"));
            let now = checks::on_disk(&host.root());
            assert_eq!(now.node_id, status.node_id);
            // Nobody has let it in yet, so nothing was formatted.
            assert_eq!(now.phase, Some(Phase::Formattable));
            assert!(!host.root().join("data").exists());
            assert!(before == OnDisk::default() || before == now, "{before:?} and {now:?}");
            before = now;
        }
        assert_eq!(fs::read(&parameters).unwrap(), given);
        done += 1;
    }
    assert_eq!(done, 1);
}

#[test]
fn bad_files_are_refused_with_the_field_and_the_fault() {
    let mut done = 0;
    for (name, does) in FILES {
        let Does::Refuses { field, fault } = does else { continue };
        let (host, parameters) = host(name);
        let says = Says {
            what: "are not usable",
            place: &parameters,
            why: fault,
            next: "hint: `polis parameters bootstrap` makes",
        };
        refused(&host, command(&host, &parameters), 1, says);
        refused(&host, command(&host, &parameters), 1, Says { what: field, ..says });
        assert!(!host.root().exists(), "{name}");
        done += 1;
    }
    assert_eq!(done, 11);
}

/// Runs a node with these parameters and checks what comes of them.
fn bootstraps(host: &Host, parameters: &Path, name: &str, expected: &Bootstrap) {
    let given = fs::read(parameters).unwrap();
    let mut node = host.start(parameters);
    let left: &[&str] = if expected.left_out.is_empty() { &[] } else { &["labels-left-out"] };
    let status = node.wait_running_with(left);
    check_labels_left_out(&status, name, expected);
    // Labels that were left out are a condition for as long as this process runs; the rest is that of any node.
    let others: Vec<_> =
        status.conditions.iter().filter(|condition| condition.name != "labels-left-out").cloned().collect();
    let content = checks::running(&host.root(), &Status { conditions: others, ..status.clone() }, &OnDisk::default());
    check_cluster(&content, &status, name, expected);
    let remark = expected.remark.unwrap_or("state changes");
    assert!(node.log().contains(remark), "{name}: {remark:?} is not in {}", node.log());
    assert!(node.stop().success(), "{name}");
    checks::stopped(host);
    assert_eq!(fs::read(parameters).unwrap(), given, "{name}");
}

fn check_labels_left_out(status: &Status, name: &str, expected: &Bootstrap) {
    for (label, why) in expected.left_out {
        let label = format!("label {label}");
        let says = Says { what: "were left out", place: Path::new(&label), why, next: "give it the right ones later" };
        let condition = has_condition(status, "labels-left-out", says);
        assert_eq!(condition.message.matches("label ").count(), expected.left_out.len(), "{name}: {condition:?}");
    }
}

/// Checks what the cluster knows of the labels and of its domain, in the bytes of its records.
fn check_cluster(content: &Content, status: &Status, name: &str, expected: &Bootstrap) {
    let value = |key: &str| &content.entries.get(key).unwrap_or_else(|| panic!("{name}: there is no {key}")).value;
    let configuration = value("namespaced:curator//cluster/configuration");
    assert!(holds(configuration, &field(4, expected.domain)), "{name}: {configuration:?}");
    let node_id = status.node_id.as_deref().expect("a running node has an id");
    let record = value(&format!("namespaced:curator//nodes/{node_id}"));
    for (key, text) in expected.labels {
        let pair = if text.is_empty() { field(1, key) } else { [field(1, key), field(2, text)].concat() };
        assert!(holds(record, &pair), "{name}: the record has no label {key}={text}: {record:?}");
    }
    for (label, _) in expected.left_out {
        let key = label.split('=').next().unwrap_or_default();
        assert!(!holds(record, &field(1, key)), "{name}: the record has the label {label}");
    }
}

/// A text in the form in which protobuf writes it: number of the field and kind 2, length, bytes.
fn field(number: u8, text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).expect("the text is short");
    [&[number << 3 | 2, length], text.as_bytes()].concat()
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Python with its protobuf library, which `scripts/setup test` brings if the system has none.
fn python() -> Command {
    let unpacked =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/python3-protobuf/usr/lib/python3/dist-packages");
    let candidate = |program: &str, path: Option<&Path>| {
        let mut command = Command::new(program);
        // Without bytecode files beside what is imported.
        command.arg("-B").stdin(Stdio::null());
        if let Some(path) = path {
            command.env("PYTHONPATH", path);
        }
        command
    };
    for program in ["python3", "/usr/bin/python3"] {
        for path in [None, Some(&*unpacked)] {
            let tried = candidate(program, path).args(["-c", "import google.protobuf.descriptor_pool"]).output();
            if tried.is_ok_and(|output| output.status.success()) {
                return candidate(program, path);
            }
        }
    }
    panic!("there is no python3 with protobuf; bring it with: scripts/setup test");
}

fn succeeds(output: Output) -> Vec<u8> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn a_file_made_by_pythons_protobuf_from_the_field_table_bootstraps() {
    let host = Host::new(env!("CARGO_BIN_EXE_polis"));
    let owner = succeeds(host.polis([
        "owner".as_ref(),
        "create".as_ref(),
        "--config".as_ref(),
        host.directory().join("owner").as_os_str(),
    ]));
    let owner = String::from_utf8(owner).unwrap();
    let key = owner.lines().find_map(|line| line.strip_prefix("Public key")).expect("the public key is shown").trim();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parameters_files/make.py");
    let bytes = succeeds(python().arg(script).arg(key).output().unwrap());
    let parameters = host.write_parameters(&bytes);

    let show = ["parameters", "show", "-o", "json"].map(AsRef::as_ref).into_iter().chain([parameters.as_os_str()]);
    let shown: Value = serde_json::from_slice(&succeeds(host.polis(show))).unwrap();
    let expected = json!({
        "owner_public_key": key,
        "storage_security": "insecure",
        "tpm_mode": "disabled",
        "cluster_domain": "snakes.example.internal",
        "default_configuration": false,
    });
    assert_eq!((&shown["kind"], &shown["bootstrap"]), (&json!("bootstrap"), &expected), "{shown}");
    let labels = json!([
        {"key": "made-by", "value": "python"}, {"key": "example.com/rack", "value": "r07"}, {"key": "empty", "value": ""}
    ]);
    assert_eq!(
        (&shown["labels"], &shown["bad_labels"], &shown["accepted"]),
        (&labels, &json!([]), &json!(true)),
        "{shown}"
    );

    let expected = Bootstrap {
        domain: "snakes.example.internal",
        labels: &[("made-by", "python"), ("example.com/rack", "r07"), ("empty", "")],
        ..PLAIN
    };
    bootstraps(&host, &parameters, "the file made by Python", &expected);
    // It is what `polis parameters bootstrap` makes of the same choices, byte for byte.
    let ours = host.directory().join("ours.pb");
    let mut bootstrap = Command::new(&host.binary);
    bootstrap.args(["parameters", "bootstrap", "--storage-security", "insecure", "--tpm-mode", "disabled"]);
    bootstrap.args(["--cluster-domain", "snakes.example.internal", "--label", "made-by=python"]);
    bootstrap.args(["--label", "example.com/rack=r07", "--label", "empty=", "--owner-key"]);
    bootstrap.arg(host.directory().join("owner/owner-key.pem")).arg("-o").arg(&ours);
    succeeds(bootstrap.stdin(Stdio::null()).output().unwrap());
    assert_eq!(fs::read(ours).unwrap(), bytes);
}
