//! Secure Boot with the owner's own keys, and what a node says when its keys were sealed in another state or by another TPM.

use std::path::Path;

use polis_testkit::scratch::Scratch;
use polis_testkit::seed::is_soak;
use polis_testkit::vm::{Disk, Firmware, Need, SecureBoot, SecureBootKeys, Tpm, turn};

use crate::site::{END, Image, Machine, START, Site, image, running, text};
use crate::witnesses::output;

/// What the firmware says of something that it does not start.
const REFUSED: &str = "Access Denied";

/// What is on an EFI system partition and is started by somebody.
const STARTED: [&str; 1] = ["EFI/BOOT/BOOTX64.EFI"];

/// Signs boot loader and system on a disk, as the owner of machines with keys of their own does.
fn sign(disk: &Disk, keys: &SecureBootKeys) {
    let scratch = Scratch::new();
    let esp = format!("{}@@1M", disk.path().display());
    let systems = output("mdir", &["-b", "-i", &esp, "::/EFI/polis/"]);
    let systems =
        systems.lines().filter_map(|line| line.trim().strip_prefix("::/")).filter(|name| name.ends_with(".efi"));
    for name in STARTED.into_iter().chain(systems) {
        let (plain, signed) = (scratch.path().join("plain"), scratch.path().join("signed"));
        let place = format!("::/{name}");
        output("mcopy", &["-n", "-i", &esp, &place, text(&plain)]);
        let (key, certificate) = (keys.key(), keys.certificate());
        output("sbsign", &["--key", text(&key), "--cert", text(&certificate), "--output", text(&signed), text(&plain)]);
        let said = output("sbverify", &["--cert", text(&certificate), text(&signed)]);
        assert!(said.contains("Signature verification OK"), "{said}");
        output("mcopy", &["-o", "-i", &esp, text(&signed), &place]);
        std::fs::remove_file(&plain).expect("it was made");
    }
}

/// A machine with Secure Boot and a signed image.
fn secure(image: &Image, keys: &SecureBootKeys) -> Machine {
    let machine = Machine { firmware: Firmware::new(SecureBoot::On(keys)), ..Machine::new(image) };
    sign(&machine.disk, keys);
    machine
}

/// A machine with what `machine` has on its disk, and a TPM and a firmware of its own.
fn with_disk_of(machine: &Machine, firmware: Firmware) -> Machine {
    Machine {
        port: 0,
        firmware,
        tpm: Some(Tpm::new()),
        disk: machine.disk.copy(),
        served: machine.served,
        memory: machine.memory,
    }
}

/// Starts a machine that cannot open its seal, and waits until it says so.
#[track_caller]
fn waits_with(machine: &Machine, site: &Site, turn: &polis_testkit::vm::Turn, condition: &str, parameters: &Path) {
    let vm = machine.start(site, turn, Some(parameters));
    vm.serial().wait_for(condition, START);
    // Parameters that say "make a cluster" are not a reason to begin anew.
    assert!(!vm.serial().text().contains(crate::site::DURABLE), "{}", vm.serial().tail());
    vm.power_off(END);
}

#[test]
fn keys_stay_sealed_in_another_boot_state_and_by_another_tpm_and_nothing_is_lost() {
    let Some(image) = image(&[Need::Tpm, Need::SecureBoot]) else { return };
    let turn = turn();
    let keys = SecureBootKeys::new();
    let (site, mut machine) = (Site::new(1), secure(&image, &keys));
    let parameters = site.bootstrap("authenticated", "required");
    let vm = machine.start(&site, &turn, Some(&parameters));
    let id = running(&vm);
    site.take_ownership();
    vm.power_off(END);

    // Without Secure Boot, PCR 7 has another value.
    let right = std::mem::replace(&mut machine.firmware, Firmware::new(SecureBoot::Off));
    waits_with(&machine, &site, &turn, "seal-other-boot-state", &parameters);
    // A thief has the disk, and a machine that starts what the owner signed.
    let other = with_disk_of(&machine, Firmware::new(SecureBoot::On(&keys)));
    waits_with(&other, &site, &turn, "seal-other-tpm", &parameters);

    machine.firmware = right;
    let vm = machine.start(&site, &turn, None);
    assert_eq!(running(&vm), id, "{}", vm.serial().tail());
    site.wait("node list -o json", "the node is there", |nodes| nodes.len() == 1 && nodes[0]["node_id"] == id.as_str());
}

#[test]
fn what_the_owner_did_not_sign_does_not_start() {
    // The short form has it in small, with an image of a shell.
    if !is_soak() {
        eprintln!("left out of the short form: POLIS_SOAK=1 runs it");
        return;
    }
    let Some(image) = image(&[Need::Tpm, Need::SecureBoot]) else { return };
    let turn = turn();
    let (keys, site) = (SecureBootKeys::new(), Site::new(1));
    let machine = Machine { firmware: Firmware::new(SecureBoot::On(&keys)), ..Machine::new(&image) };
    let parameters = site.bootstrap("authenticated", "required");
    let vm = machine.start(&site, &turn, Some(&parameters));
    vm.serial().wait_for(REFUSED, START);
    assert!(!vm.serial().text().contains(crate::site::UP), "{}", vm.serial().tail());
}
