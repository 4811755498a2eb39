//! Who listens between the processor and the TPM does not learn the key.

use std::io::Write as _;
use std::process::{Command, Stdio};

use polis_storage::journal::Seal as _;
use polis_tpm::{Tpm, TpmSeal};

use crate::emulator::{Emulator, helper, is_possible, tool};
use crate::proxy::Proxy;

/// Seals with other people's tools, which encrypt nothing on the way unless they are told to, and unseals again.
fn with_nothing_encrypted(tcti: &str, secret: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [primary, public, private, object] = ["primary", "public", "private", "object"].map(path);
    let _ = tool(tcti, ["createprimary", "-C", "o", "-g", "sha256", "-G", "ecc", "-c", &primary]);
    let mut create = Command::new("tpm2")
        .args(["create", "-C", &primary, "-i", "-", "-u", &public, "-r", &private])
        .env("TPM2TOOLS_TCTI", tcti)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    create.stdin.take().unwrap().write_all(secret).unwrap();
    assert!(create.wait().unwrap().success());
    let _ = tool(tcti, ["flushcontext", "-t"]);
    let _ = tool(tcti, ["load", "-C", &primary, "-u", &public, "-r", &private, "-c", &object]);
    let _ = tool(tcti, ["flushcontext", "-t"]);
    let _ = tool(tcti, ["unseal", "-c", &object]);
    let _ = tool(tcti, ["flushcontext", "-t"]);
}

#[test]
fn the_key_does_not_cross_the_bus_in_the_clear() {
    if !is_possible() {
        return;
    }
    let emulator = Emulator::new();
    let proxy = Proxy::before(&emulator);
    let tpm = Tpm::new(proxy.tcti(), helper());
    let (sealed, key) = tpm.seal_new_key().unwrap();
    assert!(tpm.unseal_key(&sealed).unwrap() == key);
    let seal = TpmSeal::new(tpm);
    let journal = seal.seal(b"what is in the journal is encrypted before").unwrap();
    seal.check(&journal).unwrap();

    let [there, back] = proxy.amount();
    assert!(there > 2000 && back > 2000, "it was listened to: {there} and {back} bytes");
    // What is sealed is public, and crosses the bus as it is: so the search finds what is there.
    assert!(proxy.has_heard(&sealed.public) && proxy.has_heard(&sealed.private));
    // Not even half of it.
    for part in key.expose().chunks(16) {
        assert!(!proxy.has_heard(part));
    }

    // The same key, where nothing is encrypted on the way.
    let bare = Proxy::before(&emulator);
    with_nothing_encrypted(&bare.tcti(), key.expose());
    assert!(bare.has_heard(key.expose()), "the search finds a key that crosses in the clear");
}
