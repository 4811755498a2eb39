//! An image that `polis image install` has put on a disk, on a machine with a fixed network.

use std::path::{Path, PathBuf};

use polis_testkit::seed::is_soak;
use polis_testkit::vm::{Disk, set_bond_with_vlan, turn};

use crate::site::{DISK, Machine, START, Site, address, image, running, text};
use crate::witnesses::output;

/// A block device of a file, as an operator who installs has one.
struct BlockDevice(PathBuf);

impl BlockDevice {
    fn of(file: &Path) -> Self {
        Self(PathBuf::from(output("losetup", &["--find", "--show", text(file)]).trim()))
    }
}

impl Drop for BlockDevice {
    fn drop(&mut self) {
        output("losetup", &["--detach", text(&self.0)]);
    }
}

#[test]
fn an_installed_machine_starts_with_a_bond_and_a_vlan() {
    if !is_soak() {
        eprintln!("left out of the short form: POLIS_SOAK=1 runs it");
        return;
    }
    let Some(image) = image(&[]) else { return };
    let turn = turn();
    let site = Site::new(1);
    let disk = Disk::blank(DISK);
    let device = BlockDevice::of(disk.path());
    let arguments = ["--image", text(&image.disk), "--disk", text(&device.0)];
    site.polis("image install", &arguments).succeeds();
    // What is there now is no blank disk.
    site.polis("image install", &arguments).fails(3, &["--yes"]);
    drop(device);

    let machine = Machine { disk, ..Machine::without_tpm(&image) };
    let parameters = site.bootstrap("authenticated", "disabled");
    let untagged = format!("{}/24", address(0));
    set_bond_with_vlan(&parameters, machine.port, &untagged, 7, "10.79.0.10/24");
    let vm = machine.start(&site, &turn, Some(&parameters));
    let id = running(&vm);
    for done in [
        "rename eth0 to uplink",
        "make pair, a bond of uplink",
        "make uplink a member of pair",
        "give pair the address 10.78.0.10/24",
        "make tagged, VLAN 7 on pair",
        "give tagged the address 10.79.0.10/24",
    ] {
        vm.serial().wait_for(done, START);
    }
    // Through the bond; the kernel of the host may have no VLANs to answer with.
    site.take_ownership();
    site.wait("node list -o json", "the node is there", |nodes| nodes.len() == 1 && nodes[0]["node_id"] == id.as_str());
}
