//! Commands that need no node.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use common::{Home, data};
use serde_json::json;

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn help_and_version_are_no_errors_and_wrong_usage_is_2() {
    let home = Home::new();
    assert!(home.polis("--help").succeeds().contains("polis dev up"));
    let help = home.polis("dev up --help").succeeds().to_owned();
    assert!(help.contains("--base-address") && help.contains("one that was half made is completed"), "{help}");
    assert!(home.polis("--version").succeeds().starts_with("polis "));
    for line in [
        "",
        "node",
        "nonsense",
        "node run",
        "node run --root r --address not-an-ip",
        "node run --root r --address 0.0.0.0",
        "node run --root r --address ::ffff:127.0.0.1",
        "node status --root r --wait Sleeping",
        "node status --root r --timeout soon",
        "parameters bootstrap",
        "dev logs",
        "dev stop one",
        "completion powershell",
        "dashboard",
    ] {
        assert_eq!(home.polis(line).code, Some(2), "{line}");
    }
    assert!(home.polis("node status --root r --wait Sleeping").stderr.contains("known are New, CreatingCluster"));
    assert!(home.listing().is_empty());
}

#[test]
fn completions_are_scripts() {
    let home = Home::new();
    for (shell, sign) in [("bash", "complete -F _polis"), ("zsh", "#compdef polis"), ("fish", "complete -c polis")] {
        let script = home.polis(&format!("completion {shell}")).succeeds().to_owned();
        assert!(script.contains(sign) && script.contains("bootstrap"), "{shell}");
        assert!(!script.contains("dashboard"));
    }
}

#[test]
fn manual_pages_are_written() {
    let home = Home::new();
    assert!(home.polis("man").succeeds().contains(".TH polis 1"));
    home.polis("man --dir pages").succeeds();
    for page in ["polis.1", "polis-dev-up.1", "polis-node-status.1", "polis-parameters-bootstrap.1"] {
        assert!(home.join("pages").join(page).is_file(), "{page}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let home = Home::new();
    let mut child =
        home.command().args(["completion", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn an_owner_key_is_made_once() {
    let home = Home::new();
    let first = home.polis("owner create");
    let path = home.join(".config/metroctl/owner-key.pem");
    assert!(first.succeeds().contains(path.to_str().unwrap()), "{first:#?}");
    assert_eq!(mode(&path), 0o600);
    let pem = fs::read_to_string(&path).unwrap();
    assert!(pem.starts_with("-----BEGIN METROPOLIS INITIAL OWNER PRIVATE KEY-----\n"));
    let public = first.stdout.lines().find_map(|line| line.strip_prefix("Public key")).unwrap().trim().to_owned();
    assert_eq!(public.len(), 64);

    let second = home.polis("owner create");
    assert!(second.succeeds().contains("nothing was changed") && second.stdout.contains(&public), "{second:#?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), pem);

    fs::write(&path, &pem[..pem.len() / 2]).unwrap();
    home.polis("owner create").fails(1, &["error:", "is not an owner key", "because:", "hint: nothing was changed"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), pem[..pem.len() / 2]);
}

#[test]
fn the_configuration_directory_is_found_by_the_rules() {
    let home = Home::new();
    let run = |name: &str, value: &std::path::Path, arguments: &[&str]| {
        let output = home.command().env(name, value).args(["owner", "create"]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
    };
    run("XDG_CONFIG_HOME", &home.join("xdg"), &[]);
    assert!(home.join("xdg/metroctl/owner-key.pem").is_file());
    run("XDG_CONFIG_HOME", &home.join("xdg"), &["--config", "given"]);
    assert!(home.join("given/owner-key.pem").is_file());
    assert!(!home.join(".config").exists());
}

#[test]
fn bootstrap_parameters_are_written_and_shown() {
    let home = Home::new();
    home.polis("owner create --config keys").succeeds();
    let line = "parameters bootstrap --owner-key keys/owner-key.pem --storage-security insecure --tpm-mode disabled \
                --cluster-domain example.internal --label site=lab --label empty= -o node.pb";
    home.polis(line).succeeds();
    assert_eq!(mode(&home.join("node.pb")), 0o644);
    let shown = home.polis("parameters show node.pb -o json");
    shown.succeeds();
    let document = shown.json();
    assert_eq!(document["kind"], "bootstrap");
    assert_eq!(document["bootstrap"]["storage_security"], "insecure");
    assert_eq!(document["bootstrap"]["tpm_mode"], "disabled");
    assert_eq!(document["bootstrap"]["cluster_domain"], "example.internal");
    assert_eq!(document["labels"], json!([{"key": "site", "value": "lab"}, {"key": "empty", "value": ""}]));
    assert_eq!((&document["bad_labels"], &document["accepted"]), (&json!([]), &json!(true)));
    let shown = home.polis("parameters show node.pb").succeeds().to_owned();
    let this_build = shown.lines().find_map(|line| line.strip_prefix("This build")).map(str::trim);
    assert_eq!(this_build, Some("creates a cluster"), "{shown}");
    assert!(home.polis("parameters show node.pb -o yaml").succeeds().contains("\n  storage_security: insecure\n"));

    // The key in the file is the public half, and nothing of the private one.
    let public = document["bootstrap"]["owner_public_key"].as_str().unwrap();
    assert!(home.polis("owner create --config keys").stdout.contains(public));

    // The same again changes nothing; another content needs --force.
    let before = fs::read(home.join("node.pb")).unwrap();
    assert!(home.polis(line).succeeds().contains("unchanged"));
    let other = line.replace("site=lab", "site=office");
    home.polis(&other).fails(1, &["node.pb is there already, with another content", "--force"]);
    assert_eq!(fs::read(home.join("node.pb")).unwrap(), before);
    home.polis(&format!("{other} --force")).succeeds();
    assert_ne!(fs::read(home.join("node.pb")).unwrap(), before);
}

#[test]
fn the_defaults_are_the_strictest() {
    let home = Home::new();
    home.polis("owner create --config keys").succeeds();
    home.polis("parameters bootstrap --owner-key keys/owner-key.pem -o node.pb").succeeds();
    let document = home.polis("parameters show node.pb -o json").json();
    assert_eq!(document["bootstrap"]["storage_security"], "authenticated");
    assert_eq!(document["bootstrap"]["tpm_mode"], "required");
    assert_eq!(
        document["effect"],
        "creates a cluster; needs a host that can encrypt and authenticate its data; needs a TPM"
    );

    // Leave to protect data as well as the machine can is no leave not to.
    let permissive =
        "parameters bootstrap --owner-key keys/owner-key.pem --storage-security permissive --tpm-mode disabled";
    home.polis(&format!("{permissive} -o permissive.pb")).succeeds();
    let document = home.polis("parameters show permissive.pb -o json").json();
    assert_eq!(document["accepted"], true);
    assert_eq!(document["effect"], "creates a cluster; needs a host that can encrypt and authenticate its data");
}

#[test]
fn what_bootstrap_refuses_leaves_nothing() {
    let home = Home::new();
    home.polis("owner create --config keys").succeeds();
    let before = home.listing();
    let base = "parameters bootstrap --owner-key keys/owner-key.pem -o node.pb";
    home.polis(&format!("{base} --label good=1 --label=-x=y --label novalue"))
        .fails(2, &["2 labels are not usable; nothing was written", "--label -x=y", "--label novalue", "KEY=VALUE"]);
    home.polis(&format!("{base} --cluster-domain UPPER.case")).fails(2, &["UPPER", "DNS label"]);
    home.polis("parameters bootstrap --owner-key nowhere/owner-key.pem -o node.pb")
        .fails(2, &["there is no owner key at nowhere/owner-key.pem", "polis owner create --config nowhere"]);
    fs::write(home.join("keys/bad.pem"), "no key").unwrap();
    home.polis("parameters bootstrap --owner-key keys/bad.pem -o node.pb")
        .fails(1, &["keys/bad.pem is not an owner key"]);
    fs::remove_file(home.join("keys/bad.pem")).unwrap();
    home.polis(&base.replace("-o node.pb", "-o missing/node.pb")).fails(1, &["missing/node.pb could not be written"]);
    assert_eq!(home.listing(), before);
}

#[test]
fn files_of_another_implementation_are_shown() {
    let home = Home::new();
    let show = |name: &str| home.run(["parameters", "show", "-o", "json", data(name).to_str().unwrap()]);
    for (name, accepted) in [
        ("bootstrap-insecure.pb", true),
        ("bootstrap-insecure-labels-domain.pb", true),
        ("bootstrap-insecure-static-network.pb", true),
        ("bad-labels.pb", true),
        ("bad-labels-129.pb", true),
        ("bootstrap-defaults.pb", true),
        ("bootstrap-authenticated-no-tpm.pb", true),
        ("bootstrap-authenticated-tpm.pb", true),
        ("register.pb", true),
    ] {
        let run = show(name);
        run.succeeds();
        assert_eq!(run.json()["accepted"], accepted, "{name}: {run:#?}");
    }
    assert_eq!(show("bootstrap-defaults.pb").json()["bootstrap"]["default_configuration"], true);
    assert_eq!(show("bootstrap-insecure-static-network.pb").json()["static_network"], true);
    assert_eq!(show("bad-labels-129.pb").json()["bad_labels"].as_array().unwrap().len(), 1);

    for (name, reason) in [
        ("bad-empty.pb", "the file is empty"),
        ("bad-cut.pb", "cut short"),
        ("bad-owner-key-31-bytes.pb", "owner_public_key has 31 bytes"),
        ("bad-register-no-ticket.pb", "register_ticket is missing"),
    ] {
        let run = show(name);
        run.fails(1, &[name, "because:", reason]);
        assert_eq!(run.stdout, "");
    }
    home.polis("parameters show nowhere.pb").fails(1, &["nowhere.pb could not be read"]);
    fs::write(home.join("huge.pb"), vec![0x0a; 10 << 20]).unwrap();
    home.polis("parameters show huge.pb").fails(1, &["huge.pb", "has more than"]);
}

#[test]
fn a_ticket_is_not_shown_in_any_form() {
    let home = Home::new();
    let path = data("register.pb");
    let run = home.run(["parameters", "show", "-o", "json", path.to_str().unwrap()]);
    let length = usize::try_from(run.json()["register"]["ticket_length"].as_u64().unwrap()).unwrap();
    // Field 2 of cluster_register: tag 0x12, then the length, then the ticket.
    let bytes = fs::read(&path).unwrap();
    let mark = [0x12, u8::try_from(length).unwrap()];
    let start = bytes.windows(2).position(|window| window == mark).unwrap() + 2;
    let ticket = &bytes[start..start + length];
    let hex: String = ticket.iter().map(|byte| format!("{byte:02x}")).collect();
    for format in ["table", "wide", "json", "yaml"] {
        let output = home.command().args(["parameters", "show", "-o", format]).arg(&path).output().unwrap();
        assert!(!output.stdout.windows(length).any(|window| window == ticket), "{format}");
        assert!(!String::from_utf8(output.stdout).unwrap().contains(&hex), "{format}");
    }
}

#[test]
fn status_without_a_node_says_so() {
    let home = Home::new();
    home.polis("node status --root nowhere").fails(1, &["no node runs at nowhere", "no such directory"]);
    fs::create_dir(home.join("root")).unwrap();
    home.polis("node status --root root")
        .fails(1, &["no node runs at root", "control.sock", "none has run here", "polis node run --root root"]);

    let last = |version: u32| {
        json!({"version": version, "status": {"state": "Failed", "reason": "the disk burnt", "phase": "enrolled",
            "roles": [], "conditions": [], "running": false}})
        .to_string()
    };
    fs::write(home.join("root/last_state.json"), last(1)).unwrap();
    let run = home.polis("node status --root root -o json");
    run.fails(1, &["no node runs at root", "wrote down last"]);
    assert_eq!((&run.json()["state"], &run.json()["running"]), (&json!("Failed"), &json!(false)));
    assert!(home.polis("node status --root root").stdout.contains("Reason      the disk burnt\n"));

    fs::write(home.join("root/last_state.json"), &last(1)[..40]).unwrap();
    home.polis("node status --root root").fails(1, &["last_state.json is damaged", "node's data are elsewhere"]);
    fs::write(home.join("root/last_state.json"), last(2)).unwrap();
    home.polis("node status --root root").fails(1, &["has version 2 and was written by a later Polis"]);
}

#[test]
fn waiting_for_nobody_ends_in_time() {
    let home = Home::new();
    let begin = std::time::Instant::now();
    home.polis("node status --root nowhere --wait Running --timeout 300ms")
        .fails(1, &["has not reached Running within 0.30 s", "no node answers"]);
    assert!(begin.elapsed() >= std::time::Duration::from_millis(300));
}

#[test]
fn dev_commands_without_a_cluster() {
    let home = Home::new();
    home.polis("dev down").succeeds();
    home.polis("dev down --purge").succeeds();
    for line in ["dev status", "dev env", "dev stop 1", "dev start 1", "dev kill 1", "dev logs 1"] {
        home.polis(line).fails(2, &["there is no cluster at", ".local/state/polis/dev", "polis dev up"]);
    }
    assert!(home.listing().is_empty(), "{:?}", home.listing());
}

#[test]
fn dev_up_says_what_it_cannot_do_and_leaves_nothing() {
    let home = Home::new();
    home.polis("dev up --nodes 10").fails(2, &["10 is not in 1..=9"]);
    home.polis("dev up --nodes 0").fails(2, &["0 is not in 1..=9"]);
    home.polis("dev up --base-address 0.0.0.0").fails(2, &["0.0.0.0", "cannot be the address of a node"]);
    home.polis("dev up").fails(2, &["etcd is missing", "scripts/setup run", "etcd-server"]);
    home.polis("dev up --etcd nowhere/etcd").fails(2, &["there is no etcd at nowhere/etcd"]);
    assert!(home.listing().is_empty(), "{:?}", home.listing());
}

#[test]
fn dev_touches_no_directory_of_others() {
    let home = Home::new();
    fs::create_dir(home.join("precious")).unwrap();
    fs::write(home.join("precious/thesis.tex"), "years").unwrap();
    let before = home.listing();
    home.polis("dev down --purge --dir precious").fails(2, &["was not made by `polis dev`; nothing in it was touched"]);
    home.polis("dev down --dir precious").succeeds();
    let etcd = std::env::current_exe().unwrap();
    home.run(["dev", "up", "--dir", "precious", "--etcd", etcd.to_str().unwrap()])
        .fails(2, &["was not made by `polis dev`"]);
    assert_eq!(home.listing(), before);
}

#[test]
fn purge_removes_what_dev_made_and_nothing_behind_links() {
    let home = Home::new();
    fs::create_dir_all(home.join("dev/node-1/root")).unwrap();
    fs::create_dir(home.join("outside")).unwrap();
    fs::write(home.join("outside/file"), "").unwrap();
    std::os::unix::fs::symlink(home.join("outside"), home.join("dev/link")).unwrap();
    let record = json!({"version": 1, "base_address": "127.1.0.1", "etcd": "/x", "nodes": [{}]}).to_string();
    fs::write(home.join("dev/polis-dev.json"), &record).unwrap();
    home.polis("dev down --purge --dir dev").succeeds();
    assert_eq!(home.listing(), ["outside", "outside/file"]);

    // A record of a later version is not guessed at.
    fs::create_dir(home.join("dev")).unwrap();
    fs::write(home.join("dev/polis-dev.json"), record.replace("\"version\":1", "\"version\":2")).unwrap();
    home.polis("dev down --purge --dir dev").fails(1, &["was written by a later Polis"]);
    assert!(home.join("dev/polis-dev.json").is_file());
}

#[test]
fn a_process_that_waits_to_be_a_node_ends_with_its_parent() {
    let home = Home::new();
    let run = home.command().args(["dev", "launch", "--", "--version"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).contains("the node was not started"));
}

/// What a status may hold that would drive a terminal, or break a form that is quoted carelessly.
const ODD: &str = "\u{1b}[2J\u{1b}]0;evil\u{7}\r\u{9b}2J\u{202e} \"quoted\" 'so' # not: {a: comment}\n- item\t\u{0}\u{7f}\u{85}\u{2028}end: ";

#[test]
fn what_others_wrote_cannot_drive_the_terminal_and_comes_through_the_machine_forms() {
    let home = Home::new();
    fs::create_dir(home.join("root")).unwrap();
    let condition =
        json!({"name": ODD, "severity": "error", "since": "2026-11-30T08:00:00Z", "message": ODD, "hint": ODD});
    let status = json!({
        "state": "Failed", "reason": ODD, "node_id": ODD, "phase": "none", "roles": [ODD, "yes", "~", "1", ""],
        "conditions": [condition], "running": true,
    });
    fs::write(home.join("root/last_state.json"), json!({"version": 1, "status": status}).to_string()).unwrap();
    for line in [
        "node status --root root",
        "node status --root root -o wide",
        "node status --root root --wait New --timeout 0s",
    ] {
        let shown = home.polis(line);
        let text = format!("{}{}", shown.stdout, shown.stderr);
        assert!(text.contains(r"\x1b[2J\x1b]0;evil\x07\x0d\x9b2J\u{202e}"), "{line}: {text:?}");
        assert!(
            !text.contains(|character: char| character.is_control() && !"\n\t".contains(character)),
            "{line}: {text:?}"
        );
    }
    let json = home.polis("node status --root root -o json").stdout;
    let read: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&read["reason"], &read["roles"][0]), (&json!(ODD), &json!(ODD)));
    let yaml = home.polis("node status --root root -o yaml").stdout;
    let quoted = yaml.lines().find_map(|line| line.strip_prefix("reason: ")).unwrap();
    assert_eq!(serde_json::from_str::<String>(quoted).unwrap(), ODD);
    for text in [json, yaml] {
        assert!(!text.contains(|character: char| character.is_control() && character != '\n'), "{text:?}");
    }
}

#[test]
fn a_pipe_in_the_place_of_a_file_keeps_nobody_waiting() {
    let home = Home::new();
    for directory in ["root", "dev"] {
        fs::create_dir(home.join(directory)).unwrap();
    }
    for file in ["root/last_state.json", "dev/polis-dev.json"] {
        assert!(Command::new("mkfifo").arg(home.join(file)).status().unwrap().success());
    }
    for line in ["node status --root root", "dev status --dir dev", "dev down --dir dev", "dev logs 1 --dir dev"] {
        home.polis(line).fails(1, &["could not be read", "it is a pipe and no file"]);
    }
}
