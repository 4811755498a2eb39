//! An image starts by firmware, with and without Secure Boot, with all its modules.

use std::time::Duration;

use polis_disks::MIB;
use polis_testkit::vm::{self, BOOT, Boot, Disk, Firmware, Need, SecureBoot, SecureBootKeys, Served, Vm};

use crate::made::{LOAD, NEEDS, made};

/// Size of a machine's disk in bytes.
const DISK: u64 = 2048 * MIB;

/// How long the firmware may take until it gives up on a disk.
const REFUSAL: Duration = BOOT;

#[test]
fn it_starts_by_firmware_and_loads_its_modules_in_their_order() {
    if !vm::available(NEEDS) {
        return;
    }
    let line = format!(
        "{LOAD}; mount -t efivarfs efivarfs /sys/firmware/efi/efivars; \
         for name in LoaderEntrySelected LoaderDevicePartUUID; do \
         echo $name $(tr -d '\\000' </sys/firmware/efi/efivars/$name-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f | tail -c +2); done; \
         mkdir /esp; mount -t vfat -o codepage=437,iocharset=ascii,shortname=mixed /dev/vda1 /esp; \
         ls /esp/loader/entries; cryptsetup --version; echo ALL-SAID; sync; umount /esp; poweroff -f"
    );
    let (turn, made) = (vm::turn(), made(&line, None));
    let (firmware, disk) = (Firmware::new(SecureBoot::Off), Disk::with_image(&made.disk, DISK));
    let machine = Vm::builder("firmware").boot(Boot::Firmware(&firmware)).disk(&disk, Served::Plainly).start(&turn);
    let took = machine.serial().wait_for("MODULES-DONE", BOOT);
    machine.serial().wait_for("ALL-SAID", Duration::from_secs(60));
    println!("modules loaded {took:?} after the power button");
    let text = machine.serial().text();
    // A driver whose hardware is not there is no failure.
    let failures: Vec<_> =
        text.lines().filter(|line| line.starts_with("NOT-LOADED") && !line.contains("No such device")).collect();
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(text.contains("LoaderEntrySelected polis-00000001-a.conf"), "{text}");
    assert!(text.contains("LoaderDevicePartUUID "), "{text}");
    assert!(text.contains("cryptsetup 2."), "{text}");
    assert!(machine.wait_for_end(Duration::from_secs(60)).success());
}

#[test]
fn with_secure_boot_what_the_owner_signed_starts_and_nothing_else() {
    if !vm::available(NEEDS) || !vm::available(&[Need::SecureBoot]) {
        return;
    }
    let (keys, foreign) = (SecureBootKeys::new(), SecureBootKeys::new());
    let turn = vm::turn();
    let firmware = Firmware::new(SecureBoot::On(&keys));
    // The fifth byte of the variable is its value, behind its attributes.
    let line = "insmod /lib/modules/$(uname -r)/kernel/fs/efivarfs/efivarfs.ko; \
                mount -t efivarfs efivarfs /sys/firmware/efi/efivars; \
                echo SECURE $(od -An -tu1 /sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c); poweroff -f";
    for (name, signed_with, starts) in
        [("signed", Some(&keys), true), ("unsigned", None, false), ("foreign", Some(&foreign), false)]
    {
        let made = made(line, signed_with);
        let disk = Disk::with_image(&made.disk, DISK);
        let machine = Vm::builder(name).boot(Boot::Firmware(&firmware)).disk(&disk, Served::Plainly).start(&turn);
        let (found, took) = machine.serial().wait_for_any(&["SECURE 6 0 0 0 1", "Access Denied"], REFUSAL);
        println!("{name}: {took:?}");
        assert_eq!(found == 0, starts, "{name}: {}", machine.serial().tail());
        if starts {
            let said =
                crate::made::output("sbverify", &["--cert", &keys.certificate().display().to_string()], &made.image);
            assert!(said.contains("Signature verification OK"), "{said}");
        }
    }
}
