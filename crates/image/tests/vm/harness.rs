//! The machines that other suites are built on are what they say: disks that lose what was not flushed and nothing else, a TPM, a
//! network, values from outside.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

use polis_disks::MIB;
use polis_testkit::scratch::Scratch;
use polis_testkit::vm::{self, BOOT, Boot, Disk, Need, Served, Tpm, Vm, VmNetwork};

use crate::made::{LOAD, NEEDS, plan};

/// Kernel and initramfs of a machine that runs `line`, started without firmware.
fn direct(scratch: &Scratch, line: &str) -> Boot<'static> {
    let plan = plan(line, None);
    let initramfs: PathBuf = scratch.path().join("initramfs");
    fs::write(&initramfs, plan.initramfs().unwrap()).unwrap();
    Boot::Kernel { kernel: plan.kernel, initramfs, command_line: plan.command_line }
}

#[test]
fn a_power_cut_loses_what_was_not_flushed_and_nothing_else() {
    if !vm::available(NEEDS) || !vm::available(&[Need::LossyDisk]) {
        return;
    }
    let scratch = Scratch::new();
    // A flush of the buffers of a block device writes them to the disk, and does not flush the disk.
    let line = format!(
        "{LOAD}; yes FLUSHED | dd of=/dev/vda bs=4096 count=1 seek=1 conv=fsync,notrunc 2>/dev/null; \
         yes WRITTEN | dd of=/dev/vda bs=4096 count=1 seek=2 conv=notrunc 2>/dev/null; blockdev --flushbufs /dev/vda; \
         echo ALL-SAID; sleep 1000"
    );
    let boot = direct(&scratch, &line);
    let turn = vm::turn();
    for (served, stays) in [(Served::LosingWhatIsNotFlushed, false), (Served::Plainly, true)] {
        let disk = Disk::blank(64 * MIB);
        let machine = Vm::builder("power cut").boot(boot.clone()).disk(&disk, served).start(&turn);
        machine.serial().wait_for("ALL-SAID", BOOT);
        machine.power_cut();
        let file = File::open(disk.path()).unwrap();
        let at = |block: u64| {
            let mut bytes = [0; 7];
            file.read_exact_at(&mut bytes, block * 4096).unwrap();
            bytes
        };
        assert_eq!(&at(1), b"FLUSHED", "{served:?}");
        assert_eq!(&at(2) == b"WRITTEN", stays, "{served:?}");
    }
}

#[test]
fn a_machine_has_the_tpm_the_network_and_the_values_that_it_was_given() {
    if !vm::available(NEEDS) || !vm::available(&[Need::Tpm, Need::Network]) {
        return;
    }
    let scratch = Scratch::new();
    let line = format!(
        "{LOAD}; echo TPM $(ls /dev/tpmrm0); echo VALUE $(cat /sys/firmware/qemu_fw_cfg/by_name/dev.test/value/raw); \
         ip link set eth0 up; echo DHCP $(udhcpc -i eth0 -n -q -f -s /bin/true 2>&1); \
         ip address add 10.78.0.11/24 dev eth0; ping -c 3 -w 30 10.78.0.1 && echo REACHES; echo ALL-SAID; read line; echo GOT $line; poweroff -f"
    );
    let value = scratch.path().join("value");
    fs::write(&value, "from outside").unwrap();
    let turn = vm::turn();
    let mut network = VmNetwork::new(2);
    network.start_dhcp(60);
    let tpm = Tpm::new();
    let machine = Vm::builder("devices")
        .boot(direct(&scratch, &line))
        .tpm(&tpm)
        .network(&network, 1)
        .value("dev.test/value", &value)
        .start(&turn);
    machine.serial().wait_for("ALL-SAID", BOOT);
    let text = machine.serial().text();
    for expected in ["TPM /dev/tpmrm0", "VALUE from outside", "10.78.0.11", "REACHES"] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    assert!(network.dhcp_log().contains("DHCPACK(switch0) 10.78.0.11"), "{}", network.dhcp_log());
    machine.serial().type_in("typed\n");
    machine.serial().wait_for("GOT typed", Duration::from_secs(60));
    assert!(machine.wait_for_end(Duration::from_secs(60)).success());
    assert!(fs::read_dir(tpm.state()).unwrap().next().is_some(), "the chip keeps its state");
}
