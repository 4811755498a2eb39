//! Keys never touch a disk in the clear: the raw disk of a machine is searched for all that its journal seals.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use polis_testkit::scratch::Scratch;
use polis_testkit::secrets::Secrets;
use polis_testkit::vm::{Disk, find};
use polis_testkit::workbench::Workbench;

use crate::site::{Machine, Site, text};
use crate::witnesses::output;

/// How much of a disk is searched at a time, and how much of it again with what comes after: more than any form of a secret takes.
const CHUNK: usize = 1 << 20;
const OVERLAP: usize = 4096;

/// What the journal of a founder has, at least.
const SEALED: [&str; 4] = ["join key", "share key", "node unlock key", "cluster unlock key"];

/// What a firmware without Secure Boot measures into PCR 7 (SHA-256): the variables SecureBoot, PK, KEK, db and dbx, which are off or
/// empty, each with its name and GUID (UEFI_VARIABLE_DATA), and the separator after them.
const WITHOUT_SECURE_BOOT: [&str; 6] = [
    "115aa827dbccfb44d216ad9ecfda56bdea620b860a94bed5b7a27bba1c4d02d8",
    "dea7b80ab53a3daaa24d5cc46c64e1fa9ffd03739f90aadbd8c0867c4a5b4890",
    "e670e121fcebd473b8bc41bb801301fc1d9afa33904f06f7149b74f12c47a68f",
    "baf89a3ccace52750c5f0128351e0422a41597a1adfd50822aa363b9d124ea7c",
    "9f75b6823bff6af1024a4e2036719cdd548d3cbc2bf1de8e7ef4d0ed01f94bf9",
    "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119",
];

/// Searches the disk of a founder that is off and has a TPM, was started without Secure Boot, and never before.
pub(crate) fn search(machine: &Machine, site: &Site) {
    let tpm = machine.tpm.as_ref().expect("it has a TPM");
    if find("tpm2").is_none() || find("polis-tpm").is_none() {
        assert!(
            std::env::var_os("CI").is_none(),
            "nothing is skipped where CI is set: tpm2 and polis-tpm must be in PATH"
        );
        eprintln!("not searched for keys: tpm2 and polis-tpm must be in PATH");
        return;
    }
    let bench = Workbench::new(tpm, &WITHOUT_SECURE_BOOT.map(digest));
    let mut secrets = Secrets::default();
    secrets.add_pem("owner key", &site.configuration().join("owner-key.pem"));
    let scratch = Scratch::new();
    let esp = scratch.path().join("esp");
    fs::create_dir(&esp).expect("a directory can be made");
    output("mcopy", &["-s", "-n", "-i", &format!("{}@@1M", machine.disk.path().display()), "::/polis", text(&esp)]);
    secrets.add_journal(scratch.path(), bench.seals(None));
    let names = secrets.names();
    assert!(SEALED.iter().all(|name| names.contains(name)), "too few secrets to search for: {names:?}");

    let (searched, found) = found_on(machine.disk.path(), &secrets);
    println!("{searched} bytes of the disk searched for {names:?}");
    assert_eq!(found, Vec::<String>::new());
    // The search does see them: here is a disk with a key on it, across the place where two pieces meet.
    let planted = Disk::blank(4 << 20);
    let file = File::options().write(true).open(planted.path()).expect("it can be opened");
    let key = fs::read(site.configuration().join("owner-key.pem")).expect("it is there");
    file.write_all_at(&key, 2 * CHUNK as u64 - 60).expect("it can be written");
    assert!(!found_on(planted.path(), &secrets).1.is_empty());
}

/// How many bytes of a disk are not zero blocks, and which secrets are there.
fn found_on(disk: &Path, secrets: &Secrets) -> (u64, Vec<String>) {
    let file = File::open(disk).expect("the disk is there");
    let size = file.metadata().expect("it has a size").len();
    let mut chunk = vec![0; CHUNK + OVERLAP];
    let (mut searched, mut all) = (0, Vec::new());
    for offset in (0..size).step_by(CHUNK) {
        let read = file.read_at(&mut chunk, offset).expect("the disk can be read");
        let piece = &chunk[..read];
        if piece.iter().all(|byte| *byte == 0) {
            continue;
        }
        searched += CHUNK as u64;
        all.extend(secrets.found_in(piece).into_iter().map(|what| format!("{what} is within 1 MiB of byte {offset}")));
    }
    (searched, all)
}

fn digest(hex: &str) -> [u8; 32] {
    std::array::from_fn(|index| u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).expect("it is in hex"))
}
