//! Each trouble is known by its name, and is over when its cause is (crash-windows.md W16).

use std::time::{Duration, Instant};

use polis_storage::journal::{Seal as _, SealTrouble};
use polis_tpm::{Tpm, TpmSeal};
use rustix::process::Signal;
use sha2::{Digest as _, Sha256};

use crate::emulator::{Emulator, PATIENCE, helper, is_possible};

/// All that an error says, its causes included.
fn text(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[test]
fn another_tpm_is_named_as_such() {
    if !is_possible() {
        return;
    }
    let (one, other) = (Emulator::new(), Emulator::new());
    let sealed = one.seal().seal(b"journal").unwrap();
    let error = other.seal().unseal(&sealed).unwrap_err();
    assert_eq!(error.trouble, SealTrouble::OtherDevice, "{}", text(&error));
    // Nor does one seal take what it knows for what it was asked.
    let seal = other.seal();
    let own = seal.seal(b"own").unwrap();
    assert_eq!(seal.unseal(&sealed).unwrap_err().trouble, SealTrouble::OtherDevice);
    assert_eq!(&**seal.unseal(&own).unwrap(), b"own");
    assert_eq!(&**one.seal().unseal(&sealed).unwrap(), b"journal");
}

#[test]
fn a_cleared_tpm_is_another_one_and_can_be_sealed_to_anew() {
    if !is_possible() {
        return;
    }
    let emulator = Emulator::new();
    let sealed = emulator.seal().seal(b"journal").unwrap();
    let _ = emulator.tool(["clear", "-c", "p"]);
    let seal = emulator.seal();
    assert_eq!(seal.unseal(&sealed).unwrap_err().trouble, SealTrouble::OtherDevice);
    let sealed = seal.seal(b"again").unwrap();
    assert_eq!(&**emulator.seal().unseal(&sealed).unwrap(), b"again");
}

#[test]
fn another_boot_state_is_named_and_the_right_one_opens_again() {
    if !is_possible() {
        return;
    }
    let mut emulator = Emulator::new();
    emulator.measure('a');
    let sealed = emulator.seal().seal(b"journal").unwrap();
    emulator.measure('b');
    let error = emulator.seal().unseal(&sealed).unwrap_err();
    assert_eq!(error.trouble, SealTrouble::OtherBootState, "{}", text(&error));
    // Both states are said, so that somebody can find out which change it was.
    assert_eq!(text(&error).matches("PCR 7").count(), 2, "{}", text(&error));
    emulator.stop();
    emulator.start();
    assert_eq!(emulator.seal().unseal(&sealed).unwrap_err().trouble, SealTrouble::OtherBootState);
    emulator.measure('a');
    assert_eq!(&**emulator.seal().unseal(&sealed).unwrap(), b"journal");
}

#[test]
fn one_that_does_not_answer_is_given_up_within_its_limit_and_asked_again() {
    if !is_possible() {
        return;
    }
    const LIMIT: Duration = Duration::from_secs(2);
    let emulator = Emulator::new();
    let sealed = emulator.seal().seal(b"journal").unwrap();
    let seal = TpmSeal::new(emulator.tpm().limit(LIMIT));
    emulator.signal(Signal::STOP);
    let start = Instant::now();
    let error = seal.unseal(&sealed).unwrap_err();
    let elapsed = start.elapsed();
    assert_eq!(error.trouble, SealTrouble::NotAnswering, "{}", text(&error));
    assert!(elapsed >= LIMIT && elapsed < LIMIT + PATIENCE, "{elapsed:?}");
    emulator.signal(Signal::CONT);
    // What the killed helper had begun may still be in the way of the next one; that ends by itself.
    let seal = emulator.seal();
    assert_eq!(&**seal.unseal(&sealed).unwrap(), b"journal");
}

#[test]
fn one_that_has_died_does_not_answer_until_it_is_there_again() {
    if !is_possible() {
        return;
    }
    let mut emulator = Emulator::new();
    let sealed = emulator.seal().seal(b"journal").unwrap();
    emulator.stop();
    let seal = emulator.seal();
    let error = seal.unseal(&sealed).unwrap_err();
    assert_eq!(error.trouble, SealTrouble::NotAnswering, "{}", text(&error));
    assert_eq!(seal.available().unwrap_err().trouble, SealTrouble::NotAnswering);
    emulator.start();
    assert_eq!(&**seal.unseal(&sealed).unwrap(), b"journal");
}

#[test]
fn a_machine_without_one_has_no_device() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("tpmrm0");
    let tpm = Tpm::new(format!("device:{}", place.display()), helper());
    assert_eq!(tpm.probe().unwrap_err().trouble, SealTrouble::NoDevice);
    // What is there and is none does not answer as one.
    std::fs::write(&place, "").unwrap();
    let error = tpm.probe().unwrap_err();
    assert!(matches!(error.trouble, SealTrouble::NotAnswering | SealTrouble::NoDevice), "{}", text(&error));
}

#[test]
fn an_owner_who_keeps_others_away_is_told_apart_from_damage() {
    if !is_possible() {
        return;
    }
    let emulator = Emulator::new();
    let seal = emulator.seal();
    let sealed = seal.seal(b"journal").unwrap();
    let _ = emulator.tool(["changeauth", "-c", "owner", "password"]);
    let error = seal.check(&sealed).unwrap_err();
    assert_eq!(error.trouble, SealTrouble::NotAnswering, "{}", text(&error));
    assert!(text(&error).contains("owner"), "{}", text(&error));
    let _ = emulator.tool(["changeauth", "-c", "owner", "-p", "password", ""]);
    seal.check(&sealed).unwrap();
}

/// Where the parts of a sealed journal are.
fn parts(sealed: &[u8]) -> Vec<(&'static str, std::ops::Range<usize>)> {
    let mut parts = vec![("magic", 0..8), ("version", 8..12)];
    let mut place = 12;
    for (length_of, name) in [
        ("length of the name", "name"),
        ("length of the public area", "public"),
        ("length of the private area", "private"),
    ] {
        let length = usize::from(u16::from_be_bytes([sealed[place], sealed[place + 1]]));
        parts.push((length_of, place..place + 2));
        parts.push((name, place + 2..place + 2 + length));
        place += 2 + length;
    }
    for (name, length) in [("boot state", 32), ("checksum", 32), ("nonce", 24)] {
        parts.push((name, place..place + length));
        place += length;
    }
    parts.push(("ciphertext", place..sealed.len() - 16));
    parts.push(("tag", sealed.len() - 16..sealed.len()));
    parts
}

#[test]
fn damage_is_known_in_each_part() {
    if !is_possible() {
        return;
    }
    let emulator = Emulator::new();
    let seal = emulator.seal();
    let sealed = seal.seal(b"journal").unwrap();
    for (name, place) in parts(&sealed) {
        for place in [place.start, place.start + place.len() / 2, place.end - 1] {
            let mut damaged = sealed.to_vec();
            damaged[place] ^= 0x10;
            // For one that knows the key, and for one that has to ask for it.
            for seal in [&seal, &emulator.seal()] {
                let error = seal.unseal(&damaged).unwrap_err();
                assert_eq!(error.trouble, SealTrouble::Damaged, "{name}: {}", text(&error));
                assert_eq!(seal.check(&damaged).unwrap_err().trouble, SealTrouble::Damaged, "{name}");
            }
        }
    }
    for cut in [0, 8, 50, sealed.len() - 1] {
        assert_eq!(emulator.seal().unseal(&sealed[..cut]).unwrap_err().trouble, SealTrouble::Damaged);
    }
    assert_eq!(&**seal.unseal(&sealed).unwrap(), b"journal");
}

#[test]
fn what_was_changed_by_somebody_who_mends_the_checksum_does_not_open_either() {
    if !is_possible() {
        return;
    }
    let emulator = Emulator::new();
    let sealed = emulator.seal().seal(b"journal").unwrap();
    let parts = parts(&sealed);
    let checksum = parts.iter().find(|(name, _)| *name == "checksum").unwrap().1.clone();
    let table = [
        ("name", SealTrouble::OtherDevice),
        ("public", SealTrouble::Damaged),
        ("private", SealTrouble::Damaged),
        ("boot state", SealTrouble::Damaged),
    ];
    for (name, expect) in table {
        let (_, place) = parts.iter().find(|(part, _)| *part == name).unwrap();
        let mut changed = sealed.to_vec();
        changed[place.end - 1] ^= 1;
        let mended = Sha256::digest(&changed[..checksum.start]);
        changed[checksum.clone()].copy_from_slice(&mended);
        let error = emulator.seal().unseal(&changed).unwrap_err();
        assert_eq!(error.trouble, expect, "{name}: {}", text(&error));
    }
}

#[test]
fn what_the_library_prints_is_a_cause_and_not_on_the_console() {
    if !is_possible() {
        return;
    }
    // This test again, so that its console can be looked at.
    const AGAIN: &str = "POLIS_TEST_AGAIN";
    if std::env::var_os(AGAIN).is_some() {
        let mut emulator = Emulator::new();
        let sealed = emulator.seal().seal(b"journal").unwrap();
        emulator.stop();
        let error = emulator.seal().unseal(&sealed).unwrap_err();
        assert!(text(&error).contains("ERROR"), "the library complains: {}", text(&error));
        assert!(!text(&error).contains('\n'), "{}", text(&error));
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "trouble::what_the_library_prints_is_a_cause_and_not_on_the_console"])
        .env(AGAIN, "1")
        .output()
        .unwrap();
    let console = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && !console.contains("ERROR"), "{console}");
}
