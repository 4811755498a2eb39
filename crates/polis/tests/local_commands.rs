//! The commands for the node on this machine, with real nodes: over the socket, on files, and by an operator who restarts it.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use polis_control::{NodeState, SOCKET_DIRECTORY, SOCKET_NAME, Status};
use polis_testkit::Host;
use polis_testkit::host::{NodeProcess, PATIENCE};

/// A node that runs in a cluster of its own.
fn running() -> (Host, NodeProcess, Status) {
    let host = Host::new(env!("CARGO_BIN_EXE_polis"));
    let parameters = host.bootstrap_parameters();
    let mut node = host.start(&parameters);
    let status = node.wait_state(NodeState::Running);
    (host, node, status)
}

/// Runs a command for the node of `host`: its root comes last.
fn local(host: &Host, line: &str) -> Output {
    let root = host.root();
    let words = line.split_ascii_whitespace().map(str::to_owned);
    host.polis(words.chain(["--root".to_owned(), root.to_str().unwrap().to_owned()]))
}

#[track_caller]
fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn fails(output: &Output, code: i32, parts: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
}

/// What the node answers to one line on its socket.
fn ask(root: &Path, line: &[u8]) -> String {
    let stream = UnixStream::connect(root.join(SOCKET_DIRECTORY).join(SOCKET_NAME)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = BufReader::new(stream);
    stream.get_mut().write_all(line).unwrap();
    let mut answer = String::new();
    stream.read_line(&mut answer).unwrap();
    answer
}

#[test]
fn the_socket_answers_every_version_that_it_knows_and_survives_all_else() {
    let (host, node, status) = running();
    let root = host.root();
    let id = status.node_id.unwrap();
    let first: Status = serde_json::from_str(&ask(&root, b"{\"version\":1,\"follow\":false}\n")).unwrap();
    assert_eq!(first.node_id.as_ref(), Some(&id), "version 1 gets the bare status");
    let second = ask(&root, b"{\"version\":2,\"request\":{\"status\":{\"follow\":false}}}\n");
    assert!(second.starts_with(r#"{"answer":{"state":"Running""#) && second.contains(&id), "{second}");

    let long = [b"{\"version\":2,\"x\":\"".as_slice(), &[b'x'; 100_000]].concat();
    let table: [(&[u8], &str); 6] = [
        (b"{\"version\":3,\"request\":{}}\n", "speaks versions 1 to 2"),
        (b"nonsense\n", "cannot be read"),
        (b"{\"version\":2,\"request\":{\"erase\":{}}}\n", "cannot be read"),
        (
            b"{\"version\":2,\"request\":{\"set_peers\":{\"peers\":[{\"node_id\":\"x\",\"address\":\"y\"}]}}}\n",
            "cannot be read",
        ),
        (b"{\"version\":2,\"request\":{\"propose_owner\":{\"public_key\":\"x\"}}}\n", "is not a public key"),
        (&long, "cannot be read"),
    ];
    for (line, expect) in table {
        let answer = ask(&root, line);
        assert!(answer.starts_with(r#"{"refusal":{"message":"#) && answer.contains(expect), "{answer}");
    }
    succeeds(&local(&host, "node status"));
    assert!(node.stop().success());
}

#[test]
fn peers_are_set_whether_the_node_runs_or_not() {
    const PEER: &str = "metropolis-00112233445566778899aabbccddeeff=192.0.2.77";
    let (host, node, _) = running();
    let told = succeeds(&local(&host, &format!("node peers set {PEER}")));
    assert!(told.contains("from now on") && told.contains("192.0.2.77"), "{told}");
    fails(&local(&host, "node peers set metropolis-1=192.0.2.1"), 2, &["32"]);
    fails(&local(&host, "node peers set"), 2, &["required"]);
    assert!(node.stop().success());

    let told = succeeds(&local(&host, &format!("node peers set {PEER}")));
    assert!(told.contains("from its next start on"), "{told}");
    let told = succeeds(&local(&host, "node peers set --none"));
    assert!(told.contains("without a hint"), "{told}");
    let mut node = host.spawn(host.command());
    node.wait_state(NodeState::Running);
    assert!(node.stop().success());
}

/// Every file below a directory.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// Pieces of 32 bytes of all files of the node in which there are keys, as they would be printed.
fn printed_keys(root: &Path) -> HashSet<String> {
    let mut keys = HashSet::new();
    let names = ["esp/polis/journal.0", "esp/polis/journal.1", "data/node/credentials", "data/etcd/credentials"]
        .map(|name| root.join(name));
    for bytes in names.iter().filter_map(|path| fs::read(path).ok()) {
        for piece in bytes.windows(32).filter(|piece| piece.iter().collect::<HashSet<_>>().len() > 20) {
            keys.insert(piece.iter().map(|byte| format!("{byte:02x}")).collect());
            keys.insert(STANDARD_NO_PAD.encode(piece));
            keys.insert(format!("{piece:?}").trim_matches(['[', ']']).to_owned());
        }
    }
    assert!(keys.len() > 500, "{} keys were found", keys.len());
    keys
}

/// Whether any of the keys stands in the text.
fn has_key(text: &str, keys: &HashSet<String>) -> bool {
    let lengths: HashSet<usize> = keys.iter().map(String::len).collect();
    lengths.into_iter().any(|length| {
        text.as_bytes().windows(length).any(|piece| str::from_utf8(piece).is_ok_and(|piece| keys.contains(piece)))
    })
}

#[test]
fn a_report_tells_all_but_secrets_whether_the_node_runs_or_not() {
    // A secret that somebody has put into a name of a file, which the node then tells of.
    let planted = "5e".repeat(32);
    let host = Host::new(env!("CARGO_BIN_EXE_polis"));
    let parameters = host.directory().join(format!("{planted}.pb"));
    fs::rename(host.bootstrap_parameters(), &parameters).unwrap();
    let mut node = host.start(&parameters);
    node.wait_state(NodeState::Running);
    let write = |name: &str| {
        let output = host.directory().join(name);
        let told = succeeds(&local(&host, &format!("node report -o {}", output.display())));
        (told, fs::read_to_string(output).unwrap())
    };
    let keys = printed_keys(&host.root());
    let planted_keys: HashSet<String> = [planted.clone()].into();
    assert!(has_key(&format!("x {planted} y"), &planted_keys), "the search finds what is there");

    let (told, text) = write("running.json");
    assert!(told.contains("The node runs"), "{told}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let runnables = report["report"]["runnables"].as_array().unwrap();
    assert!(runnables.iter().any(|runnable| runnable["name"] == "root.manager" && runnable["state"] == "healthy"));
    let journals = report["report"]["journals"].as_array().unwrap();
    assert!(journals.iter().any(|journal| journal["name"] == "root.control-plane.consensus.etcd"), "{journals:?}");
    assert!(report["report"]["metrics"].as_str().unwrap().contains("polis_curator_leads"));
    assert_eq!(report["report"]["etcd"]["phase"], "Ready");
    assert!(text.contains("<redacted: hexadecimal digits>.pb"), "the planted secret is where it was expected");
    assert!(!has_key(&text, &planted_keys) && !has_key(&text, &keys));

    assert!(node.stop().success());
    let (told, text) = write("stopped.json");
    assert!(told.contains("No node runs there; what it wrote down last is in it"), "{told}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["running"], &report["last_state"]["state"]), (&false.into(), &"Running".into()));
    assert!(!has_key(&text, &planted_keys) && !has_key(&text, &keys));
    fails(
        &local(&host, &format!("node report -o {}", host.directory().join("stopped.json").display())),
        1,
        &["already"],
    );
}

#[test]
fn a_reset_node_is_gone_and_the_next_one_there_is_another() {
    let (host, node, status) = running();
    let root = host.root();
    fails(&local(&host, "node reset --yes"), 1, &["in use by a running node", "stop the node first"]);
    assert!(node.stop().success());
    fs::write(root.join("notes.txt"), "mine").unwrap();
    fs::write(root.join("data/node/photo"), "mine").unwrap();
    let before = {
        let mut found = Vec::new();
        files(&root, &mut found);
        found
    };
    // Nobody is there to be asked.
    fails(&local(&host, "node reset"), 2, &["--yes"]);
    let after = {
        let mut found = Vec::new();
        files(&root, &mut found);
        found
    };
    assert_eq!(before, after);

    let told = succeeds(&local(&host, "node reset --yes"));
    for part in [
        status.node_id.as_ref().unwrap(),
        "one less for the quorum",
        "notes.txt, as it is not the node's",
        "polis node delete",
    ] {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    let mut left = Vec::new();
    files(&root, &mut left);
    left.sort();
    assert_eq!(left, [root.join("data/node/photo"), root.join("notes.txt")]);
    assert!(succeeds(&local(&host, "node reset --yes")).contains("There is nothing of a node"));

    // What is not the node's is in the way of a new one only where that would have to format.
    fs::remove_file(root.join("data/node/photo")).unwrap();
    let mut node = host.start(&host.directory().join("parameters.pb"));
    let other = node.wait_state(NodeState::Running);
    assert_ne!(other.node_id, status.node_id);
    assert!(node.stop().success());
}

#[test]
fn a_service_manager_is_told_when_the_node_runs_that_it_lives_and_when_it_ends() {
    let host = Host::new(env!("CARGO_BIN_EXE_polis"));
    let parameters = host.bootstrap_parameters();
    let path = host.directory().join("notify");
    let listener = UnixDatagram::bind(&path).unwrap();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    let next = || {
        let mut buffer = [0; 4096];
        let length = listener.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let mut command = host.command();
    command.arg("--parameters").arg(&parameters).env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "300000");
    let mut node = host.spawn(command);
    let mut told = Vec::new();
    while !told.last().is_some_and(|text: &String| text.starts_with("READY=1\n")) {
        told.push(next());
    }
    assert_eq!(node.wait_state(NodeState::Running).state, NodeState::Running);
    assert!(told.iter().any(|text| text.starts_with("STATUS=CreatingCluster: ")), "{told:?}");
    while next() != "WATCHDOG=1" {}
    assert!(node.stop().success());
    while next() != "STOPPING=1\nSTATUS=Stopping" {}
}

#[test]
fn a_node_restarts_and_stops_as_its_operator_says() {
    let (host, mut node, status) = running();
    let id = status.node_id.unwrap();
    let (process, address) = (node.id(), host.ip().to_string());
    let config = host.directory().join("owner");
    let operator = |line: &str| {
        let mut command = Command::new(&host.binary);
        command.args(line.split_ascii_whitespace()).args(["--endpoints", &address]).arg("--config").arg(&config);
        command.output().unwrap()
    };
    succeeds(&operator("cluster takeownership --insecure-accept-and-persist-first-encountered-ca"));
    let log = succeeds(&operator(&format!("node logs {id} --dn root.manager")));
    assert!(log.contains("to=Running"), "{log}");
    let metrics = succeeds(&operator(&format!("node metrics {id} node")));
    assert!(metrics.contains("polis_quorum_voters 1"), "{metrics}");

    succeeds(&operator(&format!("node reboot {id} --bypass-quorum")));
    let is_new = |log: &str| log.matches("to=Joining").count() == 1 && log.matches("to=Running").count() == 2;
    let deadline = std::time::Instant::now() + PATIENCE;
    while !is_new(&node.log()) {
        assert!(std::time::Instant::now() < deadline, "it did not start again:\n{}", node.log());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(node.wait_state(NodeState::Running).node_id.as_ref(), Some(&id));
    assert_eq!(node.id(), process, "it is the same process");

    succeeds(&operator(&format!("node poweroff {id} --bypass-quorum")));
    assert!(node.wait_exit().success());
}
