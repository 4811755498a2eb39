//! Recovery keys as an operator sees them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use polis_recovery::{RecoveryPublicKey, RecoveryWords};

use crate::fake::run;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).unwrap().permissions().mode() & 0o7777
    }
}

#[test]
fn words_and_public_half_are_of_one_key() {
    let place = Place::new();
    let file = place.path("recovery.pem");
    let outcome = run(&format!("polis recovery-key create -o {file} --words-to -"));
    let words = RecoveryWords::parse(outcome.succeeds()).unwrap();
    let public = RecoveryPublicKey::from_text(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(words.to_key().public(), public);
    assert_eq!(place.mode("recovery.pem"), 0o644);

    let shown = run(&format!("polis recovery-key show {file} -o json")).json();
    assert_eq!(shown["fingerprint"], public.fingerprint().to_string());
    assert_eq!(shown["public_key"], hex::encode(public.as_bytes()));
    let shown = run(&format!("polis recovery-key show {file}"));
    assert!(shown.succeeds().contains(&public.fingerprint().to_string()));
}

#[test]
fn words_go_to_a_file_for_oneself_only_with_what_to_do_next() {
    let place = Place::new();
    let (file, words) = (place.path("recovery.pem"), place.path("words"));
    let outcome = run(&format!("polis recovery-key create -o {file} --words-to {words}"));
    let text = fs::read_to_string(&words).unwrap();
    let key = RecoveryWords::parse(&text).unwrap().to_key();
    assert_eq!(place.mode("words"), 0o600);
    let advice = outcome.succeeds();
    for part in [&words, &file, &key.fingerprint().to_string(), "on paper", "in a safe", "polis recovery-key verify"] {
        assert!(advice.contains(part), "{part} is missing in:\n{advice}");
    }
    for word in key.to_words().expose().filter(|word| word.len() > 6) {
        assert!(!advice.contains(word), "{word}");
    }

    let verify = |words: &str| run(&format!("polis recovery-key verify {file} --words {words}"));
    assert!(verify(&words).succeeds().contains(&key.fingerprint().to_string()));
    run(&format!("polis recovery-key create -o {} --words-to {}", place.path("b"), place.path("other"))).succeeds();
    verify(&place.path("other")).fails(1, &["are not those of", &key.fingerprint().to_string(), "1 in 256"]);
    fs::write(place.path("short"), text.lines().next().unwrap()).unwrap();
    verify(&place.path("short")).fails(1, &["24 words, and here are 4"]);
    verify(&place.path("nothing")).fails(1, &["could not be read"]);
}

#[test]
fn nothing_is_overwritten_and_no_words_go_nowhere() {
    let place = Place::new();
    let (file, words) = (place.path("recovery.pem"), place.path("words"));
    let create = |line: &str| run(&format!("polis recovery-key create -o {file} {line}"));
    create("").fails(2, &["no terminal", "--words-to"]);
    create(&format!("--words-to {file}")).fails(2, &["the same file"]);
    create(&format!("--words-to {}/none/words", place.path("."))).fails(1, &["could not be written"]);
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 0);

    fs::write(&file, "somebody's").unwrap();
    let outcome = create("--words-to -");
    outcome.fails(1, &["is there already", "never overwritten"]);
    assert_eq!(outcome.stdout, "");
    fs::rename(&file, &words).unwrap();
    create(&format!("--words-to {words}")).fails(1, &["is there already"]);
    assert_eq!(fs::read_to_string(&words).unwrap(), "somebody's");
    assert!(!fs::exists(&file).unwrap());
}

#[test]
fn a_public_half_that_is_none_is_an_error_with_the_reason() {
    let place = Place::new();
    let file = place.path("recovery.pem");
    let show = || run(&format!("polis recovery-key show {file}"));
    show().fails(2, &["could not be read", "polis recovery-key create"]);
    run(&format!("polis recovery-key create -o {file} --words-to -")).succeeds();
    let text = fs::read_to_string(&file).unwrap();
    for (content, part) in [
        (String::new(), "BEGIN POLIS RECOVERY PUBLIC KEY"),
        (text.replacen("Public", "public", 1), "was changed"),
        (text.replacen("PUBLIC", "PRIVATE", 2), "no \"POLIS RECOVERY PUBLIC KEY\""),
        ("x".repeat(1 << 20), "another file"),
    ] {
        fs::write(&file, content).unwrap();
        show().fails(1, &["is not the public half", part]);
    }
}
