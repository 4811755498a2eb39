//! Recovery keys: at a terminal, from the parameters into a cluster, and as what opens a node that nobody else opens.

#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
mod locked;
mod place;
mod sealed;

use std::fs;
use std::io::{Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::Home;
use polis_testkit::Cluster;

/// A command at a terminal of its own, made by `script` of util-linux, which every Debian has.
struct AtTerminal {
    child: Child,
    shown: String,
}

impl AtTerminal {
    fn start(home: &Home, line: &str) -> Self {
        Self::run(home, &format!("{} {line}", env!("CARGO_BIN_EXE_polis")))
    }

    fn run(home: &Home, line: &str) -> Self {
        // With a deadline: what is waited for below comes at once, or never.
        let mut command = Command::new("timeout");
        command.args(["60", "script", "--quiet", "--flush", "--return", "--command", line, "/dev/null"]);
        command.current_dir(home.path()).env("HOME", home.path()).env("NO_COLOR", "1");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Self { child, shown: String::new() }
    }

    /// Reads until this has been shown, or to the end.
    fn wait_for(&mut self, text: &str) -> &str {
        let mut byte = [0];
        let output = self.child.stdout.as_mut().unwrap();
        while !self.shown.contains(text) && output.read(&mut byte).unwrap() == 1 {
            self.shown.push(byte[0].into());
        }
        &self.shown
    }

    fn type_in(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Everything that it has shown, and its exit code.
    fn end(mut self) -> (String, Option<i32>) {
        self.wait_for("\0");
        let code = self.child.wait().unwrap().code();
        (self.shown, code)
    }
}

/// The words that stand in what was shown, each behind its number.
fn words(shown: &str) -> Vec<String> {
    let mut tokens = shown.split_whitespace();
    let mut words: Vec<String> = Vec::new();
    while let Some(token) = tokens.next() {
        if token == (words.len() + 1).to_string() && words.len() < 24 {
            words.extend(tokens.next().map(str::to_owned));
        }
    }
    words
}

fn created(home: &Home) -> (Vec<String>, String) {
    let (shown, code) = AtTerminal::start(home, "recovery-key create -o recovery.pem").end();
    assert_eq!(code, Some(0), "{shown}");
    (words(&shown), shown)
}

#[test]
fn the_words_are_shown_once_at_a_terminal_with_what_they_are_for() {
    let home = Home::new();
    let (words, shown) = created(&home);
    assert_eq!(words.len(), 24, "{shown}");
    for part in ["shown this once", "Write them down now, on paper", "in a safe", "every node", "recovery-key verify"] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    assert_eq!(home.listing(), ["recovery.pem"]);
    let file = fs::read_to_string(home.join("recovery.pem")).unwrap();
    assert!(words.iter().filter(|word| word.len() > 6).all(|word| !file.contains(word.as_str())));
    let (again, code) = AtTerminal::start(&home, "recovery-key create -o recovery.pem").end();
    assert!(code == Some(1) && again.contains("never overwritten"), "{again}");
    assert_eq!(fs::read_to_string(home.join("recovery.pem")).unwrap(), file);
    // Elsewhere they are not given out by accident.
    home.polis("recovery-key create -o other.pem").fails(2, &["no terminal", "--words-to"]);
    assert_eq!(home.listing(), ["recovery.pem"]);
}

#[test]
fn without_words_that_somebody_has_there_is_no_public_half() {
    let home = Home::new();
    let nobody = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    for output in [nobody(), fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into()] {
        let mut command = home.command();
        command.args(["recovery-key", "create", "--words-to", "-", "-o", "recovery.pem"]).stdout(output);
        let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("could not be written"), "{output:?}");
        assert!(home.listing().is_empty());
    }
}

#[test]
fn words_are_asked_for_without_being_shown() {
    let home = Home::new();
    let (words, _) = created(&home);
    let verify = "recovery-key verify recovery.pem";

    let mut terminal = AtTerminal::start(&home, verify);
    assert!(terminal.wait_for("0 of 24> ").contains("not shown while you type"));
    terminal.type_in(&format!("{}\n", words[..11].join(" ")));
    terminal.wait_for("11 of 24> ");
    terminal.type_in(&format!("{}\n", words[11..].join(" ").to_uppercase()));
    let (shown, code) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("the words are those of the recovery key"), "{shown}");
    let lower = shown.to_lowercase();
    for word in words.iter().filter(|word| word.len() > 6) {
        assert!(!lower.contains(word.as_str()), "{word} was shown: {shown}");
    }

    // Too few, and an end by hand: the terminal is as it was before.
    let settings = "echo=$(stty -g); polis; [ \"$echo\" = \"$(stty -g)\" ] && echo as before";
    let script = settings.replace("polis;", &format!("{} {verify};", env!("CARGO_BIN_EXE_polis")));
    fs::write(home.join("script"), script).unwrap();
    for (typed, expected) in [("one two\n\n", "here are 2"), ("\x03", "it was interrupted")] {
        let mut terminal = AtTerminal::run(&home, "sh script");
        terminal.wait_for("0 of 24> ");
        terminal.type_in(typed);
        let (shown, _) = terminal.end();
        assert!(shown.contains(expected) && shown.contains("as before"), "{shown}");
    }

    let mut piped = home.command();
    piped.args(verify.split(' ')).args(["--words", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(words.join("\n").as_bytes()).unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
}

#[test]
fn a_cluster_has_the_recovery_key_from_its_birth_and_can_be_given_another() {
    let mut cluster = Cluster::on_loopback(Path::new(env!("CARGO_BIN_EXE_polis")), 1);
    let path = |name: &str| cluster.directory().join(name).display().to_string();
    let [first, second] = ["first.pem", "second.pem"].map(path);
    let public = |cluster: &Cluster, file: &str| {
        let _ = cluster.polis_with("recovery-key create --words-to - -o", &[file]).succeeds();
        cluster.polis_with("recovery-key show -o json", &[file]).succeeds().json()["public_key"].clone()
    };
    let (first_key, second_key) = (public(&cluster, &first), public(&cluster, &second));
    let owner = cluster.configuration().join("owner-key.pem").display().to_string();
    let other = path("other.pb");
    let _ = cluster.polis("owner create").succeeds();
    // Leaves polis.pb where the parameters of the cluster are going to be.
    let arguments = ["--owner-key", owner.as_str(), "--recovery-key", &first, "-o", &other];
    let _ = cluster.polis_with("parameters bootstrap", &arguments).succeeds();
    cluster.found();
    let known =
        |cluster: &Cluster| cluster.polis("cluster status -o json").succeeds().json()["recovery_public_key"].clone();
    assert_eq!(known(&cluster), first_key);

    let set = cluster.polis_with("cluster recovery-key set", &[&second]).succeeds();
    assert!(set.stdout.contains("takes the place of another one"), "{set:#?}");
    assert_eq!(known(&cluster), second_key);
    let set = cluster.polis_with("cluster recovery-key set", &[&second]).succeeds();
    assert!(!set.stdout.contains("takes the place"), "{set:#?}");
}
