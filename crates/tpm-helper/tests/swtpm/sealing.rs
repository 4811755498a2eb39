//! What is sealed opens again, and only then.

use polis_storage::journal::{Seal as _, SealTrouble};
use polis_tpm::TpmFacts;

use crate::emulator::{Emulator, is_possible};

#[test]
fn what_was_sealed_opens_after_a_restart() {
    if !is_possible() {
        return;
    }
    let mut emulator = Emulator::new();
    emulator.measure('a');
    let seal = emulator.seal();
    seal.available().unwrap();
    let journals = [&b"first"[..], b"", &[7; 100_000]];
    let sealed = journals.map(|journal| seal.seal(journal).unwrap());
    assert_eq!(seal.warning(), None);
    for (journal, sealed) in journals.iter().zip(&sealed) {
        assert_eq!(&**seal.unseal(sealed).unwrap(), *journal);
        seal.check(sealed).unwrap();
        assert!(journal.is_empty() || !sealed.windows(journal.len()).any(|window| window == *journal));
    }
    // The machine is started again, and measures the same.
    emulator.stop();
    emulator.start();
    emulator.measure('a');
    let again = emulator.seal();
    for (journal, sealed) in journals.iter().zip(&sealed) {
        assert_eq!(&**again.unseal(sealed).unwrap(), *journal);
    }
}

#[test]
fn a_tpm_says_who_it_is_and_whether_the_boot_is_measured() {
    if !is_possible() {
        return;
    }
    let emulator = Emulator::new();
    let facts = emulator.tpm().probe().unwrap();
    assert!(!facts.boot_is_measured());
    let TpmFacts { manufacturer, firmware_version, .. } = facts;
    assert_eq!(manufacturer, "IBM");
    assert_ne!(firmware_version, 0);
    let seal = emulator.seal();
    let _ = seal.seal(b"journal").unwrap();
    assert!(seal.warning().unwrap().contains("PCR 7"));
    emulator.measure('1');
    assert!(emulator.tpm().probe().unwrap().boot_is_measured());
    seal.renew().unwrap();
    assert_eq!(seal.warning(), None);
}

#[test]
fn many_generations_need_no_tpm() {
    if !is_possible() {
        return;
    }
    let mut emulator = Emulator::new();
    let seal = emulator.seal();
    let mut last = seal.seal(b"generation 0").unwrap();
    emulator.stop();
    for generation in 1..1000 {
        let journal = format!("generation {generation}").into_bytes();
        let sealed = seal.seal(&journal).unwrap();
        assert_eq!(&**seal.unseal(&sealed).unwrap(), &journal);
        // Each begins with the same sealed key; nonce and ciphertext are others.
        assert_ne!(sealed, last);
        last = sealed;
    }
    // A check is no memory.
    assert!(seal.check(&last).is_err());
    emulator.start();
    seal.check(&last).unwrap();
    assert_eq!(&**emulator.seal().unseal(&last).unwrap(), b"generation 999");
}

#[test]
fn a_renewed_seal_binds_to_the_present_state_and_still_opens_what_is_older() {
    if !is_possible() {
        return;
    }
    let mut emulator = Emulator::new();
    emulator.measure('a');
    let seal = emulator.seal();
    let older = seal.seal(b"older").unwrap();
    // What a running machine measures makes the next boot look different.
    emulator.measure('b');
    assert_eq!(seal.check(&older).unwrap_err().trouble, SealTrouble::OtherBootState);
    seal.renew().unwrap();
    let newer = seal.seal(b"newer").unwrap();
    seal.check(&newer).unwrap();
    assert_eq!(&**seal.unseal(&older).unwrap(), b"older");
    assert_eq!(&**seal.unseal(&newer).unwrap(), b"newer");

    emulator.stop();
    emulator.start();
    emulator.measure('a');
    emulator.measure('b');
    let again = emulator.seal();
    assert_eq!(&**again.unseal(&newer).unwrap(), b"newer");
    assert_eq!(again.unseal(&older).unwrap_err().trouble, SealTrouble::OtherBootState);
    // The older generation was looked at afterwards, and is not what the next one is bound to.
    again.check(&again.seal(b"next").unwrap()).unwrap();
}

#[test]
fn looking_at_an_older_generation_does_not_bring_its_key_back() {
    if !is_possible() {
        return;
    }
    let emulator = Emulator::new();
    let writer = emulator.seal();
    let older = writer.seal(b"older").unwrap();
    writer.renew().unwrap();
    let newer = writer.seal(b"newer").unwrap();
    let reader = emulator.seal();
    let _ = (reader.unseal(&newer).unwrap(), reader.unseal(&older).unwrap());
    // Up to the nonce, all is the sealed key.
    let next = reader.seal(b"next!").unwrap();
    let header = next.len() - 24 - 5 - 16;
    assert_eq!(next[..header], newer[..header]);
    assert_ne!(next[..header], older[..header]);
}

#[test]
fn two_that_seal_at_once_seal_with_one_key() {
    if !is_possible() {
        return;
    }
    let emulator = Emulator::new();
    let seal = emulator.seal();
    let sealed = std::thread::scope(|scope| {
        let threads = [(), (), ()].map(|()| scope.spawn(|| seal.seal(b"journal").unwrap()));
        threads.map(|thread| thread.join().unwrap())
    });
    let header = sealed[0].len() - 24 - 7 - 16;
    assert!(sealed.windows(2).all(|pair| pair[0][..header] == pair[1][..header]));
}

#[test]
fn a_renewal_that_the_tpm_refuses_changes_nothing() {
    if !is_possible() {
        return;
    }
    let mut emulator = Emulator::new();
    let seal = emulator.seal();
    let before = seal.seal(b"before").unwrap();
    emulator.stop();
    assert!(seal.renew().is_err());
    let after = seal.seal(b"after").unwrap();
    emulator.start();
    for sealed in [before, after] {
        seal.check(&sealed).unwrap();
    }
}

#[test]
fn random_bytes_are_mixed_and_never_the_same() {
    if !is_possible() {
        return;
    }
    let emulator = Emulator::new();
    let tpm = emulator.tpm();
    assert!(tpm.random().unwrap() != tpm.random().unwrap());
    let ((_, first), (_, second)) = (tpm.seal_new_key().unwrap(), tpm.seal_new_key().unwrap());
    assert!(first != second);
}

#[test]
fn nothing_is_left_in_the_tpm() {
    if !is_possible() {
        return;
    }
    let emulator = Emulator::new();
    let seal = emulator.seal();
    // A TPM has room for three objects and three sessions, and nobody in these tests who would make room.
    for _ in 0..5 {
        let sealed = seal.seal(b"journal").unwrap();
        seal.check(&sealed).unwrap();
        emulator.measure('c');
        assert_eq!(seal.check(&sealed).unwrap_err().trouble, SealTrouble::OtherBootState);
        let _ = (emulator.tpm().probe().unwrap(), emulator.tpm().random().unwrap());
        seal.renew().unwrap();
    }
    for what in ["handles-transient", "handles-loaded-session", "handles-saved-session"] {
        let output = emulator.tool(["getcap", what]);
        assert!(output.stdout.is_empty(), "{what}: {}", String::from_utf8_lossy(&output.stdout));
    }
}
